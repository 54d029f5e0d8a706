// Links that close while connections break: what was said before still reaches the peer.
#include <sys/socket.h>

#include <string>

#include "tests/check.h"
#include "tests/tcp_rig.h"
#include "transport/sockets.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

// Resets the connection with this local address, and what has come over it and is still unread is gone, too.
bool reset_connection(const std::string& local) {
  for (int fd = 3; fd < 1024; ++fd) {
    if (tcp_state(fd).local != local || peer_name(fd) == "unknown") continue;
    sockaddr nobody{};
    nobody.sa_family = AF_UNSPEC;
    return ::connect(fd, &nobody, sizeof(nobody)) == 0;
  }
  return false;
}

// Rank 0 dials rank 1, and one of them leaves.
struct Leaving {
  explicit Leaving(bool dialler) : a(0), b(1), leaver(dialler ? a : b), other(dialler ? b : a) {
    const auto directory = [this](int rank) { return TcpTarget{rank, {"127.0.0.1"}, rank == 0 ? a.port : b.port}; };
    a.transport->set_directory(directory);
    b.transport->set_directory(directory);
    CHECK(connect(a, b, 1));
    CHECK(run({&a, &b}, [&] { return all_up(a) && all_up(b); }));
  }

  static bool all_up(const Rank& rank) {
    const auto lanes = rank.ups[0]->statistics().lanes;
    return lanes.size() == 3 && std::all_of(lanes.begin(), lanes.end(), [](const auto& lane) { return lane.up; });
  }
  static LaneStatistics control(const Rank& rank) { return rank.ups[0]->statistics().lanes[0]; }
  static void reset_all(const Rank& rank) {
    for (const auto& lane : rank.ups[0]->statistics().lanes)
      if (lane.up) reset_connection(lane.local);
  }

  void say_last() {
    const auto bytes = pattern(100, 1);
    leaver.ups[0]->send(frame(FrameType::data, 100), bytes.data(), 0);
    leaver.ups[0]->send(frame(FrameType::goodbye, 0), nullptr, 0);
    leaver.ups[0]->close();
  }
  // The other one has heard it all, and the leaver knows.
  bool over() {
    const bool ended = run({&a, &b}, [&] { return !other.downs.empty() && !leaver.ups[0]->up(); });
    return ended && other.downs[0].code == Code::aborted && other.received.size() == 1 && leaver.downs.empty();
  }

  Rank a;
  Rank b;
  Rank& leaver;
  Rank& other;
};

}  // namespace

TEST(last_words_that_a_reset_takes_along_are_said_again) {
  for (const bool dialler : {true, false}) {
    Leaving pair(dialler);
    pair.say_last();
    CHECK(reset_connection(Leaving::control(pair.other).local));  // they were there, unread
    CHECK(pair.over());
  }
}

TEST(all_connections_may_be_reset_while_a_link_closes) {
  for (const bool dialler : {true, false})
    for (const bool own : {true, false}) {
      Leaving pair(dialler);
      pair.say_last();
      Leaving::reset_all(own ? pair.leaver : pair.other);
      CHECK(pair.over());
    }
}

TEST(a_link_may_close_while_it_is_repaired) {
  for (const bool dialler : {true, false}) {
    Leaving pair(dialler);
    CHECK(reset_connection(Leaving::control(pair.leaver).local));
    CHECK(run({&pair.leaver}, [&] { return !Leaving::control(pair.leaver).up; }));
    pair.say_last();
    CHECK(pair.leaver.ups[0]->up());
    CHECK(pair.over());
  }
}

TEST(both_may_leave_while_connections_break) {
  Leaving pair(true);
  for (Rank* rank : {&pair.a, &pair.b}) {
    rank->ups[0]->send(frame(FrameType::goodbye, 0), nullptr, 0);
    rank->ups[0]->close();
  }
  Leaving::reset_all(pair.a);
  CHECK(run({&pair.a, &pair.b}, [&] { return !pair.a.transport->closing() && !pair.b.transport->closing(); }));
  CHECK(pair.a.downs.empty());
  CHECK(pair.b.downs.empty());
}

TEST(a_link_in_repair_gives_way_to_another_one_and_a_live_one_does_not) {
  Leaving pair(false);
  Link& old = *pair.b.ups[0];
  CHECK(!old.superseded());
  pair.a.links.clear();  // it knows nothing of it any more, and its listener stays
  CHECK(run({&pair.a, &pair.b}, [&] { return !pair.a.knocks.empty(); }));
  CHECK(pair.b.downs.empty());
  CHECK(old.superseded());
  CHECK_EQ(pair.b.downs.size(), 1u);
  CHECK(pair.b.downs[0].code == Code::peer_lost);
  CHECK(!old.up());
}

TEST(a_peer_that_has_given_up_the_link_says_so) {
  Leaving pair(false);
  pair.b.links.clear();  // its listener stays
  CHECK(run({&pair.a, &pair.b}, [&] { return !pair.a.downs.empty(); }));
  CHECK(pair.a.downs[0].code == Code::peer_lost);
  CHECK(pair.a.downs[0].text.find("has given up the link") != std::string::npos);
}
