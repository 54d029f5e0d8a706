#include "reducers/express.h"

#include <algorithm>
#include <cstring>

#include "reducers/offer.h"
#include "session/session.h"

namespace slipstream {
namespace {

constexpr size_t kMostName = 1000;  // letters of a work's name that a reducer is told
constexpr uint64_t kMix = 0x9e3779b97f4a7c15ULL;

uint64_t bit(uint64_t number) { return uint64_t{1} << number % 64; }

std::byte* output(const Request& slice) { return slice.spaces[static_cast<size_t>(Space::out)].data; }

size_t bytes_of(const Request& slice) { return slice.spaces[0].count * size_of(slice.signature.dtype); }

// Words about pieces among the workers.
Request status(const Express::Context& context, const char* what, std::byte* data, size_t bytes) {
  Request request;
  request.plan = context.small;
  request.group = context.group;
  request.part.emplace();
  request.signature.operation = what;
  request.signature.dtype = DType::u8;
  request.signature.op = Op::bor;
  request.signature.reduces = true;
  request.signature.count = bytes;
  request.chunk_bytes = request.signature.chunk_bytes = kEagerBytes;
  for (Layout& space : request.spaces) space = {data, bytes, {}};
  request.spaces[2].data = nullptr;
  return request;
}

}  // namespace

class Express::Ear final : public Listener {
 public:
  Ear(std::shared_ptr<Express> express, Stage stage, uint64_t number, WorkPtr work)
      : express_(std::move(express)), stage_(stage), number_(number), work_(std::move(work)) {}
  void work_done() override { express_->heard(stage_, number_, work_); }

 private:
  std::shared_ptr<Express> express_;
  Stage stage_;
  uint64_t number_;
  WorkPtr work_;
};

Express::Express(Context context, Session& session, std::shared_ptr<const Group> group, uint64_t incarnation)
    : context_(std::move(context)), session_(&session), group_(std::move(group)), incarnation_(incarnation) {}

uint64_t Express::channel(uint64_t use) const {
  const uint64_t mixed = ((context_.group->id ^ incarnation_) * kMix + use) * kMix;
  return (mixed ^ mixed >> 31) & ~(uint64_t{1} << 63);
}

void Express::begin(Request slice, Done done) {
  const uint64_t number = next_++;
  pieces_.push_back({std::move(slice), std::move(done), nullptr, {}, false});
  if (ended_) return redo(number);
  Piece& mine = piece(number);
  mine.arrived = std::make_shared<std::vector<uint8_t>>();
  Request request = mine.slice;
  request.plan = context_.star;
  request.group = group_;
  request.signature.name = request.signature.name.substr(0, kMostName);
  // All of it at once or nothing: what is here in part would neither be a result nor leave the input as it was.
  request.chunk_bytes = request.signature.chunk_bytes = kMostBytes;
  request.part->whole_chunks = true;
  request.part->received = mine.arrived;
  request.part->offer = encode_offer({request.signature, request.spaces[0].count, request.postscale, request.divisor});
  const WorkPtr work = session_->prepare(std::move(request), group_->id);
  ++under_way_;
  session_->submit_unsplit(work);
  listen(Stage::piece, number, work);
}

void Express::listen(Stage stage, uint64_t number, const WorkPtr& work) {
  work->listen(std::make_unique<Ear>(shared_from_this(), stage, number, work));
}

void Express::heard(Stage stage, uint64_t number, const WorkPtr& work) {
  const std::lock_guard lock(context_.mutex);
  switch (stage) {
    case Stage::piece:
      return came(number, work);
    case Stage::verdict:
      return judge(work->error());
    case Stage::repaired:
      if (Piece& mine = piece(number); !work->error() && !mine.has)
        std::memcpy(output(mine.slice), mine.result.data(), mine.result.size());
      [[fallthrough]];
    case Stage::redone:
      return settle(number, work->error());
  }
}

// ---- with the reducer

void Express::came(uint64_t number, const WorkPtr& work) {
  Piece& mine = piece(number);
  --under_way_;
  // The result may be here although the work failed later.
  mine.has = !work->error() || (!mine.arrived->empty() && mine.arrived->front() != 0);
  if (mine.has) {
    const std::byte* result = output(mine.slice);
    mine.result.assign(result, result + bytes_of(mine.slice));
    settle(number, {});
  }
  if (work->error() && !ended_) {
    context_.ended(work->error().text);
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
  const WorkPtr work = context_.workers.prepare(
      status(context_, "all_reduce/verdict", reinterpret_cast<std::byte*>(words_.data()), 8 * words_.size()),
      channel(0));
  context_.workers.submit_unsplit(work);
  listen(Stage::verdict, 0, work);
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
      status(context_, "all_reduce/repair", mine.result.data(), mine.result.size()), channel(2 * number + 1));
  context_.workers.submit_unsplit(work);
  listen(Stage::repaired, number, work);
}

void Express::redo(uint64_t number) {
  Request request = piece(number).slice;
  request.plan = context_.small;
  const WorkPtr work = context_.workers.prepare(std::move(request), channel(2 * number + 2));
  context_.workers.submit_unsplit(work);
  listen(Stage::redone, number, work);
}

}  // namespace slipstream
