#include "boards/boards.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "base/log.h"
#include "engine/unfinished_works.h"

namespace slipstream {

namespace {

constexpr size_t kRegionBytes = 1 << 20;  // of the first; each more is twice as large, kDoublings times
constexpr size_t kDoublings = 4;
constexpr size_t kMostRegions = 16;  // that a leader has; each is a file descriptor
constexpr double kTellSeconds = 0.01;
constexpr auto kWakeAtOnce = std::chrono::milliseconds(1);

// Of the messages with which `waker` wakes `waiter`, ranks of the session.
uint64_t channel_of(uint64_t group, int waiter, int waker) {
  uint64_t hash = group;
  for (const int rank : {waiter, waker}) {
    hash = (hash ^ static_cast<uint64_t>(rank)) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 32;
  }
  return hash | uint64_t{1} << 63;
}

// One message to, or from, a rank of the group.
std::shared_ptr<const Plan> one_step(const Group& group, StepKind kind, int peer) {
  const int32_t row[] = {static_cast<int32_t>(kind),       peer, 0, 1, static_cast<int32_t>(Space::in),
                         static_cast<int32_t>(Space::out), 0};
  return Plan::compile(group.rank, static_cast<int>(group.ranks.size()), 1, row, {});
}

// A byte at `place`, which goes to the rank of the group `peer`, or comes from it.
Request message(const Group& group, StepKind kind, int peer, uint64_t number, std::byte* place) {
  Request request;
  request.group = group.shared_from_this();
  request.plan = one_step(group, kind, peer);
  const int me = group.ranks[static_cast<size_t>(group.rank)];
  const int other = group.ranks[static_cast<size_t>(peer)];
  const bool sends = kind == StepKind::send;
  request.channel = channel_of(group.id, sends ? other : me, sends ? me : other);
  request.seq = static_cast<uint32_t>(number - 1);
  request.part.emplace().elements = SharedPart::Elements{DType::u8, Op::sum};
  for (Layout& space : request.spaces) space = {place, 1, {}};
  return request;
}

}  // namespace

// ---- groups

std::shared_ptr<Board> Boards::of(const Group& group) {
  const auto ranks = static_cast<int>(group.ranks.size());
  if (ranks > options_.most_ranks || !BoardRows::fits(ranks)) return nullptr;
  const std::lock_guard lock(mutex_);
  if (boards_.size() >= most_boards_) {
    std::erase_if(boards_, [](const auto& entry) { return entry.second.expired(); });
    most_boards_ = std::max<size_t>(64, 2 * boards_.size());
  }
  std::weak_ptr<Board>& known = boards_[group.id];
  std::shared_ptr<Board> board = known.lock();
  if (!board) {
    const uint64_t next = uint64_t{parts_.engine.ledger().next(group.id)} + 1;
    known = board = std::make_shared<Board>(static_cast<BoardHost&>(*this), group, next);
  }
  return board;
}

std::shared_ptr<Board> Boards::find(uint64_t group) {
  const std::lock_guard lock(mutex_);
  const auto found = boards_.find(group);
  return found == boards_.end() ? nullptr : found->second.lock();
}

bool Boards::undecided_on_board(uint64_t channel, uint32_t seq) {
  const std::shared_ptr<Board> board = find(channel);
  return board != nullptr && board->is_undecided(seq);
}

std::optional<Channels::Past> Boards::latest_on_board(uint64_t channel) {
  const std::shared_ptr<Board> board = find(channel);
  return board ? board->latest() : std::nullopt;
}

// ---- memory

void Boards::want(const std::shared_ptr<Board>& board, const Group& group) {
  parts_.runner.as_driver([&] {
    if (ended()) return;
    parts_.runner.guarded([&] {
      make(*board, group);
      tell_members();
    });
  });
}

std::shared_ptr<std::byte> Boards::allocate(size_t bytes) {
  std::shared_ptr<std::byte> memory = made_.empty() ? nullptr : made_.back().memory.lock();
  if (!memory || made_.back().bytes - made_.back().used < bytes) {
    free_unused();
    if (made_.size() == kMostRegions) throw Failure(Code::internal, "this rank leads too many groups");
    const auto region = parts_.regions.create(std::max(kRegionBytes << std::min(made_.size(), kDoublings), bytes));
    memory = {region->memory.data(), [region](std::byte*) {}};  // counts the boards alone, not who else has the region
    made_.push_back({region->id, region->memory.size(), memory});
  }
  std::byte* const at = memory.get() + made_.back().used;
  made_.back().used += (bytes + 63) / 64 * 64;
  return {std::move(memory), at};
}

// Gives back regions whose boards are all gone. A member that still has one of them keeps its mapping.
void Boards::free_unused() {
  std::erase_if(made_, [this](const Made& made) {
    if (!made.memory.expired()) return false;
    parts_.regions.destroy(made.id);
    return true;
  });
}

void Boards::make(Board& board, const Group& group) {
  try {
    const std::shared_ptr<std::byte> memory = allocate(board.bytes());
    if (board.take(memory))
      untold_.push_back(
          {group.ranks.front(), group.id, memory, board.bytes(), {group.ranks.begin() + 1, group.ranks.end()}});
  } catch (const Failure& failure) {
    log_info(group.ranks.front(), "small operations of a group go by messages: " + failure.error().text);
  }
}

// True if there is nobody left to tell.
bool Boards::tell(Untold& untold) {
  Fabric& fabric = parts_.engine.fabric();
  std::erase_if(untold.ranks, [&](int rank) {
    Link* link = fabric.up(rank);
    if (link == nullptr) try {
        fabric.want(rank);
        (void)fabric.watch(rank, now());  // knocks, if the other one has to dial
        return static_cast<bool>(fabric.gone(rank));
      } catch (const Failure& failure) {  // no descriptor for a link that no work needs: this group has no board
        log_info(untold.leader, "small operations of a group go by messages: " + failure.error().text);
        return true;
      }
    const auto shared = link->share(untold.memory.get(), untold.bytes);
    if (!shared) return true;
    const Place place{shared->region, shared->offset};
    WorkHeader frame;
    frame.type = MessageType::board;
    frame.channel = untold.group;
    frame.length = sizeof(place);
    fabric.send(rank, frame, std::as_bytes(std::span(&place, 1)));
    return true;
  });
  return untold.ranks.empty();
}

void Boards::tell_members() {
  std::erase_if(untold_, [this](Untold& untold) { return tell(untold); });
}

Time Boards::tick(Time now) {
  if (held_back_.load(std::memory_order_relaxed)) expire_held_back(now);
  if (ended()) untold_.clear();
  if (untold_.empty()) return Time::max();
  tell_members();
  return untold_.empty() ? Time::max() : now + seconds(kTellSeconds);
}

void Boards::expire_held_back(Time now) {
  held_back_.store(false);
  std::vector<std::shared_ptr<Board>> boards;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [group, board] : boards_)
      if (auto alive = board.lock()) boards.push_back(std::move(alive));
  }
  for (const auto& board : boards) {
    WorkPtr overdue;
    if (board->holds_back(now, overdue)) held_back_.store(true);
    if (overdue)
      parts_.engine.expire(
          *overdue, "it waits for an earlier operation of its group: " + parts_.engine.reports().occupation(now));
  }
}

// What a peer says is not trusted, although it has proved who it is.
Error Boards::offered_board(Link& link, const WorkHeader& frame, std::span<const std::byte> payload) {
  const std::shared_ptr<Board> board = find(frame.channel);
  if (!board) return {};  // the program has dropped the group
  const std::string who = parts_.engine.fabric().who(link.peer());
  Place place{};
  if (payload.size() == sizeof(place)) std::memcpy(&place, payload.data(), sizeof(place));
  const bool sound = payload.size() == sizeof(place) && place.offset % 64 == 0 && link.peer() == board->leader();
  std::shared_ptr<std::byte> memory;
  try {
    if (sound) memory = link.hold({place.region, place.offset}, board->bytes());
  } catch (const Failure& failure) {  // this rank stays off the board, and with it all do
    log_info(board->session_rank(), "small operations of a group go by messages: " + failure.error().text);
    return {};
  }
  if (!link.up()) return {};  // it has just failed
  if (!memory || !board->take(std::move(memory)))
    return Error{Code::internal, link.peer(), {}, who + " offered a board that cannot be right"};
  return {};
}

// ---- works

bool Boards::idle() const {
  return !stopped_.load(std::memory_order_relaxed) && parts_.engine.quiet() && !ended() && forks_ == forks();
}

WorkPtr Boards::work_of(const BoardCall& call, uint64_t number) {
  Request request = call.request;
  request.signature.count = call.count;
  request.signature.name = call.name;
  request.spaces[0].data = call.src;
  request.spaces[1].data = call.dst;
  for (Layout& space : request.spaces) space.count = call.count;
  if (call.own_blocks != nullptr) request.spaces[0].offsets = *call.own_blocks;
  request.channel = request.group->id;
  request.signature_hash = request.signature.hash();
  request.timed = call.timeout_seconds > 0;
  request.timeout_seconds = request.timed ? call.timeout_seconds : options_.timeout_seconds;
  auto work = std::make_shared<Work>(std::move(request));
  work->deferred = true;  // the call was made before, whatever happens now
  enter(work, number);
  parts_.counters.begin(*work);
  return work;
}

void Boards::enter(const WorkPtr& work, uint64_t number) {
  parts_.engine.ledger().enter(work, static_cast<uint32_t>(number - 1));
}

void Boards::broke() {
  ended_.store(true);  // whatever comes of the rest: no call goes over a board any more
  parts_.runner.as_driver([this] { parts_.runner.guarded([] { throw; }); });
}

void Boards::complete(Work& work) {
  if (work.traced != Time{}) parts_.trace.put(event_of(work, Error{}));
  work.complete(Error{});
}

void Boards::wake(const Group& group, const std::vector<BoardRows::Wake>& wakes, bool at_once) {
  static std::byte nothing{};
  std::vector<WorkPtr> messages;
  for (const BoardRows::Wake& wake : wakes) {
    Request request = message(group, StepKind::send, wake.rank, wake.number, &nothing);
    request.signature.operation = "wake_up/board";
    request.signature_hash = wake.tag;
    request.timeout_seconds = options_.timeout_seconds;
    messages.push_back(std::make_shared<Work>(std::move(request)));
    messages.back()->deferred = true;
    messages.back()->submitted = coarse_now();
  }
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(owed_, [](const WorkPtr& work) { return work->done(); });
    owed_.insert(owed_.end(), messages.begin(), messages.end());
  }
  const Time limit = now() + kWakeAtOnce;
  for (const WorkPtr& work : messages) {
    if (at_once)
      parts_.runner.run(work, limit);
    else
      submit(work);
  }
}

void Boards::send_owed(Time deadline) {
  std::vector<WorkPtr> owed;
  {
    const std::lock_guard lock(mutex_);
    owed.swap(owed_);
  }
  for (const WorkPtr& work : owed) parts_.runner.wait(*work, deadline);
}

WorkPtr Boards::wake_from(int from, const Work& sleeping, uint64_t number, std::byte* place) {
  const Request& asleep = sleeping.request;
  Request request = message(*asleep.group, StepKind::recv, from, number, place);
  request.stands_for = asleep.channel;
  request.signature = asleep.signature;
  request.signature_hash = asleep.signature_hash;
  request.timeout_seconds = asleep.timeout_seconds;
  request.timed = asleep.timed;
  auto work = std::make_shared<Work>(std::move(request));
  work->deferred = true;
  work->submitted = sleeping.submitted;
  return work;
}

ShortMessages::State Boards::relay(const BoardCall& call, uint64_t number, bool patient, std::vector<int>& missing) {
  Signature signature = call.request.signature;
  signature.count = call.count;
  signature.name = call.name;
  const uint64_t bytes = call.count * size_of(signature.dtype);
  std::array<std::byte, kMostRelayBytes> partial;  // not initialised: written before it is read
  const std::function pass_on = [&](std::span<const std::byte* const> come) {
    return call.pass_on(come, partial.data());
  };
  const auto seq = static_cast<uint32_t>(number - 1);
  return parts_.runner.relay_at_once(
      {call.request.group->id, seq, signature, signature.hash(), bytes, call.route->from, call.route->to, pass_on},
      patient, missing);
}

void Boards::trace(const BoardCall& call, Time begin) {
  const Request& request = call.request;
  TraceEvent event;
  event.begin = begin;
  event.end = now();
  event.dtype = request.signature.dtype;
  event.bytes = bytes_of(request, call.count);
  event.ranks = static_cast<uint32_t>(request.group->ranks.size());
  event.operation.set(request.signature.operation);
  event.name.set(call.name);
  parts_.trace.put(event);
}

}  // namespace slipstream
