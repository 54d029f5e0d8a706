// The links of this rank: opened on first need, with what must wait until they are up, and watched while work waits
// on them. Driver's thread only.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/eager_credit.h"
#include "engine/work_header.h"
#include "transport/link.h"

namespace slipstream {

// How the session reaches other ranks.
class Dialer {
 public:
  virtual ~Dialer() = default;
  virtual std::unique_ptr<Link> dial(int rank) = 0;
  virtual void knock(int rank) = 0;  // Fabric::knocked() follows
  virtual std::string host_of(int rank) const = 0;
  // For people: "rank 3".
  virtual std::string name_of(int rank) const { return "rank " + std::to_string(rank); }
  virtual bool shares_memory(int rank) const = 0;  // with us; otherwise a network is between us
};

// How long a peer on which work waits may be silent.
struct Heartbeat {
  double seconds = 10;  // that an outage of the network, or a stop of the peer, may last
  double recovery = 0;  // seconds after it until something has to be heard
  std::string setting;  // what sets the first one, for people
};

class Fabric {
 public:
  Fabric(int rank, int size, Dialer& dialer, Heartbeat heartbeat);

  // Opens a link to `rank` if there is none: the lower rank dials, the higher waits and knocks.
  void want(int rank);
  // The peer asked us to dial.
  void dial_back(int rank);
  // False if there is a link to this rank that lives: the new one is destroyed, and the old one, through which things
  // may have come that are still in use, stays. One that had broken goes down: then the new one may say why.
  bool adopt(std::unique_ptr<Link> link);
  // Seeks a link to tell `rank` why the session has failed, if there is none and none comes. True if it is under way.
  bool reach_out(int rank);
  void came_up(Link& link);
  // True if this is the rank's link and has never been up.
  bool never_up(const Link& link) const {
    const Peer& peer = peers_[static_cast<size_t>(link.peer())];
    return peer.link.get() == &link && peer.connecting;
  }
  // True if the loss matters (the link was this rank's current one).
  bool went_down(Link& link, const Error& error);
  Error knocked(int rank, bool alive, const Error& why);

  Link* up(int rank) const {
    Link* link = peers_[static_cast<size_t>(rank)].link.get();
    return link != nullptr && link->up() ? link : nullptr;
  }
  // Why no link to `rank` can ever be had; Code::ok if it can.
  // With `forgotten`: or why it was gone when forget() was called last, or that it has refused us before.
  const Error& gone(int rank, bool forgotten = false) const {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    return forgotten && !peer.gone ? peer.forgotten : peer.gone;
  }

  // The data that came over a link that is gone refers to this.
  Link& past(int rank);

  // The rank said goodbye: it has left in good order, at `when`.
  void set_left(int rank, const Error& error, Time when) {
    at(rank).gone = error;
    at(rank).left = when;
  }
  // When it did; Time::min() if it has not, or is gone for another reason.
  Time left(int rank) const { return peers_[static_cast<size_t>(rank)].left; }
  bool any_left() const {
    return std::ranges::any_of(peers_, [](const Peer& peer) { return peer.left != Time::min(); });
  }
  // A link that nobody needed did not come up. Whoever needs one tries anew.
  void forget(int rank);

  // Sends a small frame now, or as soon as the link is up.
  void send(int rank, const WorkHeader& frame, std::span<const std::byte> payload = {});

  // Of the eager messages that go to `rank`.
  EagerCredit& credit(int rank) { return at(rank).credit; }
  // We have consumed so many bytes of eager messages from `rank`; tells it now and then.
  void consumed(int rank, uint64_t bytes);

  // Pings `rank`, on which work waits; an error if it has been silent for too long. The error names this rank itself if
  // no peer on any other host, of two at least, has answered a ping: then our own network is more likely to be at
  // fault.
  Error watch(int rank, Time now);

  void broadcast(const WorkHeader& frame, std::span<const std::byte> payload);
  // Closes the links that are up; those still being set up are left to come up.
  void close_up();
  void close_all();
  bool connecting() const;
  // What the links have done, one a rank: the one that there is, or else the last.
  std::vector<LinkStatistics> statistics() const;
  // Deletes links that went down. Never inside an upcall.
  void sweep() { graveyard_.clear(); }

  int size() const { return static_cast<int>(peers_.size()); }
  std::string who(int rank) const;  // "rank 3 (host b)"
  std::string host_of(int rank) const { return dialer_.host_of(rank); }
  bool shares_memory(int rank) const { return dialer_.shares_memory(rank); }

 private:
  struct Queued {
    WorkHeader frame;
    std::vector<std::byte> payload;
  };
  struct Peer {
    std::unique_ptr<Link> link;
    std::unique_ptr<Link> past;
    std::unique_ptr<LinkStatistics> last;  // of a link that is gone
    Error gone;
    Error forgotten;
    Time left = Time::min();
    bool wanted = false;
    bool connecting = false;  // it has a link that has not come up yet
    Time next_knock{};
    Time pinged{};       // first unanswered ping while work waits for it
    Time pinged_too{};   // the same, while work waits for others: that time is not held against it
    Time last_pinged{};  // latest ping
    std::vector<Queued> queued;
    EagerCredit credit;
  };

  void bury(Peer& peer);
  // Whether the peer is silent: it has not been heard for a while, nor since the first ping after that, at `pinged`.
  bool silent(Peer& peer, Time& pinged, Time now);
  void ping(Peer& peer, Time now);
  // Pings all to which a network leads: somebody may be heard.
  void ping_others(Time now);
  bool is_elsewhere(int rank) const { return rank != rank_ && up(rank) != nullptr && !dialer_.shares_memory(rank); }
  // Not between a job and a reducer, of which a rank knows nobody else.
  bool alone_counts() const { return heartbeat_.recovery > 0; }
  // Whether none of them has answered for long, on two hosts at least.
  bool hears_nobody(Time now) const;
  Error silence(int rank, Time now);

  Peer& at(int rank) { return peers_[static_cast<size_t>(rank)]; }

  int rank_;
  Dialer& dialer_;
  const Heartbeat heartbeat_;
  const Clock::duration quiet_;  // silence after which a peer is pinged
  const Clock::duration again_;  // between two pings
  const Clock::duration lost_;   // silence that ends it
  std::vector<Peer> peers_;
  std::vector<std::unique_ptr<Link>> graveyard_;
  Time others_pinged_{};
};

}  // namespace slipstream
