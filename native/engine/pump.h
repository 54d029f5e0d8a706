// What the engine's loop turns beside the poller: the session's transports.
#pragma once

#include "base/clock.h"

namespace slipstream {

class Pump {
 public:
  virtual ~Pump() = default;
  virtual bool poll() = 0;             // true if anything moved
  virtual bool pending() const = 0;    // true if poll() would move something
  virtual bool congested() const = 0;  // true if poll() must be tried again soon
  virtual Time tick(Time now) = 0;     // returns when to call again
};

}  // namespace slipstream
