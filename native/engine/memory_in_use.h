// The memory that works under way read and write, so that none begins on memory that another one still needs.
//
// A work that overlaps an earlier one of its channel, where one of them writes, begins when that one is done. All ranks
// have the works of a channel in the same order, so nobody waits in a ring. Between channels that is not so: there such
// a work is refused (Engine::enqueue). Messages of several senders alone may be received into the same memory at once:
// a program that does that wants to know that they came, not what they say. Belongs to the driver.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/work.h"

namespace slipstream {

class MemoryInUse {
 public:
  void add(const Work& work);
  void remove(const Work& work);
  void clear();

  // Calls f(other) for the works that `work` must not run beside, some perhaps twice; f returns false to end that.
  template <class F>
  void conflicts(const Work& work, F f) const {
    if (few_.empty() && many_count_ == 0) return;
    const Ranges mine = ranges_of(work);
    for (size_t i = 0; i < mine.count; ++i) {
      const Range& range = mine.ranges[i];
      const auto see = [&](const Range& other, const Work* owner) {
        const bool overlap = range.begin < other.end && other.begin < range.end;
        return owner == &work || !overlap || !(range.writes || other.writes) || may_share(work, *owner) || f(*owner);
      };
      for (const Entry& entry : few_)
        if (!see(entry.range, entry.work)) return;
      if (!among_many(range, see)) return;
    }
  }

 private:
  static constexpr size_t kFew = 16;  // ranges that are looked at one by one
  static constexpr size_t kClasses = 64;

  struct Range {
    uint64_t begin = 0;
    uint64_t end = 0;
    bool writes = false;
  };
  struct Ranges {
    std::array<Range, 4> ranges;
    size_t count = 0;
    void add(const std::byte* data, uint64_t bytes, bool writes) {
      const auto begin = reinterpret_cast<uint64_t>(data);
      if (bytes != 0) ranges[count++] = {begin, begin + bytes, writes};
    }
  };
  struct Entry {
    Range range;
    const Work* work;
  };
  // By begin; all of one map have the same size but for a factor of 2, so few of them can reach a given place.
  using Map = std::map<std::pair<uint64_t, const Work*>, Range>;

  static bool may_share(const Work& one, const Work& other);
  static Ranges ranges_of(const Work& work);
  static size_t class_of(const Range& range);

  template <class See>
  bool among_many(const Range& range, See see) const {
    if (many_count_ == 0) return true;
    for (size_t writes = range.writes ? 0 : 1; writes < 2; ++writes)
      for (size_t c = 0; c < kClasses; ++c) {
        const Map& map = many_[writes][c];
        if (map.empty()) continue;
        const uint64_t reach = c + 1 < kClasses ? uint64_t{2} << c : UINT64_MAX;
        const uint64_t from = range.begin > reach ? range.begin - reach : 0;
        for (auto it = map.lower_bound({from, nullptr}); it != map.end() && it->first.first < range.end; ++it)
          if (!see(it->second, it->first.second)) return false;
      }
    return true;
  }

  std::vector<Entry> few_;
  std::array<std::array<Map, kClasses>, 2> many_;  // that are only read, that are written
  size_t many_count_ = 0;
};

}  // namespace slipstream
