// What the operations of a session have cost, for its metrics. Always on: a few relaxed increments for each operation,
// none for a segment, and no lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "base/clock.h"

namespace slipstream {

struct Request;
class Work;

// What a program can call.
enum class CollectiveKind : uint8_t {
  none,  // not counted
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  reduce,
  gather,
  scatter,
  all_to_all,
  send,
  recv,
  barrier,
  other,
};
inline constexpr size_t kCollectives = 13;
const char* name_of(CollectiveKind collective);

class Counters {
 public:
  static constexpr size_t kSizes = 5;
  // Bytes of the largest operation of each size class; the last one has no bound.
  static constexpr std::array<uint64_t, kSizes> kLargest{4 << 10, 64 << 10, 1 << 20, 16 << 20, UINT64_MAX};

  explicit Counters(int ranks) : late_(ranks > 0 ? static_cast<size_t>(ranks) : 0) {}
  Counters(const Counters&) = delete;

  // Of a call that is asked for like this. Not cheap: once for many calls.
  static CollectiveKind collective_of(const Request& request);

  // A work begins, which Work::complete() ends.
  void begin(Work& work);
  void end(const Work& work, bool well);
  // A call of `count` elements without a work, by a thread that holds Python's lock: so it needs no atomic addition.
  // Most of them are not timed, which would take as long as the rest: one of kSample stands for as many.
  static constexpr int kSample = 64;
  bool times_next() { return ++samples_ % kSample == 0; }
  void count_quick(const Request& request, uint64_t count, Clock::duration time);
  // The same, timed, by any thread.
  void count_beside(const Request& request, uint64_t elements, Clock::duration time) { count(request, elements, time); }

  // A caller has waited, but for threads of the library's own (in_background).
  void add_wait(Clock::duration time) {
    if (!in_background()) add(waited_, time);
  }
  static bool& in_background();
  // Something was under way that is no work.
  void add_busy(Clock::duration time) { add(busy_, time); }
  // The first word of `rank`, of the session, came so much later than this rank began.
  void add_late(int rank, Clock::duration time) { add(late_[static_cast<size_t>(rank)], time); }
  void add_stall() { stalls_.fetch_add(1, std::memory_order_relaxed); }

  struct Cell {
    CollectiveKind collective;
    uint64_t largest;  // bytes of the size class
    uint64_t count, bytes;
    uint64_t bus_bytes;  // what the slowest of the links has to carry, in each direction
    uint64_t nanoseconds;
  };
  std::vector<Cell> cells() const;  // those that are not empty
  uint64_t waited() const { return waited_.load(std::memory_order_relaxed); }
  // Nanoseconds in which at least one operation was under way.
  uint64_t busy() const;
  std::vector<uint64_t> late() const;  // nanoseconds by rank
  uint64_t stalls() const { return stalls_.load(std::memory_order_relaxed); }

 private:
  using Counter = std::atomic<uint64_t>;
  struct Sums {
    Counter count, bytes, bus_bytes, nanoseconds;
  };
  using Table = std::array<std::array<Sums, kSizes>, kCollectives>;

  static void add(Counter& counter, Clock::duration time) {
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
    if (ns > 0) counter.fetch_add(static_cast<uint64_t>(ns), std::memory_order_relaxed);
  }
  static Sums& sums(Table& table, CollectiveKind collective, uint64_t bytes);
  void count(const Request& request, uint64_t count, Clock::duration time);

  Table table_{};
  Table quick_{};  // written with Python's lock alone
  uint32_t samples_ = 0;
  Counter waited_{0};
  Counter busy_{0};
  std::atomic<uint32_t> open_{0};          // works under way
  std::atomic<Clock::rep> open_since_{0};  // when that was last 0
  std::vector<Counter> late_;
  Counter stalls_{0};
};

}  // namespace slipstream
