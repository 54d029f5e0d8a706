#include "reducers/client.h"

#include <algorithm>
#include <utility>

#include "engine/texts.h"
#include "reducers/when_done.h"

namespace slipstream {
namespace {

constexpr uint64_t kRarely = 8;              // without reducers every so-many-th work asks whether there are some again
constexpr uint64_t kSmallOnes = 64;          // after so many small works one is treated as a large one, for its verdict
constexpr uint64_t kSmallSlice = 4 << 10;    // bytes below which another reducer costs more than it saves
constexpr uint64_t kLeastStretch = 4 << 20;  // bytes of a stretch ...
constexpr uint64_t kLeastPart = 256 << 10;   // ... and of what one worker gives one reducer of it

uint64_t input_bytes(const Request& whole) { return whole.spaces[0].count * size_of(whole.signature.dtype); }

// How many of the ways a small one takes, from the first on.
uint64_t slices_of(const Request& whole, size_t ways) {
  return std::min<uint64_t>(std::max<uint64_t>(input_bytes(whole) / kSmallSlice, 1), ways);
}

}  // namespace

ReducerClient::ReducerClient(Session& workers, ReducerClientOptions options)
    : context_{workers,
               mutex_,
               options.star,
               options.small,
               options.group,
               options.shards,
               [this] { begin_ready(); },
               [this](Time now) {
                 const std::string split = occupation(now);
                 return split.empty() ? WaitReport::oldest_of(context_.workers.engine().ledger(), now) : split;
               }},
      line_(context_),
      pool_(context_, std::move(options)) {}

// ---- the line

void ReducerClient::split(const WorkPtr& work) {
  std::string refused;
  {
    const std::lock_guard lock(mutex_);
    line_.set_channel(work->request.channel);
    refused = line_.objection(*work);
    if (refused.empty()) {
      while (!calls_.empty() && calls_.front()->done()) calls_.pop_front();
      calls_.push_back(work);
      return stand_in_line(work);
    }
  }
  context_.workers.abort(refused);
  work->complete(context_.workers.failure());
}

bool ReducerClient::holds(const WorkPtr& work) {
  std::string refused;
  {
    const std::lock_guard lock(mutex_);
    if (line_.must_wait(*work)) {
      stand_in_line(work);
      return true;
    }
    refused = line_.objection(*work);
    if (refused.empty()) line_.pass(work);
  }
  if (!refused.empty()) context_.workers.abort(refused);  // that fails `work` too
  return false;
}

void ReducerClient::stand_in_line(const WorkPtr& work) {
  line_.push(work);
  begin_ready();
  if (line_.is_due_first(*work)) context_.workers.wake();  // nothing may be under way in its engine
}

Time ReducerClient::tick(Time now) {
  const std::lock_guard lock(mutex_);
  const Work* late = line_.overdue(now);
  if (late == nullptr) return line_.due();
  Engine& engine = context_.workers.engine();
  engine.expire(*late, engine.reports().name() + " " + line_.describe_late(*late, now));
  return Time::max();
}

std::string ReducerClient::occupation(Time now) {
  const std::lock_guard lock(mutex_);
  for (const WorkPtr& work : calls_)
    if (!work->done())
      return "waits in " + work->request.signature.describe() + " of the group of " +
             WaitReport::members(*work->request.group) + ", in which reducers take part, called " +
             seconds_text(now - work->submitted) + " ago";
  return {};
}

std::string ReducerClient::wait_of(const Work& work, Time now) {
  const std::lock_guard lock(mutex_);
  if (work.done()) return {};
  if (!work.begun.load()) return line_.describe_wait(work, now);
  std::string awaited = awaited_by_small(work.request);  // also of one whose verdict is obeyed already
  for (const auto* splits : {&judged_, &to_gather_, &unjudged_})
    for (const auto& split : *splits)
      if (split->is_of(work)) awaited = split->awaited();
  return work.request.signature.describe() + " of the group of " + WaitReport::members(*work.request.group) +
         ", called " + seconds_text(now - work.submitted) + " ago, waits for " + awaited;
}

std::string ReducerClient::awaited_by_small(const Request& whole) const {
  std::string text;
  const auto ways = pool_.ways();
  if (Express::is_small(whole) && input_bytes(whole) != 0)
    for (uint64_t i = 0; i < slices_of(whole, ways.size()); ++i)
      text += (text.empty() ? "" : " and ") + pool_.name(ways[i].first);
  return text.empty() ? "the other workers" : text + kOrWorkers;
}

void ReducerClient::begin_ready() {
  moved_ = true;
  if (beginning_) return;
  const struct Guard {
    bool& flag;
    explicit Guard(bool& f) : flag(f) { flag = true; }
    ~Guard() { flag = false; }
  } guard(beginning_);
  while (std::exchange(moved_, false)) {
    go_on();
    begin_first();
  }
}

// The works of a channel must begin in the same order on all ranks.
void ReducerClient::go_on() {
  for (; !to_send_.empty() && to_send_.front()->may_send(); to_send_.pop_front()) to_send_.front()->send();
  for (; !to_gather_.empty() && to_gather_.front()->may_gather(); to_gather_.pop_front()) to_gather_.front()->gather();
}

void ReducerClient::begin_first() {
  for (;;) {
    if (large_) {
      if (!begin_stretch()) break;
      continue;
    }
    const WorkPtr work = line_.front();
    if (!work) break;
    if (!work->split) {
      line_.pop();
      context_.workers.submit_unsplit(work);
    } else if (Express::is_small(work->request) && since_verdict_ + 1 < kSmallOnes) {
      if (!begin_small(work)) break;
    } else {
      if (unjudged_.size() >= kAhead) break;
      line_.pop();
      large_ = std::make_shared<Large>(Large{work, stretches_of(work->request)});
    }
  }
}

// ---- works begin

// False: not yet. True also if it is to be treated as a large one.
bool ReducerClient::begin_small(const WorkPtr& parent) {
  const Request& whole = parent->request;
  const auto ways = pool_.ways();
  const uint64_t slices = slices_of(whole, ways.size());
  for (uint64_t i = 0; i < slices; ++i)
    if (ways[i].second->busy()) return false;
  for (uint64_t i = 0; i < slices; ++i)
    if (!ways[i].second->open()) since_verdict_ = kSmallOnes;  // lost: a verdict lets all know
  if (since_verdict_ >= kSmallOnes) return true;
  line_.pop();
  ++since_verdict_;
  if (!ways.empty() && input_bytes(whole) != 0) {
    begin_slices(parent, ways, slices);
    return true;
  }
  Session& workers = context_.workers;
  const WorkPtr work =
      workers.prepare(slice_of(whole, 0, whole.spaces[0].count), channel_of(*context_.group, 0, kSlices));
  workers.submit_unsplit(work);
  when_done(work, [parent, work = work.get()] { parent->complete(work->error()); });
  return true;
}

void ReducerClient::begin_slices(const WorkPtr& parent, const std::vector<std::pair<size_t, Express*>>& ways,
                                 uint64_t slices) {
  struct Left {
    uint64_t slices;
    Error error;
  };
  const auto left = std::make_shared<Left>(Left{slices, Error{}});
  const Request& whole = parent->request;
  const uint64_t count = whole.spaces[0].count;
  for (uint64_t i = 0; i < slices; ++i) {
    const uint64_t begin = count * i / slices;
    const uint64_t own = count * (i + 1) / slices - begin;
    const auto& [reducer, express] = ways[i];
    pool_.count_sent(reducer, bytes_between_hosts(whole.signature, own));
    express->begin(slice_of(whole, begin, own), [parent, left](const Error& error) {
      if (error && !left->error) left->error = error;
      if (--left->slices == 0) parent->complete(left->error);
    });
  }
}

uint64_t ReducerClient::stretches_of(const Request& whole) const {
  const Shards& shards = context_.shards;
  if (shards.count() == 1) return 1;
  const uint64_t parts = pool_.size() * shards.count();
  const uint64_t most = std::max(kLeastStretch, kLeastPart * parts);
  return std::max<uint64_t>(1, (input_bytes(whole) + most - 1) / most);
}

// False: not yet.
bool ReducerClient::begin_stretch() {
  if (unjudged_.size() >= kAhead) return false;
  const std::shared_ptr<Large> large = large_;
  const WorkPtr& parent = large->work;
  const uint64_t count = parent->request.spaces[0].count;
  const uint64_t begin = count * large->begun / large->stretches;
  const uint64_t end = count * ++large->begun / large->stretches;
  if (large->begun == large->stretches) large_ = nullptr;
  since_verdict_ = 0;
  const uint64_t number = next_++;
  // Not the verdicts after: another rank may not have heard them yet when it comes here.
  for (; !judged_.empty() && judged_.front()->number() + kAhead <= number; judged_.pop_front())
    pool_.obey(*judged_.front()->verdict(), judged_.front()->incarnations());
  const auto split = std::make_shared<SplitWork>(context_, pool_, number, SplitWork::Range{parent, begin, end - begin});
  unjudged_.push_back(split);
  const bool asks = pool_.any_used() || Express::is_small(parent->request) || number % kRarely == 0;
  split->begin(
      asks, [this, raw = split.get()] { judged(*raw); },
      [large](const Error& error) {
        if (error && !large->error) large->error = error;
        if (++large->done == large->stretches) large->work->complete(large->error);
      });
  to_send_.push_back(split);
  to_gather_.push_back(split);
  moved_ = true;
  return true;
}

void ReducerClient::judged(SplitWork& split) {
  seconds_ = split.part_seconds();
  for (; !unjudged_.empty() && unjudged_.front()->is_judged(); unjudged_.pop_front())
    if (unjudged_.front()->verdict() != nullptr) judged_.push_back(unjudged_.front());
}

// ---- what the program asks and tells

void ReducerClient::registered(size_t reducer, uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  pool_.registered(reducer, incarnation);
}

std::vector<ReducerState> ReducerClient::states() {
  const std::lock_guard lock(mutex_);
  return pool_.states();
}

std::map<size_t, LinkStatistics> ReducerClient::links() {
  std::vector<std::shared_ptr<Session>> sessions;
  {
    const std::lock_guard lock(mutex_);
    sessions = pool_.sessions();
  }
  std::map<size_t, LinkStatistics> found;  // without the lock: whoever drives a session may wait for that
  for (size_t i = 0; i < sessions.size(); ++i)
    if (sessions[i] != nullptr)
      for (LinkStatistics& link : sessions[i]->link_statistics()) found.insert_or_assign(i, std::move(link));
  return found;
}

void ReducerClient::set_rates(const std::vector<double>& rates, double worker) {
  const std::lock_guard lock(mutex_);
  pool_.set_rates(rates, worker);
  for (const auto& split : judged_) pool_.put_rates(*split->verdict());  // those before say other ones
}

std::vector<double> ReducerClient::part_seconds() {
  const std::lock_guard lock(mutex_);
  return seconds_;
}

// With the sessions the works in them end, once nothing writes to their memory any more.
void ReducerClient::session_failed() {
  const std::lock_guard lock(mutex_);
  pool_.leave_all();
}

void ReducerClient::close() {
  pool_.close();
  const std::lock_guard lock(mutex_);
  line_.fail(Error{Code::aborted, context_.group->rank, {}, "slipstream was shut down while operations were pending"});
}

}  // namespace slipstream
