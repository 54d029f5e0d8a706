#include "engine/fabric.h"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/texts.h"

namespace slipstream {

namespace {

constexpr double kFirstKnockSeconds = 0.1;
constexpr double kKnockSeconds = 2;
// So much of the time that a peer has for an answer the others may lack, so that this rank still takes itself for cut
// off: hardly any, as an outage that ends sooner is none. They may have been heard just before it, and are asked a few
// ticks later.
constexpr double kLatePart = 0.1;
constexpr double kLateSeconds = 0.3;

class PastLink final : public Link {
 public:
  explicit PastLink(int peer) : Link(peer, Kind::memory) {}
  bool send(const Frame&, const std::byte*, uint64_t, int) override { return true; }
  void release(const Payload&) override {}
  void close() override {}
};

}  // namespace

// An outage begins, as far as this rank can know, with the first ping that gets no answer. What passes before that, and
// until something is heard after it, is not part of it: both have to fit into the recovery.
Fabric::Fabric(int rank, int size, Dialer& dialer, Heartbeat heartbeat)
    : rank_(rank),
      dialer_(dialer),
      heartbeat_(std::move(heartbeat)),
      quiet_(seconds(
          (heartbeat_.recovery > 0 ? std::min(heartbeat_.seconds, heartbeat_.recovery) : heartbeat_.seconds) / 4)),
      again_(std::max(quiet_, seconds(heartbeat_.seconds / 20))),
      lost_(seconds(heartbeat_.seconds + heartbeat_.recovery)),
      peers_(static_cast<size_t>(size)) {}

std::string Fabric::who(int rank) const {
  const std::string host = dialer_.host_of(rank);
  return dialer_.name_of(rank) + (host.empty() ? "" : " (host " + host + ")");
}

void Fabric::want(int rank) {
  Peer& peer = at(rank);
  if (peer.wanted || peer.gone) return;
  peer.wanted = true;
  if (peer.link) return;
  if (rank_ < rank) try {
      adopt(dialer_.dial(rank));
    } catch (...) {
      peer.wanted = false;  // whoever can do without this link goes on, and the next one tries again
      throw;
    }
  else
    peer.next_knock = now() + seconds(kFirstKnockSeconds);
}

void Fabric::dial_back(int rank) {
  if (rank_ < rank) want(rank);
}

bool Fabric::reach_out(int rank) {
  Peer& peer = at(rank);
  if (peer.gone) return false;
  if (peer.link && (peer.connecting || peer.link->up())) return true;
  if (peer.link) bury(peer);  // closed when the session failed
  if (rank_ < rank)
    adopt(dialer_.dial(rank));
  else
    dialer_.knock(rank);
  return true;
}

void Fabric::forget(int rank) {
  Peer& peer = at(rank);
  peer.wanted = false;
  const Error gone = std::exchange(peer.gone, {});
  // That somebody there refused us tells more than that a later attempt found nobody.
  if (peer.forgotten.code != Code::refused || gone.code == Code::refused) peer.forgotten = gone;
  peer.left = Time::min();
}

// The link goes, and what it has done is kept.
void Fabric::bury(Peer& peer) {
  if (!peer.connecting) {
    peer.last = std::make_unique<LinkStatistics>(peer.link->statistics());
    peer.last->closed = true;
  }
  graveyard_.push_back(std::move(peer.link));
}

std::vector<LinkStatistics> Fabric::statistics() const {
  std::vector<LinkStatistics> found;
  for (const Peer& peer : peers_) {
    if (peer.link && !peer.connecting) {
      found.push_back(peer.link->statistics());
      found.back().closed = !peer.link->up();
    } else if (peer.last) {
      found.push_back(*peer.last);
    }
  }
  return found;
}

bool Fabric::adopt(std::unique_ptr<Link> link) {
  Peer& peer = at(link->peer());
  if (peer.link && !peer.link->superseded()) return false;
  if (peer.link) bury(peer);  // it had been closed before
  peer.link = std::move(link);
  peer.connecting = true;
  return true;
}

void Fabric::came_up(Link& link) {
  Peer& peer = at(link.peer());
  if (peer.link.get() != &link) return;
  peer.connecting = false;
  for (const Queued& q : std::exchange(peer.queued, {})) link.send(q.frame, q.payload.data(), 0);
}

bool Fabric::went_down(Link& link, const Error& error) {
  Peer& peer = at(link.peer());
  if (peer.link.get() != &link) return false;
  bury(peer);
  peer.gone = error;
  peer.queued.clear();
  return true;
}

Error Fabric::knocked(int rank, bool alive, const Error& why) {
  Peer& peer = at(rank);
  if (peer.link || peer.gone) return {};
  if (!alive) {
    peer.gone = why;
    return why;
  }
  peer.next_knock = now() + seconds(kKnockSeconds);
  return {};
}

Link& Fabric::past(int rank) {
  Peer& peer = at(rank);
  if (!peer.past) peer.past = std::make_unique<PastLink>(rank);
  return *peer.past;
}

void Fabric::send(int rank, const WorkHeader& frame, std::span<const std::byte> payload) {
  if (Link* link = up(rank)) {
    link->send(frame, payload.data(), 0);
    return;
  }
  Peer& peer = at(rank);
  if (peer.gone) return;
  peer.queued.push_back({frame, {payload.begin(), payload.end()}});
  want(rank);
}

void Fabric::consumed(int rank, uint64_t bytes) {
  const uint32_t told = credit(rank).consumed(bytes);
  if (told == 0) return;
  WorkHeader frame;
  frame.type = MessageType::credit;
  frame.chunk = told;
  send(rank, frame);
}

Error Fabric::watch(int rank, Time now) {
  Peer& peer = at(rank);
  if (!peer.link) {
    if (peer.wanted && rank < rank_ && now >= peer.next_knock) {
      peer.next_knock = Time::max();  // until knocked() tells
      try {
        dialer_.knock(rank);
      } catch (...) {
        peer.next_knock = now;
        throw;
      }
    }
    return {};
  }
  if (!peer.link->up()) return {};  // the transport times its own set-up
  if (!silent(peer, peer.pinged, now)) return {};
  if (now - peer.pinged >= lost_ - quiet_) return silence(rank, now);
  ping(peer, now);
  if (alone_counts() && now > peer.pinged) ping_others(now);  // one that is only late has answered by now
  return {};
}

bool Fabric::silent(Peer& peer, Time& pinged, Time now) {
  const Time heard = peer.link->last_heard();
  if (heard >= pinged) pinged = peer.last_pinged = {};
  if (now - heard < quiet_) return false;
  if (pinged == Time{}) pinged = now;
  return true;
}

void Fabric::ping(Peer& peer, Time now) {
  if (now - peer.last_pinged < again_) return;
  peer.last_pinged = now;
  WorkHeader frame;
  frame.type = MessageType::ping;
  peer.link->send(frame, nullptr, 0);
}

void Fabric::ping_others(Time now) {
  if (std::exchange(others_pinged_, now) == now) return;  // for another work, in the same tick
  for (int rank = 0; rank < size(); ++rank)
    if (Peer& peer = at(rank); is_elsewhere(rank) && silent(peer, peer.pinged_too, now)) ping(peer, now);
}

bool Fabric::hears_nobody(Time now) const {
  const auto span = lost_ - quiet_;
  const auto late =
      std::max(std::chrono::duration_cast<Clock::duration>(span * kLatePart), quiet_ + seconds(kLateSeconds));
  const std::string own = dialer_.host_of(rank_);
  std::set<std::string> hosts;
  for (int rank = 0; rank < size(); ++rank) {
    if (!is_elsewhere(rank)) continue;
    const std::string host = dialer_.host_of(rank);
    if (host == own) continue;  // by TCP: that is no network of others
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    const bool unanswered = peer.pinged_too != Time{} && peer.link->last_heard() < peer.pinged_too;
    if (!unanswered || now - peer.pinged_too < span - late) return false;
    hosts.insert(host);
  }
  return hosts.size() > 1;
}

// Of a rank with which nobody can talk the others learn by the last words of the one that says so first. If that one is
// cut off in one direction, its words still reach them.
Error Fabric::silence(int rank, Time now) {
  const std::string trouble = at(rank).link->trouble();
  const std::string more = heartbeat_.recovery > 0 ? " + " + seconds_text(seconds(heartbeat_.recovery)) : "";
  const std::string span = seconds_text(lost_) + " (" + heartbeat_.setting + more + ")";
  const std::string last = trouble.empty() ? "" : "; the last attempt to reach it: " + trouble;
  if (alone_counts() && hears_nobody(now))
    return Error{Code::peer_lost, rank_, dialer_.host_of(rank_),
                 who(rank_) + " has heard from no other host for " + span + ", and " + who(rank) +
                     " is not the only one that answers no ping: the network of its own host is likely to be at fault" +
                     last};
  const std::string text = who(rank) + " has sent nothing for " + span +
                           ", and answers no ping: it is stopped, its machine is down or the network to it is cut" +
                           last;
  return Error{Code::peer_lost, rank, dialer_.host_of(rank), text};
}

void Fabric::broadcast(const WorkHeader& frame, std::span<const std::byte> payload) {
  for (Peer& peer : peers_)
    if (peer.link && peer.link->up()) peer.link->send(frame, payload.data(), 0);
}

void Fabric::close_up() {
  for (Peer& peer : peers_) {
    if (peer.link && peer.link->up()) peer.link->close();
    peer.queued.clear();
  }
}

bool Fabric::connecting() const {
  return std::any_of(peers_.begin(), peers_.end(), [](const Peer& p) { return p.link && p.connecting; });
}

void Fabric::close_all() {
  for (Peer& peer : peers_) {
    if (peer.link) peer.link->close();
    peer.queued.clear();
  }
}

}  // namespace slipstream
