#include "transport/tcp/paths.h"

#include <algorithm>

namespace slipstream {
namespace {

constexpr double kFirstWait = 1;  // seconds
constexpr double kMostWait = 60;
constexpr double kForgetSeconds = 60;  // after so long without trouble the next one counts as the first
constexpr double kFirstSlow = 30;
constexpr double kMostSlow = 600;
constexpr double kAlike = 0.75;   // of the best rate a lane: as good as that
constexpr double kFarBetter = 2;  // a lane is worth moving for that

bool is_v6(const std::string& address) { return address.find(':') != std::string::npos; }

}  // namespace

Paths::Paths(const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) all_.push_back({address, {}, 0});
}

size_t Paths::find(const std::string& address) const {
  for (size_t i = 0; i < all_.size(); ++i)
    if (all_[i].address == address) return i;
  return kNone;
}

void Paths::answered(size_t path) {
  if (path < all_.size()) first_ = path;
}

void Paths::failed(size_t path, Time now) {
  if (path >= all_.size() || now < all_[path].avoid_until) return;  // told of it by another lane already
  Path& it = all_[path];
  const bool anew = it.wait == 0 || now - it.avoid_until > seconds(kForgetSeconds);
  it.wait = anew ? kFirstWait : std::min(2 * it.wait, kMostWait);
  it.avoid_until = now + seconds(it.wait);
}

void Paths::too_slow(size_t path, Time now) {
  if (path >= all_.size()) return;
  Path& it = all_[path];
  it.slow_wait = std::clamp(2 * it.slow_wait, kFirstSlow, kMostSlow);
  it.slow_until = now + seconds(it.slow_wait);
}

bool Paths::usable(Time now, size_t but) const {
  for (size_t i = 0; i < all_.size(); ++i)
    if (i != but && all_[i].avoid_until <= now) return true;
  return false;
}

std::vector<std::string> Paths::in_order(Time now, size_t doubtful) const {
  std::vector<std::string> good;
  std::vector<std::string> bad;
  for (size_t i = 0; i < all_.size(); ++i) {
    const size_t path = (first_ + i) % all_.size();
    (path != doubtful && all_[path].avoid_until <= now ? good : bad).push_back(all_[path].address);
  }
  good.insert(good.end(), bad.begin(), bad.end());
  return good;
}

// Those of the family that answered first, unless none of them can be had; in order of preference.
std::vector<size_t> Paths::candidates(Time now) const {
  std::vector<size_t> same;
  std::vector<size_t> other;
  for (size_t i = 0; i < all_.size(); ++i) {
    const size_t path = (first_ + i) % all_.size();
    if (all_[path].avoid_until > now) continue;
    (is_v6(all_[path].address) == is_v6(all_[first_].address) ? same : other).push_back(path);
  }
  return same.empty() ? other : same;
}

std::vector<Paths::Load> Paths::loads(std::span<const Lane> lanes) const {
  std::vector<Load> found(all_.size());
  for (const Lane& lane : lanes) {
    if (lane.path >= all_.size()) continue;
    ++found[lane.path].lanes;
    if (lane.rate < 0) continue;
    ++found[lane.path].known;
    found[lane.path].rate += lane.rate;
  }
  return found;
}

size_t Paths::pick(std::span<const Lane> lanes, Time now) const {
  if (all_.empty()) return kNone;
  const auto from = candidates(now);
  if (from.empty()) {
    const auto sooner = [](const Path& a, const Path& b) { return a.avoid_until < b.avoid_until; };
    return static_cast<size_t>(std::min_element(all_.begin(), all_.end(), sooner) - all_.begin());
  }
  const auto load = loads(lanes);
  double best = 0;
  for (const size_t path : from) best = std::max(best, load[path].mean());
  size_t found = kNone;
  for (const size_t path : from) {
    const Load& one = load[path];
    if (one.known > 0 && one.mean() < kAlike * best) continue;
    if (found == kNone || one.lanes < load[found].lanes) found = path;
  }
  return found;
}

std::optional<Paths::Move> Paths::move(std::span<const Lane> lanes, Time now) const {
  const auto load = loads(lanes);
  const auto from = std::max_element(load.begin(), load.end(), [](auto& a, auto& b) { return a.lanes < b.lanes; });
  if (from == load.end() || from->lanes < 2) return std::nullopt;
  for (const size_t to : candidates(now)) {
    const Load& there = load[to];
    const bool better = from->mean() > 0 && there.lanes < from->lanes && there.mean() > kFarBetter * from->mean();
    // Lanes that all carry the same show nothing of what their paths could carry: then each path gets as many.
    const bool emptier = there.known > 0 && there.lanes + 1 < from->lanes && from->mean() > 0 &&
                         there.mean() >= kAlike * from->mean() && all_[to].slow_until <= now;
    if (there.lanes > 0 && !better && !emptier) continue;
    size_t worst = kNone;
    for (size_t i = 0; i < lanes.size(); ++i) {
      if (lanes[i].path != static_cast<size_t>(from - load.begin())) continue;
      if (worst == kNone || lanes[i].rate < lanes[worst].rate) worst = i;
    }
    return Move{worst, to};
  }
  return std::nullopt;
}

std::vector<Paths::Move> Paths::keep(std::span<const Lane> lanes, size_t kept, Time now) const {
  const auto carried = loads(lanes);  // by those that end, too
  auto to = candidates(now);
  std::erase_if(to, [&](size_t path) { return all_[path].slow_until > now; });
  std::ranges::stable_sort(to, [&](size_t a, size_t b) { return carried[a].rate > carried[b].rate; });
  std::vector<Lane> stay(lanes.begin(), lanes.begin() + static_cast<std::ptrdiff_t>(std::min(kept, lanes.size())));
  std::vector<Move> moves;
  for (const size_t path : to) {
    const auto load = loads(stay);
    if (load[path].lanes > 0) continue;
    // The lane to move is one of several on its path, or else that of the worst path.
    const auto rank = [&](const Lane& lane) {
      if (lane.path >= all_.size()) return std::pair(0, 0.0);
      return std::pair(-load[lane.path].lanes, carried[lane.path].rate);
    };
    const auto found = std::ranges::min_element(stay, {}, rank);
    if (found == stay.end() || found->path >= all_.size()) break;
    const bool shared = load[found->path].lanes > 1;
    if (!shared && carried[found->path].rate >= kAlike * carried[path].rate) break;
    found->path = path;
    moves.push_back({static_cast<size_t>(found - stay.begin()), path});
  }
  return moves;
}

}  // namespace slipstream
