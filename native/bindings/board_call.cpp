#include "bindings/board_call.h"

#include <optional>

#include "bindings/handle.h"
#include "boards/board.h"

namespace slipstream {

namespace {

// Some rank has not come yet.
void wait_on_board(const std::shared_ptr<Session>& session, const BoardCall& call, uint64_t number, const Kept& keep) {
  Board& board = *call.request.group->board;
  Counters& counters = *session->options().counters;
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
  const Clock::duration time = now() - begun;
  for (const int rank : missing) counters.add_late(call.request.group->ranks[static_cast<size_t>(rank)], time);
  if (work) return;
  counters.count_quick(call.request, call.count, time);
  counters.add_wait(time);
  counters.add_busy(time);
}

}  // namespace

bool run_on_board(const std::shared_ptr<Session>& session, const BoardCall& call, const Kept& keep) {
  if (call.form.kind == BoardForm::Kind::none) return false;
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
