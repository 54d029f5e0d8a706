// Links between ranks of one host. A link is a pair of rings in a shared mapping plus a unix socket, which
// authenticates, passes file descriptors and tells at once when the peer dies.
//
// Small payloads travel inside the ring, and bulk that is to be taken at once. Other bulk travels as a descriptor
// (region, offset): the receiver reads the sender's memory in place and gives the descriptor's ticket back, which
// completes the send. Where the kernel allows it (private_reads.h), a descriptor may name private memory of the
// sender's.
#pragma once

#include <memory>
#include <string>

#include "transport/arrivals.h"
#include "transport/bell.h"
#include "transport/identity.h"
#include "transport/link.h"
#include "transport/poller.h"
#include "transport/region.h"

namespace slipstream {

class ShmTransport {
 public:
  // `connect_seconds`: what a knock takes at most, and a link until it is up.
  ShmTransport(Poller& poller, Events& events, Arrivals& arrivals, Identity identity, Regions& regions, Bell& bell,
               double connect_seconds);
  ~ShmTransport();

  // The ranks of this host, this one too. The links to them, if there is one to each, take 8 MiB of this rank's memory
  // at most, or 128 KiB each. With more than 8 ranks, poll() looks only at the links whose ranks have sent something.
  // Before the first link.
  void set_ranks_of_host(size_t ranks);
  // Off, as before the call: links neither read private memory of a peer nor let it be read. Before the first link.
  void set_single_copy(SingleCopy choice);

  // Listens on an abstract unix socket of a random name, which it returns (it has no file).
  std::string listen();
  void stop_listening();

  // Events::up or Events::down follows, never from inside the call.
  std::unique_ptr<Link> dial(int peer, const std::string& name);

  // Proves that `peer` lives and asks it to dial us. Outcome through `done`, never from inside the call.
  void knock(int peer, const std::string& name, KnockDone& done);

  // Handles what the rings hold. True if anything moved.
  bool poll();
  // True if a ring holds something (to be asked after Bell::arm).
  bool pending() const;
  // True if a peer's ring is full, so that we have to look again soon without being woken.
  bool congested() const;
  // The ranks whose links would lose data that was sent if they closed now.
  std::vector<int> owed() const;
  // Expires handshakes; returns when to call again.
  Time tick(Time now);

  struct Impl;

 private:
  std::shared_ptr<Impl> impl_;  // links share it, so that either may go first
};

}  // namespace slipstream
