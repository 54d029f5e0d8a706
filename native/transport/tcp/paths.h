// The addresses of a peer: which of them answer, and which of them the next lane goes to. Pure: no sockets, no clock of
// its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"

namespace slipstream {

class Paths {
 public:
  static constexpr size_t kNone = SIZE_MAX;
  // A lane and the path that it takes, or is about to take.
  struct Lane {
    size_t path = kNone;
    double rate = -1;  // bytes a second that it has lately carried; negative: not known
  };
  struct Move {
    size_t lane;  // its place among those given
    size_t path;
  };

  Paths() = default;
  explicit Paths(const std::vector<std::string>& addresses);

  size_t find(const std::string& address) const;
  const std::string& address(size_t path) const { return all_[path].address; }
  // The first connection was made over it: lanes keep to its family, for IPv4 and IPv6 are most often one interface.
  void answered(size_t path);
  // It does not answer, or is cut: it is not used for a while, which doubles with each failure.
  void failed(size_t path, Time now);
  // One of its lanes was far behind those of other paths: it does not get as many as they have for a while, which
  // doubles with each such lane.
  void too_slow(size_t path, Time now);
  bool usable(Time now, size_t but = kNone) const;
  // Best first; at the end those that have failed, and `doubtful`.
  std::vector<std::string> in_order(Time now, size_t doubtful = kNone) const;

  // Where the next lane goes: to a path without lanes, else to those whose lanes achieve most each, and there to the
  // one that has fewest. So their numbers come to follow what paths can carry.
  size_t pick(std::span<const Lane> lanes, Time now) const;
  // A lane that should move: to a path that has none, or to one that has fewer and achieves as much with each.
  std::optional<Move> move(std::span<const Lane> lanes, Time now) const;
  // All lanes but the first `kept` are about to end: which of those should move, so that none share a path while
  // another has none, and so that they have the paths that carried most.
  std::vector<Move> keep(std::span<const Lane> lanes, size_t kept, Time now) const;

 private:
  struct Path {
    std::string address;
    Time avoid_until{};
    double wait = 0;  // seconds that it was left alone the last time
    Time slow_until{};
    double slow_wait = 0;  // seconds
  };
  struct Load {
    int lanes = 0;
    int known = 0;  // of them with a rate
    double rate = 0;
    double mean() const { return known > 0 ? rate / known : 0; }
  };

  std::vector<size_t> candidates(Time now) const;
  std::vector<Load> loads(std::span<const Lane> lanes) const;

  std::vector<Path> all_;
  size_t first_ = 0;
};

}  // namespace slipstream
