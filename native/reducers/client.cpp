#include "reducers/client.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "base/log.h"
#include "base/thread.h"
#include "reducers/offer.h"
#include "reducers/shares.h"
#include "session/session.h"

namespace slipstream {
namespace {

constexpr uint64_t kRarely = 8;            // without reducers every so-many-th work asks whether there are some again
constexpr uint64_t kSmallOnes = 64;        // after so many small works one is treated as a large one, for its verdict
constexpr uint64_t kSmallSlice = 4 << 10;  // bytes below which another reducer costs more than it saves
constexpr size_t kWindowBytes = 8 << 20;   // of a slice, under way to a reducer and back
// No worker may be far ahead of the others with one reducer: it would take from its other links what they wait for.
constexpr double kWindowSeconds = 0.03;
constexpr double kPortSeconds = 0.02;  // of a port, in a switch: what all workers may have under way to a reducer
constexpr double kRingSeconds = 0.005;
constexpr size_t kRingLeast = 128 << 10;
// Of the rate of all workers: reducers that have so much are better off alone, without a ring beside them.
constexpr double kNearlyFull = 0.9;
constexpr uint64_t kChunks = 16;            // of a slice, at least
constexpr uint64_t kLeastChunk = 20 << 10;  // more than what goes without leave
// Sums flow back when a chunk is whole, and all links share the worker's. With its headers it is one packet of 64 KiB.
constexpr uint64_t kMostChunk = 60 << 10;
constexpr size_t kMostName = 1000;  // letters of a work's name that a reducer is told
constexpr double kLagMemory = 0.95;
constexpr double kLagsBehind = 1.5;
constexpr double kLess = 0.9;
constexpr double kMore = 1.02;
constexpr uint64_t kChannels = 0x9e3779b97f4a7c15ULL;

// Channels of the workers' group that nothing else uses: 1 for slices, 2 for verdicts, more for repairs.
uint64_t channel_of(const Group& group, uint64_t use) {
  const uint64_t mixed = (group.id ^ use * kChannels) * kChannels;
  return (mixed ^ mixed >> 29) & ~(uint64_t{1} << 63);
}

}  // namespace

// A small work that the workers do among themselves.
class Passing final : public Listener {
 public:
  Passing(WorkPtr parent, WorkPtr work) : parent_(std::move(parent)), work_(std::move(work)) {}
  void work_done() override { parent_->complete(work_->error()); }

 private:
  WorkPtr parent_;
  WorkPtr work_;
};

class ReducerClient::Ear final : public Listener {
 public:
  Ear(ReducerClient& client, SplitPtr split, Stage stage, size_t index, WorkPtr work)
      : client_(client), split_(std::move(split)), stage_(stage), index_(index), work_(std::move(work)) {}
  void work_done() override { client_.heard(split_, stage_, index_, work_); }

 private:
  ReducerClient& client_;
  SplitPtr split_;
  Stage stage_;
  size_t index_;
  WorkPtr work_;
};

ReducerClient::ReducerClient(Session& session, ReducerClientOptions options)
    : session_(session), options_(std::move(options)) {
  if (options_.reducers.empty() || options_.reducers.size() > 32)
    throw Failure(Code::invalid, "a job has 1 to 32 reducers");
  for (const auto& one : options_.reducers) {
    Reducer reducer;
    reducer.state.name = one.name;
    reducer.state.used = one.incarnation != 0;
    reducer.state.incarnation = one.incarnation;
    reducer.wanted = one.incarnation;
    reducers_.push_back(std::move(reducer));
  }
  keeper_ = start_thread("the thread that opens sessions with reducers", [this] { keep(); });
  try {
    open_all();
  } catch (...) {
    close();
    throw;
  }
}

ReducerClient::~ReducerClient() { close(); }

// ---- a split work begins

void ReducerClient::begin_ready() {
  if (beginning_) return;
  const struct Guard {
    bool& flag;
    explicit Guard(bool& f) : flag(f) { flag = true; }
    ~Guard() { flag = false; }
  } guard(beginning_);
  while (!waiting_.empty()) {
    const WorkPtr parent = waiting_.front();
    if (conflict(*parent, begun_) != nullptr) break;
    if (!parent->split) {
      --passing_;
      leave_line(parent, others_);
      session_.submit_unsplit(parent);
      continue;
    }
    if (conflict(*parent, others_) != nullptr) break;
    if (is_small(parent->request) && since_verdict_ + 1 < kSmallOnes) {
      if (!begin_small(parent)) break;
    } else {
      if (unjudged_.size() >= kAhead) break;
      leave_line(parent, begun_);
      since_verdict_ = 0;
      begin(parent);
    }
  }
}

Request ReducerClient::slice(const Request& whole, uint64_t begin, uint64_t count) {
  Request request = whole;
  request.part.emplace();
  const size_t element = size_of(request.signature.dtype);
  for (Layout& space : request.spaces) {
    if (space.data != nullptr) space.data += begin * element;
    space.count = count;
  }
  return request;
}

bool ReducerClient::is_small(const Request& request) const {
  return request.spaces[0].count * size_of(request.signature.dtype) < kSmall;
}

// False: not yet.
bool ReducerClient::begin_small(const WorkPtr& parent) {
  const Request& whole = parent->request;
  const uint64_t count = whole.spaces[0].count;
  const uint64_t bytes = count * size_of(whole.signature.dtype);
  std::vector<Reducer*> ways;  // by what all ranks know
  for (Reducer& reducer : reducers_)
    if (reducer.state.used && reducer.express) ways.push_back(&reducer);
  const uint64_t slices = std::min<uint64_t>(std::max<uint64_t>(bytes / kSmallSlice, 1), ways.size());
  for (uint64_t i = 0; i < slices; ++i)
    if (ways[i]->express->busy()) return false;
  for (uint64_t i = 0; i < slices; ++i)
    if (!ways[i]->express->open()) since_verdict_ = kSmallOnes;  // lost: a verdict lets all know
  if (since_verdict_ >= kSmallOnes) return true;
  leave_line(parent, begun_);
  ++since_verdict_;
  if (ways.empty() || count == 0) {
    const WorkPtr work = session_.prepare(slice(whole, 0, count), channel_of(*options_.group, 1));
    session_.submit_unsplit(work);
    work->listen(std::make_unique<Passing>(parent, work));
    return true;
  }
  struct Left {
    uint64_t slices;
    Error error;
  };
  const auto left = std::make_shared<Left>(Left{slices, Error{}});
  for (uint64_t i = 0; i < slices; ++i) {
    const uint64_t begin = count * i / slices;
    const uint64_t own = count * (i + 1) / slices - begin;
    ways[i]->state.sent += own * size_of(whole.signature.dtype);
    ways[i]->express->begin(slice(whole, begin, own), [parent, left](const Error& error) {
      if (error && !left->error) left->error = error;
      if (--left->slices == 0) parent->complete(left->error);
    });
  }
  return true;
}

void ReducerClient::begin(const WorkPtr& parent) {
  const auto split = std::make_shared<Split>();
  split->number = next_++;
  split->parent = parent;
  split->begun = now();
  // Not those after: another rank may not have heard them yet when it comes here.
  for (; !judged_.empty() && judged_.front()->number + kAhead <= split->number; judged_.pop_front())
    apply(*judged_.front());
  std::vector<double> rates;
  bool any = false;
  for (const Reducer& reducer : reducers_) {
    rates.push_back(reducer.state.used ? reducer.agreed : 0);
    split->incarnations.push_back(reducer.state.used ? reducer.wanted : 0);
    any |= reducer.state.used;
  }
  const double full = std::accumulate(rates.begin(), rates.end(), 0.0) / options_.size;
  if (full >= kNearlyFull && full < 1)
    for (double& rate : rates) rate /= full;
  const std::vector<uint32_t> shares = shares_of(options_.size, rates);
  const uint64_t count = parent->request.spaces[0].count;
  uint64_t given = 0;
  uint64_t begin = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    given += shares[i];
    const auto end = std::min(count, static_cast<uint64_t>(double(count) * given / 65536.0));
    if (end > begin) add_part(*split, static_cast<int>(i) - 1, begin, end - begin);
    begin = end;
  }
  split->left = split->parts.size();
  if (any || is_small(parent->request) || split->number % kRarely == 0) {
    split->words.assign(kHeader + 2 * reducers_.size(), 0);
    const auto bytes = reinterpret_cast<std::byte*>(split->words.data());
    split->verdict = session_.prepare(status_request(*split, bytes, 8 * split->words.size(), DType::u64),
                                      channel_of(*options_.group, 2));
  }
  unjudged_.push_back(split);
  if (split->parts.empty()) return give_verdict(split);
  // Each worker with another reducer first: no queue gets all at once.
  for (size_t n = 0; n < split->parts.size(); ++n) {
    const size_t i = (n + static_cast<size_t>(options_.rank)) % split->parts.size();
    Part& part = split->parts[i];
    if (part.work == nullptr) {
      part_done(split, part);
    } else if (part.reducer < 0) {
      session_.submit_unsplit(part.work);
      listen(split, Stage::part, i, part.work);
    } else {
      reducers_[static_cast<size_t>(part.reducer)].session->submit_unsplit(part.work);
      listen(split, Stage::part, i, part.work);
    }
  }
}

// By what is agreed: chunks must be the same on all ranks.
size_t ReducerClient::window_least(const Reducer& reducer) const {
  return static_cast<size_t>(worker_rate_ * std::min(reducer.most, 1.0) * kPortSeconds / options_.size);
}

void ReducerClient::add_part(Split& split, int reducer, uint64_t begin, uint64_t count) {
  Part part{reducer, begin, count, 1, 0, nullptr, nullptr};
  Request request = slice(split.parent->request, begin, count);
  if (reducer >= 0) {  // many chunks, so that sums flow back soon after data flows out
    const uint64_t bytes = count * size_of(request.signature.dtype);
    const size_t window = window_least(reducers_[static_cast<size_t>(reducer)]);
    const uint64_t most = std::clamp<uint64_t>(window / 2, kLeastChunk, kMostChunk);
    const uint64_t wanted = std::clamp<uint64_t>(std::bit_ceil(bytes / kChunks), kLeastChunk, most);
    request.chunk_bytes = request.signature.chunk_bytes = static_cast<uint32_t>(wanted);
  }
  part.chunk = chunk_elements(request);
  if (reducer < 0) {
    if (std::any_of(split.incarnations.begin(), split.incarnations.end(), [](uint64_t i) { return i != 0; })) {
      // The reducers' links are what all wait for: the ring takes what they leave of the worker's.
      request.part->window_seconds = kRingSeconds;
      request.part->window_least = kRingLeast;
      request.chunk_bytes = request.signature.chunk_bytes = kMostChunk;
    }
    part.work = session_.prepare(std::move(request), channel_of(*options_.group, 1));
  } else if (Reducer& to = reducers_[static_cast<size_t>(reducer)];
             to.session && to.connected == to.wanted && !to.failed) {
    part.done = std::make_shared<std::vector<uint8_t>>();
    request.plan = options_.star;
    request.group = to.group;
    request.signature.name = request.signature.name.substr(0, kMostName);
    request.part->whole_chunks = request.spaces[0].data == request.spaces[1].data;
    request.part->received = part.done;
    request.part->window_bytes = kWindowBytes;
    request.part->window_seconds = kWindowSeconds;
    request.part->window_least = window_least(to);
    request.part->offer = encode_offer({request.signature, count, request.postscale, request.divisor});
    to.state.sent += count * size_of(request.signature.dtype);
    part.work = to.session->prepare(std::move(request), to.group->id);
  }
  split.parts.push_back(std::move(part));
}

// Words about the work among the workers: it carries the work's signature, so that one that differs is noticed.
Request ReducerClient::status_request(const Split& split, std::byte* data, uint64_t bytes, DType dtype) const {
  Request request = split.parent->request;
  request.plan = options_.small;
  request.part.emplace().elements = {dtype, Op::bor};
  request.chunk_bytes = kEagerBytes;
  request.prescale = request.postscale = 1;
  request.divisor = 1;
  const uint64_t count = bytes / size_of(dtype);
  for (Layout& space : request.spaces) space = {data, count, {}};
  request.spaces[2].data = nullptr;
  return request;
}

// ---- what becomes of its works

void ReducerClient::listen(const SplitPtr& split, Stage stage, size_t index, const WorkPtr& work) {
  work->listen(std::make_unique<Ear>(*this, split, stage, index, work));
}

void ReducerClient::heard(const SplitPtr& split, Stage stage, size_t index, const WorkPtr& work) {
  const std::lock_guard lock(mutex_);
  switch (stage) {
    case Stage::part:
      return part_done(split, split->parts[index]);
    case Stage::verdict:
      return judged(split, work->error());
    case Stage::chunks:
      if (work->error()) return finish(split, work->error());
      return repair(split);
    case Stage::repair:
      if (work->error() && !split->error) split->error = work->error();
      if (--split->left == 0) finish(split, split->error);
  }
}

void ReducerClient::part_done(const SplitPtr& split, Part& part) {
  part.seconds = std::chrono::duration<double>(now() - split->begun).count();
  if (part.reducer < 0 && part.work->error()) split->error = part.work->error();
  if (part.reducer >= 0 && (part.work == nullptr || part.work->error())) {
    split->lost |= 1u << part.reducer;
    Reducer& reducer = reducers_[static_cast<size_t>(part.reducer)];
    if (part.work != nullptr) lose(reducer, part.work->error().text);
  }
  if (--split->left == 0) give_verdict(split);
}

void ReducerClient::give_verdict(const SplitPtr& split) {
  seconds_.assign(reducers_.size() + 1, 0);
  for (const Part& part : split->parts) seconds_[static_cast<size_t>(part.reducer + 1)] = part.seconds;
  see_lags(*split);
  if (split->verdict == nullptr) return judged(split, split->error);
  std::vector<uint64_t>& words = split->words;
  words[0] = split->lost;
  for (size_t i = 0; i < reducers_.size(); ++i) {
    const Reducer& reducer = reducers_[i];
    const bool up = reducer.session && reducer.connected == reducer.wanted && !reducer.failed;
    const bool over = reducer.express == reducer.fresh || !reducer.express || reducer.express->over();
    if (!up || !over) words[1] |= uint64_t{1} << i;
    if (options_.rank != 0) continue;
    words[kHeader + 2 * i] = reducer.state.incarnation;
    words[kHeader + 2 * i + 1] = static_cast<uint64_t>(reducer.state.rate * kRateUnit);
  }
  session_.submit_unsplit(split->verdict);
  listen(split, Stage::verdict, 0, split->verdict);
}

void ReducerClient::judged(const SplitPtr& split, const Error& error) {
  if (error) split->error = error;
  split->judged = true;
  if (!split->error) warn(*split);
  for (; !unjudged_.empty() && unjudged_.front()->judged; unjudged_.pop_front())
    if (!unjudged_.front()->error && unjudged_.front()->verdict) judged_.push_back(unjudged_.front());
  if (split->error)
    finish(split, split->error);
  else if (split->verdict == nullptr || split->words[0] == 0)
    finish(split, {});
  else
    ask_chunks(split);
  begin_ready();
}

// Rank 0 gives a reducer that stays behind the others less, and slowly more again when it does not.
void ReducerClient::see_lags(const Split& split) {
  if (options_.rank != 0 || is_small(split.parent->request)) return;
  std::vector<double> took;
  for (const Part& part : split.parts)
    if (part.reducer >= 0 && part.work != nullptr) took.push_back(part.seconds);
  if (took.size() < 2) return;
  std::nth_element(took.begin(), took.begin() + static_cast<ptrdiff_t>(took.size() / 2), took.end());
  for (const Part& part : split.parts) {
    if (part.reducer < 0 || part.work == nullptr) continue;
    Reducer& reducer = reducers_[static_cast<size_t>(part.reducer)];
    reducer.lag = kLagMemory * reducer.lag + (1 - kLagMemory) * part.seconds / took[took.size() / 2];
    if (reducer.lag > kLagsBehind)
      reducer.state.rate = std::max(reducer.state.rate * kLess, reducer.most / 64);
    else
      reducer.state.rate = std::min(reducer.state.rate * kMore, reducer.most);
  }
}

// At once, and once for each session that is lost.
void ReducerClient::warn(const Split& split) {
  for (size_t i = 0; i < reducers_.size() && split.verdict; ++i) {
    Reducer& reducer = reducers_[i];
    if ((split.words[0] >> i & 1) == 0 || split.incarnations[i] == reducer.warned) continue;
    reducer.warned = split.incarnations[i];
    ++reducer.state.lost;
    log_warning(options_.rank, "reducer " + reducer.state.name +
                                   " is lost: " + (reducer.why.empty() ? "another rank cannot reach it" : reducer.why) +
                                   "; the workers go on without it, and use it again when it is back");
  }
}

void ReducerClient::leave(Reducer& reducer) {
  reducer.state.used = false;
  if (reducer.fresh) reducer.fresh->end();
  if (reducer.session) {
    const std::lock_guard lock(keeper_mutex_);
    to_close_.push_back(std::move(reducer.session));
    keeper_bell_.notify_one();
  }
  reducer.session.reset();
  reducer.connected = 0;
  reducer.failed = false;
  reducer.why.clear();
}

// This rank cannot use its session any more.
void ReducerClient::lose(Reducer& reducer, const std::string& why) {
  if (reducer.failed) return;
  reducer.failed = true;
  reducer.why = why;
}

void ReducerClient::session_ended(size_t index, uint64_t incarnation, const std::string& why) {
  const std::lock_guard lock(mutex_);
  Reducer& reducer = reducers_[index];
  if (reducer.connected != incarnation || !reducer.session) return;
  lose(reducer, why);
  reducer.fresh->end();
}

// The same on every rank: nothing here looks at what only this one knows, but for its own sessions.
void ReducerClient::apply(const Split& split) {
  for (size_t i = 0; i < reducers_.size(); ++i) {
    Reducer& reducer = reducers_[i];
    const uint64_t bit = uint64_t{1} << i;
    const uint64_t incarnation = split.words[kHeader + 2 * i];
    if ((split.words[0] & bit) != 0 && reducer.state.used && split.incarnations[i] == reducer.wanted) leave(reducer);
    if (incarnation != 0 && incarnation != reducer.wanted) {
      leave(reducer);  // one that was lost before it was used
      reducer.wanted = reducer.state.incarnation = incarnation;
      const std::lock_guard lock(keeper_mutex_);
      to_open_.emplace_back(i, incarnation);
      keeper_bell_.notify_one();
    } else if (!reducer.state.used && reducer.wanted != 0 && (split.words[1] & bit) == 0) {
      reducer.state.used = true;
      reducer.express = reducer.fresh;
      reducer.express->agree();
      log_warning(options_.rank, "reducer " + reducer.state.name + " is used again");
    }
    reducer.agreed = static_cast<double>(split.words[kHeader + 2 * i + 1]) / kRateUnit;
    if (options_.rank != 0) reducer.state.rate = reducer.agreed;
  }
}

// ---- repair

void ReducerClient::ask_chunks(const SplitPtr& split) {
  split->chunks.clear();
  for (const Part& part : split->parts) {
    if (part.reducer < 0 || (split->words[0] >> part.reducer & 1) == 0) continue;
    const uint64_t chunks = (part.count + part.chunk - 1) / part.chunk;
    for (uint64_t c = 0; c < chunks; ++c)
      split->chunks.push_back(part.done && c < part.done->size() ? (*part.done)[c] : 0);
  }
  const WorkPtr work = session_.prepare(
      status_request(*split, reinterpret_cast<std::byte*>(split->chunks.data()), split->chunks.size(), DType::u8),
      channel_of(*options_.group, 3 + split->number));
  session_.submit_unsplit(work);
  listen(split, Stage::chunks, 0, work);
}

void ReducerClient::repair(const SplitPtr& split) {
  const size_t element = size_of(split->parent->request.signature.dtype);
  const uint64_t channel = channel_of(*options_.group, 3 + split->number);
  size_t at = 0;
  for (const Part& part : split->parts) {
    if (part.reducer < 0 || (split->words[0] >> part.reducer & 1) == 0) continue;
    const uint64_t chunk = part.chunk;
    const uint64_t chunks = (part.count + chunk - 1) / chunk;
    for (uint64_t first = 0; first < chunks;) {
      uint64_t last = first + 1;
      while (last < chunks && split->chunks[at + last] == split->chunks[at + first]) ++last;
      const uint64_t begin = part.begin + first * chunk;
      const uint64_t count = std::min(part.begin + part.count, part.begin + last * chunk) - begin;
      Request request = slice(split->parent->request, begin, count);
      if (split->chunks[at + first] != 0) {  // somebody has the result: the others add nothing to it
        std::byte* out = request.spaces[1].data;
        for (uint64_t c = first; c < last; ++c) {
          const uint64_t from = (c - first) * chunk;
          if (part.done && c < part.done->size() && (*part.done)[c] != 0) continue;
          std::memset(out + from * element, 0, std::min(chunk, count - from) * element);
        }
        request.part->elements = {DType::u8, Op::bor};
        request.prescale = request.postscale = 1;
        request.divisor = 1;
        for (Layout& space : request.spaces) space = {out, count * element, {}};
        request.spaces[2].data = nullptr;
      }
      split->repairs.push_back(session_.prepare(std::move(request), channel));
      first = last;
    }
    reducers_[static_cast<size_t>(part.reducer)].state.redone += chunks;
    at += chunks;
  }
  split->left = split->repairs.size();
  for (size_t i = 0; i < split->repairs.size(); ++i) {
    session_.submit_unsplit(split->repairs[i]);
    listen(split, Stage::repair, i, split->repairs[i]);
  }
}

void ReducerClient::finish(const SplitPtr& split, const Error& error) { split->parent->complete(error); }

}  // namespace slipstream
