// How the ends of single lanes add up to the end of a link. The peer is played by plain sockets, so that each lane
// can be cut at will.
#include <cstring>

#include "tests/check.h"
#include "tests/tcp_rig.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

constexpr uint32_t kLength = 20'000;

std::vector<std::byte> wire(const Frame& f) {
  std::vector<std::byte> bytes(sizeof(f) + f.length);
  std::memcpy(bytes.data(), &f, sizeof(f));
  return bytes;
}

// Rank 1 runs; rank 0 is three sockets.
struct Scene {
  explicit Scene(int bulk_lanes) : control(raw_connect(us.port)) {
    CHECK(raw_handshake(us, control, 0, 1, Purpose::link, 42));
    for (int i = 0; i < bulk_lanes; ++i) {
      bulk.push_back(raw_connect(us.port));
      CHECK(raw_handshake(us, bulk.back(), 0, 1, Purpose::lane, 42));
    }
    // One whole piece over each lane shows that it has joined.
    for (const Fd& fd : bulk) say(fd, frame(FrameType::data, kLength));
    CHECK(run({&us}, [&] { return us.received.size() == static_cast<size_t>(bulk_lanes); }));
  }

  void say(const Fd& fd, const Frame& f) {
    const auto bytes = wire(f);
    raw_send(fd, bytes.data(), bytes.size());
  }
  void say_half(const Fd& fd) {
    const auto bytes = wire(frame(FrameType::data, kLength));
    raw_send(fd, bytes.data(), bytes.size() / 2);
  }
  // Everything that has been sent so far has been seen: a ping comes through, and the poller has nothing left.
  void settle() {
    const size_t before = us.received.size();
    say(control, frame(FrameType::ping, 0));
    CHECK(run({&us}, [&] { return us.received.size() > before; }));
    while (us.poller.wait(0) > 0) {
    }
  }
  bool ends() {
    return run({&us}, [&] { return !us.downs.empty(); });
  }

  Rank us{1};
  Fd control;
  std::vector<Fd> bulk;
};

}  // namespace

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
    const ssize_t n = ::recv(scene.bulk[1].get(), sink, sizeof(sink), MSG_DONTWAIT);
    if (n > 0) got += static_cast<size_t>(n);
    return got == 4 * (sizeof(Frame) + kLength);
  }));
  CHECK(scene.us.downs.empty());
}

TEST(a_lane_cut_in_the_middle_of_a_piece_ends_the_link_after_a_moment) {
  Scene scene(2);
  scene.say_half(scene.bulk[0]);
  scene.bulk[0].reset();
  scene.settle();
  CHECK(scene.us.downs.empty());
  CHECK(scene.us.transport->tick(now()) < Time::max());
  scene.us.transport->tick(now() + seconds(10));
  CHECK_EQ(scene.us.downs.size(), 1u);
  CHECK(scene.us.downs[0].code == Code::peer_lost);
  CHECK_EQ(scene.us.downs[0].rank, 0);
}

TEST(the_last_lane_may_end_before_the_goodbye_is_heard) {
  Scene scene(1);
  scene.bulk[0].reset();
  scene.settle();
  CHECK(scene.us.downs.empty());
  scene.say(scene.control, frame(FrameType::goodbye, 0));
  scene.control.reset();
  CHECK(scene.ends());
  CHECK(scene.us.downs[0].code == Code::aborted);
}

TEST(the_last_lane_gone_for_good_ends_the_link) {
  Scene scene(1);
  scene.bulk[0].reset();
  CHECK(scene.ends());  // by the poller alone
  CHECK(scene.us.downs[0].code == Code::peer_lost);
}

TEST(a_goodbye_does_not_excuse_half_a_piece) {
  Scene scene(1);
  scene.say_half(scene.bulk[0]);
  scene.bulk[0].reset();
  scene.settle();
  scene.say(scene.control, frame(FrameType::goodbye, 0));
  CHECK(scene.ends());
  CHECK(scene.us.downs[0].code == Code::peer_lost);
}

TEST(after_a_goodbye_the_link_waits_for_data_on_its_way) {
  Scene scene(2);
  scene.say(scene.control, frame(FrameType::goodbye, 0));
  scene.control.reset();
  scene.bulk[0].reset();
  for (int i = 0; i < 20; ++i) scene.us.poller.wait(1);
  CHECK(scene.us.downs.empty());
  const size_t before = scene.us.received.size();
  scene.say(scene.bulk[1], frame(FrameType::data, kLength));
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
  options.max_unauthenticated = 1;
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
