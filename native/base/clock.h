#pragma once

#include <chrono>

namespace slipstream {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using Seconds = std::chrono::duration<double>;

inline Time now() { return Clock::now(); }
inline Clock::duration seconds(double s) { return std::chrono::duration_cast<Clock::duration>(Seconds(s)); }

}  // namespace slipstream
