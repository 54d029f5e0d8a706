// When the control lane should have the connection of a bulk lane. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace slipstream {

// What TCP and the link know of a connection.
struct LaneSeen {
  double rtt = 0;         // smoothed, with its queues, in seconds; 0: not known
  double least_rtt = 0;   // the shortest, in seconds
  double rate = 0;        // bytes a second while it is busy; 0: not known
  uint64_t sent = 0;      // bytes since the last look
  uint64_t received = 0;  // likewise; of the control lane not known
};

// The lane over which small messages would take less than half as long, and half a millisecond less at least; null if
// none is known. A lane that carries more than `most` of all the lanes' rate together stays: the one that is dialled in
// its place may get a slow path. Control's round trips are compared with those that lanes have seen under the same
// traffic. Where the lanes have had none since the last look, TCP says nothing new of them: then a lane takes its
// shortest round trip, and the time of the largest small message at its rate.
std::optional<size_t> faster_lane(const LaneSeen& control, std::span<const LaneSeen> lanes, double most);

}  // namespace slipstream
