// Links whose ways fail for a while: only a listener that is gone is a sign of death, all else may come back.
#include <string>

#include "tests/check.h"
#include "tests/tcp_relay.h"
#include "tests/tcp_rig.h"
#include "transport/sockets.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

// A connect to it fails at once on every machine: there is no route to it for TCP.
const std::string kNoRoute = "255.255.255.255";
constexpr uint32_t kLength = 200'000;

TcpOptions options(double patience, Checksums checksums = Checksums::automatic, int lanes = 2) {
  TcpOptions found;
  found.lanes = lanes;
  found.checksums = checksums;
  found.patience_seconds = found.connect_seconds = patience;
  return found;
}

double since(Time start) { return std::chrono::duration<double>(now() - start).count(); }

bool says(const Error& error, const std::string& words) { return error.text.find(words) != std::string::npos; }

// Rank 0 reaches rank 1 through a relay.
struct Pair {
  explicit Pair(double patience, Checksums checksums = Checksums::automatic, int lanes = 2)
      : a(0, options(patience, checksums, lanes)), b(1, options(patience, checksums, lanes)), relay(b.port) {
    const auto directory = [this](int rank) { return TcpTarget{rank, {"127.0.0.1"}, rank == 0 ? a.port : relay.port}; };
    a.transport->set_directory(directory);
    b.transport->set_directory(directory);
    a.links.push_back(a.transport->dial(1, {"127.0.0.1"}, relay.port));
  }

  bool until(const std::function<bool()>& what, double limit = 20) {
    return run({&a, &b}, [&] { return relay.turn(), what(); }, limit);
  }
  bool up(size_t wanted = 3) {
    return until([&] {
      if (a.ups.empty() || b.ups.empty()) return false;
      const auto lanes = a.ups[0]->statistics().lanes;
      return lanes.size() == wanted &&
             std::all_of(lanes.begin(), lanes.end(), [](const auto& lane) { return lane.up; });
    });
  }
  // Both send, as the engine does: small frames, and bulk.
  bool exchange(uint32_t count, uint32_t length = kLength) {
    const auto bytes = pattern(length, 3);
    const size_t wanted_a = a.cookies.size() + count;
    const size_t wanted_b = b.cookies.size() + count;
    for (uint32_t i = 0; i < count; ++i)
      for (Rank* rank : {&a, &b}) rank->ups[0]->send(frame(FrameType::data, length), bytes.data(), i);
    return until([&] { return a.cookies.size() == wanted_a && b.cookies.size() == wanted_b; }) && a.downs.empty() &&
           b.downs.empty();
  }

  Rank a;
  Rank b;
  Relay relay;
};

void reset(const std::string& local) {
  for (int fd = 3; fd < 1024; ++fd)
    if (tcp_state(fd).local == local && peer_name(fd) != "unknown") return reset_tcp(fd);
}

}  // namespace

TEST(a_route_that_is_missing_is_asked_for_until_the_time_is_over) {
  Rank a(0, options(0.6));
  const Time start = now();
  a.links.push_back(a.transport->dial(1, {kNoRoute}, 4000));
  CHECK(run({&a}, [&] { return !a.downs.empty(); }));
  CHECK(since(start) >= 0.6);
  CHECK(a.downs[0].code == Code::peer_lost);
  CHECK(says(a.downs[0], "Network is unreachable"));
}

TEST(a_knock_waits_for_a_route_too) {
  Rank a(3, options(0.6));
  const Time start = now();
  a.transport->knock(1, {kNoRoute}, 4000, a);
  CHECK(run({&a}, [&] { return !a.knock_results.empty(); }));
  CHECK(since(start) >= 0.6);
  CHECK(!a.knock_results[0]);
  CHECK(a.knock_why.find("Network is unreachable") != std::string::npos);
}

TEST(nobody_listens_there_is_final_at_once) {
  Rank a(0, options(60));
  const uint16_t port = Rank(1).port;  // it is closed again
  a.links.push_back(a.transport->dial(1, {"127.0.0.1"}, port));
  CHECK(run({&a}, [&] { return !a.downs.empty(); }, 10));
  CHECK(says(a.downs[0], "nothing listens there any more"));
}

TEST(a_peer_whose_listener_is_gone_is_dead_though_others_of_its_addresses_are_silent) {
  Rank a(0, options(60));
  auto b = std::make_unique<Rank>(1, options(60));
  const auto directory = [&, port = b->port](int rank) {
    return TcpTarget{rank, {"127.0.0.1"}, rank == 0 ? a.port : port};
  };
  a.transport->set_directory(directory);
  b->transport->set_directory(directory);
  a.links.push_back(a.transport->dial(1, {"127.0.0.1", kNoRoute}, b->port));
  CHECK(run({&a, b.get()}, [&] { return !a.ups.empty() && !b->ups.empty(); }));
  b.reset();
  CHECK(run({&a}, [&] { return !a.downs.empty(); }, 20));
  CHECK(says(a.downs[0], " died or was killed: "));
}

TEST(a_control_lane_may_break_more_often_than_that) {
  Pair pair(20);
  CHECK(pair.up());
  pair.relay.breaks = 12;
  CHECK(pair.until([&] { return pair.relay.breaks == 0; }));
  CHECK(pair.exchange(20));
}

TEST(a_connection_that_cannot_be_made_again_ends_the_link_when_the_time_is_over) {
  Pair pair(0.6);
  CHECK(pair.up());
  pair.relay.breaks = 1 << 20;
  const Time start = now();
  CHECK(pair.until([&] { return !pair.a.downs.empty() && !pair.b.downs.empty(); }));
  CHECK(since(start) >= 0.6);
  // The one that gives up first tells why; the other one may be told that it did.
  CHECK(says(pair.a.downs[0], "SLIPSTREAM_HEARTBEAT") || says(pair.b.downs[0], "SLIPSTREAM_HEARTBEAT"));
  CHECK(!says(pair.a.downs[0], "died"));
}

// A middle box acknowledges what it does not pass on: TCP sees no fault, and no reset ever comes.
TEST(a_control_lane_that_stalls_is_replaced) {
  Pair pair(4);
  CHECK(pair.up());
  CHECK(pair.exchange(5));
  pair.relay.forget(0);
  const auto bytes = pattern(kLength, 3);
  const size_t wanted = pair.a.cookies.size() + 1;
  pair.a.ups[0]->send(frame(FrameType::data, kLength), bytes.data(), 0);
  Time pinged = now();
  CHECK(pair.until([&] {  // as the engine does while nothing is heard
    if (since(pinged) > 0.5) {
      pair.a.ups[0]->send(frame(FrameType::ping, 0), nullptr, 0);
      pinged = now();
    }
    return pair.a.cookies.size() == wanted;
  }));
  CHECK(pair.exchange(5));
}

// One message takes three times the patience, both ways.
TEST(a_trickle_is_no_silence) {
  constexpr double kPatience = 1.5;
  Pair pair(kPatience);
  CHECK(pair.up());
  const auto bytes = pattern(3000, 3);
  pair.relay.most_at_once = 100;
  pair.relay.pause = 0.17;
  for (Rank* rank : {&pair.a, &pair.b})
    rank->ups[0]->send(frame(FrameType::data, static_cast<uint32_t>(bytes.size())), bytes.data(), 0);
  const Time start = now();
  double silence = 0;  // the longest that either side would take for one
  CHECK(pair.until([&] {
    for (const Rank* rank : {&pair.a, &pair.b})
      if (rank->received.empty()) silence = std::max(silence, since(rank->ups[0]->last_heard()));
    return !pair.a.received.empty() && !pair.b.received.empty();
  }));
  CHECK(since(start) > 3 * kPatience);
  CHECK(silence < kPatience);
  for (const Rank* rank : {&pair.a, &pair.b}) {
    CHECK(rank->downs.empty());
    CHECK_EQ(rank->ups[0]->statistics().lost, 0u);
    CHECK_EQ(rank->ups[0]->statistics().replaced, 0u);
    CHECK(rank->received.size() == 1 && rank->received[0].bytes == bytes);
  }
  pair.relay.pause = 0;
  CHECK(pair.exchange(2));
}

TEST(damage_that_lets_something_through_ends_no_link) {
  Pair pair(20, Checksums::always);
  CHECK(pair.up());
  pair.relay.damage_after = 3 * kLength;  // each connection brings a whole message before
  pair.relay.damages = 400;
  bool fine = true;
  for (int i = 0; i < 2000 && fine && pair.relay.damages > 0; ++i) fine = pair.exchange(4);
  CHECK(fine);
  CHECK_EQ(pair.relay.damages, 0);
  const auto damaged = [](const Rank& rank) { return rank.ups[0]->statistics().damaged; };
  CHECK(std::max(damaged(pair.a), damaged(pair.b)) > 100);
}

TEST(damage_that_lets_nothing_through_ends_the_link) {
  Pair pair(20, Checksums::always);
  CHECK(pair.up());
  pair.relay.damage_after = 2000;  // far less than the smallest piece of a message, and more than the handshake
  pair.relay.most_at_once = 4000;
  pair.relay.damages = 1 << 20;
  const auto bytes = pattern(kLength, 3);
  pair.a.ups[0]->send(frame(FrameType::data, kLength), bytes.data(), 0);
  CHECK(pair.until([&] { return !pair.b.downs.empty(); }));
  CHECK(says(pair.b.downs[0], "look for faulty memory, network cards"));
  CHECK(pair.b.received.empty());
}

#if !SLIPSTREAM_TEST_ENCRYPT  // else nobody sees where a frame is
TEST(damage_to_a_control_connection_is_found_and_sent_again) {
  Pair pair(20, Checksums::always);
  CHECK(pair.up());
  const auto header = static_cast<long>(sizeof(ControlHeader));
  uint32_t seq = 0;
  for (long at = -header; at < 64; at += at < 0 ? 4 : 21) {
    const auto bytes = pattern(64, ++seq);
    bool damaged = false;
    pair.relay.on_bytes = [&](std::vector<std::byte>& passing, int direction) {
      const auto found = std::search(passing.begin(), passing.end(), bytes.begin(), bytes.end());
      if (damaged || direction != 0 || found == passing.end()) return;
      found[at] ^= std::byte{1};
      damaged = true;
    };
    pair.b.received.clear();
    pair.a.ups[0]->send(frame(FrameType::data, 64, seq), bytes.data(), 0);
    CHECK(pair.until([&] { return !pair.b.received.empty() || !pair.b.downs.empty(); }));
    CHECK(damaged);
    CHECK_EQ(pair.b.received.size(), 1u);
    CHECK_EQ(seq_of(pair.b.received[0].frame), seq);
    CHECK(pair.b.received[0].bytes == bytes);
    CHECK_EQ(pair.b.ups[0]->statistics().damaged, seq);
  }
  CHECK(pair.a.downs.empty() && pair.b.downs.empty());
}
#endif

// Each break is noticed late, or the next connection is made late: at least one of 21 in a row.
TEST(lanes_that_break_as_soon_as_they_are_made_are_dialled_with_a_pause) {
  constexpr int kBreaks = 66;
  Pair pair(20, Checksums::automatic, 1);
  CHECK(pair.up(2));
  pair.relay.lane_breaks = kBreaks;
  CHECK(pair.until([&] { return pair.relay.lane_breaks == 0; }, 60));
  CHECK(pair.exchange(2));
  CHECK_EQ(pair.relay.pauses.size(), size_t{kBreaks});
  CHECK(std::count_if(pair.relay.pauses.begin(), pair.relay.pauses.end(), [](double s) { return s > 0.045; }) >=
        kBreaks / 22);
}

// Within a machine messages travel whole, as long as that gets them through.
TEST(connections_that_break_in_the_middle_of_every_message_bring_it_through_in_pieces) {
  for (const int lanes : {1, 2}) {
    Pair pair(20, Checksums::automatic, lanes);
    CHECK(pair.up(static_cast<size_t>(lanes) + 1));
    pair.relay.most_carried = 100'000;
    CHECK(pair.exchange(1, 1 << 19));
    for (const Rank* rank : {&pair.a, &pair.b})
      CHECK(rank->received.size() == 1 && rank->received[0].bytes == pattern(1 << 19, 3));
  }
}

TEST(one_reset_after_another_costs_no_message) {
  Pair pair(20);
  CHECK(pair.up());
  for (int i = 0; i < 12; ++i) {
    reset(pair.a.ups[0]->statistics().lanes[0].local);
    CHECK(pair.exchange(1));
  }
}
