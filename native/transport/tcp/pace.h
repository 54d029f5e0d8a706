// How fast a lane takes bytes while it is busy, and what segments suit that. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/clock.h"

namespace slipstream {

class Pace {
 public:
  // The lane took `bytes`; `more`: it would have been given more if it had taken more.
  void took(uint64_t bytes, bool more, Time now) {
    if (began_ == Time{}) {  // what fills the kernel's empty buffer says nothing about the network
      began_ = more ? now : Time{};
      bytes_ = 0;
      return;
    }
    bytes_ += bytes;
    const double took = std::chrono::duration<double>(now - began_).count();
    if (took >= kWindow) {
      const double rate = static_cast<double>(bytes_) / took;
      rate_ = rate_ == 0 ? rate : kMemory * rate_ + (1 - kMemory) * rate;
      remember_peak(now);
      began_ = now;
      bytes_ = 0;
    }
    if (!more) began_ = Time{};
  }
  // How many bytes may wait in the socket: those of a few milliseconds, so that a slow lane does not hold much.
  int backlog(int most) const {
    const double bytes = std::min(rate_ == 0 ? kUnknown * kBacklogSeconds / 4 : rate_ * kBacklogSeconds, double(most));
    return static_cast<int>(std::max(bytes, kLeast));
  }
  // What may be on its way to the peer: enough to fill the path, and a few milliseconds' worth in its queues. Many
  // lanes that share a path would fill those to the brim, and everything would wait there, or be dropped. By the best
  // of the last moments: a lane that is held to what it last achieved achieves less and less.
  double enough(double rtt, int lanes) const {
    return rate_ == 0 ? std::numeric_limits<double>::infinity()
                      : peak() * (2 * rtt + kQueueSeconds) + kQueueBytes / lanes;
  }
  double rate() const { return rate_; }  // bytes a second, 0: not known
  void forget() { *this = {}; }

  // What the lane sends in a few milliseconds, less when little is left for all `lanes`, more where calls cost more
  // than waiting. A lane that is alone leaves nothing for others: every segment is a packet more.
  uint32_t segment(uint64_t waiting, int lanes) const {
    if (lanes == 1) return static_cast<uint32_t>(kMost);
    const double rate = rate_ == 0 ? kUnknown : rate_;
    const double share = static_cast<double>(waiting) / (2.0 * lanes);
    const double size = std::min(std::max(share, rate * kLeastSeconds), rate * kMostSeconds);
    return static_cast<uint32_t>(std::clamp(size, kLeast, kMost)) & ~uint32_t{4095};
  }

 private:
  static constexpr double kWindow = 0.01;  // seconds
  static constexpr double kMemory = 0.6;
  static constexpr double kPeakSeconds = 0.05;
  static constexpr double kUnknown = 64e6;
  static constexpr double kLeastSeconds = 0.0005;
  static constexpr double kMostSeconds = 0.008;
  static constexpr double kQueueSeconds = 0.010;
  static constexpr double kQueueBytes = 64 << 10;
  static constexpr double kBacklogSeconds = 0.004;
  static constexpr double kLeast = 16 << 10;
  static constexpr double kMost = 512 << 10;

  double peak() const { return std::max({rate_, peak_, peak_before_}); }
  void remember_peak(Time now) {
    if (std::chrono::duration<double>(now - peak_at_).count() > kPeakSeconds) {
      peak_before_ = std::exchange(peak_, 0);
      peak_at_ = now;
    }
    peak_ = std::max(peak_, rate_);
  }

  double rate_ = 0;
  double peak_ = 0;  // the highest of the last kPeakSeconds at most, and of as long before
  double peak_before_ = 0;
  Time peak_at_{};
  Time began_{};
  uint64_t bytes_ = 0;
};

}  // namespace slipstream
