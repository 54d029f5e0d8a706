// How a link gets on when a path to the peer is cut: nothing is refused or reset, there are just no answers. While the
// link has anything under way it looks four times a second at what the kernel knows of each connection. A lane whose
// segments TCP has retransmitted in vain for a second is replaced by one over another path; its segments go to other
// lanes at once. The control lane, and the last lane, are kept until there is a better one: a peer that is gone, or cut
// off altogether, is the engine's to find (by its heartbeat), and a cut that heals costs nothing. A peer that is merely
// stopped or slow is not affected: its machine answers. Private to this folder.
#pragma once

#include "transport/tcp/bulk_lane.h"
#include "transport/tcp/lane_control.h"
#include "transport/tcp/timers.h"

namespace slipstream {

class TcpLink;

class CutDetection final : private Timed {
 public:
  explicit CutDetection(TcpLink& link) : link_(link) {}

  // Something has been sent: from now on until all of it is acknowledged.
  void watch();
  // The peer has given up a lane.
  void given_up_by_peer(const LaneControl& cut);
  void stop();

 private:
  void due(Time now) override;
  void replace_control(Time now);
  void leave_lanes(Time now);
  void leave(BulkLane& lane, Time now);

  TcpLink& link_;
  bool watched_ = false;  // the timer is set
  Time next_control_try_{};
  Time next_lane_try_{};
};

}  // namespace slipstream
