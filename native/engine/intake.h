// The rate at which all works of a session may receive data. Driver's thread only.
#pragma once

#include <cstdint>
#include <utility>

#include "base/clock.h"
#include "engine/rate_limit.h"

namespace slipstream {

class Intake {
 public:
  // `rate`: bytes a second; 0: no limit.
  explicit Intake(double rate) : limit_(rate) {}

  bool bounded() const { return limit_.bounded(); }
  // True if a work may ask its peers for `bytes` now. If not, it asks again in the next turn.
  bool take(uint64_t bytes) {
    if (limit_.take(bytes, now())) return true;
    refused_ = true;
    return false;
  }
  // When a work that was refused since the last call may ask again; Time::max() if none was.
  Time take_due() { return std::exchange(refused_, false) ? limit_.due() : Time::max(); }

 private:
  RateLimit limit_;
  bool refused_ = false;
};

}  // namespace slipstream
