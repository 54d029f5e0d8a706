// TCP links: one control lane and `lanes` bulk lanes each; a bulk lane that is writable pulls the next piece.
// Same threading rule as Link: the driver's thread only, nothing blocks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/arrivals.h"
#include "transport/identity.h"
#include "transport/link.h"
#include "transport/poller.h"

namespace slipstream {

struct TcpOptions {
  int lanes = 2;                  // bulk lanes a link, 1..64
  std::string congestion;         // TCP_CONGESTION; empty: cubic to this host, else the kernel's default
  double handshake_seconds = 5;   // a stranger's time (server side)
  double connect_seconds = 10;    // TCP connect + handshake of a dialled link
  int notsent_lowat = 256 << 10;  // TCP_NOTSENT_LOWAT
  int max_unauthenticated = 128;
};

class TcpTransport {
 public:
  TcpTransport(Poller& poller, Events& events, Arrivals& arrivals, Identity identity, TcpOptions options);
  ~TcpTransport();

  // Binds a numeric address ("0.0.0.0", "10.1.2.3", "::") on a free port, which it returns.
  uint16_t listen(const std::string& address);

  // Dials all lanes of a link to `peer` at the first of `addresses` that answers. The link is returned at once;
  // Events::up or Events::down (peer_lost if refused or silent, refused if authentication fails) follows.
  std::unique_ptr<Link> dial(int peer, const std::vector<std::string>& addresses, uint16_t port);

  // Proves that `peer` lives and asks it to dial us. The outcome comes through `done`.
  void knock(int peer, const std::vector<std::string>& addresses, uint16_t port, KnockDone& done);

  // Expires handshakes and dials. Call at least when the returned time comes; Time::max() if nothing is timed.
  Time tick(Time now);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace slipstream
