#include "engine/stall_watch.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/texts.h"

namespace slipstream {

namespace {

constexpr double kEndlessSeconds = 1e9;  // ENDLESS of slipstream.comm.negotiation.messages
constexpr double kAskAgainSeconds = 5;
constexpr int kMostQuestions = 100;  // in kAskAgainSeconds: about the works that have waited longest
constexpr int kMostWarnings = 8;     // in `warn_seconds`

}  // namespace

bool StallWatch::just_left(int rank, Time now) const {
  const Time left = fabric_.left(rank);
  return left != Time::min() && now < left + seconds(options_.farewell_seconds);
}

Error StallWatch::tick(Time now, Time& next) {
  warn_of_the_rest(now);  // first: whoever comes to wait too long now begins another span
  if (Error error = questions_.unexplained(now)) return error;
  next = std::min(next, questions_.explained_by());
  if (Error error = watch_executions(now)) return error;
  for (Receives::Receive& receive : receives_.all())
    if (Error error = watch(receive, now)) return error;
  return watch_line(now);
}

// The oldest works each time. Of very many, the others take turns: the tick would take longer than what lies between.
Error StallWatch::watch_executions(Time now) {
  constexpr size_t kOldest = 64, kMost = 4096;
  const auto& running = executions_.in_order();
  for (size_t i = 0; i < std::min(kOldest, running.size()); ++i)
    if (Error error = watch(*running[i], now)) return error;
  for (size_t n = std::min(kMost, running.size()); n > kOldest; --n) {
    next_ = std::max(next_ < running.size() ? next_ : 0, kOldest);
    if (Error error = watch(*running[next_++], now)) return error;
  }
  return {};
}

Error StallWatch::watch(Execution& execution, Time now) {
  Stall& stall = execution.stall;
  if (execution.progress() != stall.progress_seen) {
    stall.progress_seen = execution.progress();
    stall.progress_at = now;
    stall.answers.clear();
  }
  const bool late = now >= stall.deadline;
  if (!late && now - stall.progress_at < seconds(kTickSeconds)) return {};
  const Request& request = execution.work()->request;
  const std::vector<int> ranks = execution.waiting_on();
  for (const int rank : ranks)
    if (fabric_.gone(rank) && (late || !just_left(rank, now)))
      return questions_.unexplained_by(rank) != nullptr ? *questions_.unexplained_by(rank)
                                                        : report_.still_waits(fabric_.gone(rank), *execution.work());
  if (late) return expired(*execution.work(), stall, ranks, report_.our_wait_in(execution, now));
  const bool ask = must_ask(stall, now);
  for (const int rank : ranks) {
    if (fabric_.gone(rank)) continue;
    if (const Error error = fabric_.watch(rank, now)) return report_.still_waits(error, *execution.work());
    if (ask && fabric_.up(rank) != nullptr)
      questions_.describe({request.stands_for != 0 ? request.stands_for : request.channel, request.seq},
                          request.signature, rank);
  }
  if (ask) {
    stall.asked_at = now;
    execution.nudge();
  }
  warn(stall, *execution.work(), ranks, now, [&] { return report_.wait_of(execution, now); });
  return {};
}

// Works that have not begun, because of others of their channel.
Error StallWatch::watch_line(Time now) {
  const Work* work = channels_.overdue(now);
  if (work == nullptr) return {};
  std::string wait = report_.name() + " has waited " + seconds_text(now - work->submitted) + " for the turn of " +
                     title_of(*work, work->request.seq);
  for (const Execution* execution : executions_.in_order()) {
    if (execution->work()->request.channel != work->request.channel) continue;
    wait += ", behind " + report_.wait_of(*execution, now);
    return expired(*work, execution->stall, execution->waiting_on(), wait);
  }
  return expired(*work, wait);
}

Error StallWatch::watch(Receives::Receive& receive, Time now) {
  const Request& request = receive.work->request;
  Stall& stall = receive.stall;
  const auto global = [&](const Candidate& c) { return request.group->ranks[static_cast<size_t>(c.source())]; };
  std::vector<int> alive;
  bool just_gone = false;
  for (const Candidate& candidate : receive.candidates())
    if (!fabric_.gone(global(candidate)))
      alive.push_back(global(candidate));
    else
      just_gone |= just_left(global(candidate), now);
  if (alive.empty() && just_gone && now < stall.deadline) return {};
  if (alive.empty()) return report_.still_waits(fabric_.gone(global(receive.candidates().front())), *receive.work);
  if (now >= stall.deadline) return expired(*receive.work, stall, alive, report_.our_wait_in(receive, now));
  const bool ask = must_ask(stall, now);
  for (const Candidate& candidate : receive.candidates()) {
    const int rank = global(candidate);
    if (fabric_.gone(rank)) continue;
    if (const Error error = fabric_.watch(rank, now)) return report_.still_waits(error, *receive.work);
    if (ask && fabric_.up(rank) != nullptr && receives_.first(candidate.channel) == &receive)
      questions_.ask({candidate.channel, ledger_.next(candidate.channel)}, request.signature, rank);
  }
  if (ask) stall.asked_at = now;
  warn(stall, *receive.work, alive, now, [&] { return report_.wait_of(receive, now); });
  return {};
}

// Now and then while nothing moves, and once in time before the deadline.
bool StallWatch::must_ask(const Stall& stall, Time now) {
  const auto patience = seconds(options_.ask_seconds);
  const Time last_chance = stall.deadline - std::min(patience, stall.limit / 2);
  const bool last = now >= last_chance && stall.asked_at < last_chance;
  const bool again = now - stall.progress_at >= patience && now - stall.asked_at >= seconds(kAskAgainSeconds);
  return (last || again) && asked_.take(now, kAskAgainSeconds, kMostQuestions);
}

Error StallWatch::expired(const Work& work, const Stall& stall, const std::vector<int>& waiting_on,
                          const std::string& wait) const {
  // only torch.distributed gives operations a limit of their own
  const std::string setting = work.request.timed ? "timeout= of init_process_group, new_group or the call"
                                                 : "SLIPSTREAM_TIMEOUT, or `slipstream run --timeout`,";
  int culprit = waiting_on.empty() ? -1 : waiting_on.front();
  for (const auto& [rank, said] : stall.answers)
    if (!said.takes_part) {
      culprit = rank;
      break;
    }
  return Error{Code::timeout,
               culprit,
               {},
               wait + report_.dissent(work, stall, now()) + " Timed out on " + report_.name() + " (" + setting +
                   " sets the limit)"};
}

// One line for each cause: all operations of a step that one rank holds up are one.
bool StallWatch::worth_a_line(const std::vector<int>& causes, Time now) {
  if (now - warned_.since >= seconds(options_.warn_seconds)) named_.clear();
  if (!named_.insert(causes).second) return false;
  return warned_.take(now, options_.warn_seconds, kMostWarnings);
}

void StallWatch::warn(Stall& stall, const Work& work, const std::vector<int>& ranks, Time now,
                      const std::function<std::string()>& wait) {
  if (work.request.timeout_seconds >= kEndlessSeconds) return;  // it waits as long as the others go on without it
  if (now - stall.progress_at < seconds(options_.warn_seconds)) return;
  if (stall.warned_at > stall.progress_at && now - stall.warned_at < seconds(options_.warn_again_seconds)) return;
  stall.warned_at = now;
  if (work.counters != nullptr) work.counters->add_stall();
  const std::vector<int> absent = stall.absent();
  stall.unnamed = !worth_a_line(absent.empty() ? ranks : absent, now);
  others_wait_ |= stall.unnamed;
  if (stall.unnamed) return;
  const bool behind = !absent.empty() && std::none_of(ranks.begin(), ranks.end(), [&](int rank) {
    return std::binary_search(absent.begin(), absent.end(), rank);
  });
  log_warning(rank_, wait() + (behind ? ranks.size() > 1 ? ", which wait, too" : ", which waits, too" : "") +
                         report_.dissent(work, stall, now));
}

// Those that still wait: what has gone on meanwhile is no news.
void StallWatch::warn_of_the_rest(Time now) {
  if (!others_wait_ || now - warned_.since < seconds(options_.warn_seconds)) return;
  others_wait_ = false;
  size_t more = 0;
  const auto count = [&](Stall& stall) {
    more += std::exchange(stall.unnamed, false) && stall.warned_at > stall.progress_at;
  };
  for (Execution* execution : executions_.in_order()) count(execution->stall);
  for (Receives::Receive& receive : receives_.all()) count(receive.stall);
  if (more == 0) return;
  log_warning(rank_, std::to_string(more) + (more == 1 ? " more operation has" : " more operations have") +
                         " waited for " + seconds_text(seconds(options_.warn_seconds)) + " or longer");
}

}  // namespace slipstream
