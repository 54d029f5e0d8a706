#include "session/reduction.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <future>
#include <numeric>

#include "base/log.h"
#include "engine/offer.h"
#include "session/session.h"
#include "session/shares.h"
#include "transport/sha256.h"

namespace slipstream {
namespace {

constexpr uint64_t kRarely = 8;           // without reducers every so-many-th work asks whether there are some again
constexpr size_t kWindowBytes = 8 << 20;  // of a slice, under way to a reducer and back
// No worker may be far ahead of the others with one reducer: it would take from its other links what they wait for.
constexpr double kWindowSeconds = 0.06;
constexpr uint64_t kChunks = 64;  // of a slice, if they are large enough
constexpr uint64_t kLeastChunk = 32 << 10;
constexpr size_t kMostName = 1000;  // letters of a work's name that a reducer is told
constexpr double kConnectSeconds = 3;
constexpr double kRateUnit = 65536;
constexpr uint64_t kRandomBits = (uint64_t{1} << 48) - 1;  // of an incarnation; the rest is the port
constexpr uint64_t kChannels = 0x9e3779b97f4a7c15ULL;

// Channels of the workers' group that nothing else uses: 1 for slices, 2 for verdicts, more for repairs.
uint64_t channel_of(const Group& group, uint64_t use) {
  const uint64_t mixed = (group.id ^ use * kChannels) * kChannels;
  return (mixed ^ mixed >> 29) & ~(uint64_t{1} << 63);
}

}  // namespace

ReducerSession reducer_session(const std::string& job, const std::string& secret, uint64_t incarnation) {
  char number[24];
  std::snprintf(number, sizeof(number), "%012llx", static_cast<unsigned long long>(incarnation & kRandomBits));
  ReducerSession found;
  found.job = job + "/reducer/" + number;
  HmacSha256 mac(std::as_bytes(std::span(secret.data(), secret.size())));
  mac.update("slipstream reducer");
  mac.update(found.job);
  const Digest digest = mac.finish();
  found.secret.assign(reinterpret_cast<const char*>(digest.data()), digest.size());
  return found;
}

class Reduction::Ear final : public Listener {
 public:
  Ear(Reduction& reduction, SplitPtr split, Stage stage, size_t index, WorkPtr work)
      : reduction_(reduction), split_(std::move(split)), stage_(stage), index_(index), work_(std::move(work)) {}
  void work_done() override { reduction_.heard(split_, stage_, index_, work_); }

 private:
  Reduction& reduction_;
  SplitPtr split_;
  Stage stage_;
  size_t index_;
  WorkPtr work_;
};

Reduction::Reduction(Session& session, ReductionOptions options) : session_(session), options_(std::move(options)) {
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
  open_all();
  keeper_ = std::thread([this] { keep(); });
}

Reduction::~Reduction() { close(); }

// ---- a split work begins

void Reduction::enter(const WorkPtr& parent) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(parent);
  begin_ready();
}

void Reduction::begin_ready() {
  while (!waiting_.empty() && unjudged_.size() < kAhead) {
    const WorkPtr parent = std::move(waiting_.front());
    waiting_.pop_front();
    begin(parent);
  }
}

Request Reduction::slice(const Split& split, uint64_t begin, uint64_t count) const {
  Request request = split.parent->request;
  request.split_up = true;
  const size_t element = size_of(request.signature.dtype);
  for (Layout& space : request.spaces) {
    if (space.data != nullptr) space.data += begin * element;
    space.count = count;
  }
  return request;
}

void Reduction::begin(const WorkPtr& parent) {
  const auto split = std::make_shared<Split>();
  split->number = next_++;
  split->parent = parent;
  // Not those after: another rank may not have heard them yet when it comes here.
  for (; !judged_.empty() && judged_.front()->number + kAhead <= split->number; judged_.pop_front())
    apply(*judged_.front());
  std::vector<double> rates;
  bool any = false;
  for (const Reducer& reducer : reducers_) {
    rates.push_back(reducer.state.used ? reducer.state.rate : 0);
    split->incarnations.push_back(reducer.state.used ? reducer.wanted : 0);
    any |= reducer.state.used;
  }
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
  if (any || split->number % kRarely == 0) {
    split->words.assign(kHeader + 2 * reducers_.size(), 0);
    const auto bytes = reinterpret_cast<std::byte*>(split->words.data());
    split->verdict = session_.prepare(status_request(*split, bytes, 8 * split->words.size(), DType::u64),
                                      channel_of(*options_.group, 2));
  }
  unjudged_.push_back(split);
  if (split->parts.empty()) return give_verdict(split);
  for (size_t i = 0; i < split->parts.size(); ++i) {
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

void Reduction::add_part(Split& split, int reducer, uint64_t begin, uint64_t count) {
  Part part{reducer, begin, count, 1, nullptr, nullptr};
  Request request = slice(split, begin, count);
  if (reducer >= 0) {  // many chunks, so that sums flow back soon after data flows out
    const uint64_t bytes = count * size_of(request.signature.dtype);
    const uint64_t wanted = std::clamp<uint64_t>(std::bit_ceil(bytes / kChunks), kLeastChunk,
                                                 std::max<uint64_t>(kLeastChunk, request.chunk_bytes));
    request.chunk_bytes = request.signature.chunk_bytes = static_cast<uint32_t>(wanted);
  }
  part.chunk = chunk_elements(request);
  if (reducer < 0) {
    part.work = session_.prepare(std::move(request), channel_of(*options_.group, 1));
  } else if (Reducer& to = reducers_[static_cast<size_t>(reducer)];
             to.session && to.connected == to.wanted && !to.failed) {
    part.done = std::make_shared<std::vector<uint8_t>>();
    request.plan = options_.star;
    request.group = to.group;
    request.signature.name = request.signature.name.substr(0, kMostName);
    request.whole_chunks = request.spaces[0].data == request.spaces[1].data;
    request.done = part.done;
    request.window_bytes = kWindowBytes;
    request.window_seconds = kWindowSeconds;
    request.offer = encode_offer({request.signature, count, request.postscale, request.divisor});
    to.state.sent += count * size_of(request.signature.dtype);
    part.work = to.session->prepare(std::move(request), to.group->id);
  }
  split.parts.push_back(std::move(part));
}

// Words about the work among the workers: it carries the work's signature, so that one that differs is noticed.
Request Reduction::status_request(const Split& split, std::byte* data, uint64_t bytes, DType dtype) const {
  Request request = split.parent->request;
  request.plan = options_.small;
  request.split_up = true;
  request.elements = Request::Elements{dtype, Op::bor};
  request.chunk_bytes = kEagerBytes;
  request.prescale = request.postscale = 1;
  request.divisor = 1;
  const uint64_t count = bytes / size_of(dtype);
  for (Layout& space : request.spaces) space = {data, count, {}};
  request.spaces[2].data = nullptr;
  return request;
}

// ---- what becomes of its works

void Reduction::listen(const SplitPtr& split, Stage stage, size_t index, const WorkPtr& work) {
  work->listen(std::make_unique<Ear>(*this, split, stage, index, work));
}

void Reduction::heard(const SplitPtr& split, Stage stage, size_t index, const WorkPtr& work) {
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

void Reduction::part_done(const SplitPtr& split, Part& part) {
  if (part.reducer < 0 && part.work->error()) split->error = part.work->error();
  if (part.reducer >= 0 && (part.work == nullptr || part.work->error())) {
    split->lost |= 1u << part.reducer;
    Reducer& reducer = reducers_[static_cast<size_t>(part.reducer)];
    if (part.work != nullptr && !reducer.failed) {
      reducer.failed = true;
      reducer.why = part.work->error().text;
    }
  }
  if (--split->left == 0) give_verdict(split);
}

void Reduction::give_verdict(const SplitPtr& split) {
  if (split->verdict == nullptr) return judged(split, split->error);
  std::vector<uint64_t>& words = split->words;
  words[0] = split->lost;
  for (size_t i = 0; i < reducers_.size(); ++i) {
    const Reducer& reducer = reducers_[i];
    const bool up = reducer.session && reducer.connected == reducer.wanted && !reducer.failed;
    if (!up) words[1] |= uint64_t{1} << i;
    if (options_.rank != 0) continue;
    words[kHeader + 2 * i] = reducer.state.incarnation;
    words[kHeader + 2 * i + 1] = static_cast<uint64_t>(reducer.state.rate * kRateUnit);
  }
  session_.submit_unsplit(split->verdict);
  listen(split, Stage::verdict, 0, split->verdict);
}

void Reduction::judged(const SplitPtr& split, const Error& error) {
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

// At once, and once for each session that is lost.
void Reduction::warn(const Split& split) {
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

// The same on every rank: nothing here looks at what only this one knows, but for its own sessions.
void Reduction::apply(const Split& split) {
  for (size_t i = 0; i < reducers_.size(); ++i) {
    Reducer& reducer = reducers_[i];
    const uint64_t bit = uint64_t{1} << i;
    const uint64_t incarnation = split.words[kHeader + 2 * i];
    if ((split.words[0] & bit) != 0 && reducer.state.used && split.incarnations[i] == reducer.wanted) {
      reducer.state.used = false;
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
    if (incarnation != 0 && incarnation != reducer.wanted) {
      reducer.wanted = reducer.state.incarnation = incarnation;
      const std::lock_guard lock(keeper_mutex_);
      to_open_.emplace_back(i, incarnation);
      keeper_bell_.notify_one();
    } else if (!reducer.state.used && reducer.wanted != 0 && (split.words[1] & bit) == 0) {
      reducer.state.used = true;
      log_warning(options_.rank, "reducer " + reducer.state.name + " is used again");
    }
    reducer.state.rate = static_cast<double>(split.words[kHeader + 2 * i + 1]) / kRateUnit;
  }
}

// ---- repair

void Reduction::ask_chunks(const SplitPtr& split) {
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

void Reduction::repair(const SplitPtr& split) {
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
      Request request = slice(*split, begin, count);
      if (split->chunks[at + first] != 0) {  // somebody has the result: the others add nothing to it
        std::byte* out = request.spaces[1].data;
        for (uint64_t c = first; c < last; ++c) {
          const uint64_t from = (c - first) * chunk;
          if (part.done && c < part.done->size() && (*part.done)[c] != 0) continue;
          std::memset(out + from * element, 0, std::min(chunk, count - from) * element);
        }
        request.elements = Request::Elements{DType::u8, Op::bor};
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

void Reduction::finish(const SplitPtr& split, const Error& error) { split->parent->complete(error); }

// ---- sessions

void Reduction::registered(size_t index, uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  if (index < reducers_.size()) reducers_[index].state.incarnation = incarnation;
}

std::vector<ReducerState> Reduction::states() {
  const std::lock_guard lock(mutex_);
  std::vector<ReducerState> found;
  for (const Reducer& reducer : reducers_) found.push_back(reducer.state);
  return found;
}

std::shared_ptr<Session> Reduction::open(size_t index, uint64_t incarnation) const {
  const ReducerSession name = reducer_session(options_.job, options_.secret, incarnation);
  SessionOptions options;
  options.rank = options_.rank;
  options.size = options_.size + 1;
  options.job = name.job;
  options.secret = name.secret;
  options.heartbeat_seconds = options_.heartbeat_seconds;
  options.connect_seconds = kConnectSeconds;
  options.lanes = options_.lanes;
  auto session = std::make_shared<Session>(options);
  std::vector<PeerAddress> peers(static_cast<size_t>(options_.size) + 1);
  PeerAddress& reducer = peers.back();
  reducer.host = "reducer " + options_.reducers[index].name;
  reducer.addresses = options_.reducers[index].addresses;
  reducer.port = static_cast<uint16_t>(incarnation >> 48);
  session->start(std::move(peers));
  session->reach(options_.size, now() + seconds(kConnectSeconds));
  return session;
}

void Reduction::open_all() {
  std::vector<std::future<std::shared_ptr<Session>>> opening(reducers_.size());
  for (size_t i = 0; i < reducers_.size(); ++i)
    if (reducers_[i].wanted != 0)
      opening[i] = std::async(std::launch::async, [this, i] { return open(i, reducers_[i].wanted); });
  for (size_t i = 0; i < reducers_.size(); ++i) {
    if (!opening[i].valid()) continue;
    try {
      take(i, reducers_[i].wanted, opening[i].get());
    } catch (const std::exception& e) {  // the first verdict tells the others
      reducers_[i].why = e.what();
    }
  }
}

void Reduction::take(size_t index, uint64_t incarnation, std::shared_ptr<Session> session) {
  Reducer& reducer = reducers_[index];
  std::vector<int> ranks(static_cast<size_t>(options_.size) + 1);
  std::iota(ranks.begin(), ranks.end(), 0);
  reducer.group = session->make_group(1, std::move(ranks));
  reducer.session = std::move(session);
  reducer.connected = incarnation;
  reducer.failed = false;
}

void Reduction::keep() {
  std::unique_lock lock(keeper_mutex_);
  for (;;) {
    keeper_bell_.wait(lock, [this] { return stop_ || !to_open_.empty() || !to_close_.empty(); });
    auto closing = std::exchange(to_close_, {});
    auto opening = std::exchange(to_open_, {});
    if (stop_ && closing.empty()) return;
    if (stop_) opening.clear();
    lock.unlock();
    for (const auto& session : closing) session->close();
    closing.clear();
    for (const auto& [index, incarnation] : opening) {
      std::shared_ptr<Session> session;
      try {
        session = open(index, incarnation);
      } catch (const std::exception&) {  // it stays unused until there is another incarnation
        continue;
      }
      const std::lock_guard state(mutex_);
      Reducer& reducer = reducers_[index];
      if (incarnation != reducer.wanted || reducer.session) {
        const std::lock_guard again(keeper_mutex_);
        to_close_.push_back(std::move(session));
        continue;
      }
      take(index, incarnation, std::move(session));
    }
    lock.lock();
  }
}

void Reduction::close() {
  {
    const std::lock_guard lock(keeper_mutex_);
    if (stop_) return;
    stop_ = true;
    keeper_bell_.notify_one();
  }
  keeper_.join();
  std::vector<std::shared_ptr<Session>> sessions;
  {
    const std::lock_guard lock(mutex_);
    for (Reducer& reducer : reducers_)
      if (reducer.session) sessions.push_back(reducer.session);
  }
  for (const auto& session : sessions) session->close();
  const std::lock_guard lock(mutex_);
  for (const WorkPtr& parent : waiting_)
    parent->complete(Error{Code::aborted, options_.rank, {}, "slipstream was shut down while operations were pending"});
  waiting_.clear();
}

}  // namespace slipstream
