#include "bindings/board_call.h"

#include <optional>

#include "bindings/handle.h"
#include "boards/board.h"

namespace slipstream {

bool run_on_board(const std::shared_ptr<Session>& session, const BoardCall& call, const nanobind::object& keep) {
  if (call.form.kind == BoardForm::Kind::none) return false;
  Board& board = *call.request.group->board;
  const uint64_t number = board.begin(call);
  if (number == 0) return false;
  WorkPtr work;
  if (board.look_at_once()) {
    work = board.end(call, number);
  } else {
    const WithoutGil release;  // until the call is decided: others may wait for that, and not for Python's lock
    board.look();
    work = board.end(call, number);
  }
  if (work) Handle(session, work, keep).wait(std::nullopt);
  return true;
}

}  // namespace slipstream
