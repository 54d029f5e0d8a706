// When a peer that is silent is pinged, and when it counts as lost. The time is the test's own.
#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/fabric.h"
#include "tests/check.h"

namespace {

using namespace slipstream;

const Time kStart = Time(seconds(1000));
Time at(double s) { return kStart + seconds(s); }

class QuietLink final : public Link {
 public:
  explicit QuietLink(int peer) : Link(peer, Kind::memory) { hear(kStart); }
  bool send(const Frame&, const std::byte*, uint64_t, int) override { return ++pings, true; }
  void release(const Payload&) override {}
  void close() override {}
  void hear(Time when) {
    up_ = true;
    last_heard_ = when;
  }
  int pings = 0;
};

class OneDialer final : public Dialer {
 public:
  std::unique_ptr<Link> dial(int rank) override {
    auto made = std::make_unique<QuietLink>(rank);
    link = made.get();
    return made;
  }
  void knock(int) override {}
  std::string host_of(int) const override { return "b"; }
  bool shares_memory(int) const override { return false; }
  QuietLink* link = nullptr;
};

struct Watched {
  explicit Watched(double heartbeat, double recovery) : fabric(0, 2, dialer, {heartbeat, recovery, "SETTING"}) {
    fabric.want(1);
    link = dialer.link;
  }
  // Looks ten times a second, as the engine does. The first error, if there is one by then.
  Error until(double end) {
    for (; last <= end + 1e-9; last += 0.1) {
      if (Error error = fabric.watch(1, at(last))) return error;
      // It answers what it is asked, unless the network is out.
      if (link->pings > std::exchange(seen, link->pings) && !out) link->hear(at(last));
    }
    return {};
  }

  OneDialer dialer;
  Fabric fabric;
  QuietLink* link = nullptr;
  bool out = false;
  int seen = 0;
  double last = 0;
};

}  // namespace

TEST(a_peer_that_answers_is_never_lost) {
  Watched watched(10, 2);
  CHECK(!watched.until(100));
  CHECK(watched.link->pings > 50);
}

// Whatever the moment of the first lost ping is: the peer may be silent before it because it has nothing to say.
TEST(an_outage_as_long_as_the_heartbeat_leaves_time_to_be_heard_after_it) {
  for (const double heartbeat : {0.5, 3.0, 10.0, 600.0})
    for (double begin = 20; begin < 21; begin += 0.1) {
      Watched watched(heartbeat, 2);
      CHECK(!watched.until(begin));
      watched.out = true;
      CHECK(!watched.until(begin + heartbeat + 1.3));
      watched.out = false;
      watched.link->hear(at(watched.last));
      CHECK(!watched.until(begin + heartbeat + 20));
    }
}

TEST(a_peer_that_is_gone_is_named_at_the_heartbeat_and_the_recovery) {
  for (const double heartbeat : {0.5, 3.0, 10.0}) {
    Watched watched(heartbeat, 2);
    CHECK(!watched.until(20));
    watched.out = true;
    const Error error = watched.until(20 + heartbeat + 2.2);
    CHECK(error.code == Code::peer_lost);
    CHECK_EQ(error.rank, 1);
    CHECK(error.text.find("(SETTING + 2 s)") != std::string::npos);
  }
}

// As with reducers, which jobs do without.
TEST(without_recovery_a_peer_is_lost_at_the_heartbeat) {
  Watched watched(1, 0);
  CHECK(!watched.until(20));
  watched.out = true;
  CHECK(watched.until(21.2).text.find("has sent nothing for 1 s (SETTING), and answers no ping") != std::string::npos);
}

// A rank that comes late to wait for another one has not listened before: that is not the other one's silence.
TEST(silence_before_the_first_question_is_none) {
  Watched watched(10, 2);
  watched.last = 500;
  CHECK(!watched.until(510));
  watched.out = true;
  CHECK(watched.until(525).code == Code::peer_lost);
}

namespace {

// This is rank 0 on host a, linked to ranks on other hosts, and to one on its own.
class SomeDialer final : public Dialer {
 public:
  std::unique_ptr<Link> dial(int rank) override {
    auto made = std::make_unique<QuietLink>(rank);
    links.push_back(made.get());
    return made;
  }
  void knock(int) override {}
  std::string host_of(int rank) const override { return std::string(1, "aabcc"[rank]); }
  bool shares_memory(int rank) const override { return rank == 1; }
  std::vector<QuietLink*> links;
};

struct Some {
  explicit Some(std::vector<int> linked, double recovery = 2) : fabric(0, 5, dialer, {3, recovery, "SETTING"}) {
    for (const int rank : linked) fabric.want(rank);
    for (QuietLink* link : dialer.links) link->hear(at(0));
  }
  // Work waits for `waits`. All that are not in `out` answer each ping; what a silent one sends of itself is another
  // matter.
  Error until(double end, int waits, const std::vector<int>& out) {
    for (double t = 0; t <= end + 1e-9; t += 0.1) {
      if (Error error = fabric.watch(waits, at(t))) return error;
      for (QuietLink* link : dialer.links) {
        const bool asked = std::exchange(link->pings, 0) > 0;
        if (asked && std::ranges::find(out, link->peer()) == out.end()) link->hear(at(t));
      }
    }
    return {};
  }

  SomeDialer dialer;
  Fabric fabric;
};

}  // namespace

// Its own words may reach the others while nothing reaches it: they must not hear that a healthy rank is lost.
TEST(a_rank_that_no_other_host_answers_names_itself) {
  for (const std::vector<int>& linked : {std::vector{2, 3}, {1, 2, 3}, {1, 2, 3, 4}}) {
    Some some(linked);
    const Error error = some.until(5.2, 2, {2, 3, 4});
    CHECK(error.code == Code::peer_lost);
    CHECK_EQ(error.rank, 0);
    CHECK_EQ(error.host, "a");
    CHECK(
        error.text.find("rank 0 (host a) has heard from no other host for 5 s (SETTING + 2 s), and rank 2 (host b) is "
                        "not the only one that answers no ping") != std::string::npos);
  }
}

TEST(one_host_that_answers_is_enough_to_name_the_silent_one) {
  const std::vector<std::vector<int>> outs = {{2}, {2, 3}, {2, 4}};
  for (const std::vector<int>& out : outs) {
    Some some({1, 2, 3, 4});
    const Error error = some.until(5.2, 2, out);
    CHECK(error.code == Code::peer_lost);
    CHECK_EQ(error.rank, 2);
    CHECK(error.text.find("rank 2 (host b) has sent nothing for 5 s (SETTING + 2 s)") != std::string::npos);
  }
}

// If all that is known of the network is one other host, that one may as well be at fault. A reducer knows no more.
TEST(silence_of_one_other_host_is_its_own) {
  Some pair({1, 2});
  CHECK_EQ(pair.until(5.2, 2, {2}).rank, 2);
  Some ranks_of_one_host({1, 3, 4});
  CHECK_EQ(ranks_of_one_host.until(5.2, 3, {3, 4}).rank, 3);
  Some reducer({2, 3}, 0);
  CHECK_EQ(reducer.until(5.2, 2, {2, 3}).rank, 2);
}
