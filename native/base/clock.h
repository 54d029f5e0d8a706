#pragma once

#include <time.h>

#include <chrono>

namespace slipstream {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Seconds = std::chrono::duration<double>;

inline Time now() { return Clock::now(); }
// Some milliseconds late, and much cheaper.
inline Time coarse_now() {
  timespec t{};
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return Time(std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec));
}
inline Clock::duration seconds(double s) { return std::chrono::duration_cast<Clock::duration>(Seconds(s)); }

}  // namespace slipstream
