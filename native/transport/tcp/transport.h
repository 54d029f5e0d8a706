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
#include "transport/tcp/options.h"

namespace slipstream {

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

  // Of links that there are, and of those to come: so many bulk lanes, 1 to 64; or 0, as the options said at first. All
  // ranks set it to the same: a link has as many as the rank wants that wants more.
  void set_lanes(int lanes);

  // Records changes of lanes there.
  void set_trace(Trace* trace);

  // Proves that `peer` lives and asks it to dial us. The outcome comes through `done`.
  void knock(int peer, const std::vector<std::string>& addresses, uint16_t port, KnockDone& done);

  // Ends the I/O threads; the driver does all by itself from then on. Idempotent.
  void end_threads();
  void stop_listening();

  // Links that have been closed still have control frames to send.
  bool closing() const;

  // Expires handshakes and dials. Call at least when the returned time comes; Time::max() if nothing is timed.
  Time tick(Time now);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace slipstream
