#include "reducers/split_work.h"

#include <algorithm>
#include <bit>
#include <cstring>

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

SplitWork::SplitWork(const ReducerContext& context, ReducerPool& pool, uint64_t number, WorkPtr parent)
    : context_(context),
      pool_(pool),
      number_(number),
      parent_(std::move(parent)),
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

void SplitWork::begin(bool asks, std::function<void()> judged) {
  tell_judged_ = std::move(judged);
  const std::vector<uint32_t> shares = pool_.shares();
  const uint64_t count = parent_->request.spaces[0].count;
  uint64_t given = 0;
  uint64_t begin = 0;
  for (size_t i = 0; i < shares.size(); ++i) {
    given += shares[i];
    const auto end = std::min(count, static_cast<uint64_t>(double(count) * given / 65536.0));
    if (end > begin) add_part(static_cast<int>(i) - 1, begin, end - begin);
    begin = end;
  }
  left_ = parts_.size();
  if (asks) {
    verdict_.emplace(pool_.size());
    verdict_work_ = context_.workers.prepare(status_request(verdict_->data(), verdict_->bytes(), DType::u64),
                                             channel_of(*context_.group, 0, kVerdicts));
  }
  if (parts_.empty())
    give_verdict();
  else
    submit_parts();
}

void SplitWork::add_part(int reducer, uint64_t begin, uint64_t count) {
  Part part{reducer, begin, count, 1, nullptr, nullptr, nullptr};
  Request request = slice_of(parent_->request, begin, count);
  if (reducer < 0)
    prepare_own(part, std::move(request));
  else
    prepare_reducers(part, std::move(request));
  parts_.push_back(std::move(part));
}

void SplitWork::prepare_own(Part& part, Request request) {
  if (std::ranges::any_of(incarnations_, [](uint64_t incarnation) { return incarnation != 0; })) {
    // The reducers' links are what all wait for: the ring takes what they leave of the worker's.
    request.part->window_seconds = kRingSeconds;
    request.part->window_least = kRingLeast;
    request.chunk_bytes = request.signature.chunk_bytes = kMostChunk;
  }
  part.session = &context_.workers;
  part.work = part.session->prepare(std::move(request), channel_of(*context_.group, 0, kSlices));
}

// In many chunks, so that sums flow back soon after data flows out.
void SplitWork::prepare_reducers(Part& part, Request request) {
  const auto reducer = static_cast<size_t>(part.reducer);
  const uint64_t bytes = part.count * size_of(request.signature.dtype);
  const size_t window = pool_.window_least(reducer);
  const uint64_t most = std::clamp<uint64_t>(window / 2, kLeastChunk, kMostChunk);
  const uint64_t chunk = std::clamp<uint64_t>(std::bit_ceil(bytes / kChunks), kLeastChunk, most);
  send_to_reducer(request, context_, pool_.group(reducer), static_cast<uint32_t>(chunk));
  part.chunk = chunk_elements(request);
  part.session = pool_.session(reducer);
  if (part.session == nullptr) return;
  part.received = request.part->received;
  request.part->whole_chunks = request.spaces[0].data == request.spaces[1].data;
  request.part->window_bytes = kWindowBytes;
  request.part->window_seconds = kWindowSeconds;
  request.part->window_least = window;
  pool_.count_sent(reducer, bytes_between_hosts(request.signature, part.count));
  part.work = part.session->prepare(std::move(request), pool_.group(reducer)->id);
}

// Each worker with another reducer first: no queue gets all at once.
void SplitWork::submit_parts() {
  for (size_t n = 0; n < parts_.size(); ++n) {
    const size_t i = (n + static_cast<size_t>(context_.group->rank)) % parts_.size();
    const Part& part = parts_[i];
    if (part.work == nullptr) {
      part_done(part);
      continue;
    }
    part.session->submit_unsplit(part.work);
    then(part.work, [this, i] { part_done(parts_[i]); });
  }
}

// Says something about the work among the workers. It carries the work's signature, so that one that differs is
// noticed.
Request SplitWork::status_request(std::byte* data, uint64_t bytes, DType dtype) const {
  Request request = parent_->request;
  request.plan = context_.small;
  request.chunk_bytes = kEagerBytes;
  make_bitwise_or(request, data, bytes, dtype);
  return request;
}

std::string SplitWork::awaited() const {
  std::string text;
  const auto add = [&](const WorkPtr& work, int reducer) {
    if (work == nullptr || work->done()) return;
    if (!text.empty()) text += " and ";
    text +=
        reducer < 0 ? context_.workers.engine().reports().awaited_by(*work) : pool_.name(static_cast<size_t>(reducer));
  };
  for (const Part& part : parts_) add(part.work, part.reducer);
  for (const WorkPtr& one : repairs_) add(one, -1);
  if (text.empty()) add(verdict_work_, -1);
  return text.empty() ? "the other workers" : text;
}

// ---- the verdict

void SplitWork::part_done(const Part& part) {
  const double took = std::chrono::duration<double>(now() - begun_).count();
  seconds_[static_cast<size_t>(part.reducer + 1)] = took;
  if (part.reducer < 0) {
    if (part.work->error()) error_ = part.work->error();
  } else if (part.work == nullptr || part.work->error()) {
    lost_ |= 1u << part.reducer;
    if (part.work != nullptr) pool_.lose(static_cast<size_t>(part.reducer), part.work->error().text);
  }
  if (--left_ == 0) give_verdict();
}

void SplitWork::give_verdict() {
  if (!Express::is_small(parent_->request)) {
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
    parent_->complete(error_);
  else
    ask_chunks();
  context_.moved();
}

// ---- what was lost

uint64_t SplitWork::repair_channel() const { return channel_of(*context_.group, 0, kRepairs + number_); }

void SplitWork::ask_chunks() {
  for (const Part& part : parts_)
    for (uint64_t c = 0; is_lost(part) && c < part.chunks(); ++c) chunks_.push_back(part.has(c) ? 1 : 0);
  const auto data = reinterpret_cast<std::byte*>(chunks_.data());
  const WorkPtr work = context_.workers.prepare(status_request(data, chunks_.size(), DType::u8), repair_channel());
  context_.workers.submit_unsplit(work);
  then(work, [this, work = work.get()] {
    if (work->error())
      parent_->complete(work->error());
    else
      repair();
  });
}

void SplitWork::repair() {
  const uint8_t* anybody_has = chunks_.data();
  for (const Part& part : parts_) {
    if (!is_lost(part)) continue;
    add_repairs(part, anybody_has);
    pool_.count_redone(static_cast<size_t>(part.reducer), part.chunks());
    anybody_has += part.chunks();
  }
  left_ = repairs_.size();
  for (const WorkPtr& one : repairs_) {
    context_.workers.submit_unsplit(one);
    then(one, [this, one = one.get()] {
      if (one->error() && !error_) error_ = one->error();
      if (--left_ == 0) parent_->complete(error_);
    });
  }
}

// Neighbours that are alike are repaired together.
void SplitWork::add_repairs(const Part& part, const uint8_t* anybody_has) {
  for (uint64_t first = 0, last = 0; first < part.chunks(); first = last) {
    while (last < part.chunks() && anybody_has[last] == anybody_has[first]) ++last;
    repairs_.push_back(
        context_.workers.prepare(repair_request(part, first, last, anybody_has[first] != 0), repair_channel()));
  }
}

Request SplitWork::repair_request(const Part& part, uint64_t first, uint64_t last, bool somebody_has) const {
  const size_t element = size_of(parent_->request.signature.dtype);
  const uint64_t begin = first * part.chunk;
  const uint64_t count = std::min(part.count, last * part.chunk) - begin;
  Request request = slice_of(parent_->request, part.begin + begin, count);
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
