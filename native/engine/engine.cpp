#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "engine/texts.h"

namespace slipstream {

namespace {

// The global ranks that have called a work or will: all of a group's, but only the other end of a message.
std::vector<int> ranks_of(const Request& request) {
  const auto& group = request.group->ranks;
  if (request.candidates.empty() && request.channel == request.group->id) return group;
  std::vector<int> ranks;
  const auto add = [&](const Plan& plan) {
    for (const Plan::Peer& peer : plan.peers()) ranks.push_back(group[static_cast<size_t>(peer.rank)]);
  };
  for (const Candidate& candidate : request.candidates) add(*candidate.plan);
  if (request.candidates.empty()) add(*request.plan);
  return ranks;
}

bool has_peer(const Request& request, int global_rank) {
  const int member = request.group->index_of(global_rank);
  return member >= 0 && request.plan->peer_index(member) >= 0;
}

Error of_later_works(Error failure) {
  failure.text = "the job has failed before: " + failure.text;
  return failure;
}

}  // namespace

Engine::Engine(int rank, int size, Poller& poller, Bell& bell, Regions& regions, Dialer& dialer, EngineOptions options)
    : rank_(rank),
      poller_(poller),
      bell_(bell),
      options_(std::move(options)),
      arena_(regions),
      fabric_(rank, size, dialer, {options_.heartbeat_seconds, options_.recovery_seconds, options_.heartbeat_setting}),
      intake_(options_.intake),
      context_{fabric_, arena_, regions, sends_, intake_, receiving_},
      early_(options_.early_bytes),
      messages_({fabric_, ledger_, channels_, early_, unfinished_, failure_state_}),
      failure_state_(rank, fabric_, options_.spreads_failure),
      report_(rank, dialer.name_of(rank), fabric_, executions_, receives_, ledger_, options_.elsewhere),
      questions_(rank, fabric_, executions_, receives_, channels_, ledger_, report_, options_.boards),
      watch_(rank, fabric_, executions_, receives_, channels_, ledger_, questions_, report_, options_.stalls),
      dispatch_(fabric_, executions_, channels_, ledger_, early_, messages_, questions_,
                {options_.boards, options_.offers}) {
  unfinished_.set_trace(options_.trace);
}

// ---- works

void Engine::submit(WorkPtr work) {
  unfinished_.add();
  if (const Error error = submitted_.push(work))
    unfinished_.complete(*work, named_error(error, report_.name(), kHasCalled, *work));
  else
    bell_.ring();
}

void Engine::take_submitted() {
  for (WorkPtr& work : submitted_.take()) {
    if (failure_state_.ended())  // by the work before this one
      unfinished_.complete(*work, named_error(failure(), report_.name(), kHasCalled, *work));
    else if (work->request.candidates.empty())
      enqueue(std::move(work));
    else
      await_source(std::move(work));
  }
}

// The other ranks may have the works of two channels in another order, so a work that waited for one of another channel
// could close a ring: that fails.
void Engine::enqueue(WorkPtr work) {
  const Channels::Overlap overlap = channels_.overlap(*work);
  if (overlap.elsewhere != nullptr)
    fail(Error{Code::aborted, rank_, {}, overlap_text(fabric_.who(rank_), *work, *overlap.elsewhere)});
  if (failure_state_.ended()) return unfinished_.complete(*work, failure());
  if (work->request.only_waits && !overlap.any) return unfinished_.complete(*work, Error{});
  Channels::Channel& channel = channels_.at(work->request.channel);
  if (channels_.enter(channel, work, overlap.any))
    try_begin(channel, std::move(work));
  else
    start_waiting(channel);
}

void Engine::start_waiting(Channels::Channel& channel) {
  while (!failure_state_.ended()) {
    WorkPtr work = channels_.next(channel);
    if (!work) return;
    if (!work->request.only_waits) {
      try_begin(channel, std::move(work));
      continue;
    }
    channels_.leave(channel, *work);
    unfinished_.complete(*work, Error{});
  }
}

void Engine::try_begin(Channels::Channel& channel, WorkPtr work) {
  try {
    begin(channel, work);
  } catch (const std::exception& e) {  // no memory for it, say; nobody else knows of this work yet
    const Error error{Code::internal, rank_, {}, work->request.signature.describe() + " cannot start: " + e.what()};
    unfinished_.complete(*work, error);
    fail(error);
  }
}

void Engine::begin(Channels::Channel& channel, const WorkPtr& work) {
  const Request& request = work->request;
  auto owned = std::make_unique<Execution>(context_, work);
  Execution& execution = *owned;
  Error error = questions_.compare_last_words(*work);  // it tells more than that the other rank has ended
  if (error || (error = missed(execution))) {
    owned.reset();
    channels_.put_back(channel, work);
    return fail(error);
  }
  const Time start = execution.stall.progress_at = now();
  const Time called = request.timed ? std::min(work->submitted, start) : start;
  execution.stall.set_deadline(request.awaited_since == Time{} ? called : request.awaited_since,
                               request.timeout_seconds);
  work->begun.store(true, std::memory_order_relaxed);
  executions_.add(std::move(owned));
  execution.start();
  channels_.began(channel, *execution.work(), execution.bulk());
  if (Error early = dispatch_.deliver_early(execution)) fail(std::move(early));
}

// Why an execution cannot begin: a rank that it needs is gone. A rank that left in good order may have sent something
// before; if that is not all, the watch tells.
Error Engine::missed(const Execution& execution) const {
  const Request& request = execution.work()->request;
  for (size_t i = 0; i < request.plan->peers().size(); ++i) {
    const int rank = request.group->ranks[static_cast<size_t>(request.plan->peers()[i].rank)];
    const Error& gone = fabric_.gone(rank);
    if (!gone || watch_.just_left(rank, now())) continue;
    const auto [out, in] = execution.traffic(i);
    const bool enough = out == 0 && (in == 0 || early_.any_from(rank, {request.channel, request.seq}));
    if (!enough) return report_.still_waits(gone, *execution.work());
  }
  return {};
}

void Engine::retire_finished(bool starts_next) {
  for (auto ended = executions_.remove_finished(); !ended.empty(); ended = executions_.remove_finished()) {
    for (const auto& [work, bulk] : ended) {
      Channels::Channel& channel = channels_.at(work->request.channel);
      channels_.ended(channel, *work, bulk);
      unfinished_.complete(*work, Error{});
      if (starts_next) start_waiting(channel);
      channels_.forget_idle();
    }
  }
}

// ---- receives from any source

// A receive takes the message that came first among those that wait for it.
void Engine::await_source(WorkPtr work) {
  Receives::Receive& receive = receives_.add(std::move(work));
  const Request& request = receive.work->request;
  const Time start = now();
  receive.stall.progress_at = start;
  receive.stall.set_deadline(start, request.timeout_seconds);
  receive.work->request.awaited_since = start;
  const EarlyFrame* earliest = nullptr;
  for (const Candidate& candidate : receive.candidates()) {
    fabric_.want(request.group->ranks[static_cast<size_t>(candidate.source())]);
    if (receives_.first(candidate.channel) != &receive) continue;
    const EarlyFrame* found = early_.first({candidate.channel, ledger_.next(candidate.channel)});
    if (found != nullptr && (earliest == nullptr || found->order < earliest->order)) earliest = found;
  }
  settle({earliest != nullptr ? earliest->frame.channel : receive.candidates().front().channel});
}

// Gives the next message of each channel to the first receive in line for it, if it has come - or if the receive can
// have no other. That moves the lines of other channels, too.
void Engine::settle(std::deque<uint64_t> channels) {
  while (!channels.empty() && !failure_state_.ended()) {
    const uint64_t channel = channels.front();
    channels.pop_front();
    Receives::Receive* first = receives_.first(channel);
    if (first == nullptr) continue;
    const bool sure = first->candidates().size() == 1;
    if (!sure && early_.first({channel, ledger_.next(channel)}) == nullptr) continue;
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

// ---- the loop

bool Engine::turn(bool works) {
  if (works && submitted_.size() > 0) take_submitted();
  if (failure_state_.ended() && !executions_.empty()) executions_.clear();  // fail() may be called by one of them
  bool moved = pump_->poll();
  if (!failure_state_.ended()) moved |= executions_.start_chunks(moved);  // else the memory is no longer theirs
  if ((works && !moved) || ++turns_ % 16 == 0) moved |= poller_.wait(0) > 0;
  if (!failure_state_.ended()) retire_finished();
  fabric_.sweep();
  return moved;
}

void Engine::sleep(Time until) {
  until = std::min(until, intake_.take_due());
  bell_.arm();
  if (must_turn()) return bell_.disarm();
  int timeout = -1;
  if (pump_->congested()) {
    timeout = 1;
  } else if (until != Time::max()) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - now()).count() + 1;
    timeout = static_cast<int>(std::clamp<long long>(left, 0, 60'000));
  }
  poller_.wait(timeout);
  bell_.disarm();
}

Time Engine::tick(Time now) {
  if (now < next_tick_) return next_tick_;
  const auto step = seconds(StallWatch::kTickSeconds);
  Time next = pump_->tick(now);
  if (failure_state_.suspects() && now >= failure_state_.suspicion_due())
    fail(report_.still_waits(failure_state_.suspicion()));
  if (!failure_state_.ended())
    if (const Error error = watch_.tick(now, next)) fail(error);
  const bool suspects = failure_state_.suspects();
  if (suspects) next = std::min(next, failure_state_.suspicion_due());
  const bool waits = !executions_.empty() || !receives_.empty();
  if (waits) next = std::min(next, now + step);
  fabric_.sweep();
  next_tick_ = !waits && !suspects ? now : std::min(next, now + step);
  return next;
}

// ---- failure

void Engine::fail(Error error) {
  if (failure_state_.ended()) return;
  if (options_.failing) options_.failing(error);
  const std::string told = error.code == Code::timeout ? report_.full({}) : std::string();
  failure_state_.fail(error, concerned());
  if (!told.empty()) log_warning(rank_, told);
  fabric_.close_up();
  fail_works(error, of_later_works(error));
  if (told_failure_) told_failure_(error);
}

void Engine::tell_latest() {
  if (!failure_state_.ended() && options_.spreads_failure) questions_.describe_latest(messages_.latest());
}

void Engine::leave(const std::string& reason) {
  failure_state_.leave(reason);
  fabric_.close_all();
  const Error error{Code::aborted,
                    rank_,
                    {},
                    "slipstream was shut down on rank " + std::to_string(rank_) +
                        " while operations were pending or before this one was called"};
  fail_works(error, error);
}

// The ranks that have called, or will call, one of the works that are not done.
std::set<int> Engine::concerned() const {
  std::set<int> ranks;
  const auto add = [&](const Work& work) {
    const std::vector<int> those = ranks_of(work.request);
    ranks.insert(those.begin(), those.end());
  };
  for (const Execution* execution : executions_.in_order()) add(*execution->work());
  channels_.each_waiting(add);
  for (const auto& receive : receives_.all()) add(*receive.work);
  return ranks;
}

// The links are closed by now: none may touch the works' memory once they are complete. `refusal`: of works to come.
void Engine::fail_works(const Error& error, const Error& refusal) {
  std::deque<WorkPtr> works = submitted_.close(error, refusal);
  if (options_.boards != nullptr) options_.boards->session_ended();
  for (WorkPtr& work : channels_.clear()) works.push_back(std::move(work));
  for (const Execution* execution : executions_.in_order()) works.push_back(execution->work());
  for (const auto& receive : receives_.all()) works.push_back(receive.work);
  receives_.clear();
  if (!works.empty()) submitted_.set_told();
  for (const WorkPtr& work : works) unfinished_.complete(*work, named_error(error, report_.name(), kStillWaits, *work));
}

// The session fails unless another rank knows better, within a moment, whose fault it is.
void Engine::suspect(const Error& error) {
  failure_state_.suspect(error, now() + seconds(options_.suspicion_seconds));
  next_tick_ = {};
}

// ---- what the links tell

Events::Landing Engine::land(Link& link, const Frame& frame) {
  if (failure_state_.ended()) return {};
  return dispatch_.land(link, frame);
}

void Engine::arrived(Link& link, const Frame& frame, const Payload& payload) {
  if (failure_state_.ended()) return link.release(payload);
  if (const Error error = dispatch_.arrived(link, frame, payload)) {
    retire_finished(false);  // what had come before counts
    return fail(error);
  }
  const uint64_t channel = WorkHeader::of(frame).channel;
  if (receives_.first(channel) != nullptr) settle({channel});
}

void Engine::sent(Link&, uint64_t cookie) {
  const SendTable::Send send = sends_.remove(cookie);
  if (!failure_state_.ended()) send.execution->sent(send.step, send.chunk);
}

void Engine::up(Link& link) {
  fabric_.came_up(link);
  if (failure_state_.ended()) return failure_state_.tell(link);
  const auto& running = executions_.in_order();
  for (size_t i = 0; i < running.size(); ++i) {
    const int index = running[i]->peer_index(link.peer());
    if (index >= 0) running[i]->link_up(index);
  }
}

void Engine::down(Link& link, const Error& error) {
  const int peer = link.peer();
  Error named = with_host(peer, error);
  failure_state_.forget(peer);
  const bool ended = failure_state_.ended();
  if (!ended)  // else the works are complete, and their memory may be gone
    for (Execution* execution : executions_.in_order()) execution->outlive(link);
  early_.drop_lent(peer);
  const bool stranger = fabric_.never_up(link) && !needs(peer);
  if (!fabric_.went_down(link, named) || ended) return;
  if (named.code == Code::aborted) {  // it left in good order: that hurts only works that wait for it
    named.code = Code::peer_lost;
    fabric_.set_left(peer, named, now());
    return;
  }
  if (stranger && !receives_.may_come_from(peer)) return fabric_.forget(peer);
  if (!stranger) suspect(named);  // a receive from any source may have others: the watch decides
}

void Engine::knocked(int rank, bool alive, const Error& why) {
  if (!alive) failure_state_.forget(rank);
  const Error error = fabric_.knocked(rank, alive, with_host(rank, why));
  if (error && !failure_state_.ended() && needs(rank)) suspect(error);
}

void Engine::dial_back(int rank) {
  if (failure_state_.ended())
    failure_state_.dial_back(rank);
  else
    fabric_.dial_back(rank);
}

// True if an operation that must have this rank is under way.
bool Engine::needs(int global_rank) const {
  for (const Execution* execution : executions_.in_order())
    if (has_peer(execution->work()->request, global_rank)) return true;
  bool found = false;
  channels_.each_waiting([&](const Work& work) { found = found || has_peer(work.request, global_rank); });
  return found;
}

// The transports know ranks and addresses, people know hosts.
Error Engine::with_host(int peer, Error error) const {
  if (!error.host.empty()) return error;
  error.host = fabric_.host_of(peer);
  const std::string rank = "rank " + std::to_string(peer);
  const size_t at = error.text.find(rank);
  if (at != std::string::npos) error.text.replace(at, rank.size(), fabric_.who(peer));
  return error;
}

}  // namespace slipstream
