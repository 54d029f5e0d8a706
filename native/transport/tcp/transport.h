// TCP links: one control lane and `lanes` bulk lanes each; a bulk lane that is writable pulls the next segment.
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
  // How long an acknowledgement of data may wait for data that goes the same way; 0: until the end of the poller's
  // turn.
  double acknowledge_seconds = 0;
  Checksums checksums = Checksums::automatic;
  Lending lending = Lending::automatic;
  size_t lend_from = 0;   // the least size that is lent; 0: what is measured (transport/tcp/lend_threshold.h)
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

  // Expires handshakes and dials. Call at least when the returned time comes; Time::max() if nothing is timed.
  Time tick(Time now);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace slipstream
