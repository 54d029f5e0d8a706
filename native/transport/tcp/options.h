// How links work: what users choose (LinkOptions), and what the rank's part in the job decides (TcpOptions).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/admission.h"
#include "transport/link.h"

namespace slipstream {

// Whether the memory of messages is lent to the kernel, or copied by it (transport/tcp/zero_copy.h).
enum class Lending : uint8_t {
  off,
  automatic,  // to other machines, until the kernel says that it copies all the same
  always,     // also where it copies: for tests
};

// Whether payloads get checksums (transport/tcp/checksums.h).
enum class Checksums : uint8_t {
  off,
  automatic,  // to other machines
  always,
};

// A field for each setting that is about links. native/bindings/options.cpp gives each the name of its setting.
struct LinkOptions {
  int lanes = 2;             // bulk lanes a link, 1..64
  bool more_lanes = true;    // more where a link carries more over them (transport/tcp/lane_count.h)
  bool round_robin = false;  // deal segments to lanes in turn: for comparison alone
  std::string congestion;    // TCP_CONGESTION; empty: the kernel's default, but not one that paces
  Checksums checksums = Checksums::automatic;
  int dscp = 0;  // the class of the packets of open connections, 0..63; 0: the system's
  bool encrypt = false;
  Lending lending = Lending::automatic;
  size_t lend_from = 0;  // the least size that is lent; 0: what is measured (transport/tcp/lend_threshold.h)
  int threads = 0;       // that the driver shares system calls with, 0..16
  SingleCopy single_copy = SingleCopy::off;  // of links over shared memory
  std::vector<int> cpus;                     // that these are confined to; none: all
};

struct TcpOptions : LinkOptions {
  AdmissionLimits admission = {};
  double connect_seconds = 10;   // TCP connect + handshake of a dialled link, with all attempts
  double patience_seconds = 10;  // the heartbeat time: that an outage may last
  double recovery_seconds = 0;   // that the link may take after that to reach the peer again
  std::string patience_setting = "SLIPSTREAM_HEARTBEAT";  // what sets it, for people
  int notsent_lowat = 256 << 10;                          // TCP_NOTSENT_LOWAT
  bool only_answers = false;                              // nobody else listens: peers dial, again too
  // How long an acknowledgement of data may wait for data that goes the same way; 0: until the end of the poller's
  // turn.
  double acknowledge_seconds = 0;
  int busy_poll_us = 0;  // SO_BUSY_POLL of control lanes to other machines; 0: off

  // Seconds that a link goes on trying to reach a peer again.
  double loss_seconds() const { return patience_seconds + recovery_seconds; }
};

}  // namespace slipstream
