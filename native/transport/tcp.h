// TCP links: one control lane and `lanes` bulk lanes each; a bulk lane that is writable pulls the next piece.
// Same threading rule as Link: the driver's thread only, nothing blocks.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/trace.h"
#include "transport/arrivals.h"
#include "transport/identity.h"
#include "transport/link.h"
#include "transport/poller.h"

namespace slipstream {

// Whether the memory of messages is lent to the kernel, or copied by it (transport/zero_copy.h).
enum class Lending : uint8_t {
  off,
  automatic,  // to other machines, until the kernel says that it copies all the same
  always,     // also where it copies: for tests
};

// Whether payloads get checksums (transport/tcp_checks.h).
enum class Checksums : uint8_t {
  off,
  automatic,  // to other machines
  always,
};

struct TcpOptions {
  int lanes = 2;                  // bulk lanes a link, 1..64
  std::string congestion;         // TCP_CONGESTION; empty: the kernel's default, but not one that paces
  double handshake_seconds = 5;   // a stranger's time (server side)
  double connect_seconds = 10;    // TCP connect + handshake of a dialled link, with all attempts
  double patience_seconds = 10;   // that a link goes on trying to reach a peer again: the heartbeat time
  int notsent_lowat = 256 << 10;  // TCP_NOTSENT_LOWAT
  int max_unauthenticated = 128;
  bool only_answers = false;  // nobody else listens: peers dial, again too
  bool round_robin = false;   // deal segments to lanes in turn: for comparison alone
  double words_seconds = 0;   // how long word of data may wait for data that goes the same way; 0: the end of the turn
  Checksums checksums = Checksums::automatic;
  Lending lending = Lending::automatic;
  size_t lend_from = 0;   // the least size that is lent; 0: what is measured (transport/lend_threshold.h)
  int busy_poll_us = 0;   // SO_BUSY_POLL of control lanes to other machines; 0: off
  int threads = 0;        // that the driver shares system calls with, 0..16
  std::vector<int> cpus;  // that these are confined to; none: all
};

// Where a rank listens.
struct TcpTarget {
  int peer = -1;
  std::vector<std::string> addresses;
  uint16_t port = 0;
};

// What one connection of a link has done.
struct LaneStatistics {
  std::string local;   // address:port
  std::string remote;  // address:port
  bool control = false;
  bool up = false;
  uint64_t sent = 0;            // bytes of payload
  uint64_t received = 0;        // bytes of payload
  double rate = 0;              // bytes a second that it takes while it is busy
  uint64_t delivery = 0;        // bytes a second, as the kernel sees it
  uint32_t rtt_us = 0;          // as the kernel sees it
  uint64_t retransmits = 0;     // segments of TCP's
  bool zero_copy = false;       // large sends are not copied, as far as is known yet
  uint64_t zero_copied = 0;     // bytes that the kernel says it sent without a copy
  uint64_t zero_copy_from = 0;  // sends of this size and more are lent, as far as is known yet; 0: none
};

// What a link has done. Over shared memory there is nothing to lose, and there are no lanes.
struct LinkStatistics {
  int peer = -1;
  Link::Kind kind = Link::Kind::tcp;
  uint64_t sent = 0;      // bytes of payload, over shared memory; of tcp the lanes tell
  uint64_t received = 0;  // the same
  uint64_t lost = 0;      // connections that broke
  uint64_t replaced = 0;  // connections that were too slow for too long
  uint64_t repeated = 0;  // bytes sent again
  uint64_t dropped = 0;   // bytes that had come already
  bool encrypted = false;
  uint64_t damaged = 0;  // connections that were left because what came was not what was sent
  std::vector<LaneStatistics> lanes;
};

class TcpTransport {
 public:
  TcpTransport(Poller& poller, Events& events, Arrivals& arrivals, Identity identity, TcpOptions options);
  ~TcpTransport();

  // Binds a numeric address ("0.0.0.0", "10.1.2.3", "::") on a free port, which it returns.
  uint16_t listen(const std::string& address);
  // Binds all of them on one port that is free on each.
  uint16_t listen(const std::vector<std::string>& addresses);

  // Dials all lanes of a link to `peer` at the first of `addresses` that answers. The link is returned at once;
  // Events::up or Events::down (peer_lost if refused or silent, refused if authentication fails) follows.
  std::unique_ptr<Link> dial(int peer, const std::vector<std::string>& addresses, uint16_t port);

  // Where ranks listen: with it, connections that break are repaired, and only a peer that is gone ends a link.
  void set_directory(std::function<TcpTarget(int rank)> directory);

  // What becomes of lanes is put there.
  void set_trace(Trace* trace);

  // Proves that `peer` lives and asks it to dial us. The outcome comes through `done`.
  void knock(int peer, const std::vector<std::string>& addresses, uint16_t port, KnockDone& done);

  // Ends the I/O threads; the driver does all by itself from then on. Idempotent.
  void end_threads();
  void stop_listening();

  // Links that have been closed still have something to say.
  bool closing() const;

  // Of a link that this transport made.
  static LinkStatistics statistics(const Link& link);

  // Expires handshakes and dials. Call at least when the returned time comes; Time::max() if nothing is timed.
  Time tick(Time now);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace slipstream
