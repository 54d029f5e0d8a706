#include "boards/board.h"

#include <sched.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "base/float_state.h"
#include "base/log.h"
#include "base/relax.h"
#include "boards/sleep.h"

namespace slipstream {

namespace {

constexpr int kCallsBefore = 3;  // that a board would have taken, before there is one
constexpr auto kRootWaits = std::chrono::microseconds(20);
constexpr auto kLost = std::chrono::microseconds(250);  // beyond the patience: others have had this core

}  // namespace

Board::Board(BoardHost& host, const Group& group, uint64_t next)
    : host_(host),
      rank_(group.rank),
      size_(static_cast<int>(group.ranks.size())),
      session_rank_(group.ranks[static_cast<size_t>(group.rank)]),
      leader_(group.ranks.front()),
      count_(next - 1),
      worth_(size_) {}

bool Board::take(std::shared_ptr<std::byte> memory) {
  const std::lock_guard lock(mutex_);
  if (rows_) return false;
  memory_ = std::move(memory);
  rows_.emplace(memory_.get(), rank_, size_);
  return true;
}

void Board::join() {
  if (!joined_) rows_->join(count_ + 1);
  joined_ = true;
}

// ---- works of the engine

void Board::number(const WorkPtr& work) {
  try {
    const uint64_t number = take_number(work);
    if (number != 0) wake_others(*work->request.group, number, false);
  } catch (...) {  // the others have seen the number, or wait for it
    host_.broke();
    throw;
  }
}

// 0 if the group has no board yet.
uint64_t Board::take_number(const WorkPtr& work) {
  const std::lock_guard lock(mutex_);
  if (rows_) join();
  const uint64_t number = ++count_;
  to_post_ = false;  // `number` tells the others that nothing comes for what is undecided
  if (rows_) rows_->pass(number, undecided_);
  host_.enter(work, number);
  return rows_ ? number : 0;
}

bool Board::hold_back(const WorkPtr& work) {
  const std::lock_guard lock(mutex_);
  if (undecided_ == 0) return false;
  const auto after = static_cast<int32_t>(work->request.seq + 1 - static_cast<uint32_t>(undecided_));
  if (!work->request.only_waits && after <= 0) return false;
  later_.push_back(work);
  host_.held_back();
  return true;
}

bool Board::holds_back(Time now, WorkPtr& overdue) {
  const std::lock_guard lock(mutex_);
  for (const WorkPtr& work : later_)
    if (work->request.timed && now >= work->due()) overdue = work;
  return !later_.empty();
}

void Board::wake_others(const Group& group, uint64_t number, bool at_once) {
  if (!rows_->any_sleeps()) return;
  const auto wakes = rows_->take_claims(number);
  if (!wakes.empty()) host_.wake(group, wakes, at_once);
}

// ---- calls

uint64_t Board::begin(const BoardCall& call) {
  if (!host_.idle() || call.most_bytes() > BoardRows::room(size_)) return 0;
  std::unique_lock lock(mutex_);
  if (!rows_) {
    const bool enough = calls_ <= kCallsBefore && ++calls_ > kCallsBefore;
    lock.unlock();
    if (enough && rank_ == 0) host_.want(shared_from_this(), *call.request.group);
    return 0;
  }
  if (undecided_ != 0) return 0;
  join();
  const uint64_t number = count_ + 1;
  if ((!worth_.try_now(number) && !host_.always()) || !rows_->may_post(number)) return 0;
  if (host_.traces()) called_ = now();
  const uint64_t hash = call.hash();
  {
    const DefaultFloatState state;
    call.contribute(rows_->place(number, call.bytes_of(rank_)));
  }
  to_post_ = call.gives();
  if (!to_post_) rows_->post(number, hash);
  rows_->look_for(number, hash, call.takes() ? call.request.signature.root : -1);
  count_ = undecided_ = number;
  return number;
}

bool Board::look_at_once() {
  const Time begin = now();
  for (uint32_t i = 1; rows_->look() == BoardRows::Look::waits; ++i) {
    if (i % 8 == 0 && now() - begin >= host_.held()) return false;
    relax();
  }
  return true;
}

bool Board::look(const BoardCall& call) {
  // Whoever this rank waits for may be queued behind it on this core.
  const Time end = now() + (call.gives() ? std::min<Clock::duration>(kRootWaits, host_.patience()) : host_.patience());
  bool waits = false;
  bool yielded = false;
  while ((waits = rows_->look() == BoardRows::Look::waits) && !host_.ended() && now() < end) {
    ::sched_yield();
    yielded = true;
  }
  const Clock::duration late = now() - end;
  lost_ = yielded && late > kLost ? late : Clock::duration{};
  return !waits || host_.ended();
}

WorkPtr Board::end(const BoardCall& call, uint64_t number) {
  WorkPtr work;
  guarded([&] { work = decided(call, number); });
  return work;
}

template <class F>
void Board::guarded(F f) {
  try {
    f();
  } catch (...) {
    struct Abandoned {
      Board& board;
      ~Abandoned() { board.abandon(); }
    } const whatever_broke_does{*this};
    host_.broke();
    throw;
  }
}

WorkPtr Board::decided(const BoardCall& call, uint64_t number) {
  if (call.gives()) return given(call, number);
  const BoardRows::Look found = rows_->look();
  if (found == BoardRows::Look::all) return done(call, number);
  const WorkPtr work = host_.work_of(call, number);
  if (called_ != Time{}) work->traced = std::exchange(called_, Time{});
  if (found == BoardRows::Look::waits && !host_.ended()) {
    wake_others(*call.request.group, number, true);
    {
      const std::lock_guard lock(mutex_);
      worth_.slept(number, static_cast<int>(rows_->missing().size()));
      slept_ = true;
    }
    std::make_shared<BoardSleep>(host_, shared_from_this(), call.form, work, number)->begin();
    return work;
  }
  settle(call, number, work);
  wake_others(*call.request.group, number, true);
  return work;
}

WorkPtr Board::done(const BoardCall& call, uint64_t number) {
  conclude(call, number);
  if (called_ != Time{}) host_.trace(call, std::exchange(called_, Time{}));
  settle(call, number, nullptr);
  wake_others(*call.request.group, number, true);
  return nullptr;
}

// Of a root: posts, if all others have.
WorkPtr Board::given(const BoardCall& call, uint64_t number) {
  const bool all = rows_->look() == BoardRows::Look::all && !host_.ended();
  bool posts = false;
  {
    const std::lock_guard lock(mutex_);
    posts = std::exchange(to_post_, false);
    if (posts && all) rows_->post(number, call.hash());
    if (posts && !all) rows_->pass(number, 0);
  }
  if (posts && all) return done(call, number);
  const WorkPtr work = host_.work_of(call, number);
  if (called_ != Time{}) work->traced = std::exchange(called_, Time{});
  settle(call, number, work);
  wake_others(*call.request.group, number, true);
  return work;
}

// ---- calls along a route

uint64_t Board::begin_relay(const BoardCall& call) {
  const uint64_t bytes = call.count * size_of(call.request.signature.dtype);
  if (!call.route->any() || bytes == 0 || bytes > std::min<uint64_t>(kMostRelayBytes, call.request.chunk_bytes) ||
      !host_.relays() || !host_.idle())
    return 0;
  uint64_t number = 0;
  bool publishes = false;
  {
    const std::lock_guard lock(mutex_);
    if (undecided_ != 0) return 0;
    number = undecided_ = ++count_;
    publishes = rows_.has_value();
    if (publishes) {
      join();
      rows_->pass(number, 0);
    }
  }
  if (publishes) guarded([&] { wake_others(*call.request.group, number, false); });
  return number;
}

bool Board::relay(const BoardCall& call, uint64_t number, bool patient, std::vector<int>& missing) {
  bool done = false;
  guarded([&] { done = host_.relay(call, number, patient, missing) == ShortMessages::State::taken; });
  return done;
}

WorkPtr Board::end_relay(const BoardCall& call, uint64_t number, bool done) {
  WorkPtr work;
  guarded([&] {
    if (!done) work = host_.work_of(call, number);
    settle(call, number, work, false);
  });
  return work;
}

void Board::abandon() {
  const std::lock_guard lock(mutex_);
  undecided_ = 0;
  try {
    for (const WorkPtr& later : later_) host_.submit(later);
  } catch (const std::exception& e) {
    log_warning(session_rank_, std::string("operations of a group are lost with their session: ") + e.what());
  }
  later_.clear();
}

void Board::conclude(const BoardCall& call, uint64_t number) {
  const DefaultFloatState state;
  call.conclude([&](int rank) { return rows_->posted(rank, number, call.bytes_of(rank)); });
}

void Board::settle(const BoardCall& call, uint64_t number, const WorkPtr& work, bool on_board) {
  const std::lock_guard lock(mutex_);
  if (rows_) rows_->let_go();
  undecided_ = 0;
  if (const auto lost = std::exchange(lost_, {}); lost != Clock::duration{}) worth_.lost_its_core(number, lost);
  if (on_board && !std::exchange(slept_, false)) work ? worth_.went_by_messages(number) : worth_.done(number);
  if (work)
    host_.submit(work);
  else
    remember(call, number);
  for (const WorkPtr& later : later_) host_.submit(later);
  later_.clear();
}

void Board::remember(const BoardCall& call, uint64_t number) {
  const Signature& signature = call.request.signature;
  const std::string_view operation = signature.operation;
  latest_ = {.number = number,
             .operation = {},
             .root = signature.root,
             .dtype = signature.dtype,
             .op = signature.op,
             .reduces = signature.reduces,
             .with_sizes = operation.ends_with(kWithSizes),
             .count = call.count,
             .at = coarse_now()};
  latest_.operation.set(operation.substr(0, operation.find('/')));
}

bool Board::is_undecided(uint32_t seq) {
  const std::lock_guard lock(mutex_);
  return undecided_ != 0 && static_cast<uint32_t>(undecided_ - 1) == seq;
}

std::optional<Channels::Past> Board::latest() {
  const std::lock_guard lock(mutex_);
  if (latest_.number == 0) return std::nullopt;
  Signature signature;
  signature.operation = latest_.operation.chars.data();
  if (latest_.with_sizes) signature.operation += kWithSizes;
  signature.root = latest_.root;
  signature.dtype = latest_.dtype;
  signature.op = latest_.op;
  signature.reduces = latest_.reduces;
  signature.count = latest_.count;
  return Channels::Past{static_cast<uint32_t>(latest_.number - 1), signature, latest_.at};
}

}  // namespace slipstream
