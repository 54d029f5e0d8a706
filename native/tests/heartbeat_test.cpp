// When a peer that is silent is pinged, and when it counts as lost. The time is the test's own.
#include <memory>
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
