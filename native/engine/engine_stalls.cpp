// The engine's watch over works that do not move: it asks the ranks that they wait for what these do instead, passes
// on what it hears, and tells people.
//
// A rank asks by describing its work (`describe`); who is in another work of that number says so (mismatch), everybody
// else answers with a `status`. Those who wait in the work too pass on what they hear of ranks that do not, so that
// every rank knows these at its time-out, whomever it waits for itself.
#include <algorithm>

#include "base/log.h"
#include "engine/engine.h"
#include "engine/texts.h"

namespace slipstream {

namespace {

constexpr double kAskAgainSeconds = 5;
constexpr int kAnswersPerSecond = 32;  // to one rank
constexpr double kPassOnSeconds = 1;   // news of one rank are passed on this often
constexpr size_t kMostDissent = 2000;  // about: of one text
constexpr size_t kMostAnswerText = 500;
constexpr uint8_t kTakesPart = 1;                      // flag of a status
constexpr uint8_t kAskOnly = 1;                        // flag of a description: do not compare
constexpr uint64_t kPointToPoint = uint64_t{1} << 63;  // set in the channels of sends and receives

}  // namespace

void Engine::watch(Execution& execution, Time now) {
  Stall& stall = execution.stall;
  if (execution.progress() != stall.progress_seen) {
    stall.progress_seen = execution.progress();
    stall.progress_at = now;
    stall.answers.clear();
  }
  const bool late = now >= stall.deadline;
  if (!late && now - stall.progress_at < seconds(kTickSeconds)) return;
  const Request& request = execution.work()->request;
  const std::vector<int> ranks = global_waiting_on(execution);
  for (const int rank : ranks)
    if (fabric_.gone(rank) && (late || !just_left(rank, now))) return fail(still_waits(fabric_.gone(rank), request));
  if (late) return expire(stall, ranks, describe_wait(execution, now));
  const bool ask = must_ask(stall, now);
  for (const int rank : ranks) {
    if (fabric_.gone(rank)) continue;
    if (const Error error = fabric_.watch(rank, now)) return fail(still_waits(error, request));
    if (ask && fabric_.up(rank) != nullptr) send_description(request.channel, request.seq, request.signature, rank);
  }
  if (ask) {
    stall.asked_at = now;
    execution.nudge();
  }
  warn(stall, now, [&] { return describe_wait(execution, now); });
}

// Works that have not begun, because of others of their channel.
void Engine::watch_waiting(Time now) {
  if (now < waiting_due_) return;
  waiting_due_ = Time::max();
  for (const auto& [id, channel] : channels_)
    for (const WorkPtr& work : channel.waiting) {
      if (!work->request.timed) continue;
      const Time due = work->due();
      if (now >= due) return expire_waiting(*work, now);
      waiting_due_ = std::min(waiting_due_, due);
    }
}

void Engine::expire_waiting(const Work& work, Time now) {
  std::string wait = numbered(work.request.signature, work.request.seq) + " has waited " +
                     seconds_text(now - work.submitted) + " for its turn";
  for (const Execution* execution : running_) {
    if (execution->work()->request.channel != work.request.channel) continue;
    wait += ", behind " + describe_wait(*execution, now);
    return expire(execution->stall, global_waiting_on(*execution), wait);
  }
  expire(Stall{}, {}, wait);
}

std::vector<int> Engine::global_waiting_on(const Execution& execution) const {
  std::vector<int> ranks = execution.waiting_on();
  for (int& rank : ranks) rank = execution.work()->request.group->ranks[static_cast<size_t>(rank)];
  return ranks;
}

// Now and then while nothing moves, and once in time before the deadline.
bool Engine::must_ask(const Stall& stall, Time now) const {
  const auto patience = seconds(options_.stall_seconds);
  const Time last_chance = stall.deadline - std::min(patience, stall.limit / 2);
  if (now >= last_chance && stall.asked_at < last_chance) return true;
  return now - stall.progress_at >= patience && now - stall.asked_at >= seconds(kAskAgainSeconds);
}

std::string Engine::describe_wait(const Execution& execution, Time now) const {
  const Request& request = execution.work()->request;
  return numbered(request.signature, request.seq) + " has waited " + seconds_text(now - execution.stall.progress_at) +
         " for " + who(global_waiting_on(execution));
}

void Engine::expire(const Stall& stall, const std::vector<int>& waiting_on, const std::string& wait) {
  int culprit = waiting_on.empty() ? -1 : waiting_on.front();
  for (const auto& [rank, said] : stall.answers)
    if (!said.takes_part) {
      culprit = rank;
      break;
    }
  fail(Error{Code::timeout,
             culprit,
             {},
             wait + dissent(stall, now()) + " Timed out on rank " + std::to_string(rank_) +
                 " (SLIPSTREAM_TIMEOUT sets the limit)"});
}

std::string Engine::who(const std::vector<int>& ranks) const {
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += (i > 0 ? ", " : "") + fabric_.who(ranks[i]);
  if (ranks.size() > kMost) text += " and " + std::to_string(ranks.size() - kMost) + " more";
  return text;
}

// "ranks 0, 1, 2"
std::string Engine::members(const Group& group) const {
  constexpr size_t kMost = 8;
  const auto& ranks = group.ranks;
  std::string text = "ranks ";
  for (size_t i = 0; i < std::min(ranks.size(), kMost); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return ranks.size() > kMost ? text + ", ... (" + std::to_string(ranks.size()) + " of them)" : text;
}

void Engine::warn(Stall& stall, Time now, const std::function<std::string()>& wait) const {
  if (now - stall.progress_at < seconds(options_.warn_seconds)) return;
  if (stall.warned_at > stall.progress_at && now - stall.warned_at < seconds(options_.warn_again_seconds)) return;
  stall.warned_at = now;
  log_warning(rank_, wait() + dissent(stall, now));
}

// What the ranks do that do not take part, as far as is known; to be put behind a wait.
std::string Engine::dissent(const Stall& stall, Time now) const {
  std::string text;
  size_t left = 0;
  for (const auto& [rank, said] : stall.answers) {
    if (said.takes_part) continue;
    if (text.size() > kMostDissent)
      ++left;
    else
      text += ". " + fabric_.who(rank) + " " + said.text + " (so it said " + seconds_text(now - said.at) + " ago)";
  }
  if (text.empty())
    return ", alive but not taking part: has a branch been taken on some ranks only, or are they still computing?";
  return text + (left > 0 ? ". " + std::to_string(left) + " more ranks do not take part." : ".");
}

// ---- asking

void Engine::send_description(uint64_t channel, uint32_t seq, const Signature& signature, int peer, bool compare) {
  const std::string text = signature.describe().substr(0, 1000);
  Frame frame;
  frame.type = FrameType::describe;
  frame.flags = compare ? 0 : kAskOnly;
  frame.channel = channel;
  frame.seq = seq;
  frame.signature = signature.hash();
  frame.length = static_cast<uint32_t>(text.size());
  fabric_.send(peer, frame, std::as_bytes(std::span(text.data(), text.size())));
}

void Engine::described(int peer, const Frame& frame, const std::string& theirs) {
  const bool compare = (frame.flags & kAskOnly) == 0;
  const auto it = executions_.find(Key{frame.channel, frame.seq});
  if (it != executions_.end()) {
    const Request& request = it->second->work()->request;
    if (compare && request.signature_hash != frame.signature)
      return mismatch(frame.seq, request.signature, peer, theirs);
  } else if (const auto channel = channels_.find(frame.channel); channel != channels_.end()) {
    for (const Past& past : channel->second.history)
      if (compare && past.seq == frame.seq && past.signature.hash() != frame.signature)
        return mismatch(past.seq, past.signature, peer, theirs);
  }
  answer(peer, frame);
}

void Engine::mismatch(uint32_t seq, const Signature& ours, int peer, const std::string& theirs) {
  fail(Error{Code::mismatch,
             peer,
             {},
             "operation #" + std::to_string(seq) + " differs between ranks: " + fabric_.who(peer) + " called " +
                 theirs + ", " + fabric_.who(rank_) + " called " + ours.describe() +
                 "; all ranks of a group must call the same operations, in the same order, with the same shape, "
                 "dtype and op"});
}

// ---- answering

void Engine::answer(int peer, const Frame& asked) {
  const Time t = now();
  if (!may_answer(peer, t)) return;
  const auto it = executions_.find(Key{asked.channel, asked.seq});
  if (it == executions_.end()) {
    if (const std::string text = absence(asked, t); !text.empty()) send_answer(peer, asked, rank_, false, text);
    return;
  }
  Stall& stall = it->second->stall;
  stall.askers.insert(peer);
  send_answer(peer, asked, rank_, true, "is in it, and waits for " + who(global_waiting_on(*it->second)));
  for (const auto& [rank, said] : stall.answers)
    if (!said.takes_part && rank != peer) send_answer(peer, asked, rank, false, said.text);
}

bool Engine::may_answer(int peer, Time now) {
  auto& [since, count] = answers_[peer];
  if (now - since >= seconds(1)) {
    since = now;
    count = 0;
  }
  return ++count <= kAnswersPerSecond;
}

void Engine::send_answer(int to, const Frame& asked, int subject, bool takes_part, const std::string& text) {
  const std::string bounded = text.substr(0, kMostAnswerText);
  Frame frame;
  frame.type = FrameType::status;
  frame.flags = takes_part ? kTakesPart : 0;
  frame.channel = asked.channel;
  frame.seq = asked.seq;
  frame.chunk = static_cast<uint32_t>(subject);
  frame.length = static_cast<uint32_t>(bounded.size());
  fabric_.send(to, frame, std::as_bytes(std::span(bounded.data(), bounded.size())));
}

// Who waits in the work that an answer is about, if its group has the rank `subject`.
Stall* Engine::stall_of(const Frame& frame, int subject) {
  const auto member = [subject](const Work& work) {
    const auto& ranks = work.request.group->ranks;
    return std::find(ranks.begin(), ranks.end(), subject) != ranks.end();
  };
  const auto it = executions_.find(Key{frame.channel, frame.seq});
  if (it != executions_.end()) return member(*it->second->work()) ? &it->second->stall : nullptr;
  Receives::Pending* first = receives_.first(frame.channel);
  return first != nullptr && member(*first->work) ? &first->stall : nullptr;
}

void Engine::answered(int peer, const Frame& frame, const std::string& text) {
  const auto subject = static_cast<int>(std::min<uint32_t>(frame.chunk, INT32_MAX));
  Stall* stall = stall_of(frame, subject);
  if (stall == nullptr || subject == rank_) return;
  const Time t = now();
  const bool takes_part = (frame.flags & kTakesPart) != 0;
  Answer& known = stall->answers[subject];
  const bool fresh = !known.text.empty() && t - known.at < seconds(kPassOnSeconds);
  if (fresh && peer != subject) return;
  const bool passed_on = fresh && !known.takes_part;
  known = {t, takes_part, text.substr(0, kMostAnswerText)};
  if (takes_part || passed_on) return;
  for (const int asker : stall->askers)
    if (asker != peer && asker != subject && may_answer(asker, t))
      send_answer(asker, frame, subject, false, known.text);
}

// Why this rank is not in the work it is asked for; empty if it has been.
std::string Engine::absence(const Frame& asked, Time now) const {
  const bool direct = (asked.channel & kPointToPoint) != 0;
  if (asked.seq < ledger_.next(asked.channel)) return {};
  std::string last;
  uint32_t last_seq = 0;
  if (const auto it = channels_.find(asked.channel); it != channels_.end()) {
    for (const Past& past : it->second.history) {
      if (!last.empty() && past.seq < last_seq) continue;
      last_seq = past.seq;
      last = numbered(past.signature, past.seq) + ", done " + seconds_text(now - past.at) + " ago";
    }
  }
  for (const Execution* execution : running_) {
    const Request& request = execution->work()->request;
    if (request.channel != asked.channel || (!last.empty() && request.seq < last_seq)) continue;
    last_seq = request.seq;
    last = numbered(request.signature, request.seq) + ", not done yet";
  }
  const std::string what = direct ? "has not called its side of #" : "has not called #";
  std::string text = what + std::to_string(asked.seq) + (direct ? " of these sends and receives" : " of this group");
  text += last.empty() ? ", and none before it" : ": its last one there is " + last;
  return text + "; now it " + occupation(now);
}

// What this rank does at the moment: "waits in ...".
std::string Engine::occupation(Time now) const {
  for (const Execution* execution : running_)
    if (!execution->finished())
      return "waits in " + numbered(execution->work()->request.signature, execution->work()->request.seq) +
             " of the group of " + members(*execution->work()->request.group) + " for " +
             who(global_waiting_on(*execution)) + ", since " + seconds_text(now - execution->stall.progress_at);
  if (!receives_.empty()) return describe_wait(receives_.all().front(), now);
  return "is in no operation: it computes, waits for something else, or has left the loop";
}

}  // namespace slipstream
