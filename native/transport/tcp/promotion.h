// How small messages come to the fastest lane. Routers choose a connection's path by its ports, so the control lane may
// have got the slowest one. The side that dialled looks once a second, while the link is in use, and promotes a bulk
// lane that is faster: its connection becomes the control lane's, and a new one is dialled in its place.
//
// Nothing is lost or repeated by that. Each side ends its part of the bulk lane with a last header (promotion()), the
// other side only after it has read the first one's; then the connection is empty but for what follows that header. It
// begins like every connection that takes the control lane's place: with what each side has read of the control stream.
// Whatever breaks meanwhile is repaired as ever, and a newer control connection beats a promotion under way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "transport/tcp/bulk_lane.h"

namespace slipstream {

// What TCP and the link know of a connection. Pure, as is what follows.
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

// When to promote a lane: where two looks in a row have found a faster one, and not too often.
class PromotionPolicy {
 public:
  bool looks(Time now) const { return now >= next_look_; }
  // The lane to promote, null: none. `sent` and `received` count from the beginning here. `most`: as above.
  std::optional<size_t> look(LaneSeen control, std::vector<LaneSeen> lanes, double most, Time now);
  void promoted(Time now);

 private:
  struct Totals {  // at the last look
    uint64_t sent = 0;
    uint64_t received = 0;
  };
  std::vector<Totals> lanes_;
  uint64_t control_sent_ = 0;
  int found_ = 0;  // looks in a row that have found a faster lane
  double wait_ = 0;
  Time next_look_{};
  Time next_promotion_{};
};

class TcpLink;

// The promotions of one link. Private to this folder.
class ControlPromotion {
 public:
  explicit ControlPromotion(TcpLink& link) : link_(link) {}

  // Promotes a lane that is faster.
  void seek(Time now);
  // Gives the control lane the connection of a bulk lane, as soon as that has been emptied. False: not now, or not by
  // this side.
  bool promote(size_t number);
  // Both sides have sent their last header on the lane.
  void emptied(BulkLane& lane, Connection connection, uint32_t generation);
  // The peer may have made the lane its control lane, or not.
  bool in_doubt(const BulkLane& lane) const;
  // This side has sent its last header on a lane, and waits for the peer's.
  bool under_way() const;

 private:
  TcpLink& link_;
  PromotionPolicy policy_;
};

}  // namespace slipstream
