// The engine's receives from any source: who takes which message, and what becomes of those that get none.
#include <algorithm>

#include "engine/engine.h"
#include "engine/texts.h"

namespace slipstream {

// A receive takes the message that came first among those that wait for it.
void Engine::await_source(WorkPtr work) {
  Receives::Pending& pending = receives_.add(std::move(work));
  const Request& request = pending.work->request;
  const Time start = now();
  pending.stall.progress_at = start;
  pending.stall.set_deadline(start, request.timeout_seconds);
  pending.work->request.awaited_since = start;
  const Early* earliest = nullptr;
  for (const Candidate& candidate : pending.candidates()) {
    fabric_.want(request.group->ranks[static_cast<size_t>(candidate.source())]);
    if (receives_.first(candidate.channel) != &pending) continue;
    const auto it = early_.find(Key{candidate.channel, ledger_.next(candidate.channel)});
    if (it == early_.end()) continue;
    const Early& found = it->second.front();
    if (earliest == nullptr || found.order < earliest->order) earliest = &found;
  }
  settle({earliest != nullptr ? earliest->frame.channel : pending.candidates().front().channel});
}

// Gives the next message of each channel to the first receive in line for it, if it has come - or if the receive can
// have no other. That moves the lines of other channels, too.
void Engine::settle(std::deque<uint64_t> channels) {
  while (!channels.empty() && !failed_) {
    const uint64_t channel = channels.front();
    channels.pop_front();
    Receives::Pending* first = receives_.first(channel);
    if (first == nullptr) continue;
    const bool sure = first->candidates().size() == 1;
    if (!sure && !early_.contains(Key{channel, ledger_.next(channel)})) continue;
    const auto& candidates = first->candidates();
    const auto source = std::find_if(candidates.begin(), candidates.end(),
                                     [channel](const Candidate& candidate) { return candidate.channel == channel; });
    const Candidate chosen = *source;
    for (const Candidate& candidate : candidates) channels.push_back(candidate.channel);
    WorkPtr work = receives_.remove(*first);
    ledger_.claim(*work, chosen);
    enqueue(std::move(work));
  }
}

// True if an operation that must have this rank is under way.
bool Engine::needs(int global_rank) const {
  const auto has = [global_rank](const Request& request) {
    const auto& ranks = request.group->ranks;
    const auto it = std::find(ranks.begin(), ranks.end(), global_rank);
    return it != ranks.end() && request.plan->peer_index(static_cast<int>(it - ranks.begin())) >= 0;
  };
  for (const Execution* execution : running_)
    if (has(execution->work()->request)) return true;
  for (const auto& [id, channel] : channels_)
    for (const auto& work : channel.waiting)
      if (has(work->request)) return true;
  return false;
}

// True if a receive from any source may have its message from this rank.
bool Engine::is_candidate(int global_rank) const {
  for (const Receives::Pending& pending : receives_.all())
    for (const Candidate& candidate : pending.candidates())
      if (pending.work->request.group->ranks[static_cast<size_t>(candidate.source())] == global_rank) return true;
  return false;
}

void Engine::watch(Receives::Pending& pending, Time now) {
  const Request& request = pending.work->request;
  Stall& stall = pending.stall;
  const auto global = [&](const Candidate& c) { return request.group->ranks[static_cast<size_t>(c.source())]; };
  std::vector<int> alive;
  bool just_gone = false;
  for (const Candidate& candidate : pending.candidates())
    if (!fabric_.gone(global(candidate)))
      alive.push_back(global(candidate));
    else
      just_gone |= just_left(global(candidate), now);
  if (alive.empty() && just_gone && now < stall.deadline) return;
  if (alive.empty()) return fail(still_waits(fabric_.gone(global(pending.candidates().front())), request));
  if (now >= stall.deadline) return expire(stall, alive, describe_wait(pending, now));
  const bool ask = must_ask(stall, now);
  for (const Candidate& candidate : pending.candidates()) {
    const int rank = global(candidate);
    if (fabric_.gone(rank)) continue;
    if (const Error error = fabric_.watch(rank, now)) return fail(still_waits(error, request));
    if (ask && fabric_.up(rank) != nullptr && receives_.first(candidate.channel) == &pending)
      send_description(candidate.channel, ledger_.next(candidate.channel), request.signature, rank, false);
  }
  if (ask) stall.asked_at = now;
  warn(stall, now, [&] { return describe_wait(pending, now); });
}

std::string Engine::describe_wait(const Receives::Pending& pending, Time now) const {
  const Request& request = pending.work->request;
  std::vector<int> sources;
  for (const Candidate& candidate : pending.candidates())
    sources.push_back(request.group->ranks[static_cast<size_t>(candidate.source())]);
  return request.signature.describe() + " has waited " + seconds_text(now - pending.stall.progress_at) +
         " for any of " + who(sources) + " to send";
}

}  // namespace slipstream
