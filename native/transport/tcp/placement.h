// Which path each bulk lane of a link takes: kept by the side that dials. Pure: no sockets, no clock of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/tcp/paths.h"

namespace slipstream {

class LanePlacement {
 public:
  // `is_open`: whether a lane has a connection.
  LanePlacement(const std::vector<std::string>& addresses, std::function<bool(size_t lane)> is_open)
      : paths_(addresses), is_open_(std::move(is_open)) {}

  void set_lanes(size_t count) { lanes_.resize(count); }
  size_t lanes() const { return lanes_.size(); }
  Paths& paths() { return paths_; }
  const Paths& paths() const { return paths_; }

  // The path where the next connection of `lane` should go.
  size_t pick(size_t lane, Time now) const { return paths_.pick(seen(lane), now); }
  // A lane whose next connection should go another way although it has one.
  std::optional<Paths::Move> move(Time now) const { return paths_.move(seen(Paths::kNone), now); }
  // Those of the first `kept` lanes whose next connections should go another way once all others have ended.
  std::vector<Paths::Move> keep(size_t kept, Time now) const { return paths_.keep(seen(Paths::kNone), kept, now); }

  // A connection for the lane is being made over `path` ...
  void dials(size_t lane, size_t path) { lanes_[lane].dialled = path; }
  // ... and is there,
  void connected(size_t lane);
  // ... or cannot be made: its path is left alone for a while.
  void unreachable(size_t lane, Time now);
  // The lane's connection gets no answers, or damages what it carries: the same.
  void broken(size_t lane, Time now) { paths_.failed(lanes_[lane].path, now); }
  // The lane is far too slow: the same, unless other lanes share its path, which then keeps fewer than others.
  void too_slow(size_t lane, Time now);

  // What each lane has carried in all, in bytes: the rates between two such calls decide where lanes go.
  void measure(std::span<const uint64_t> carried, Time now);

  // Path of the lane's connection, or of the last one it had; Paths::kNone if there was none.
  size_t path(size_t lane) const { return lanes_[lane].path; }
  // The paths that lanes have been connected over, as addresses.
  std::vector<std::string> proven() const;

 private:
  struct Lane {
    size_t path = Paths::kNone;
    size_t dialled = Paths::kNone;      // kNone: no connection is being made
    std::optional<uint64_t> carried{};  // at the last measurement; null: the connection is newer than that
    double rate = -1;                   // bytes a second between two measurements; negative: not known
  };

  std::vector<Paths::Lane> seen(size_t but) const;

  Paths paths_;
  std::function<bool(size_t)> is_open_;
  std::vector<Lane> lanes_;
  Time measured_at_{};
};

}  // namespace slipstream
