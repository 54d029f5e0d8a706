#include "transport/tcp/placement.h"

#include <algorithm>
#include <utility>

namespace slipstream {

void LanePlacement::connected(size_t lane) {
  const size_t path = lanes_[lane].dialled;
  lanes_[lane] = {.path = path};
}

void LanePlacement::unreachable(size_t lane, Time now) {
  paths_.failed(std::exchange(lanes_[lane].dialled, Paths::kNone), now);
}

void LanePlacement::too_slow(size_t lane, Time now) {
  if (lane >= lanes_.size()) return;
  const auto others = seen(lane);
  const auto shares = [&](const Paths::Lane& other) { return other.path == lanes_[lane].path; };
  if (std::none_of(others.begin(), others.end(), shares)) return broken(lane, now);
  paths_.too_slow(lanes_[lane].path, now);
}

void LanePlacement::measure(std::span<const uint64_t> carried, Time now) {
  const double took = std::chrono::duration<double>(now - std::exchange(measured_at_, now)).count();
  for (size_t i = 0; i < std::min(lanes_.size(), carried.size()); ++i) {
    Lane& lane = lanes_[i];
    if (lane.carried) lane.rate = static_cast<double>(carried[i] - *lane.carried) / took;
    lane.carried = carried[i];
  }
}

std::vector<std::string> LanePlacement::proven() const {
  std::vector<std::string> found;
  for (const Lane& lane : lanes_)
    if (lane.path != Paths::kNone) found.push_back(paths_.address(lane.path));
  return found;
}

std::vector<Paths::Lane> LanePlacement::seen(size_t but) const {
  std::vector<Paths::Lane> found(lanes_.size());
  for (size_t i = 0; i < found.size(); ++i) {
    if (i == but) continue;
    if (lanes_[i].dialled != Paths::kNone)
      found[i] = {lanes_[i].dialled, -1};
    else if (is_open_(i))
      found[i] = {lanes_[i].path, lanes_[i].rate};
  }
  return found;
}

}  // namespace slipstream
