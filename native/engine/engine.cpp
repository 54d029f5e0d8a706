#include "engine/engine.h"

#include <algorithm>
#include <cstring>

#include "base/log.h"
#include "engine/abort_frame.h"
#include "engine/texts.h"

namespace slipstream {

namespace {

constexpr size_t kSmallBytes = 4 << 10;  // of a work that begins at once, whatever its channel is busy with
constexpr int kBulkAtOnce = 2;           // bulk works of one channel in flight together
constexpr size_t kMostGoodbye = 1000;    // bytes of words
constexpr size_t kHistory = 64;          // finished works of a channel kept for comparison ...
constexpr size_t kChannels = 1024;       // ... and, of channels without works, how many have any kept

bool is_small(const Request& request) {
  uint64_t most = 0;
  for (const Layout& space : request.spaces)
    most = std::max(most, space.offsets.empty() ? space.count : space.offsets.back());
  return most * size_of(request.elements ? request.elements->dtype : request.signature.dtype) <= kSmallBytes;
}

}  // namespace

Engine::Engine(int rank, int size, Poller& poller, Bell& bell, Regions& regions, Dialer& dialer, EngineOptions options)
    : rank_(rank),
      poller_(poller),
      bell_(bell),
      regions_(regions),
      arena_(regions),
      options_(options),
      fabric_(rank, size, dialer, options.heartbeat_seconds),
      intake_(options.intake) {}

Engine::~Engine() = default;

// ---- requests

void Engine::submit(WorkPtr work) {
  Error error;
  {
    std::lock_guard lock(inbox_mutex_);
    error = failure_;
    if (!error) {
      inbox_.push_back(std::move(work));
      inbox_size_.store(inbox_.size(), std::memory_order_release);
    }
  }
  if (error)
    complete(*work, named_error(error, rank_, kHasCalled, work->request));
  else
    bell_.ring();
}

size_t Engine::works() const {
  size_t count = inbox_size_.load(std::memory_order_acquire) + executions_.size();
  for (const auto& [id, channel] : channels_) count += channel.waiting.size();
  return count;
}

Error Engine::failure() const {
  std::lock_guard lock(inbox_mutex_);
  return failure_;
}

void Engine::take_inbox() {
  std::deque<WorkPtr> taken;
  {
    std::lock_guard lock(inbox_mutex_);
    taken.swap(inbox_);
    inbox_size_.store(0, std::memory_order_release);
  }
  for (WorkPtr& work : taken) {
    if (failed_) {  // by the work before this one
      complete(*work, named_error(failure_, rank_, kHasCalled, work->request));
      continue;
    }
    if (work->request.candidates.empty())
      enqueue(std::move(work));
    else
      await_source(std::move(work));
  }
}

void Engine::enqueue(WorkPtr work) {
  const bool overlaps = overlaps_earlier(*work);
  if (failed_) return complete(*work, failure_);
  memory_.add(*work);
  Channel& channel = channel_of(work->request.channel);
  // It never waits behind bulk; but offers go out in order.
  if (!overlaps && is_small(work->request) && work->request.offer.empty()) return try_begin(channel, std::move(work));
  if (work->request.timed) waiting_due_ = std::min(waiting_due_, work->due());
  channel.waiting.push_back(std::move(work));
  start_waiting(channel);
}

// True if an earlier work of its channel needs the same memory. The other ranks may have those of other channels in
// another order, so waiting for one could close a ring: that fails.
bool Engine::overlaps_earlier(const Work& work) {
  bool found = false;
  const Work* elsewhere = nullptr;
  memory_.conflicts(work, [&](const Work& other) {
    found = true;
    if (other.request.channel != work.request.channel) elsewhere = &other;
    return elsewhere == nullptr;
  });
  if (elsewhere != nullptr)
    fail(Error{Code::aborted,
               rank_,
               {},
               fabric_.who(rank_) + " called " + work.request.signature.describe() + " on memory that " +
                   elsewhere->request.signature.describe() +
                   " of another group, or with another rank or tag, still works on, and one of them writes it: wait "
                   "for the first before the second is called"});
  return found;
}

// True while a running work needs the same memory. Those in line before it have begun.
bool Engine::must_wait(const Work& work) const {
  bool found = false;
  memory_.conflicts(work, [&](const Work& other) {
    found = other.begun.load(std::memory_order_relaxed);
    return !found;
  });
  return found;
}

void Engine::start_waiting(Channel& channel) {
  while (!channel.waiting.empty() && channel.running_bulk < kBulkAtOnce && !failed_) {
    if (must_wait(*channel.waiting.front())) break;
    WorkPtr work = std::move(channel.waiting.front());
    channel.waiting.pop_front();
    try_begin(channel, std::move(work));
  }
}

void Engine::try_begin(Channel& channel, WorkPtr work) {
  try {
    begin(channel, work);
  } catch (const std::exception& e) {  // no memory for it, say; nobody else knows of this work yet
    const Error error{Code::internal, rank_, {}, work->request.signature.describe() + " cannot start: " + e.what()};
    complete(*work, error);
    fail(error);
  }
}

void Engine::begin(Channel& channel, WorkPtr work) {
  const Request& request = work->request;
  auto owned = std::make_unique<Execution>(*this, work);
  Execution& execution = *owned;
  for (size_t i = 0; i < request.plan->peers().size(); ++i) {
    const int global = request.group->ranks[static_cast<size_t>(request.plan->peers()[i].rank)];
    const Error& gone = fabric_.gone(global);
    if (!gone || just_left(global, now())) continue;
    const auto [out, in] = execution.traffic(i);
    if (out == 0 && (in == 0 || came_before(request, global))) continue;  // we do not miss it
    const Error error = still_waits(gone, request);
    owned.reset();
    channel.waiting.push_front(std::move(work));
    return fail(error);
  }
  const Time start = now();
  execution.stall.progress_at = start;
  const Time called = request.timed ? std::min(work->submitted, start) : start;
  execution.stall.set_deadline(request.awaited_since == Time{} ? called : request.awaited_since,
                               request.timeout_seconds);
  work->begun.store(true, std::memory_order_relaxed);
  executions_.emplace(Key{request.channel, request.seq}, std::move(owned));
  running_.push_back(&execution);
  execution.start();
  if (execution.bulk()) ++channel.running_bulk;
  deliver_early(execution);
}

void Engine::deliver_early(Execution& execution) {
  const Request& request = execution.work()->request;
  const auto it = early_.find(Key{request.channel, request.seq});
  if (it == early_.end()) return;
  const auto frames = std::move(it->second);
  early_.erase(it);
  for (const Early& early : frames) {
    if (failed_) return;
    early_bytes_[early.peer] -= early.bytes();
    Link* link = fabric_.up(early.peer);
    if (link == nullptr) link = &fabric_.past(early.peer);
    frame_for(execution, *link, early.frame, Payload{early.payload.data(), early.frame.length, true, 0});
  }
}

// True if a rank left in good order so short a time ago that works that wait for it do not fail yet.
bool Engine::just_left(int global_rank, Time now) const {
  const Time left = fabric_.left(global_rank);
  return left != Time::min() && now < left + seconds(options_.farewell_seconds);
}

// True if a rank that has left in good order had sent something for this work; if that is not all, the watch tells.
bool Engine::came_before(const Request& request, int global_rank) const {
  const auto it = early_.find(Key{request.channel, request.seq});
  return it != early_.end() && std::any_of(it->second.begin(), it->second.end(),
                                           [&](const Early& early) { return early.peer == global_rank; });
}

void Engine::retire_finished() {
  for (size_t i = 0; i < running_.size();) {
    Execution* execution = running_[i];
    if (!execution->finished()) {
      ++i;
      continue;
    }
    const WorkPtr work = execution->work();
    const bool bulk = execution->bulk();
    running_.erase(running_.begin() + static_cast<ptrdiff_t>(i));
    executions_.erase(Key{work->request.channel, work->request.seq});
    Channel& channel = channel_of(work->request.channel);
    channel.used = true;
    channel.history.push_back({work->request.seq, work->request.signature, coarse_now()});
    if (channel.history.size() > kHistory) channel.history.pop_front();
    memory_.remove(*work);
    complete(*work, Error{});
    if (bulk) --channel.running_bulk;
    start_waiting(channel);
    forget_idle();
  }
}

Engine::Channel& Engine::channel_of(uint64_t id) {
  const auto [it, created] = channels_.try_emplace(id);
  if (created) channels_in_turn_.push_back(id);
  return it->second;
}

// A program may use each tag and each group once, without end. The ledger's numbers stay: both sides count.
void Engine::forget_idle() {
  for (int looks = 0; looks < 4 && channels_.size() > kChannels; ++looks) {  // more than come: one a work
    const uint64_t id = channels_in_turn_.front();
    channels_in_turn_.pop_front();
    const auto it = channels_.find(id);
    Channel& channel = it->second;
    const bool used = std::exchange(channel.used, false);
    if (used || channel.running_bulk > 0 || !channel.waiting.empty())
      channels_in_turn_.push_back(id);
    else
      channels_.erase(it);
  }
}

// ---- the loop

bool Engine::turn() {
  if (inbox_size_.load(std::memory_order_acquire) > 0) take_inbox();
  if (failed_ && !executions_.empty()) {  // not in close_with(): an execution may have been on the stack there
    running_.clear();
    executions_.clear();
  }
  bool moved = pump_->poll();
  if (!moved)
    for (size_t i = 0; i < running_.size(); ++i) moved |= running_[i]->start_chunk();
  if (!moved || ++turns_ % 16 == 0) moved |= poller_.wait(0) > 0;
  if (!failed_) retire_finished();
  fabric_.sweep();
  return moved;
}

bool Engine::may_take_in(uint64_t bytes) {
  if (intake_.take(bytes, now())) return true;
  intake_asked_ = true;
  return false;
}

void Engine::sleep(Time until) {
  if (std::exchange(intake_asked_, false)) until = std::min(until, intake_.due());
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
  Time next = pump_->tick(now);
  if (suspicion_ && now >= suspicion_until_) fail(still_waits(suspicion_));
  if (suspicion_) next = std::min(next, suspicion_until_);
  for (size_t i = 0; i < running_.size() && !failed_; ++i) watch(*running_[i], now);
  for (auto it = receives_.all().begin(); !failed_ && it != receives_.all().end();) watch(*it++, now);
  if (!failed_) watch_waiting(now);
  const bool waits = !running_.empty() || !receives_.empty();
  if (waits) next = std::min(next, now + seconds(kTickSeconds));
  fabric_.sweep();
  next_tick_ = !waits && !suspicion_ ? now : std::min(next, now + seconds(kTickSeconds));
  return next;
}

// ---- failure

Error Engine::still_waits(const Error& error, const Request& request) const {
  return gone_error(error, rank_, request.signature, request.seq);
}

// The same of the work that waits for the rank, or of the oldest one.
Error Engine::still_waits(const Error& error) const {
  const Execution* found = nullptr;
  for (const Execution* execution : running_) {
    if (execution->finished()) continue;
    const std::vector<int> ranks = global_waiting_on(*execution);
    const bool waits = std::find(ranks.begin(), ranks.end(), error.rank) != ranks.end();
    if (found == nullptr || waits) found = execution;
    if (waits) break;
  }
  return found == nullptr ? error : still_waits(error, found->work()->request);
}

void Engine::fail(Error error) {
  if (failed_) return;
  const std::string told = error.code == Code::timeout ? report() : std::string();
  failed_ = true;
  abort_ = encode_error(error);
  remember_untold(error);
  fabric_.broadcast(abort_frame(), abort_);
  spread_failure(error);
  if (!told.empty()) log_warning(rank_, told);
  fabric_.close_up();
  fail_works(error);
  if (told_failure_) told_failure_(error);
}

Frame Engine::abort_frame() const {
  Frame frame;
  frame.type = FrameType::abort;
  frame.length = static_cast<uint32_t>(abort_.size());
  return frame;
}

void Engine::leave(const std::string& words) {
  if (!failed_) {
    Frame frame;
    frame.type = FrameType::goodbye;
    const std::string said = words.substr(0, kMostGoodbye);
    frame.length = static_cast<uint32_t>(said.size());
    fabric_.broadcast(frame, std::as_bytes(std::span(said.data(), said.size())));
    failed_ = true;
  }
  fabric_.close_all();
  fail_works(Error{Code::aborted,
                   rank_,
                   {},
                   "slipstream was shut down on rank " + std::to_string(rank_) +
                       " while operations were pending or before this one was called"});
}

// The global ranks that have called a work or will: all of a group's, but only the other end of a message.
std::vector<int> Engine::concerned(const Request& request) const {
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

void Engine::remember_untold(const Error& error) {
  const auto add = [&](const WorkPtr& work) {
    for (const int r : concerned(work->request)) {
      const bool lost = fabric_.gone(r) || (error.code == Code::peer_lost && error.rank == r);
      if (r != rank_ && !lost && fabric_.up(r) == nullptr) untold_.insert(r);
    }
  };
  for (const Execution* execution : running_) add(execution->work());
  for (const auto& [id, channel] : channels_)
    for (const auto& work : channel.waiting) add(work);
  for (const auto& pending : receives_.all()) add(pending.work);
}

// Ranks without a link to us learn of the failure too: they may wait for a rank that is busy and knows nothing. Each
// rank tells those at distances 1, 2, 4, ... from its own, and these do the same: all know after log(size) hops.
void Engine::spread_failure(const Error& error) {
  if (!options_.spreads_failure) return;
  const int size = fabric_.size();
  for (int distance = 1; distance < size; distance *= 2) {
    const int rank = (rank_ + distance) % size;
    const bool lost = error.code == Code::peer_lost && error.rank == rank;
    if (lost || fabric_.up(rank) != nullptr) continue;
    try {
      if (fabric_.reach_out(rank)) untold_.insert(rank);
    } catch (const std::exception& e) {  // no file descriptor is left, say; the others spread it, too
      log_warning(rank_, fabric_.who(rank) + " is not told why the session failed: " + e.what());
    }
  }
}

// The links are closed by now: none may touch the works' memory once they are complete.
void Engine::fail_works(const Error& error) {
  suspicion_ = {};
  std::deque<WorkPtr> pending;
  {
    std::lock_guard lock(inbox_mutex_);
    if (!failure_) failure_ = error;
    pending.swap(inbox_);
    inbox_size_.store(0, std::memory_order_release);
  }
  for (auto& [id, channel] : channels_) {
    for (auto& work : channel.waiting) pending.push_back(std::move(work));
    channel.waiting.clear();
    channel.running_bulk = 0;
  }
  for (const Execution* execution : running_) pending.push_back(execution->work());
  for (const auto& receive : receives_.all()) pending.push_back(receive.work);
  receives_.clear();
  memory_.clear();
  for (const auto& work : pending) complete(*work, named_error(error, rank_, kStillWaits, work->request));
}

uint64_t Engine::track_send(Execution& execution, uint32_t step, uint64_t chunk) {
  if (free_sends_.empty()) {
    free_sends_.push_back(sends_.size());
    sends_.push_back({});
  }
  const uint64_t cookie = free_sends_.back();
  free_sends_.pop_back();
  sends_[cookie] = {&execution, step, chunk};
  return cookie;
}

}  // namespace slipstream
