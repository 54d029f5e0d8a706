#include "transport/tcp/lane_count.h"

#include <algorithm>

namespace slipstream {
namespace {

constexpr double kMeasureSeconds = 0.4;  // of busy time
constexpr double kSettleSeconds = 0.2;   // of busy time, in which new connections find their rate
constexpr double kOpeningSeconds = 2;    // until a trial goes on without those that could not be opened
constexpr double kLeastRate = 1e6;       // bytes a second: who sends less needs no lanes
constexpr double kGain = 1.1;
constexpr double kFirstWait = 60;
constexpr double kMostWait = 1800;

}  // namespace

void LaneCount::enter(State state, const Seen& seen, Time now) {
  state_ = state;
  from_ = seen;
  since_ = now;
}

void LaneCount::set(int few, int many) { *this = LaneCount(few, many); }

std::optional<LaneCount::Trial> LaneCount::look(const Seen& seen, bool may_try, Time now) {
  if (few_ == many_ || state_ == State::many) return std::nullopt;
  const double busy = seen.busy - from_.busy;
  const double rate = busy > 0 ? static_cast<double>(seen.bytes - from_.bytes) / busy : 0;
  switch (state_) {
    case State::beginning:
      if (busy >= kSettleSeconds) enter(State::few, seen, now);
      break;
    case State::few:
      // More lanes than that: the peer wants them, or they have not been closed yet.
      if (!may_try || now < next_trial_ || seen.lanes > few_) {
        from_ = seen;
      } else if (busy >= kMeasureSeconds && rate < kLeastRate) {
        from_ = seen;
      } else if (busy >= kMeasureSeconds) {
        rate_ = rate;
        wanted_ = many_;
        enter(State::opening, seen, now);
      }
      break;
    case State::opening:
      if (seen.lanes >= many_ || now - since_ >= seconds(kOpeningSeconds)) enter(State::settling, seen, now);
      break;
    case State::settling:
      if (busy >= kSettleSeconds) enter(State::trying, seen, now);
      break;
    case State::trying: {
      if (busy < kMeasureSeconds) break;
      const Trial trial{rate_, rate};
      if (rate >= kGain * rate_) {
        enter(State::many, seen, now);
      } else {
        wanted_ = few_;
        wait_ = std::clamp(2 * wait_, kFirstWait, kMostWait);
        next_trial_ = now + seconds(wait_);
        enter(State::few, seen, now);
      }
      return trial;
    }
    case State::many:
      break;
  }
  return std::nullopt;
}

}  // namespace slipstream
