// Calls by way of their group's board.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "boards/form.h"
#include "session/session.h"

namespace slipstream {

// What a call's memory belongs to: up to two objects, of which a tuple is made when it is needed.
struct Kept {
  nanobind::handle first = {};
  nanobind::handle second = {};
  nanobind::object all() const {
    if (second.is_valid()) return nanobind::make_tuple(first, second);
    return first.is_valid() ? nanobind::borrow(first) : nanobind::none();
  }
};

// True if the call was made, and is done. Python's lock is held.
bool run_on_board(const std::shared_ptr<Session>& session, const BoardCall& call, const Kept& keep);

}  // namespace slipstream
