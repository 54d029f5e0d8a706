// How far the core of the peer is, by the caches: whether a line that it has just written is slow to read here.
//
// What a rank stages for a peer lies in the caches of its own core. A core that shares the last-level cache reads it
// from there faster than from memory. One of another socket reads it several times slower than from memory, so it is
// staged past the caches. Where ranks run changes, so each end measures all the time: at every few chunks the sender
// writes a line of its own, and the receiver takes the time that reading it needs. Private to this folder.
#pragma once

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.h"

namespace slipstream {

class Distance {
 public:
  // In the mapping of the link, one for each end. Zero memory is a peer that is near.
  struct End {
    alignas(64) std::atomic<uint64_t> beat;  // written to be read by the other end
    alignas(64) std::atomic<uint32_t> far;   // this end reads slowly what the other one has written
  };

  Distance() = default;  // of a link that is not up: the peer is near
  Distance(End* own, End* other) : own_(own), other_(other) {}

  // Before the descriptor of a chunk is sent.
  void sending() {
    if (own_ != nullptr && measures(sent_)) own_->beat.store(sent_, std::memory_order_relaxed);
  }
  // As that descriptor arrives.
  void arrived() {
    if (measures(received_)) judge(time_to_read(other_->beat));
  }
  // The peer reads slowly what this end has in its caches.
  bool far() const { return other_ != nullptr && other_->far.load(std::memory_order_relaxed) != 0; }

  // A measurement. One that is slow outweighs several that are quick: reading from a far core takes several times as
  // long as from memory, reading from memory not twice as long as from a near core.
  void judge(Clock::duration time) {
    score_ = time > kNear ? std::min(score_ + kSlow, kMost) : std::max(score_ - 1, 0);
    if (score_ >= kSlow) own_->far.store(1, std::memory_order_relaxed);
    if (score_ == 0) own_->far.store(0, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kEvery = 4;  // chunks
  static constexpr int kSlow = 4;
  static constexpr int kMost = 16;
  // Of a load: 10 to 60 ns within a small last-level cache, 75 to 95 across the mesh of a large socket and over 100
  // while its memory is busy, 340 between sockets.
  static constexpr auto kNear = std::chrono::nanoseconds(250);

  static bool measures(uint32_t& chunks) { return chunks++ % kEvery == 0; }

  // Beyond what a second time takes: most of that is the clock, which some machines read slowly.
  static Clock::duration time_to_read(const std::atomic<uint64_t>& line) {
#if defined(__x86_64__)
    const auto look = [&line] {
      _mm_lfence();
      (void)line.load(std::memory_order_relaxed);
      _mm_lfence();
      return now();
    };
    const Time begun = now();
    const Time read = look();
    return (read - begun) - (look() - read);
#else
    return Clock::duration(line.load(std::memory_order_relaxed) * 0);  // there is no way past the caches
#endif
  }

  End* own_ = nullptr;
  End* other_ = nullptr;
  uint32_t sent_ = 0;
  uint32_t received_ = 0;
  int score_ = 0;
};

}  // namespace slipstream
