// Losses that end a link at a deadline, unless the lost connection is repaired before. Pure.
#pragma once

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"

namespace slipstream {

struct Losses {
  struct Loss {
    Error error;
    Time due = Time::max();
    Time last = Time::max();  // no outage that follows makes `due` later than that
    explicit operator bool() const { return static_cast<bool>(error); }
  };

  Loss control;                         // there is no control lane
  Loss lanes;                           // there are no bulk lanes
  Time dial_lanes_again = Time::max();  // while there are none

  void clear() { *this = {}; }
  // When to look at it again; Time::max() if nothing is lost.
  Time due() const { return std::min({control.due, lanes.due, dial_lanes_again}); }
};

}  // namespace slipstream
