// Watches the connections of a link for packets that are too large for the path (path_mtu.h). Private to this folder.
#pragma once

#include "transport/tcp/lane.h"
#include "transport/tcp/path_mtu.h"

namespace slipstream {

class TcpLink;

class MtuDetection {
 public:
  explicit MtuDetection(TcpLink& link) : link_(link) {}

  PathMtu& mtu() { return mtu_; }
  // A connection stalls: of what we sent, or of what the peer says it sent (`inwards`), nothing is acknowledged. May
  // end the link.
  void stalled(const Lane& lane, bool inwards, Time now);
  // Checks what is acknowledged on each connection, and ends trials.
  void look(Time now);
  // As look(); sends something small as well, to see whether it is acknowledged.
  void probe(Time now);

 private:
  bool small_data_passes(const Lane& lane, const Passed& passed, bool inwards, Time now) const;

  TcpLink& link_;
  PathMtu mtu_;
};

}  // namespace slipstream
