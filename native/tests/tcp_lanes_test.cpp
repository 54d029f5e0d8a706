// How the ends of single lanes add up to the end of a link. The peer is played by plain sockets, so that each lane
// can be cut at will.
#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "tests/check.h"
#include "tests/tcp_scene.h"
#include "transport/sockets.h"
#include "transport/tcp/link.h"

using namespace slipstream;
using namespace slipstream::rig;

TEST(an_idle_lane_may_go_while_another_stays) {
  Scene scene(2);
  scene.bulk[0].reset();
  scene.settle();
  CHECK(scene.us.ups[0]->up());
  // What is sent now takes the lane that is left.
  const auto payload = pattern(kLength, 5);
  for (uint64_t i = 0; i < 4; ++i) scene.us.ups[0]->send(frame(FrameType::data, kLength), payload.data(), i);
  size_t got = 0;
  CHECK(run({&scene.us}, [&] {
    std::byte sink[4096];
    const ssize_t n = raw_recv(scene.bulk[1], sink, sizeof(sink));
    if (n > 0) got += static_cast<size_t>(n);
    return got == 4 * (sizeof(SegmentHeader) + kLength);
  }));
  CHECK(scene.us.downs.empty());
}

TEST(what_a_cut_lane_carried_may_come_over_another) {
  Scene scene(2);
  scene.say_half(scene.bulk[0]);
  scene.bulk[0].reset();
  scene.settle();
  CHECK(scene.us.downs.empty());
  const size_t before = scene.us.received.size();
  scene.say_message(scene.bulk[1]);
  CHECK(run({&scene.us}, [&] { return scene.us.received.size() == before + 1; }));
  CHECK_EQ(scene.us.received.back().bytes.size(), size_t{kLength});
}

TEST(a_message_comes_once_however_often_it_is_sent) {
  Scene scene(2);
  const size_t before = scene.us.received.size();
  const auto halves = [&](const Fd& fd) {
    for (const uint32_t offset : {0u, kLength / 2}) {
      const auto bytes = segment(frame(FrameType::data, kLength), scene.messages + 1, offset, kLength / 2);
      scene.say_segment(fd, bytes);
    }
  };
  for (const Fd& fd : scene.bulk) halves(fd);
  ++scene.messages;
  scene.say_message(scene.bulk[0]);
  scene.say_message(scene.bulk[1]);
  CHECK(run({&scene.us}, [&] { return scene.us.received.size() == before + 3; }));
  scene.settle();
  CHECK_EQ(scene.us.received.size(), before + 4);  // and the ping
}

TEST(the_last_lane_may_end_before_the_goodbye_is_heard) {
  Scene scene(1);
  scene.bulk[0].reset();
  scene.settle();
  CHECK(scene.us.downs.empty());
  scene.say(scene.control, frame(FrameType::goodbye, 0));
  scene.leave();
  CHECK(scene.ends());
  CHECK(scene.us.downs[0].code == Code::aborted);
}

TEST(the_last_lane_gone_for_good_ends_the_link) {
  Scene scene(1);
  scene.bulk[0].reset();
  CHECK(scene.ends());  // by the poller alone
  CHECK(scene.us.downs[0].code == Code::peer_lost);
}

TEST(half_a_message_before_a_goodbye_is_no_message) {
  Scene scene(1);
  const size_t before = scene.us.received.size();
  scene.say_half(scene.bulk[0]);
  scene.bulk[0].reset();
  scene.say(scene.control, frame(FrameType::goodbye, 0));
  scene.leave();
  CHECK(scene.ends());
  CHECK(scene.us.downs[0].code == Code::aborted);
  CHECK_EQ(scene.us.received.size(), before);
}

TEST(after_a_goodbye_the_link_waits_for_data_on_its_way) {
  Scene scene(2);
  scene.say(scene.control, frame(FrameType::goodbye, 0));
  scene.leave();
  scene.bulk[0].reset();
  for (int i = 0; i < 20; ++i) scene.us.poller.wait(1);
  CHECK(scene.us.downs.empty());
  const size_t before = scene.us.received.size();
  scene.say_message(scene.bulk[1]);
  scene.bulk[1].reset();
  CHECK(scene.ends());
  CHECK_EQ(scene.us.received.size(), before + 1);
  CHECK(scene.us.downs[0].code == Code::aborted);
}

TEST(the_control_lane_gone_without_goodbye_is_a_loss) {
  Scene scene(2);
  scene.control.reset();
  CHECK(scene.ends());
  CHECK(scene.us.downs[0].code == Code::peer_lost);
  CHECK(raw_closed(scene.us, scene.bulk[0]));
  CHECK(raw_closed(scene.us, scene.bulk[1]));
}

TEST(a_reset_is_a_loss) {
  Scene scene(1);
  const linger at_once{1, 0};
  CHECK_EQ(::setsockopt(scene.control.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  scene.control.reset();
  CHECK(scene.ends());
  CHECK(scene.us.downs[0].code == Code::peer_lost);
  CHECK(scene.us.downs[0].text.find("reset") != std::string::npos);
}

TEST(an_abort_frame_is_read_although_writing_fails) {
  Scene scene(1);
  scene.say(scene.control, frame(FrameType::abort, 100));
  scene.control.reset();
  scene.bulk[0].reset();
  // Nothing has been read yet; writes may fail from the second on.
  const auto payload = pattern(kLength, 5);
  for (uint64_t i = 0; i < 10; ++i) {
    scene.us.ups[0]->send(frame(FrameType::ping, 0), nullptr, 0);
    scene.us.ups[0]->send(frame(FrameType::data, kLength), payload.data(), i);
  }
  CHECK(scene.us.downs.empty());
  CHECK(scene.ends());
  CHECK_EQ(scene.us.downs.size(), 1u);
  CHECK(scene.us.received.back().frame.type == FrameType::abort);
  CHECK(scene.us.downs[0].code == Code::peer_lost);
}

TEST(a_dialler_that_was_dropped_tries_again) {
  // The listener has room for one: each newcomer drives the one before it out.
  TcpOptions options;
  options.admission = {1, 5, 0};
  Rank server(1, options);
  Rank friendly(0);
  friendly.dial(server, 1);
  std::vector<Fd> crowd;
  // Strangers keep coming until the friend has been driven out once; then they stop.
  const bool dropped = run({&friendly, &server}, [&] {
    if (server.strangers.size() < 3) crowd.push_back(raw_connect(server.port));
    return server.strangers.size() >= 3;
  });
  CHECK(dropped);
  CHECK(run({&friendly, &server}, [&] { return !friendly.ups.empty() && !server.ups.empty(); }));
  CHECK(friendly.downs.empty());
}

// ---- repair: both sides are real, and connections are reset under them

namespace {

// Resets the connection whose local address this is, as a router or a firewall does that has had enough of it.
bool reset_connection(const std::string& local) {
  for (int fd = 3; fd < 1024; ++fd) {
    if (tcp_state(fd).local != local || peer_name(fd) == "unknown") continue;
    sockaddr nobody{};
    nobody.sa_family = AF_UNSPEC;
    return ::connect(fd, &nobody, sizeof(nobody)) == 0;
  }
  return false;
}

void know_each_other(Rank& a, Rank& b) {
  const auto directory = [first = a.port, second = b.port](int rank) {
    return TcpTarget{rank, {"127.0.0.1"}, rank == 0 ? first : second};
  };
  a.transport->set_directory(directory);
  b.transport->set_directory(directory);
}

// Both ranks send `count` messages of odd sizes to each other, bulk and small, while `disturb` is called now and then.
void exchange(Rank& a, Rank& b, uint32_t count, const std::function<void(uint32_t)>& disturb) {
  constexpr uint32_t kMost = 300'000;
  const auto bytes = pattern(kMost, 3);
  const auto size_of = [](uint32_t i) { return i % 3 == 0 ? i % 5'000 : 17'000 + i * 7'919 % (kMost - 17'000); };
  uint32_t sent = 0;
  size_t bulk = 0;
  const auto small_in_order = [&](const Rank& rank) {
    uint32_t last = 0;
    for (const Received& r : rank.received) {
      CHECK_EQ(r.bytes.size(), size_t{size_of(seq_of(r.frame))});
      CHECK(std::equal(r.bytes.begin(), r.bytes.end(), bytes.begin()));
      if (seq_of(r.frame) % 3 != 0) continue;
      CHECK_EQ(seq_of(r.frame), last);
      last += 3;
    }
  };
  const bool done = run(
      {&a, &b},
      [&] {
        for (; sent < count && sent < a.received.size() + 8; ++sent) {
          const Frame f = frame(FrameType::data, size_of(sent), sent);
          bulk += f.length > kEagerBytes ? 1 : 0;
          for (Rank* rank : {&a, &b}) rank->ups[0]->send(f, bytes.data(), sent);
          disturb(sent);
        }
        return a.received.size() == count && b.received.size() == count && a.cookies.size() == bulk &&
               b.cookies.size() == bulk;
      },
      60);
  CHECK(done);
  CHECK(a.downs.empty());
  CHECK(b.downs.empty());
  small_in_order(a);
  small_in_order(b);
}

// The same again until the disturbance has happened often enough: how often it can depends on the machine's speed.
void exchange_until(Rank& a, Rank& b, uint32_t count, const std::function<void(uint32_t)>& disturb,
                    const std::function<bool()>& enough) {
  for (int rounds = 0; rounds < 30; ++rounds) {
    exchange(a, b, count, disturb);
    if (enough()) return;
    for (Rank* rank : {&a, &b}) {
      rank->received.clear();
      rank->cookies.clear();
    }
  }
  CHECK(enough());
}

}  // namespace

TEST(resets_of_any_lane_cost_no_message) {
  TcpOptions options;
  options.lanes = 4;
  Rank a(0, options);
  Rank b(1, options);
  know_each_other(a, b);
  CHECK(connect(a, b, 1));
  uint32_t resets = 0;
  const auto disturb = [&](uint32_t i) {
    if (i % 50 != 0) return;
    const auto statistics = (i % 100 == 0 ? a : b).ups[0]->statistics();
    const auto& lane = statistics.lanes[i / 50 % statistics.lanes.size()];
    resets += lane.up && reset_connection(lane.local) ? 1 : 0;
  };
  exchange_until(a, b, 3'000, disturb, [&] { return resets > 20 && a.ups[0]->statistics().lost > 10; });
}

TEST(all_lanes_at_once_may_be_reset) {
  TcpOptions options;
  options.lanes = 3;
  Rank a(0, options);
  Rank b(1, options);
  know_each_other(a, b);
  CHECK(connect(a, b, 1));
  exchange(a, b, 600, [&](uint32_t i) {
    if (i % 200 != 100) return;
    for (const auto& lane : b.ups[0]->statistics().lanes)
      if (lane.up) CHECK(reset_connection(lane.local));
  });
}

TEST(a_peer_that_is_gone_is_lost_at_once_although_lanes_are_repaired) {
  for (const bool dialler : {true, false}) {
    auto a = std::make_unique<Rank>(0);
    auto b = std::make_unique<Rank>(1);
    know_each_other(*a, *b);
    CHECK(connect(*a, *b, 1));
    auto& left = dialler ? a : b;
    (dialler ? b : a).reset();  // its listener too
    CHECK(run({left.get()}, [&] { return !left->downs.empty(); }, 2));
    CHECK(left->downs[0].code == Code::peer_lost);
    CHECK_EQ(left->downs[0].rank, dialler ? 1 : 0);
  }
}

// ---- promotion: the control lane gets the connection of a bulk lane

namespace {

TcpLink& link_of(const Rank& rank) { return static_cast<TcpLink&>(*rank.ups[0]); }

struct Promoting {
  explicit Promoting(int lanes, Lending lending = Lending::automatic) : a(0, options(lanes, lending)), b(1, a_options) {
    know_each_other(a, b);
    CHECK(connect(a, b, 1));
    CHECK(run({&a, &b}, [&] { return all_up(a) && all_up(b); }));
  }
  TcpOptions options(int lanes, Lending lending) {
    a_options.lanes = lanes;
    a_options.lending = lending;
    return a_options;
  }
  bool all_up(const Rank& rank) const {
    const auto lanes = rank.ups[0]->statistics().lanes;
    return lanes.size() == static_cast<size_t>(a_options.lanes) + 1 &&
           std::all_of(lanes.begin(), lanes.end(), [](const LaneStatistics& lane) { return lane.up; });
  }
  std::string local(size_t lane) const { return a.ups[0]->statistics().lanes[lane].local; }
  uint64_t lost() const { return a.ups[0]->statistics().lost + b.ups[0]->statistics().lost; }
  bool ping(Rank& from, Rank& to) {
    const size_t before = to.received.size();
    from.ups[0]->send(frame(FrameType::ping, 0), nullptr, 0);
    return run({&a, &b}, [&] { return to.received.size() == before + 1; });
  }

  TcpOptions a_options;
  Rank a;
  Rank b;
};

// Resets one end of a connection; the other one hears of it.
void reset_end(const std::string& local, const std::string& remote) {
  for (int fd = 3; fd < 1024; ++fd)
    if (tcp_state(fd).local == local && peer_name(fd) == remote) return reset_tcp(fd);
}

}  // namespace

TEST(the_control_lane_gets_the_connection_of_a_bulk_lane) {
  Trace trace;
  Promoting pair(2);
  CHECK(!link_of(pair.b).promotion().promote(0));  // the side that dialled decides
  CHECK(!link_of(pair.a).promotion().promote(2));
  trace.start(64);
  pair.a.transport->set_trace(&trace);
  const std::string control = pair.local(0);
  const std::string promoted = pair.local(2);
  CHECK(link_of(pair.a).promotion().promote(1));
  CHECK(!link_of(pair.a).promotion().promote(0));  // one at a time
  CHECK(
      run({&pair.a, &pair.b}, [&] { return pair.local(0) == promoted && pair.all_up(pair.a) && pair.all_up(pair.b); }));
  CHECK(pair.local(2) != promoted);
  CHECK(pair.ping(pair.a, pair.b));
  CHECK(pair.ping(pair.b, pair.a));
  CHECK_EQ(pair.lost(), 0u);
  const auto events = trace.take().events;
  CHECK_EQ(events.size(), 2u);  // and that the lane has been reopened
  for (const TraceEvent& event : events) {
    CHECK_EQ(event.lane, 2u);
    if (event.kind == TraceEvent::Kind::lane_reopened) continue;
    CHECK(event.kind == TraceEvent::Kind::control_moved);
    CHECK_EQ(endpoint_name(event.old_local), control);
    CHECK_EQ(endpoint_name(event.new_local), promoted);
  }
}

TEST(promotions_under_traffic_cost_no_message) {
  for (const Lending lending : {Lending::automatic, Lending::always}) {
    Promoting pair(3, lending);
    uint32_t moved = 0;
    std::string last = pair.local(0);
    const auto disturb = [&](uint32_t i) {
      if (i % 10 != 0) return;
      link_of(pair.a).promotion().promote(i / 10 % 3);
      moved += std::exchange(last, pair.local(0)) != last ? 1 : 0;
    };
    exchange_until(pair.a, pair.b, 2'000, disturb, [&] { return moved > 20; });
    CHECK_EQ(pair.lost(), 0u);
  }
}

TEST(whatever_breaks_during_a_promotion_costs_no_message) {
  Promoting pair(3);
  uint32_t promotions = 0;
  const auto disturb = [&](uint32_t i) {
    if (i % 20 == 0) promotions += link_of(pair.a).promotion().promote(i / 20 % 3) ? 1 : 0;
    if (i % 20 != i / 20 % 20) return;  // so many messages later
    const auto lanes = pair.a.ups[0]->statistics().lanes;
    const auto& lane = lanes[i % 2 == 0 ? 0 : (i / 20 % 3 + 1) % lanes.size()];
    if (lane.up) i % 3 == 0 ? reset_end(lane.local, lane.remote) : reset_end(lane.remote, lane.local);
  };
  exchange_until(pair.a, pair.b, 3'000, disturb, [&] { return promotions > 20 && pair.lost() > 10; });
}

TEST(a_promotion_does_not_swallow_a_goodbye) {
  for (int steps = 0; steps < 24; ++steps) {
    for (const bool dialler : {true, false}) {
      Promoting pair(2);
      CHECK(link_of(pair.a).promotion().promote(0));
      for (int i = 0; i < steps; ++i) ((i + steps / 12) % 2 == 0 ? pair.a : pair.b).poller.wait(0);
      Rank& leaver = dialler ? pair.a : pair.b;
      Rank& other = dialler ? pair.b : pair.a;
      for (uint32_t i = 0; i < 100; ++i) leaver.ups[0]->send(frame(FrameType::ping, 0, i), nullptr, 0);
      leaver.ups[0]->send(frame(FrameType::goodbye, 0), nullptr, 0);
      leaver.ups[0]->close();
      CHECK(run({&pair.a, &pair.b}, [&] { return !other.downs.empty() && !leaver.ups[0]->up(); }));
      CHECK(other.downs[0].code == Code::aborted);
      CHECK_EQ(other.received.size(), 100u);
    }
  }
}

// ---- lanes that are added, and ended when they are not needed

namespace {

size_t lanes_up(const Rank& rank) {
  const auto lanes = rank.ups[0]->statistics().lanes;
  return static_cast<size_t>(std::count_if(lanes.begin() + 1, lanes.end(), [](const auto& lane) { return lane.up; }));
}

void want(const Promoting& pair, uint64_t lanes) { link_of(pair.a).bulk().wanted_by_peer(lanes); }

}  // namespace

TEST(lanes_are_added_and_ended_under_traffic_without_a_loss) {
  for (const Lending lending : {Lending::automatic, Lending::always}) {
    Promoting pair(2, lending);
    uint32_t changes = 0;
    size_t last = 2;
    const auto disturb = [&](uint32_t i) {
      if (i % 50 == 0) want(pair, i % 100 == 0 ? 6 : 2);
      if (i % 70 == 0) link_of(pair.a).promotion().promote(i / 70 % 2);
      changes += std::exchange(last, lanes_up(pair.b)) != last ? 1 : 0;
    };
    exchange_until(pair.a, pair.b, 2'000, disturb, [&] { return changes > 20; });
    CHECK_EQ(pair.lost(), 0u);
    for (const size_t lanes : {6u, 2u}) {
      want(pair, lanes);
      CHECK(run({&pair.a, &pair.b}, [&] { return lanes_up(pair.a) == lanes && lanes_up(pair.b) == lanes; }));
    }
    CHECK(pair.ping(pair.b, pair.a));
  }
}

TEST(whatever_breaks_while_lanes_come_and_go_costs_no_message) {
  Promoting pair(2);
  const auto disturb = [&](uint32_t i) {
    if (i % 20 == 0) want(pair, i % 40 == 0 ? 5 : 2);
    if (i % 20 != i / 20 % 20) return;  // so many messages later
    const auto lanes = pair.a.ups[0]->statistics().lanes;
    const auto& lane = lanes[i / 20 % lanes.size()];
    if (lane.up) i % 3 == 0 ? reset_end(lane.local, lane.remote) : reset_end(lane.remote, lane.local);
  };
  exchange_until(pair.a, pair.b, 3'000, disturb, [&] { return pair.lost() > 20; });
  want(pair, 2);
  CHECK(run({&pair.a, &pair.b}, [&] { return lanes_up(pair.a) == 2 && lanes_up(pair.b) == 2; }));
}

TEST(a_lane_that_ends_does_not_swallow_a_goodbye) {
  for (int steps = 0; steps < 24; ++steps) {
    for (const bool dialler : {true, false}) {
      Promoting pair(3);
      want(pair, 1);
      for (int i = 0; i < steps; ++i) ((i + steps / 12) % 2 == 0 ? pair.a : pair.b).poller.wait(0);
      Rank& leaver = dialler ? pair.a : pair.b;
      Rank& other = dialler ? pair.b : pair.a;
      for (uint32_t i = 0; i < 100; ++i) leaver.ups[0]->send(frame(FrameType::ping, 0, i), nullptr, 0);
      leaver.ups[0]->send(frame(FrameType::goodbye, 0), nullptr, 0);
      leaver.ups[0]->close();
      CHECK(run({&pair.a, &pair.b}, [&] { return !other.downs.empty() && !leaver.ups[0]->up(); }));
      CHECK_EQ(other.received.size(), 100u);
    }
  }
}

TEST(only_the_side_that_cannot_connect_asks_for_lanes) {
  for (const uint64_t lanes : {0u, 65u}) {
    Promoting pair(2);
    want(pair, lanes);
    CHECK_EQ(pair.a.downs.size(), 1u);
    CHECK(pair.a.downs[0].code == Code::internal);
  }
  Scene scene(2);  // it has dialled, and need not ask
  scene.say(scene.control, LaneControl{.type = FrameType::lanes, .number = 3});
  CHECK(scene.ends());
  CHECK(scene.us.downs[0].code == Code::internal);
}

namespace {

void say_last(Scene& scene, const Fd& fd, uint32_t generation) { scene.say_header(fd, promotion(generation)); }

}  // namespace

TEST(a_promoted_connection_goes_on_with_the_control_stream) {
  Scene scene(3);
  say_last(scene, scene.bulk[0], 5);
  SegmentHeader last;
  CHECK(hear(scene.us, scene.bulk[0], last));
  CHECK(is_promotion(last));
  CHECK_EQ(LaneControl::of(last.frame).detail, 5u);
  Frame resume;
  CHECK(hear(scene.us, scene.bulk[0], resume));
  CHECK(resume.type == FrameType::resume);
  CHECK_EQ(LaneControl::of(resume).number, 0u);
  // An old generation: the lane is dropped, the link goes on.
  say_last(scene, scene.bulk[1], 5);
  CHECK(raw_closed(scene.us, scene.bulk[1]));
  // The old connection stays until we have said that we have left it.
  char byte = 0;
  CHECK(raw_recv(scene.control, &byte, 1) > 0);  // `taken`
  scene.say(scene.bulk[0], resume);
  CHECK(run({&scene.us}, [&] {
    std::byte sink[4096];
    return raw_recv(scene.control, sink, sizeof(sink)) == 0;
  }));
  Frame taken;
  CHECK(hear(scene.us, scene.bulk[0], taken));  // what we have not read, once more
  CHECK(taken.type == FrameType::taken);
  const size_t before = scene.us.received.size();
  scene.say(scene.bulk[0], frame(FrameType::ping, 0));
  scene.say_message(scene.bulk[2]);
  CHECK(run({&scene.us}, [&] { return scene.us.received.size() == before + 2; }));
  CHECK(scene.us.downs.empty());
}

TEST(last_words_that_are_none_end_the_link) {
  const auto after = [](const std::function<void(SegmentHeader&)>& change) {
    Scene scene(2);
    SegmentHeader last = promotion(1);
    change(last);
    scene.say_header(scene.bulk[0], last);
    return scene.ends() && scene.us.downs[0].code == Code::internal;
  };
  CHECK(after([](SegmentHeader& h) { h.frame = LaneControl{.type = FrameType::resume}; }));
  CHECK(after([](SegmentHeader& h) { h.message = 1; }));
  CHECK(after([](SegmentHeader& h) { h.size = 1; }));
  CHECK(after([](SegmentHeader& h) { h.frame.length = 1; }));
  Scene talkative(2);  // what follows is a control stream, which this is not
  say_last(talkative, talkative.bulk[0], 1);
  talkative.say_message(talkative.bulk[0]);
  CHECK(talkative.ends());
  CHECK(talkative.us.downs[0].code == Code::peer_lost);  // damaged, as far as can be seen, and nobody to dial
}

#if !SLIPSTREAM_TEST_ENCRYPT  // else that would be damage
TEST(a_last_word_that_nobody_asked_for_ends_the_link) {
  Promoting pair(2);
  const auto lane = pair.b.ups[0]->statistics().lanes[1];
  SegmentHeader last = promotion(1);
  seal(last, 0);
  for (int fd = 3; fd < 1024; ++fd)
    if (const TcpState state = tcp_state(fd); state.local == lane.local && state.remote == lane.remote)
      CHECK_EQ(::send(fd, &last, sizeof(last), MSG_NOSIGNAL), static_cast<ssize_t>(sizeof(last)));
  CHECK(run({&pair.a, &pair.b}, [&] { return !pair.a.downs.empty(); }));
  CHECK(pair.a.downs[0].code == Code::internal);
}
#endif

TEST(a_promoted_lane_may_end_before_our_last_word) {
  Scene scene(2);
  scene.us.keep = true;
  say_last(scene, scene.bulk[0], 1);
  scene.bulk[0].reset();
  scene.settle();
  CHECK(scene.us.ups[0]->up() || !scene.us.downs.empty());
  scene.leave();
  CHECK(scene.ends());
  CHECK(scene.us.downs[0].code == Code::peer_lost);
}
