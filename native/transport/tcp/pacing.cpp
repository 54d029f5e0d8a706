#include "transport/tcp/pacing.h"

#include <algorithm>

namespace slipstream {
namespace {

constexpr double kLoadSeconds = 0.002;
constexpr double kSlackSeconds = 0.002;
constexpr double kLateSeconds = 0.01;
constexpr double kLateFactor = 3;
constexpr double kRepeatSeconds = 0.005;
constexpr double kCompareSeconds = 0.5;
constexpr int kSlowComparisons = 10;
constexpr double kFarBehind = 1.0 / 16;  // of the lanes' median rate

}  // namespace

bool Pacing::load_is_old(Time now) const { return now - load_at_ > seconds(kLoadSeconds); }

void Pacing::set_load(const Load& load, Time now) {
  load_ = load;
  load_at_ = now;
}

bool Pacing::holds_up(double rate, uint64_t backlog, uint32_t size, uint64_t waiting) const {
  const double here = (static_cast<double>(backlog) + size) / rate;
  const double all = (static_cast<double>(waiting) + load_.backlog) / load_.rate;
  return here > all + kSlackSeconds;
}

bool Pacing::repeats(Time now) {
  if (now < next_repeat_) return false;
  next_repeat_ = now + seconds(kRepeatSeconds);
  return true;
}

bool Pacing::is_late_at(const Holder& holder, double idle_rate, uint32_t size, double age) {
  const double there = (static_cast<double>(holder.backlog) + size) / std::max(holder.rate, 1.0);
  return std::max(there, age / kLateFactor) > kLateFactor * size / idle_rate + kLateSeconds;
}

bool Pacing::compares(Time now) {
  if (now < next_comparison_) return false;
  next_comparison_ = now + seconds(kCompareSeconds);
  return true;
}

std::optional<size_t> Pacing::far_behind(std::span<const Lane> lanes, bool replaceable) {
  std::vector<double> known;
  for (const Lane& lane : lanes)
    if (lane.rate > 0) known.push_back(lane.rate);
  if (known.size() < 3) return std::nullopt;
  const auto middle = known.begin() + static_cast<ptrdiff_t>(known.size() / 2);
  std::nth_element(known.begin(), middle, known.end());
  slow_.resize(lanes.size());
  for (size_t i = 0; i < lanes.size(); ++i) {
    const bool behind = lanes[i].open && lanes[i].rate > 0 && lanes[i].rate < kFarBehind * *middle;
    slow_[i] = behind ? slow_[i] + 1 : 0;
    if (slow_[i] < kSlowComparisons || !replaceable) continue;
    slow_[i] = 0;
    return i;  // one at a time
  }
  return std::nullopt;
}

}  // namespace slipstream
