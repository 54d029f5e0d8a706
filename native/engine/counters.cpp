#include "engine/counters.h"

#include <algorithm>
#include <string>

#include "engine/unfinished_works.h"
#include "engine/work.h"

namespace slipstream {

namespace {

constexpr const char* kNames[kCollectives] = {"",       "all_reduce", "reduce_scatter", "all_gather", "broadcast",
                                              "reduce", "gather",     "scatter",        "all_to_all", "send",
                                              "recv",   "barrier",    "other"};

// What the slowest link carries in each direction, at least, as nccl-tests define the bus bandwidth.
uint64_t bus_bytes(CollectiveKind collective, uint64_t bytes, uint64_t ranks) {
  if (ranks < 2) return 0;
  const double share = double(ranks - 1) / double(ranks);
  switch (collective) {
    case CollectiveKind::all_reduce:
      return static_cast<uint64_t>(2 * share * double(bytes));
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_gather:
    case CollectiveKind::gather:
    case CollectiveKind::scatter:
    case CollectiveKind::all_to_all:
      return static_cast<uint64_t>(share * double(bytes));
    default:
      return bytes;
  }
}

// Of the larger buffer. What a ragged operation receives has room for more: there it is taken for what all send alike.
uint64_t bytes_counted(const Request& request, uint64_t count) {
  if (!request.ragged) return bytes_of(request, count);
  const std::vector<uint64_t>& own = request.spaces[0].offsets;
  const uint64_t bytes = (own.empty() ? 0 : own.back()) * size_of(request.signature.dtype);
  return request.collective == CollectiveKind::all_gather ? bytes * request.group->ranks.size() : bytes;
}

}  // namespace

const char* name_of(CollectiveKind collective) { return kNames[static_cast<size_t>(collective)]; }

CollectiveKind Counters::collective_of(const Request& request) {
  const Signature& signature = request.signature;
  if (signature.side != Side::none) return signature.side == Side::sender ? CollectiveKind::send : CollectiveKind::recv;
  const std::string name = signature.operation.substr(0, signature.operation.find_first_of("/["));
  const auto* const found = std::find(std::begin(kNames) + 1, std::end(kNames), name);
  return found == std::end(kNames) ? CollectiveKind::other : static_cast<CollectiveKind>(found - std::begin(kNames));
}

bool& Counters::in_background() {
  thread_local bool background = false;
  return background;
}

Counters::Sums& Counters::sums(Table& table, CollectiveKind collective, uint64_t bytes) {
  const auto* const size = std::find_if(kLargest.begin(), kLargest.end(), [&](uint64_t most) { return bytes <= most; });
  return table[static_cast<size_t>(collective)][static_cast<size_t>(size - kLargest.begin())];
}

void Counters::begin(Work& work) {
  work.counters = this;
  work.called = now();
  if (open_.fetch_add(1, std::memory_order_relaxed) == 0)
    open_since_.store(work.called.time_since_epoch().count(), std::memory_order_relaxed);
}

void Counters::end(const Work& work, bool well) {
  const Time since{Clock::duration(open_since_.load(std::memory_order_relaxed))};
  if (open_.fetch_sub(1, std::memory_order_relaxed) == 1) add(busy_, work.finished - since);
  if (!well) return;
  count(work.request, work.request.spaces[0].count, work.finished - work.called);
}

void Counters::count(const Request& request, uint64_t count, Clock::duration time) {
  const uint64_t bytes = bytes_counted(request, count);
  Sums& found = sums(table_, request.collective, bytes);
  found.count.fetch_add(1, std::memory_order_relaxed);
  found.bytes.fetch_add(bytes, std::memory_order_relaxed);
  found.bus_bytes.fetch_add(bus_bytes(request.collective, bytes, request.group->ranks.size()),
                            std::memory_order_relaxed);
  add(found.nanoseconds, time);
}

void Counters::count_quick(const Request& request, uint64_t count, Clock::duration time) {
  const uint64_t bytes = bytes_counted(request, count);
  Sums& found = sums(quick_, request.collective, bytes);
  const auto more = [](Counter& counter, uint64_t value) {
    counter.store(counter.load(std::memory_order_relaxed) + value, std::memory_order_relaxed);
  };
  more(found.count, 1);
  more(found.bytes, bytes);
  more(found.bus_bytes, bus_bytes(request.collective, bytes, request.group->ranks.size()));
  if (time != Clock::duration{})
    more(found.nanoseconds, static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count()));
}

std::vector<Counters::Cell> Counters::cells() const {
  std::vector<Cell> found;
  const auto total = [](const Counter& one, const Counter& other) {
    return one.load(std::memory_order_relaxed) + other.load(std::memory_order_relaxed);
  };
  for (size_t c = 0; c < kCollectives; ++c)
    for (size_t s = 0; s < kSizes; ++s) {
      const Sums &slow = table_[c][s], &quick = quick_[c][s];
      const Cell cell{static_cast<CollectiveKind>(c),         kLargest[s],
                      total(slow.count, quick.count),         total(slow.bytes, quick.bytes),
                      total(slow.bus_bytes, quick.bus_bytes), total(slow.nanoseconds, quick.nanoseconds)};
      if (cell.count != 0) found.push_back(cell);
    }
  return found;
}

uint64_t Counters::busy() const {
  const Time since{Clock::duration(open_since_.load(std::memory_order_relaxed))};
  const bool open = open_.load(std::memory_order_relaxed) != 0;
  const auto now_open = open ? std::chrono::duration_cast<std::chrono::nanoseconds>(now() - since).count() : 0;
  return busy_.load(std::memory_order_relaxed) + static_cast<uint64_t>(std::max<int64_t>(now_open, 0));
}

std::vector<uint64_t> Counters::late() const {
  std::vector<uint64_t> found;
  for (const Counter& one : late_) found.push_back(one.load(std::memory_order_relaxed));
  return found;
}

}  // namespace slipstream
