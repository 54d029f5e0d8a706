#include "transport/tcp/lane_count.h"

#include <algorithm>
#include <utility>

namespace slipstream {
namespace {

constexpr double kMeasureSeconds = 0.4;  // of busy time
constexpr double kSettleSeconds = 0.2;   // of busy time, in which new connections find their rate
constexpr double kOpeningSeconds = 2;    // until a trial goes on without those that could not be opened, or closed
constexpr double kLeastRate = 2e5;       // bytes a second: who never sent more needs no lanes
constexpr double kGain = 1.1;
constexpr double kFallen = 0.7;     // times the rate that a trial found: for a minute, it shortens the wait
constexpr int64_t kShortened = 8;   // to this part
constexpr int64_t kMostWait = 32;   // minutes; a power of two, as all waits are
constexpr double kHalfMinute = 30;  // seconds

int64_t minute_of(Time now) { return std::chrono::duration_cast<std::chrono::minutes>(now.time_since_epoch()).count(); }

double rate_of(uint64_t bytes, double busy) { return busy > 0 ? static_cast<double>(bytes) / busy : 0; }

}  // namespace

void LaneCount::enter(State state, const Seen& seen, Time now) {
  state_ = state;
  from_ = seen;
  since_ = now;
}

void LaneCount::set(int few, int many) { *this = LaneCount(few, many); }

// What the program sends may have changed meanwhile: one link at a time in place of several that share a port, or data
// that the network's buffers take at once. So lanes that gain, and had not won before, are closed again for a while.
std::optional<LaneCount::Trial> LaneCount::tried(double rate, const Seen& seen, Time now) {
  if (rate < kGain * rate_ || kept_ == many_) return end(rate_, rate, seen, now);
  rate_many_ = rate;
  wanted_ = few_;
  enter(State::closing, seen, now);
  return std::nullopt;
}

// Each result like the one before doubles the wait.
LaneCount::Trial LaneCount::end(double few, double many, const Seen& seen, Time now) {
  const bool gains = many >= kGain * few;
  const int kept = gains ? many_ : few_;
  wait_ = kept == kept_ ? std::min(2 * wait_, kMostWait) : 1;
  kept_ = wanted_ = kept;
  kept_rate_ = gains ? many : few;
  minute_ = minute_of(now);
  minute_from_ = seen;
  enter(gains ? State::many : State::few, seen, now);
  return {few, many};
}

// Whether a minute of the clock ends a wait: of 4 minutes, one that 4 divides. At least half a wait has passed then;
// lanes that have won count the time in which the link was busy, so few of it is spent with few lanes.
bool LaneCount::review_due(const Seen& seen, Time now) {
  const int64_t minute = minute_of(now);
  const int64_t before = std::exchange(minute_, minute);
  if (minute == before) return false;
  const Seen from = std::exchange(minute_from_, seen);
  const double busy = seen.busy - from.busy;
  const bool fallen = busy >= kMeasureSeconds && rate_of(seen.bytes - from.bytes, busy) < kFallen * kept_rate_;
  const int64_t wait = fallen ? std::max<int64_t>(wait_ / kShortened, 1) : wait_;
  const double passed = state_ == State::many ? seen.busy - from_.busy : Seconds(now - since_).count();
  return minute / wait != before / wait && passed >= kHalfMinute * static_cast<double>(wait);
}

std::optional<LaneCount::Trial> LaneCount::look(const Seen& seen, bool may_try, Time now) {
  if (few_ == many_) return std::nullopt;
  const double busy = seen.busy - from_.busy;
  const double rate = rate_of(seen.bytes - from_.bytes, busy);
  switch (state_) {
    case State::beginning:
    case State::measuring:
      // More lanes than that: the peer wants them, or they have not been closed yet.
      if (!may_try || seen.lanes > few_) {
        enter(State::beginning, seen, now);
      } else if (state_ == State::beginning) {
        if (busy >= kSettleSeconds) enter(State::measuring, seen, now);
      } else if (busy >= kMeasureSeconds && std::max(rate, kept_rate_) < kLeastRate) {
        from_ = seen;  // a review goes on: the few lanes may be on the slowest of several paths
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
    case State::trying:
      if (busy >= kMeasureSeconds) return tried(rate, seen, now);
      break;
    case State::closing:
      if (seen.lanes <= few_) enter(State::resettling, seen, now);
      if (now - since_ >= seconds(kOpeningSeconds)) return end(rate_, rate_many_, seen, now);  // the peer wants them
      break;
    case State::resettling:
    case State::confirming:
      if (seen.lanes > few_) {  // one came late, or the peer wants them
        enter(State::closing, seen, now);
      } else if (state_ == State::resettling) {
        if (busy >= kSettleSeconds) enter(State::confirming, seen, now);
      } else if (busy >= kMeasureSeconds) {
        return end(std::max(rate_, rate), rate_many_, seen, now);
      }
      break;
    case State::few:
    case State::many:
      if (!review_due(seen, now)) break;
      wanted_ = few_;
      enter(State::beginning, seen, now);
      break;
  }
  return std::nullopt;
}

}  // namespace slipstream
