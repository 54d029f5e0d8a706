#include "reducers/express.h"

#include <algorithm>
#include <cstring>

#include "reducers/when_done.h"

namespace slipstream {
namespace {

uint64_t bit(uint64_t number) { return uint64_t{1} << number % 64; }

std::byte* output(const Request& request) { return request.spaces[static_cast<size_t>(Space::out)].data; }

size_t bytes_of(const Request& request) { return request.spaces[0].count * size_of(request.signature.dtype); }

}  // namespace

Express::Express(const ReducerContext& context, Session& session, std::shared_ptr<const Group> group,
                 uint64_t incarnation, std::function<void(const std::string& why)> lost)
    : context_(context),
      session_(&session),
      group_(std::move(group)),
      incarnation_(incarnation),
      lost_(std::move(lost)) {}

template <class F>
void Express::run(Session& session, const WorkPtr& work, F f) {
  session.submit_unsplit(work);
  when_done(work, [self = shared_from_this(), work = work.get(), f] {
    const std::lock_guard lock(self->context_.mutex);
    f(work->error());
  });
}

// Says something about slices among the workers.
Request Express::status_request(const char* operation, std::byte* data, size_t bytes) const {
  Request request;
  request.plan = context_.small;
  request.group = context_.group;
  request.signature.operation = operation;
  request.signature.dtype = DType::u8;
  request.signature.op = Op::bor;
  request.signature.reduces = true;
  request.signature.count = bytes;
  request.chunk_bytes = request.signature.chunk_bytes = kEagerBytes;
  make_bitwise_or(request, data, bytes, DType::u8);
  return request;
}

void Express::begin(Request request, Done done) {
  const uint64_t number = next_++;
  slices_.push_back({std::move(request), std::move(done), nullptr, {}, false});
  if (ended_) return redo(number);
  Request sent = slices_.back().request;
  // All of it at once or nothing: what is here in part would neither be a result nor leave the input as it was.
  send_to_reducer(sent, context_.star, group_, kMostBytes);
  sent.part->whole_chunks = true;
  slices_.back().received = sent.part->received;
  const WorkPtr work = session_->prepare(std::move(sent), group_->id);
  ++under_way_;
  run(*session_, work, [this, number](const Error& error) { came(number, error); });
}

// ---- with the reducer

void Express::came(uint64_t number, const Error& error) {
  Slice& mine = slice(number);
  --under_way_;
  // The result may be here although the work failed later.
  mine.has = !error || (!mine.received->empty() && mine.received->front() != 0);
  if (mine.has) {
    const std::byte* result = output(mine.request);
    mine.result.assign(result, result + bytes_of(mine.request));
    settle(number, {});
  }
  if (error && !ended_) {
    lost_(error.text);
    end();
  } else if (ended_ && under_way_ == 0) {
    give_verdict();
  }
}

void Express::settle(uint64_t number, const Error& error) {
  if (const Done done = std::exchange(slice(number).done, nullptr)) done(error);
  while (undone_ < next_ && !slice(undone_).done) ++undone_;
  forget();
  context_.moved();
}

// The copies that nobody can want any more.
void Express::forget() {
  while (!ended_ && slices_.size() > kAhead && !slices_.front().done && !slices_[kAhead].done) {
    slices_.pop_front();
    ++base_;
  }
}

// ---- and after it

void Express::end() {
  if (ended_) return;
  ended_ = true;
  session_ = nullptr;
  if (agreed_ && under_way_ == 0) give_verdict();
}

void Express::agree() {
  agreed_ = true;
  if (ended_) give_verdict();
}

void Express::give_verdict() {
  words_.assign(3, 0);
  for (uint64_t number = base_; number < next_; ++number) {
    words_[0] |= bit(number);
    words_[slice(number).has ? 1 : 2] |= bit(number);
  }
  const auto data = reinterpret_cast<std::byte*>(words_.data());
  const WorkPtr work =
      context_.workers.prepare(status_request("all_reduce/verdict", data, 8 * words_.size()), channel(0));
  run(context_.workers, work, [this](const Error& error) { judge(error); });
}

// Ranks differ by less than 64 slices, so a bit means one.
void Express::judge(const Error& error) {
  judged_ = true;
  redo_below_ = next_;
  while (!error && redo_below_ - next_ < 2 * kAhead && (words_[0] & bit(redo_below_)) != 0) ++redo_below_;
  for (uint64_t number = base_; number < next_; ++number) {
    if (error && !slice(number).has)
      settle(number, error);
    else if (!error && (words_[1] & words_[2] & bit(number)) != 0)
      repair(number);
    else if (!error && (words_[1] & bit(number)) == 0)
      redo(number);
  }
  context_.moved();
}

void Express::repair(uint64_t number) {
  Slice& mine = slice(number);
  if (!mine.has) mine.result.assign(bytes_of(mine.request), std::byte{0});
  const WorkPtr work = context_.workers.prepare(
      status_request("all_reduce/repair", mine.result.data(), mine.result.size()), channel(2 * number + 1));
  run(context_.workers, work, [this, number](const Error& error) {
    if (Slice& repaired = slice(number); !error && !repaired.has)
      std::memcpy(output(repaired.request), repaired.result.data(), repaired.result.size());
    settle(number, error);
  });
}

void Express::redo(uint64_t number) {
  Request request = slice(number).request;
  request.plan = context_.small;
  request.signature.wire = WireType::exact;  // every rank forms the sums of this plan
  const WorkPtr work = context_.workers.prepare(std::move(request), channel(2 * number + 2));
  run(context_.workers, work, [this, number](const Error& error) { settle(number, error); });
}

}  // namespace slipstream
