#include "reducers/express.h"

#include <algorithm>
#include <cstring>

#include "reducers/when_done.h"

namespace slipstream {
namespace {

uint64_t bit(uint64_t number) { return uint64_t{1} << number % 64; }

std::byte* output(const Request& slice) { return slice.spaces[static_cast<size_t>(Space::out)].data; }

size_t bytes_of(const Request& slice) { return slice.spaces[0].count * size_of(slice.signature.dtype); }

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

// Says something about pieces among the workers.
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

void Express::begin(Request slice, Done done) {
  const uint64_t number = next_++;
  pieces_.push_back({std::move(slice), std::move(done), nullptr, {}, false});
  if (ended_) return redo(number);
  Request request = pieces_.back().slice;
  // All of it at once or nothing: what is here in part would neither be a result nor leave the input as it was.
  send_to_reducer(request, context_, group_, kMostBytes);
  request.part->whole_chunks = true;
  pieces_.back().received = request.part->received;
  const WorkPtr work = session_->prepare(std::move(request), group_->id);
  ++under_way_;
  run(*session_, work, [this, number](const Error& error) { came(number, error); });
}

// ---- with the reducer

void Express::came(uint64_t number, const Error& error) {
  Piece& mine = piece(number);
  --under_way_;
  // The result may be here although the work failed later.
  mine.has = !error || (!mine.received->empty() && mine.received->front() != 0);
  if (mine.has) {
    const std::byte* result = output(mine.slice);
    mine.result.assign(result, result + bytes_of(mine.slice));
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
  if (const Done done = std::exchange(piece(number).done, nullptr)) done(error);
  while (undone_ < next_ && !piece(undone_).done) ++undone_;
  forget();
  context_.moved();
}

// The copies that nobody can want any more.
void Express::forget() {
  while (!ended_ && pieces_.size() > kAhead && !pieces_.front().done && !pieces_[kAhead].done) {
    pieces_.pop_front();
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
    words_[piece(number).has ? 1 : 2] |= bit(number);
  }
  const auto data = reinterpret_cast<std::byte*>(words_.data());
  const WorkPtr work =
      context_.workers.prepare(status_request("all_reduce/verdict", data, 8 * words_.size()), channel(0));
  run(context_.workers, work, [this](const Error& error) { judge(error); });
}

// Ranks differ by less than 64 pieces, so a bit means one.
void Express::judge(const Error& error) {
  judged_ = true;
  redo_below_ = next_;
  while (!error && redo_below_ - next_ < 2 * kAhead && (words_[0] & bit(redo_below_)) != 0) ++redo_below_;
  for (uint64_t number = base_; number < next_; ++number) {
    if (error && !piece(number).has)
      settle(number, error);
    else if (!error && (words_[1] & words_[2] & bit(number)) != 0)
      repair(number);
    else if (!error && (words_[1] & bit(number)) == 0)
      redo(number);
  }
  context_.moved();
}

void Express::repair(uint64_t number) {
  Piece& mine = piece(number);
  if (!mine.has) mine.result.assign(bytes_of(mine.slice), std::byte{0});
  const WorkPtr work = context_.workers.prepare(
      status_request("all_reduce/repair", mine.result.data(), mine.result.size()), channel(2 * number + 1));
  run(context_.workers, work, [this, number](const Error& error) {
    if (Piece& repaired = piece(number); !error && !repaired.has)
      std::memcpy(output(repaired.slice), repaired.result.data(), repaired.result.size());
    settle(number, error);
  });
}

void Express::redo(uint64_t number) {
  Request request = piece(number).slice;
  request.plan = context_.small;
  const WorkPtr work = context_.workers.prepare(std::move(request), channel(2 * number + 2));
  run(context_.workers, work, [this, number](const Error& error) { settle(number, error); });
}

}  // namespace slipstream
