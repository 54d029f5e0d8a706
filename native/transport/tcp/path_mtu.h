// Paths that carry small packets and silently drop large ones: one hop's MTU is smaller than the interfaces say, and
// the ICMP messages that should tell are filtered. Handshakes, pings and small frames pass, and nothing else does. The
// cure is TCP_MAXSEG, which holds for both directions, on the link's next connections. Pure: no sockets, no clock of
// its own.
//
// The sign is a connection that was made after another one had stalled, and that stalls too before one full packet was
// acknowledged. Short outages can look like that. So from the first stall on the link sends something small four times
// a second. If all the time that the second connection is silent another one between the same addresses is answered,
// the size is to blame: that is proof. Else smaller packets are merely tried: after a while lanes send large ones
// again, one lane at a time, and are judged in their turn.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/clock.h"

namespace slipstream {

// The packet size of a link's connections, kept by the side that dials.
class PathMtu {
 public:
  // Bytes of payload in the packets of the next connection, for TCP_MAXSEG; 0: as the interfaces allow.
  int segment() const { return segment_; }

  struct Stall {
    Time opened_at{};          // of the connection
    uint64_t passed = 0;       // bytes that have got through on it, in the direction that stalls
    uint64_t waiting = 0;      // bytes that have not
    uint64_t segment = 0;      // payload of a full packet on it
    bool others_pass = false;  // small packets on the same path have passed all the time that it was silent
  };
  enum class Finding : uint8_t {
    nothing,    // this says nothing new about sizes
    suspected,  // the first stall: whether small packets pass is to be watched
    tried,      // segment() is smaller, for a while
    useless,    // smaller packets have not helped, and are not used any more
    proven,     // segment() is what passes
    hopeless,   // packets do not pass that every path must carry
  };
  Finding stalled(const Stall& stall, Time now, Clock::duration trial);

  // The last stall is so recent that another one would be evidence.
  bool suspects(Time now) const;
  // Payload of packets that are known to pass; 0: none have been seen to vanish.
  int proven() const { return proven_; }
  // Ends a trial that is over: the next stall is judged.
  void end_trial(Time now);

  // When it was last looked what is acknowledged, if that was so recently that no outage between two looks was missed;
  // called at each look. `due`: a look is worth while.
  bool looks(Time now) const;
  std::optional<Time> look(Time now);

  // The lane's connection was made with this size.
  void connected(size_t lane, int segment);
  // A lane whose packets are smaller than they have to be now: it should be made anew.
  std::optional<size_t> lane_to_enlarge(const std::function<bool(size_t lane)>& is_open) const;

 private:
  int segment_ = 0;
  int proven_ = 0;
  Time trial_ends_ = Time::max();
  Time stalled_at_{};  // when a connection last stalled
  Time looked_at_{};
  std::vector<int> lanes_;  // payload of the packets, by lane
};

}  // namespace slipstream
