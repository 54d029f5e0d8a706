// How fast something may be taken: a token bucket. Pure: it has no clock of its own.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"

namespace slipstream {

class Bucket {
 public:
  static constexpr double kSavedSeconds = 0.02;  // what was not taken in this time may be taken at once

  // `rate`: of what take() counts, a second; 0: no bound.
  explicit Bucket(double rate = 0) : rate_(rate) {}

  bool bounded() const { return rate_ > 0; }
  // True if it may be taken now. The amount may be more than the bucket ever holds: then whoever comes next waits
  // longer. So in t seconds no more is taken than rate * (t + kSavedSeconds), and the last amount.
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
  static constexpr double kMostSeconds = 1e6;  // an amount waits no longer

  double rate_;
  Time due_{};
};

}  // namespace slipstream
