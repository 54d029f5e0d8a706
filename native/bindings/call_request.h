// What Python's Request is: what calls that differ only in their memory have in common.
#pragma once

#include <utility>

#include "boards/form.h"
#include "engine/work.h"

namespace slipstream {

struct CallRequest : Request {
  explicit CallRequest(Request request) : Request(std::move(request)), form(form_of(*this)) {}
  BoardForm form;  // what such a call is to its group's board
};

}  // namespace slipstream
