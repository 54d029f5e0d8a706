#include "reducers/split_work.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "reducers/when_done.h"

namespace slipstream {
namespace {

constexpr size_t kWindowBytes = 8 << 20;  // of a slice, under way to a reducer and back
// No worker may be far ahead of the others with one reducer: it would take from its other links what they wait for.
constexpr double kWindowSeconds = 0.03;
constexpr double kRingSeconds = 0.005;
constexpr size_t kRingLeast = 128 << 10;
constexpr uint64_t kChunks = 16;            // of a slice, at least
constexpr uint64_t kLeastChunk = 20 << 10;  // more than what goes without leave
// Sums flow back when a chunk is whole, and all links share the worker's. With its headers it is one packet of 64 KiB.
constexpr uint64_t kMostChunk = 60 << 10;

}  // namespace

SplitWork::SplitWork(const ReducerContext& context, ReducerPool& pool, uint64_t number, Range range)
    : context_(context),
      pool_(pool),
      number_(number),
      range_(std::move(range)),
      begun_(now()),
      incarnations_(pool.incarnations()),
      seconds_(pool.size() + 1) {}

template <class F>
void SplitWork::then(const WorkPtr& work, F f) {
  when_done(work, [self = shared_from_this(), f] {
    const std::lock_guard lock(self->context_.mutex);
    f();
  });
}

// ---- its parts

void SplitWork::begin(bool asks, std::function<void()> judged, std::function<void(const Error&)> done) {
  tell_judged_ = std::move(judged);
  tell_done_ = std::move(done);
  const std::vector<uint32_t> shares = pool_.shares();
  uint64_t given = 0;
  uint64_t begin = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    given += shares[i];
    const auto end = std::min(range_.count, static_cast<uint64_t>(double(range_.count) * given / 65536.0));
    if (end > begin && i == 0) add_own(range_.begin, end);
    if (end > begin && i > 0) add_portion(static_cast<int>(i) - 1, range_.begin + begin, end - begin);
    begin = end;
  }
  for (const Part& part : parts_) left_ += part.carried ? 1 : 0;
  if (asks) {
    verdict_.emplace(pool_.size());
    verdict_work_ = context_.workers.prepare(status_request(verdict_->data(), verdict_->bytes(), DType::u64),
                                             channel_of(*context_.group, 0, kVerdicts));
  }
  reducing_ = context_.shards.alone() ? 0 : portions_.size();
  if (left_ == 0) give_verdict();
  if (!parts_.empty() && parts_.front().reducer < 0) submit(parts_.front());
  for (const Portion& portion : portions_) {
    if (portion.reduce == nullptr) continue;
    context_.workers.submit_unsplit(portion.reduce);
    then(portion.reduce, [this, work = portion.reduce.get()] {
      if (work->error() && !error_) error_ = work->error();
      if (--reducing_ == 0) context_.moved();
    });
  }
}

void SplitWork::add_own(uint64_t begin, uint64_t count) {
  Part part;
  part.begin = begin;
  part.count = count;
  Request request = slice_of(whole(), begin, count);
  if (std::ranges::any_of(incarnations_, [](uint64_t incarnation) { return incarnation != 0; })) {
    // The reducers' links are what all wait for: the ring takes what they leave of the worker's.
    request.part->window_seconds = kRingSeconds;
    request.part->window_least = kRingLeast;
    request.chunk_bytes = request.signature.chunk_bytes = kMostChunk;
  }
  part.session = std::shared_ptr<Session>(std::shared_ptr<void>(), &context_.workers);  // not ours
  part.work = part.session->prepare(std::move(request), channel_of(*context_.group, 0, kSlices));
  parts_.push_back(std::move(part));
}

void SplitWork::add_portion(int reducer, uint64_t begin, uint64_t count) {
  const Shards& shards = context_.shards;
  Portion portion;
  if (!shards.alone()) {
    Request reduce = slice_of(whole(), begin, count);
    Request gather = reduce;
    reduce_within(reduce, shards);
    gather_within(gather, shards);
    portion.reduce = context_.workers.prepare(std::move(reduce), channel_of(*shards.within, 0, kWithin));
    portion.gather = context_.workers.prepare(std::move(gather), channel_of(*shards.within, 0, kGathers));
  }
  portions_.push_back(std::move(portion));
  for (size_t shard = 0; shard < shards.count(); ++shard) {
    Part part;
    part.reducer = reducer;
    part.shard = shard;
    part.begin = begin + shards.begin(shard, count);
    part.count = begin + shards.begin(shard + 1, count) - part.begin;
    part.carried = shards.carries(shard);
    if (part.count == 0) continue;
    const uint64_t bytes = chunk_bytes(part, pool_.window_least(static_cast<size_t>(reducer)));
    part.chunk = chunk_elements(static_cast<uint32_t>(bytes), whole().signature.dtype, whole().signature.wire);
    if (part.carried) prepare_carried(part);
    parts_.push_back(std::move(part));
  }
}

Request SplitWork::carried_slice(uint64_t begin, uint64_t count) const {
  Request slice = slice_of(whole(), begin, count);
  if (!context_.shards.alone()) take_sums(slice);
  return slice;
}

// In many chunks, so that sums flow back soon after data flows out.
uint64_t SplitWork::chunk_bytes(const Part& part, size_t window) const {
  const uint64_t bytes = part.count * size_of(whole().signature.dtype);
  const uint64_t most = std::clamp<uint64_t>(window / 2, kLeastChunk, kMostChunk);
  return std::clamp<uint64_t>(std::bit_ceil(bytes / kChunks), kLeastChunk, most);
}

void SplitWork::prepare_carried(Part& part) {
  const auto reducer = static_cast<size_t>(part.reducer);
  part.session = pool_.session(reducer);
  if (part.session == nullptr) return;
  const size_t window = pool_.window_least(reducer);
  const auto& group = pool_.group(reducer, part.shard);
  Request request = carried_slice(part.begin, part.count);
  send_to_reducer(request, context_.shards.star, group, static_cast<uint32_t>(chunk_bytes(part, window)));
  part.received = request.part->received;
  request.part->whole_chunks = request.spaces[0].data == request.spaces[1].data;
  request.part->window_bytes = kWindowBytes;
  request.part->window_seconds = kWindowSeconds;
  request.part->window_least = window;
  pool_.count_sent(reducer, bytes_between_hosts(request.signature, part.count));
  part.work = part.session->prepare(std::move(request), group->id);
}

// Each worker with another reducer first: no queue gets all at once.
void SplitWork::send() {
  for (size_t n = 0; n < parts_.size(); ++n) {
    const Part& part = parts_[(n + static_cast<size_t>(context_.group->rank)) % parts_.size()];
    if (part.reducer >= 0 && part.carried) submit(part);
  }
}

void SplitWork::submit(const Part& part) {
  if (part.work == nullptr || (error_ && part.reducer >= 0)) return part_done(part);
  part.session->submit_unsplit(part.work);
  then(part.work, [this, &part] { part_done(part); });
}

// Says something about the work among the workers. It carries the work's signature, so that one that differs is
// noticed.
Request SplitWork::status_request(std::byte* data, uint64_t bytes, DType dtype) const {
  Request request = whole();
  request.plan = context_.small;
  request.chunk_bytes = kEagerBytes;
  make_bitwise_or(request, data, bytes, dtype);
  return request;
}

std::string SplitWork::awaited() const {
  std::string text;
  bool reducers_only = true;
  const auto add = [&](const WorkPtr& work, int reducer) {
    if (work == nullptr || work->done()) return;
    if (!text.empty()) text += " and ";
    if (reducer < 0) reducers_only = false;
    text +=
        reducer < 0 ? context_.workers.engine().reports().awaited_by(*work) : pool_.name(static_cast<size_t>(reducer));
  };
  if (reducing_ != 0)
    for (const Portion& portion : portions_) add(portion.reduce, -1);
  for (const Part& part : parts_)
    if (reducing_ == 0 || part.reducer < 0) add(part.work, part.reducer);
  for (const WorkPtr& one : repairs_) add(one, -1);
  if (whole_)
    for (const Portion& portion : portions_) add(portion.gather, -1);
  if (text.empty()) add(verdict_work_, -1);
  if (text.empty()) return "the other workers";
  return reducers_only ? text + kOrWorkers : text;
}

// ---- the verdict

void SplitWork::part_done(const Part& part) {
  const double took = std::chrono::duration<double>(now() - begun_).count();
  seconds_[static_cast<size_t>(part.reducer + 1)] = took;
  const bool begun = part.work != nullptr && part.work->done();
  record(part, begun);
  if (part.reducer < 0) {
    if (part.work->error() && !error_) error_ = part.work->error();
  } else if (!begun || part.work->error()) {
    lost_ |= 1u << part.reducer;
    const auto reducer = static_cast<size_t>(part.reducer);
    if (begun) pool_.lose(reducer, incarnations_[reducer], part.work->error().text);
  }
  if (--left_ == 0) give_verdict();
}

// For the timeline. The workers' own part is a work of theirs, which is there already.
void SplitWork::record(const Part& part, bool begun) {
  Trace& trace = context_.workers.trace();
  if (part.reducer < 0 || !trace.on()) return;
  const Signature& signature = whole().signature;
  const std::string name = signature.name.empty() ? signature.operation : signature.name;
  const std::string track = pool_.name(static_cast<size_t>(part.reducer));
  const bool lost = !begun || part.work->error();
  trace.span(track, (lost ? "lost: " : "") + name, begun_, now(), part.count * size_of(signature.dtype));
}

void SplitWork::give_verdict() {
  if (!Express::is_small(whole())) {
    std::vector<double> took(pool_.size());
    for (const Part& part : parts_)
      if (part.reducer >= 0 && part.work != nullptr)
        took[static_cast<size_t>(part.reducer)] = seconds_[static_cast<size_t>(part.reducer + 1)];
    pool_.see_lags(took);
  }
  if (!verdict_) return judge(error_);
  verdict_->set_lost(lost_);
  pool_.speak(*verdict_);
  context_.workers.submit_unsplit(verdict_work_);
  then(verdict_work_, [this] { judge(verdict_work_->error()); });
}

void SplitWork::judge(const Error& error) {
  if (error && !error_) error_ = error;
  judged_ = true;
  if (verdict()) pool_.warn(*verdict_, incarnations_);
  tell_judged_();
  if (error_ || !verdict_ || verdict_->lost() == 0)
    settle();
  else
    ask_chunks();
  context_.moved();
}

// What this rank carries is there. Nobody else of the host waits for it: works need not be done in their order.
void SplitWork::settle() {
  whole_ = true;
  if (context_.shards.alone() || portions_.empty()) finish();
  context_.moved();
}

void SplitWork::gather() {
  if (error_ || context_.shards.alone()) return finish();
  left_ = portions_.size();
  for (const Portion& portion : portions_) {
    context_.workers.submit_unsplit(portion.gather);
    then(portion.gather, [this, work = portion.gather.get()] {
      if (work->error() && !error_) error_ = work->error();
      if (--left_ == 0) finish();
    });
  }
}

void SplitWork::finish() {
  if (const auto done = std::exchange(tell_done_, nullptr)) done(error_);
}

// ---- what was lost

void SplitWork::ask_chunks() {
  for (const Part& part : parts_)
    for (uint64_t c = 0; is_lost(part) && c < part.chunks(); ++c) chunks_.push_back(part.has(c) ? 1 : 0);
  const auto data = reinterpret_cast<std::byte*>(chunks_.data());
  const WorkPtr work = context_.workers.prepare(status_request(data, chunks_.size(), DType::u8),
                                                channel_of(*context_.group, 0, kRepairs + number_));
  context_.workers.submit_unsplit(work);
  then(work, [this, work = work.get()] {
    if (work->error()) {
      error_ = work->error();
      settle();
    } else {
      repair();
    }
  });
}

void SplitWork::repair() {
  const uint8_t* anybody_has = chunks_.data();
  for (const Part& part : parts_) {
    if (!is_lost(part)) continue;
    if (part.carried) {
      add_repairs(part, anybody_has);
      pool_.count_redone(static_cast<size_t>(part.reducer), part.chunks());
    }
    anybody_has += part.chunks();
  }
  left_ = repairs_.size();
  if (repairs_.empty()) settle();
  for (const WorkPtr& one : repairs_) {
    context_.workers.submit_unsplit(one);
    then(one, [this, one = one.get()] {
      if (one->error() && !error_) error_ = one->error();
      if (--left_ == 0) settle();
    });
  }
}

// Neighbours that are alike are repaired together, among the carriers of the shard.
void SplitWork::add_repairs(const Part& part, const uint8_t* anybody_has) {
  const uint64_t channel = channel_of(*context_.shards.across[part.shard], 0, kRepairs + number_);
  for (uint64_t first = 0, last = 0; first < part.chunks(); first = last) {
    while (last < part.chunks() && anybody_has[last] == anybody_has[first]) ++last;
    repairs_.push_back(context_.workers.prepare(repair_request(part, first, last, anybody_has[first] != 0), channel));
  }
}

Request SplitWork::repair_request(const Part& part, uint64_t first, uint64_t last, bool somebody_has) const {
  const size_t element = size_of(whole().signature.dtype);
  const uint64_t begin = first * part.chunk;
  const uint64_t count = std::min(part.count, last * part.chunk) - begin;
  Request request = carried_slice(part.begin + begin, count);
  request.plan = context_.shards.between;
  request.group = context_.shards.across[part.shard];
  if (!somebody_has) return request;
  std::byte* out = request.spaces[1].data;  // those who have not the result add nothing to it
  for (uint64_t c = first; c < last; ++c) {
    const uint64_t from = c * part.chunk - begin;
    if (!part.has(c)) std::memset(out + from * element, 0, std::min(part.chunk, count - from) * element);
  }
  make_bitwise_or(request, out, count * element, DType::u8);
  return request;
}

}  // namespace slipstream
