// Calls by way of their group's board.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "boards/form.h"
#include "session/session.h"

namespace slipstream {

// True if the call was made, and is done. `keep`: what its memory belongs to. Python's lock is held.
bool run_on_board(const std::shared_ptr<Session>& session, const BoardCall& call, const nanobind::object& keep);

}  // namespace slipstream
