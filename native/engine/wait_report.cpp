#include "engine/wait_report.h"

#include <algorithm>
#include <cstring>

#include "engine/texts.h"

namespace slipstream {

namespace {

constexpr size_t kMostNamed = 8;       // ranks
constexpr size_t kMostDissent = 2000;  // bytes of one text, about

std::string state_of(const Ledger::Entry& entry, Time now) {
  const Work& work = *entry.work;
  const std::string age = seconds_text(now - work.submitted);
  if (!work.done()) {
    if (!entry.numbered) return "waits for a sender, called " + age + " ago";
    return (work.begun.load() ? "running, called " : "waits for its turn, called ") + age + " ago";
  }
  const std::string taken = seconds_text(work.finished - work.submitted);
  return (work.error() ? "failed after " : "done after ") + taken + ", " + seconds_text(now - work.finished) + " ago";
}

// What a rank says that does not take part: of a work that has a title, its number in its group tells nobody anything.
std::string absence_from(const Work& work, const std::string& said) {
  const size_t now_it = said.find(kNowIt);
  return work.title() == nullptr || now_it == std::string::npos
             ? said
             : "is not in it: it " + said.substr(now_it + std::strlen(kNowIt));
}

}  // namespace

std::string WaitReport::who(const std::vector<int>& ranks) const {
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i) text += (i > 0 ? ", " : "") + fabric_.who(ranks[i]);
  if (ranks.size() > kMostNamed) text += " and " + std::to_string(ranks.size() - kMostNamed) + " more";
  return text;
}

std::string WaitReport::members(const Group& group) {
  const auto& ranks = group.ranks;
  std::string text = "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i)
    text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return ranks.size() > kMostNamed ? text + ", ... (" + std::to_string(ranks.size()) + " of them)" : text;
}

WaitReport::Wait WaitReport::wait(const Execution& execution, Time now) const {
  const Work& work = *execution.work();
  return {title_of(work, work.request.seq), seconds_text(now - execution.stall.progress_at),
          " for " + who(execution.waiting_on())};
}

WaitReport::Wait WaitReport::wait(const Receives::Receive& receive, Time now) const {
  const Request& request = receive.work->request;
  std::vector<int> sources;
  for (const Candidate& candidate : receive.candidates())
    sources.push_back(request.group->ranks[static_cast<size_t>(candidate.source())]);
  return {request.signature.describe(), seconds_text(now - receive.stall.progress_at),
          " for any of " + who(sources) + " to send"};
}

std::string WaitReport::wait_of(const Work& work, Time now) const {
  if (work.done()) return {};
  for (const Execution* execution : executions_.in_order())
    if (execution->work().get() == &work) {
      const Stall& stall = execution->stall;  // after a short wait nobody has been asked
      const std::string those = execution->waiting_on().size() == 1 ? "that rank does" : "those ranks do";
      return wait_of(*execution, now) +
             (stall.answers.empty() ? ": it is not known yet what " + those : dissent(work, stall, now));
    }
  for (const auto& receive : receives_.all())
    if (receive.work.get() == &work) return wait_of(receive, now);
  const Request& request = work.request;
  const bool has_number = request.candidates.empty() && !request.only_waits;
  return (has_number ? title_of(work, request.seq) : request.signature.describe()) + " of the group of " +
         members(*request.group) + ", called " + seconds_text(now - work.submitted) + " ago, has not begun" +
         (executions_.empty() ? std::string() : "; first this rank " + occupation(now));
}

std::string WaitReport::awaited_by(const Work& work) const {
  for (const Execution* execution : executions_.in_order())
    if (execution->work().get() == &work && !execution->waiting_on().empty()) return who(execution->waiting_on());
  return "the other workers";
}

std::string WaitReport::dissent(const Work& work, const Stall& stall, Time now) const {
  std::string text;
  size_t left = 0;
  for (const auto& [rank, said] : stall.answers) {
    if (said.takes_part) continue;
    if (text.size() > kMostDissent)
      ++left;
    else
      text += ". " + fabric_.who(rank) + " " + absence_from(work, said.text) + " (it reported this " +
              seconds_text(now - said.said_at) + " ago)";
  }
  if (text.empty() && !stall.answers.empty()) return ". Those that have answered take part.";
  if (text.empty())
    return ". No answer has come yet to the question what they do there: they may be busy, stopped or cut off.";
  return text + (left > 0 ? ". " + std::to_string(left) + " more ranks do not take part." : ".");
}

std::string WaitReport::occupation(Time now) const {
  const Execution* oldest = nullptr;  // they are in the order in which they began, not in that of the calls
  for (const Execution* execution : executions_.in_order())
    if (!execution->finished() && (oldest == nullptr || execution->work()->submitted < oldest->work()->submitted))
      oldest = execution;
  if (oldest != nullptr)
    return "waits in " + title_of(*oldest->work(), oldest->work()->request.seq) + " of the group of " +
           members(*oldest->work()->request.group) + " for " + who(oldest->waiting_on()) + " (for " +
           seconds_text(now - oldest->stall.progress_at) + ")";
  if (!receives_.empty()) {
    const Wait first = wait(receives_.all().front(), now);
    return "waits in " + first.operation + first.sources + " (for " + first.time + ")";
  }
  if (const std::string other = elsewhere_(now); !other.empty()) return other;
  return "is in no operation: it computes, waits for something else, or has left its loop";
}

std::string WaitReport::oldest_of(const Ledger& ledger, Time now) {
  const auto entry = ledger.oldest();
  if (!entry) return {};
  const Work& work = *entry->work;
  return "waits in " + title_of(work, entry->seq) + " of the group of " + members(*work.request.group) + ", called " +
         seconds_text(now - work.submitted) + " ago";
}

Error WaitReport::still_waits(const Error& error, const Work& work) const { return gone_error(error, name_, work); }

Error WaitReport::still_waits(const Error& error) const {
  const Execution* found = nullptr;
  for (const Execution* execution : executions_.in_order()) {
    if (execution->finished()) continue;
    const std::vector<int> ranks = execution->waiting_on();
    const bool waits = std::find(ranks.begin(), ranks.end(), error.rank) != ranks.end();
    if (found == nullptr || waits) found = execution;
    if (waits) break;
  }
  return found == nullptr ? error : still_waits(error, *found->work());
}

std::string WaitReport::named(const Error& failure) const { return fabric_.who(rank_) + " " + full(failure); }

std::string WaitReport::full(const Error& failure) const {
  const Time t = now();
  std::string text;
  const auto add = [&](const Work& work, const Stall& stall, const std::string& wait) {
    text += "\n  waits: " + wait + " (group of " + members(*work.request.group) + ")";
    for (const auto& [rank, said] : stall.answers)
      text += "\n    " + fabric_.who(rank) + " " + absence_from(work, said.text) + " (it reported this " +
              seconds_text(t - said.said_at) + " ago)";
  };
  size_t shown = 0;
  for (const Execution* execution : executions_.in_order())
    if (!failure && !execution->finished() && ++shown <= Ledger::kRemembered)
      add(*execution->work(), execution->stall, wait_of(*execution, t));
  for (const auto& receive : receives_.all())
    if (++shown <= Ledger::kRemembered) add(*receive.work, receive.stall, wait_of(receive, t));
  const auto latest = ledger_.latest();
  text += latest.empty()       ? "\n  no operation was called before"
          : latest.size() == 1 ? "\n  last operation:"
                               : "\n  last " + std::to_string(latest.size()) + " operations, newest first:";
  for (const Ledger::Entry& entry : latest)
    text += "\n    " + (entry.numbered ? title_of(*entry.work, entry.seq) : entry.work->request.signature.describe()) +
            " of " + members(*entry.work->request.group) + ": " + state_of(entry, t);
  const std::string other = failure ? std::string() : elsewhere_(t);
  std::string head = shown == 0 ? "waits for no operation"
                                : "waits for " + std::to_string(shown) + (shown == 1 ? " operation" : " operations");
  if (!other.empty()) head += shown > 0 ? "; it also " + other : " of this session; it " + other;
  return head + (failure ? "; the session has failed: " + failure.text : "") + text;
}

}  // namespace slipstream
