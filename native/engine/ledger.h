// Numbers the works of every channel, and remembers the latest of the session. Any thread.
//
// The n-th send of a channel meets its n-th receive. A receive from any source has no channel, so no number, until a
// sender shows up; receives behind it in one of its channels must not overtake it, and stay without a number as long.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/work.h"

namespace slipstream {

class Ledger {
 public:
  static constexpr size_t kRemembered = 32;

  // Numbers the work and drops its candidates - or leaves it (or gives it) some, if it must wait for its turn.
  // `number`: of a collective that has got one elsewhere (boards/board.h); numbers may be left out.
  void enter(const WorkPtr& work, std::optional<uint32_t> number = std::nullopt);
  // The receive `work` takes the next number of a channel it is a candidate of.
  void claim(Work& work, const Candidate& source);
  // Takes the channel's next number for a message without a work. None if a receive before it has no number yet, or the
  // number is not `only`.
  std::optional<uint32_t> take(uint64_t channel, std::optional<uint32_t> only = std::nullopt);
  // The number that the channel's next work gets.
  uint32_t next(uint64_t channel) const;

  // Whether no work has this number yet. Numbers go on with 0 after the largest one.
  bool is_ahead(uint64_t channel, uint32_t seq) const;

  // Whether a work that is not done has this number.
  bool is_pending(uint64_t channel, uint32_t seq) const;

  struct Entry {
    WorkPtr work;
    uint32_t seq;
    bool numbered;
  };
  // The latest works, the newest first.
  std::vector<Entry> latest() const;
  // The oldest numbered work that is not done, however long ago it was entered.
  std::optional<Entry> oldest() const;

 private:
  struct Line {
    uint32_t next = 0;
    uint32_t unnumbered = 0;  // receives that may yet take a number of this channel
  };

  void keep_older(WorkPtr work);
  static void settle(Request& request, const Candidate& source, Line& line);

  mutable std::mutex mutex_;
  std::unordered_map<uint64_t, Line> lines_;  // by channel
  std::array<WorkPtr, kRemembered> latest_;
  std::deque<WorkPtr> older_;        // than those, in their order: the ones that were not done when they left latest_
  size_t most_older_ = kRemembered;  // with so many, those that are done are dropped
  size_t entered_ = 0;
};

}  // namespace slipstream
