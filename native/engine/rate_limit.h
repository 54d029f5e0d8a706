// Limits how fast something may be taken: a token bucket. Pure: the caller passes the time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace slipstream {

class RateLimit {
 public:
  static constexpr double kSavedSeconds = 0.02;  // what was not taken in this time may be taken at once

  // `rate`: units of take() a second; 0: no limit.
  explicit RateLimit(double rate = 0) : rate_(rate) {}

  bool bounded() const { return rate_ > 0; }
  // True if `amount` may be taken now. An amount may exceed what can be saved up: then the next caller waits longer. So
  // in t seconds no more is taken than rate * (t + kSavedSeconds), and the last amount.
  bool take(uint64_t amount, Time now) {
    if (!bounded()) return true;
    if (now < due_) return false;
    const double cost = std::min(static_cast<double>(amount) / rate_, kMostSeconds);
    due_ = std::max(due_, now - seconds(kSavedSeconds)) + seconds(cost);
    return true;
  }
  // When take() may be true again.
  Time due() const { return due_; }

 private:
  static constexpr double kMostSeconds = 1e6;  // no amount makes the next caller wait longer

  double rate_;
  Time due_{};
};

}  // namespace slipstream
