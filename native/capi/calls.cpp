#include "capi/calls.h"

#include <atomic>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "boards/board.h"
#include "capi/dispatcher.h"

namespace slipstream::capi {

namespace {

std::atomic<int> open_copies{0};
std::atomic<uint64_t> saved{0};

using Scratch = std::shared_ptr<std::byte[]>;

// What a call becomes before it is begun.
struct Prepare {
  Memory memory;
  std::shared_ptr<const Prepared> prepared;
  std::unique_ptr<Watcher> watcher;
};

Prepare prepare(slipstream_group& group, const slipstream_call& call) {
  Prepare found{checked(group, call), nullptr, nullptr};
  const Ask ask{call, call.count, group.group->ranks.size()};
  if (copies_open()) group.maker->settle(ask, found.memory.in, found.memory.out);
  const Kind kind = kind_of(ask);
  found.prepared = group.kept.find(kind);
  if (found.prepared != nullptr) {  // else Python counts it
    saved.fetch_add(found.prepared->saved_bytes, std::memory_order_relaxed);
  } else {
    Answer answer = group.maker->make(ask);
    if (answer.keep) group.kept.keep(kind, answer.prepared);
    found.prepared = std::move(answer.prepared);
    found.watcher = std::move(answer.watcher);
  }
  return found;
}

// Lives as long as the work needs memory of ours.
class Holder final : public Listener {
 public:
  explicit Holder(Scratch scratch) : scratch_(std::move(scratch)) {}
  void work_done() override {}

 private:
  Scratch scratch_;
};

// The work, which has its number. The group's order is held.
WorkPtr numbered(slipstream_group& group, const slipstream_call& call, const Prepare& found) {
  const Prepared& prepared = *found.prepared;
  std::byte *src = found.memory.in.data, *dst = found.memory.out.data;
  Scratch scratch;
  if (prepared.scratch != Prepared::Scratch::none) {
    scratch = std::make_shared<std::byte[]>(prepared.scratch_bytes);  // zeros
    (prepared.scratch == Prepared::Scratch::in ? src : dst) = scratch.get();
  }
  const uint64_t count = prepared.count >= 0 ? static_cast<uint64_t>(prepared.count) : found.memory.count;
  Request request = prepared.request.on_memory(src, dst, count, call.timeout, call.name == nullptr ? "" : call.name);
  if (call.collective == SLIPSTREAM_ALL_REDUCE) request.urgency = call.urgency;
  WorkPtr work = group.session->prepare(std::move(request), prepared.request.channel);
  if (scratch == nullptr) return work;
  std::byte* const part = scratch.get() + prepared.copy_begin;
  if (prepared.scratch == Prepared::Scratch::in)
    work->copy_in = {part, found.memory.in.data, prepared.copy_bytes};
  else
    work->copy_out = {found.memory.out.data, part, prepared.copy_bytes};
  work->listen(std::make_unique<Holder>(std::move(scratch)));
  return work;
}

// `before(work)` is called with the work before it begins.
template <class Before>
WorkPtr issue(slipstream_group& group, const slipstream_call& call, Before before) {
  const Prepare found = prepare(group, call);
  WorkPtr work;
  {
    const std::lock_guard lock(group.order);
    work = numbered(group, call, found);
    before(*work);
    group.session->submit(work);
  }
  if (found.watcher) found.watcher->ran(group.session, work);
  return work;
}

constexpr double kPauseSeconds = 0.2;

// The engine ends it in time. If `order` is held, the work has yet to be submitted; then that is given back.
void wait_to_end(slipstream_group& group, const WorkPtr& work, const Pause& pause,
                 std::unique_lock<std::mutex> order = {}) {
  Session& session = *group.session;
  const Time begun = now();
  const auto slice = [&] { return pause == nullptr ? Time::max() : now() + seconds(kPauseSeconds); };
  bool done = order.owns_lock() ? session.run(work, slice(), std::move(order)) : session.wait(*work, slice());
  while (!done) {
    if (pause != nullptr) pause();
    done = session.wait(*work, slice());
  }
  session.options().counters->add_wait(now() - begun);
}

// What became of a call that was tried by way of the group's board.
enum class OnBoard : uint8_t { no, done, begun };

// `begun(work)` is called if it became a work, which others may wait for.
template <class Begun>
OnBoard try_board(slipstream_group& group, const slipstream_call& call, const Prepare& found, Begun begun_work) {
  const CallRequest& request = found.prepared->request;
  if (request.form.kind == BoardForm::Kind::none || found.prepared->scratch != Prepared::Scratch::none)
    return OnBoard::no;
  static const std::string no_name;
  const std::string name = call.name == nullptr ? no_name : std::string(call.name);
  const uint64_t count = found.prepared->count >= 0 ? static_cast<uint64_t>(found.prepared->count) : found.memory.count;
  const BoardCall on_board{request, request.form, found.memory.in.data, found.memory.out.data,
                           count,   name,         call.timeout};
  Board& board = *request.group->board;
  Counters& counters = *group.session->options().counters;
  const Time begun = now();
  const uint64_t number = board.begin(on_board);
  if (number == 0) return OnBoard::no;
  std::vector<int> missing;
  const bool at_once = board.look_at_once();
  if (!at_once) {
    missing = board.missing();
    board.look(on_board);
  }
  const WorkPtr work = board.end(on_board, number);
  if (work) begun_work(work);
  const Clock::duration time = now() - begun;
  for (const int rank : missing) counters.add_late(request.group->ranks[static_cast<size_t>(rank)], time);
  if (work) return OnBoard::begun;
  counters.count_beside(request, count, time);
  if (at_once) return OnBoard::done;
  counters.add_wait(time);
  counters.add_busy(time);
  return OnBoard::done;
}

}  // namespace

void note_copies(int more) { open_copies.fetch_add(more, std::memory_order_relaxed); }
bool copies_open() { return open_copies.load(std::memory_order_relaxed) > 0; }
uint64_t saved_bytes() { return saved.load(std::memory_order_relaxed); }

void submit(slipstream_group& group, const slipstream_call& call, slipstream_done done, void* user,
            const std::string& title) {
  if (done == nullptr) throw Failure(Code::invalid, "submit() needs a function that is called when it is done");
  issue(group, call, [&](Work& work) {
    if (!title.empty()) work.entitle(title);
    work.listen(Dispatcher::instance().listener(work, done, user));
  });
}

bool submit_or_run(slipstream_group& group, const slipstream_call& call, slipstream_done done, void* user,
                   const std::string& title) {
  const Prepare found = prepare(group, call);
  const auto listen = [&](Work& work) {
    if (!title.empty()) work.entitle(title);
    work.listen(Dispatcher::instance().listener(work, done, user));
  };
  WorkPtr work;
  const OnBoard went = try_board(group, call, found, [&](const WorkPtr& begun) {
    work = begun;
    listen(*begun);
  });
  if (went == OnBoard::no) {
    const std::lock_guard lock(group.order);
    work = numbered(group, call, found);
    listen(*work);
    group.session->submit(work);
  }
  if (found.watcher) found.watcher->ran(group.session, work);
  return went == OnBoard::done;
}

slipstream_work* begin(slipstream_group& group, const slipstream_call& call) {
  std::unique_ptr<slipstream_work> handle(new slipstream_work{group.session, nullptr});  // clang 14 can do no better
  handle->work = issue(group, call, [](Work&) {});
  return handle.release();
}

void run(slipstream_group& group, const slipstream_call& call, const Pause& pause) {
  const Prepare found = prepare(group, call);
  WorkPtr work;
  const auto wait = [&](const WorkPtr& begun) {
    wait_to_end(group, begun, pause);
    if (begun->error()) throw Failure(begun->error());
  };
  if (try_board(group, call, found, wait) == OnBoard::no) {
    // The engine gets the works of a group in the order of their numbers: two that need the same memory begin in the
    // order in which they come, and another order on another rank would have both ranks wait for each other.
    std::unique_lock order(group.order);
    work = numbered(group, call, found);
    wait_to_end(group, work, pause, std::move(order));
  }
  if (found.watcher) found.watcher->ran(group.session, nullptr);
  if (work && work->error()) throw Failure(work->error());
}

}  // namespace slipstream::capi
