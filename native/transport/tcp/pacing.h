// Which lanes of a link take work, by what each achieves: a slow lane leaves what is left to faster ones, repeats of
// late segments go to idle lanes, and a lane that stays far behind is named. Pure: no sockets, no clock of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"

namespace slipstream {

// Why a lane takes nothing, although there is something to take.
class LanePause {
 public:
  enum class Reason : uint8_t {
    none,
    has_enough,         // as much is on its way as its path is good for
    others_are_faster,  // they are done sooner with all that there is
  };

  void set(Reason reason, Time now) {
    if (reason != Reason::others_are_faster)
      since_ = Time::max();
    else if (reason_ != reason)
      since_ = now;
    reason_ = reason;
  }
  bool active() const { return reason_ != Reason::none; }
  // It has left work to faster lanes for longer than that.
  bool leaves_work_for(Clock::duration time, Time now) const {
    return reason_ == Reason::others_are_faster && now - since_ > time;
  }

 private:
  Reason reason_ = Reason::none;
  Time since_ = Time::max();
};

class Pacing {
 public:
  // All lanes of the link together.
  struct Load {
    double rate = 0;     // bytes a second
    double backlog = 0;  // bytes in sockets
  };

  // The load has to be measured again: that takes system calls, so it is kept for 2 ms.
  bool load_is_old(Time now) const;
  void set_load(const Load& load, Time now);
  // A lane at `rate` is one of the slower ones, for which it is worth to look what its socket holds.
  bool is_slow(double rate, size_t lanes) const { return rate <= load_.rate / 2 / static_cast<double>(lanes); }
  // A slow lane that is given `size` bytes more than the `backlog` of its socket is busy longer than the other lanes
  // with all the `waiting` bytes.
  bool holds_up(double rate, uint64_t backlog, uint32_t size, uint64_t waiting) const;

  // A lane has found something to take.
  void fed(Time now) { fed_ = now; }

  // Late segments are looked for every 5 ms.
  bool repeats(Time now);
  // A segment in the hands of another lane, and this lane, which is idle.
  struct Holder {
    double rate = 0;       // of the lane that has it; bytes a second
    uint64_t backlog = 0;  // of that lane
  };
  template <class HolderOf>
  bool is_late(double idle_rate, uint32_t size, Time since, Time now, HolderOf holder) const {
    if (now - since > kLong) return true;
    // A repeat must not take the place of something new.
    if (now - fed_ <= kDrained || idle_rate == 0) return false;
    return is_late_at(holder(), idle_rate, size, std::chrono::duration<double>(now - since).count());
  }

  // Lanes are compared every half a second.
  bool compares(Time now);
  struct Lane {
    double rate = 0;  // that reaches the peer; bytes a second, 0: not known
    bool open = false;
  };
  // The number of a lane that was far behind the others in the last ten comparisons; null unless `replaceable`.
  std::optional<size_t> far_behind(std::span<const Lane> lanes, bool replaceable);

 private:
  static constexpr Clock::duration kLong = std::chrono::seconds(1);  // late, whatever its lane once achieved
  static constexpr Clock::duration kDrained = std::chrono::milliseconds(10);

  static bool is_late_at(const Holder& holder, double idle_rate, uint32_t size, double age);

  Load load_;
  Time load_at_{};
  Time fed_{};
  Time next_repeat_{};
  Time next_comparison_{};
  std::vector<int> slow_;  // by number: in how many comparisons in a row the lane has been far behind
};

}  // namespace slipstream
