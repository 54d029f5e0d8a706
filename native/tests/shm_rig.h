// Ranks for the tests of the shared-memory transport: each has a poller, a transport, and a record of what it was told.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/work_header.h"
#include "transport/shm/link.h"

namespace slipstream::rig {

inline Identity shm_identity(int rank, const std::string& secret) {
  Identity id;
  id.secret = secret;
  id.rank = rank;
  id.size = 16;
  return id;
}

class ShmRank : public Events, public Arrivals, public KnockDone {
 public:
  explicit ShmRank(int rank, const std::string& secret = "a secret of sixteen bytes or more",
                   double connect_seconds = 10)
      : transport(poller, *this, *this, shm_identity(rank, secret), regions, bell, connect_seconds) {
    name = transport.listen();
  }

  Link* dial(const ShmRank& other, int rank) {
    links.push_back(transport.dial(rank, other.name));
    return links.back().get();
  }

  void turn() {
    poller.wait(0);
    transport.poll();
    transport.tick(now());
  }

  Landing land(Link&, const Frame&) override { return {}; }
  void arrived(Link& link, const Frame& frame, const Payload& payload) override {
    frames.push_back(frame);
    if (on_arrived)
      on_arrived(link, payload);
    else
      link.release(payload);
  }
  void sent(Link&, uint64_t cookie) override { cookies.push_back(cookie); }
  void up(Link& link) override { ups.push_back(&link); }
  void down(Link&, const Error& error) override { downs.push_back(error); }
  void accepted(std::unique_ptr<Link> link) override { links.push_back(std::move(link)); }
  void knocked(int rank) override { knocks.push_back(rank); }
  void stranger(const std::string& who, const std::string& why) override { strangers.push_back(who + " " + why); }
  void knock_done(int, bool alive, const Error& why) override {
    knock_results.push_back(alive);
    knock_why = why.text;
  }

  Poller poller;
  Regions regions;
  Bell bell;
  ShmTransport transport;
  std::string name;
  std::vector<std::unique_ptr<Link>> links;
  std::vector<Link*> ups;
  std::vector<Error> downs;
  std::vector<Frame> frames;
  std::vector<uint64_t> cookies;
  std::vector<int> knocks;
  std::vector<std::string> strangers;
  std::vector<bool> knock_results;
  std::string knock_why;
  std::function<void(Link&, const Payload&)> on_arrived;
};

// Runs the ranks in turn until `until` holds; false after `limit` seconds.
inline bool run(const std::vector<ShmRank*>& ranks, const std::function<bool()>& until, double limit = 20) {
  const Time end = now() + seconds(limit);
  while (!until()) {
    if (now() > end) return false;
    for (ShmRank* rank : ranks) rank->turn();
  }
  return true;
}

inline bool connect(ShmRank& a, ShmRank& b, int rank_of_b) {
  const size_t ups_a = a.ups.size(), ups_b = b.ups.size();
  a.dial(b, rank_of_b);
  return run({&a, &b}, [&] { return a.ups.size() > ups_a && b.ups.size() > ups_b; });
}

}  // namespace slipstream::rig
