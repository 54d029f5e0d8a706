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
  bool shares_memory(int rank) const override { return ++looks, tcp_alone ? false : rank == 1; }
  std::vector<QuietLink*> links;
  bool tcp_alone = false;  // SLIPSTREAM_TRANSPORT=tcp
  mutable int looks = 0;
};

struct Some {
  explicit Some(std::vector<int> linked, double recovery = 2, double heartbeat = 3)
      : fabric(0, 5, dialer, {heartbeat, recovery, "SETTING"}) {
    for (const int rank : linked) fabric.want(rank);
    for (QuietLink* link : dialer.links) link->hear(at(0));
  }
  // Work waits for `waits`. All that are not in `out` answer each ping; what a silent one sends of itself is another
  // matter.
  Error until(double end, int waits, const std::vector<int>& out) {
    for (; last <= end + 1e-9; last += 0.1) {
      if (Error error = fabric.watch(waits, at(last))) return error;
      for (QuietLink* link : dialer.links) {
        const int asked = std::exchange(link->pings, 0);
        pings[static_cast<size_t>(link->peer())] += asked;
        if (asked > 0 && std::ranges::find(out, link->peer()) == out.end()) link->hear(at(last));
      }
    }
    return {};
  }
  QuietLink& link_to(int rank) {
    return **std::ranges::find_if(dialer.links, [rank](const QuietLink* link) { return link->peer() == rank; });
  }

  SomeDialer dialer;
  Fabric fabric;
  std::vector<int> pings = std::vector<int>(5);
  double last = 0;
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

// What it was asked while work waited for others is no question of the work that waits for it now: it may have been
// stopped all the time in between, and nobody has needed it.
TEST(a_rank_has_its_whole_time_though_it_was_asked_before_because_of_others) {
  Some some({1, 2, 3, 4});
  CHECK(!some.until(2, 2, {2, 3}));  // rank 2 is slow: so rank 3 is asked, too
  CHECK(some.pings[3] > 0);
  CHECK(!some.until(100, 2, {3}));
  CHECK(!some.until(104, 3, {3}));
  CHECK(!some.until(200, 3, {}));
  CHECK(!some.until(204, 3, {3}));
  CHECK_EQ(some.until(206, 3, {3}).rank, 3);
}

// The others may have been heard just before the outage, and the one that work waits for not for a while.
TEST(whoever_was_heard_last_does_not_matter) {
  for (const double heartbeat : {0.5, 1.0, 2.0, 3.0, 10.0})
    for (double spoke = 0; spoke <= std::min(heartbeat, 2.0) / 4; spoke += 0.1) {
      Some some({2, 3, 4}, 2, heartbeat);
      some.link_to(3).hear(at(spoke));
      some.link_to(4).hear(at(spoke));
      CHECK_EQ(some.until(heartbeat + 2.3, 2, {2, 3, 4}).rank, 0);
    }
}

// Over TCP, too, ranks of one host are no other host: neither do they answer for the network, nor is it theirs.
TEST(ranks_of_its_own_host_do_not_count_by_whatever_transport) {
  for (const std::vector<int>& out : {std::vector{2, 3, 4}, {1, 2, 3, 4}}) {
    Some some({1, 2, 3, 4});
    some.dialer.tcp_alone = true;
    CHECK_EQ(some.until(5.2, 2, out).rank, 0);
  }
  Some pair({1, 2});
  pair.dialer.tcp_alone = true;
  CHECK_EQ(pair.until(5.2, 2, {1, 2}).rank, 2);
}

// A rank that only comes late answers: that is no reason to wake all others.
TEST(nobody_else_is_asked_if_the_one_that_work_waits_for_answers) {
  Some some({1, 2, 3, 4});
  CHECK(!some.until(20, 2, {}));
  CHECK(some.pings[2] > 10);
  CHECK_EQ(some.pings[1] + some.pings[3] + some.pings[4], 0);
}

// Thousands of works may wait for the same ranks.
TEST(others_are_looked_at_once_a_tick) {
  Some some({1, 2, 3, 4});
  CHECK(!some.until(2, 2, {2}));
  const int before = some.dialer.looks;
  for (int work = 0; work < 1000; ++work)
    for (const int rank : {2, 3, 4}) CHECK(!some.fabric.watch(rank, at(2.1)));
  CHECK(some.dialer.looks - before <= 5);
}
