#include "bindings/board_call.h"

#include <optional>
#include <utility>
#include <vector>

#include "bindings/handle.h"
#include "boards/board.h"

namespace slipstream {

namespace {

// What is counted of a call that some ranks were late for; `work`: what it has become.
void count_waited(const std::shared_ptr<Session>& session, const BoardCall& call, const std::vector<int>& late,
                  const WorkPtr& work, Clock::duration time) {
  Counters& counters = *session->options().counters;
  for (const int rank : late) counters.add_late(rank, time);
  if (work) return;
  counters.count_quick(call.request, call.count, time);
  counters.add_wait(time);
  counters.add_busy(time);
}

// Some rank has not come yet.
void wait_on_board(const std::shared_ptr<Session>& session, const BoardCall& call, uint64_t number, const Kept& keep) {
  Board& board = *call.request.group->board;
  const Time begun = now();
  std::vector<int> missing;
  WorkPtr work;
  {
    const WithoutGil release;  // until the call is decided: others may wait for that, and not for Python's lock
    missing = board.missing();
    board.look(call);
    work = board.end(call, number);
  }
  if (work) Handle(session, work, keep.all()).wait(std::nullopt);
  for (int& rank : missing) rank = call.request.group->ranks[static_cast<size_t>(rank)];
  count_waited(session, call, missing, work, now() - begun);
}

// What has to come along the route is not there yet.
void wait_for_route(const std::shared_ptr<Session>& session, const BoardCall& call, uint64_t number, const Kept& keep,
                    std::vector<int> missing) {
  Board& board = *call.request.group->board;
  const Time begun = now();
  WorkPtr work;
  {
    const WithoutGil release;
    const bool done = board.relay(call, number, true, missing);
    work = board.end_relay(call, number, done);
  }
  if (work) Handle(session, work, keep.all()).wait(std::nullopt);
  count_waited(session, call, missing, work, now() - begun);
}

// False, and nothing has happened, if it cannot go along a route.
bool run_along_route(const std::shared_ptr<Session>& session, const BoardCall& call, const Kept& keep) {
  Counters& counters = *session->options().counters;
  Board& board = *call.request.group->board;
  const uint64_t number = board.begin_relay(call);
  if (number == 0) return false;
  const Time begun = counters.times_next() ? now() : Time{};
  std::vector<int> missing;
  // The first look keeps Python's lock: to give it away and get it back takes as long.
  if (!board.relay(call, number, false, missing)) {
    wait_for_route(session, call, number, keep, std::move(missing));
    return true;
  }
  board.end_relay(call, number, true);
  const Clock::duration time = begun == Time{} ? Clock::duration{} : (now() - begun) * Counters::kSample;
  counters.count_quick(call.request, call.count, time);
  return true;
}

}  // namespace

bool run_on_board(const std::shared_ptr<Session>& session, const BoardCall& call, const Kept& keep) {
  if (call.form.kind == BoardForm::Kind::none) return false;
  if (call.route != nullptr && run_along_route(session, call, keep)) return true;
  Board& board = *call.request.group->board;
  Counters& counters = *session->options().counters;
  const Time begun = counters.times_next() ? now() : Time{};
  const uint64_t number = board.begin(call);
  if (number == 0) return false;
  if (!board.look_at_once()) {
    wait_on_board(session, call, number, keep);
  } else if (const WorkPtr work = board.end(call, number)) {
    Handle(session, work, keep.all()).wait(std::nullopt);
  } else {
    const Clock::duration time = begun == Time{} ? Clock::duration{} : (now() - begun) * Counters::kSample;
    counters.count_quick(call.request, call.count, time);
  }
  return true;
}

}  // namespace slipstream
