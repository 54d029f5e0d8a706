// What calls that differ only in their memory have in common: Python's Request, and what the C table keeps.
#pragma once

#include <string>
#include <utility>

#include "boards/form.h"
#include "engine/work.h"

namespace slipstream {

struct CallRequest : Request {
  explicit CallRequest(Request request)
      : Request(std::move(request)), form(form_of(*this)), route(route_of(*this, form)) {}

  // A call on memory: `count` elements, where there are no tables.
  Request on_memory(std::byte* src, std::byte* dst, uint64_t count, double timeout, std::string name = {}) const {
    Request r = *this;
    r.signature.count = count;
    r.signature.name = std::move(name);
    r.spaces[0].data = src;
    r.spaces[1].data = dst;
    for (Layout& space : r.spaces) space.count = count;
    r.timeout_seconds = timeout;
    return r;
  }

  BoardForm form;  // what such a call is to its group's board
  Route route;     // the messages of its tree, by which it may go in place of the board
};

}  // namespace slipstream
