// The tcp transport between ranks of one process: traffic, lanes, and every way a link can end.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "tests/check.h"
#include "tests/tcp_rig.h"
#include "transport/sockets.h"
#include "transport/tcp/receive_buffers.h"
#include "transport/tcp/timers.h"
#include "transport/tcp/transport.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

TcpOptions with_lanes(int lanes) {
  TcpOptions options;
  options.lanes = lanes;
  return options;
}

constexpr uint32_t kPiece = 1 << 20;

}  // namespace

TEST(blocks_are_bounded_and_used_again) {
  ReceiveBuffers blocks;
  std::vector<uint64_t> ids;
  for (;;) {
    const auto taken = blocks.take(kMaxPayload);
    if (taken.id == 0) break;
    ids.push_back(taken.id);
  }
  CHECK_EQ(ids.size(), ReceiveBuffers::kLimit / kMaxPayload);
  CHECK_EQ(blocks.take(1).id, 0u);
  blocks.give(ids[0]);
  blocks.give(ids[0]);  // a second time does nothing
  CHECK_EQ(blocks.held(), ReceiveBuffers::kLimit - kMaxPayload);
  CHECK(blocks.take(kMaxPayload - 1).id != 0);
  CHECK_EQ(blocks.take(1).id, 0u);
}

TEST(timers_run_in_order_and_can_be_moved) {
  struct Note final : Timed {
    std::vector<int>* log = nullptr;
    int id = 0;
    void due(Time) override { log->push_back(id); }
  };
  Poller poller;
  Timers timers(poller);
  std::vector<int> log;
  Note a;
  Note b;
  a.log = b.log = &log;
  a.id = 1;
  b.id = 2;
  const Time start = now();
  timers.set(a, start + seconds(1000));
  timers.set(b, start + seconds(2000));
  timers.set(a, start + seconds(3000));
  CHECK(timers.tick(start) == start + seconds(2000));
  CHECK(timers.tick(start + seconds(2500)) == start + seconds(3000));
  CHECK(timers.tick(start + seconds(3000)) == Time::max());
  CHECK((log == std::vector<int>{2, 1}));
  timers.set(a, start + seconds(5000));
  timers.cancel(a);
  CHECK(timers.tick(start + seconds(9000)) == Time::max());
  timers.set(a, now());  // the poller alone wakes it
  for (int i = 0; i < 1000 && log.size() < 3; ++i) poller.wait(10);
  CHECK_EQ(log.size(), 3u);
}

TEST(ping_pong) {
  Rank a(0);
  Rank b(1);
  CHECK(connect(a, b, 1));
  CHECK(a.ups[0]->up());
  CHECK_EQ(a.ups[0]->peer(), 1);
  CHECK_EQ(b.ups[0]->peer(), 0);
  const auto payload = pattern(100, 1);
  b.on_arrived = [&](Link& link, const Frame& f) {
    const Frame pong = frame(FrameType::pong, f.length, seq_of(f));
    CHECK(link.send(pong, b.received.back().bytes.data(), 0));
  };
  for (uint32_t i = 0; i < 100; ++i) {
    CHECK(a.ups[0]->send(frame(FrameType::ping, 100, i), payload.data(), 0));
    CHECK(run({&a, &b}, [&] { return a.received.size() == i + 1; }));
    CHECK_EQ(seq_of(a.received.back().frame), i);
    CHECK(a.received.back().bytes == payload);
  }
  CHECK_EQ(b.lands, 0);
  CHECK(a.ups[0]->last_heard() <= now());
}

TEST(many_small_frames_keep_their_order) {
  Rank a(0);
  Rank b(1);
  CHECK(connect(a, b, 1));
  // Far more than the sockets hold, so that most goes through the lane's own buffer.
  constexpr uint32_t kFrames = 4000;
  for (uint32_t i = 0; i < kFrames; ++i) {
    const auto payload = pattern(i % (kEagerBytes + 1), i);
    CHECK(a.ups[0]->send(frame(FrameType::data, i % (kEagerBytes + 1), i), payload.data(), 0));
  }
  CHECK(run({&a, &b}, [&] { return b.received.size() == kFrames; }));
  for (uint32_t i = 0; i < kFrames; ++i) {
    CHECK_EQ(seq_of(b.received[i].frame), i);
    CHECK(b.received[i].bytes == pattern(i % (kEagerBytes + 1), i));
  }
}

TEST(frames_sent_before_the_link_is_up_go_out) {
  Rank a(0);
  Rank b(1);
  Link* link = a.dial(b, 1);
  CHECK(!link->up());
  const auto payload = pattern(kPiece, 3);
  CHECK(link->send(frame(kUsersType, 0, 5), nullptr, 0));
  CHECK(!link->send(frame(FrameType::data, kPiece, 6), payload.data(), 77));
  CHECK(run({&a, &b}, [&] { return b.received.size() == 2 && a.cookies.size() == 1; }));
  CHECK_EQ(a.cookies[0], 77u);
  CHECK(b.received[1].bytes == payload);
}

namespace {

// One direction of a transfer: sends all pieces, receives as many into place, in this thread.
void transfer(Rank& self, std::vector<std::byte>& out, std::vector<std::byte>& in, std::atomic<int>& done) {
  const size_t pieces = out.size() / kPiece;
  size_t arrived = 0;
  size_t pending = 0;
  self.on_land = [&](const Frame& f) { return Events::Landing{true, in.data() + size_t{seq_of(f)} * kPiece}; };
  self.on_arrived = [&](Link&, const Frame&) {
    ++arrived;
    self.received.clear();
  };
  for (size_t i = 0; i < pieces; ++i) {
    const Frame f = frame(FrameType::data, kPiece, static_cast<uint32_t>(i));
    if (!self.ups[0]->send(f, out.data() + i * kPiece, i)) ++pending;
  }
  run({&self}, [&] { return arrived == pieces && self.cookies.size() == pending; }, 60);
  // The other side may still need us to read or write.
  ++done;
  run({&self}, [&] { return done.load() == 2; }, 60);
}

void both_directions(int lanes) {
  constexpr size_t kBytes = 64 << 20;
  auto a_out = pattern(kBytes, 1);
  auto b_out = pattern(kBytes, 2);
  std::vector<std::byte> a_in(kBytes);
  std::vector<std::byte> b_in(kBytes);
  Rank a(0, with_lanes(lanes));  // after what takes long: lanes are dialled while somebody polls
  Rank b(1, with_lanes(lanes));
  CHECK(connect(a, b, 1));
  std::atomic<int> done = 0;
  std::thread other([&] { transfer(b, b_out, b_in, done); });
  transfer(a, a_out, a_in, done);
  other.join();
  CHECK(a_in == b_out);
  CHECK(b_in == a_out);
  for (const Rank* rank : {&a, &b})
    for (const Error& error : rank->downs) CHECK_EQ(error.text, std::string());
}

}  // namespace

TEST(bulk_both_ways_over_one_lane) { both_directions(1); }
TEST(bulk_both_ways_over_four_lanes) { both_directions(4); }

// Lanes of which nothing is known yet, between addresses that are not the same: for all that is known, two machines.
TEST(a_short_message_takes_all_lanes) {
  constexpr int kLanes = 4;
  constexpr uint32_t kShort = 128 << 10;
  Rank a(0, with_lanes(kLanes));
  Rank b(1, with_lanes(kLanes), identity(0), "127.0.0.2");
  CHECK(connect(a, b, 1));
  const auto lanes = [&] {
    auto found = a.ups[0]->statistics().lanes;
    std::erase_if(found, [](const auto& lane) { return lane.control || !lane.up; });
    return found;
  };
  CHECK(run({&a, &b}, [&] { return lanes().size() == kLanes; }));
  const auto payload = pattern(kShort, 6);
  a.ups[0]->send(frame(FrameType::data, kShort, 0), payload.data(), 7);
  CHECK(run({&a, &b}, [&] { return a.cookies.size() == 1; }));
  for (const auto& lane : lanes()) CHECK(lane.sent >= kShort / (2 * kLanes));
}

TEST(pieces_without_a_place_wait_in_blocks_up_to_the_bound) {
  Rank a(0, with_lanes(1));
  Rank b(1);
  b.keep = true;
  CHECK(connect(a, b, 1));
  const auto payload = pattern(kMaxPayload, 9);
  const size_t most = ReceiveBuffers::kLimit / kMaxPayload;
  for (size_t i = 0; i < most + 4; ++i) a.ups[0]->send(frame(FrameType::data, kMaxPayload), payload.data(), i);
  CHECK(run({&a, &b}, [&] { return b.held.size() == most; }));
  // The control lane is alive; the bulk lane stands still.
  CHECK(a.ups[0]->send(frame(FrameType::ping, 0), nullptr, 0));
  CHECK(run({&a, &b}, [&] { return b.received.back().frame.type == FrameType::ping; }));
  CHECK_EQ(b.held.size(), most);
  for (size_t i = 0; i < 4; ++i) b.ups[0]->release(b.held[i]);
  CHECK(run({&a, &b}, [&] { return b.held.size() == most + 4; }));
  CHECK(b.received.back().bytes == payload);
  CHECK(std::memcmp(b.held.back().data, payload.data(), payload.size()) == 0);
  for (size_t i = 4; i < b.held.size(); ++i) b.ups[0]->release(b.held[i]);
}

TEST(the_owner_may_reject_a_piece) {
  Rank a(0);
  Rank b(1);
  b.on_land = [](const Frame&) { return Events::Landing{false, nullptr}; };
  CHECK(connect(a, b, 1));
  const auto payload = pattern(kPiece, 9);
  a.ups[0]->send(frame(FrameType::data, kPiece), payload.data(), 1);
  CHECK(run({&a, &b}, [&] { return !b.downs.empty() && !a.downs.empty(); }));
  CHECK(b.downs[0].code == Code::internal);
  CHECK_EQ(b.downs[0].rank, 0);
  CHECK(a.downs[0].code == Code::peer_lost);
  CHECK(!a.ups[0]->up());
}

TEST(a_killed_peer_is_lost_once) {
  auto a = std::make_unique<Rank>(0);
  Rank b(1);
  CHECK(connect(*a, b, 1));
  const auto payload = pattern(kMaxPayload, 9);
  for (uint64_t i = 0; i < 8; ++i) a->ups[0]->send(frame(FrameType::data, kMaxPayload), payload.data(), i);
  CHECK(run({a.get(), &b}, [&] { return !b.received.empty(); }));
  for (uint64_t i = 0; i < 8; ++i) b.ups[0]->send(frame(FrameType::data, kMaxPayload), payload.data(), i);
  a.reset();  // every descriptor is closed at once, as when a process dies
  CHECK(run({&b}, [&] { return !b.downs.empty(); }, 5));
  for (int i = 0; i < 10; ++i) b.poller.wait(1);
  CHECK_EQ(b.downs.size(), 1u);
  CHECK(b.downs[0].code == Code::peer_lost);
  CHECK_EQ(b.downs[0].rank, 0);
  CHECK(b.downs[0].text.find("rank 0") != std::string::npos);
  CHECK(b.ups[0]->send(frame(FrameType::ping, 0), nullptr, 0));
}

TEST(goodbye_is_not_a_loss_and_what_was_taken_is_there) {
  Rank a(0, with_lanes(3));
  Rank b(1);
  CHECK(connect(a, b, 1));
  const auto payload = pattern(kMaxPayload, 4);
  for (uint64_t i = 0; i < 10; ++i) a.ups[0]->send(frame(FrameType::data, kMaxPayload), payload.data(), i);
  CHECK(run({&a, &b}, [&] { return a.cookies.size() == 10; }));
  CHECK_EQ(b.received.size(), 10u);
  a.ups[0]->send(frame(FrameType::data, 100, 1), payload.data(), 0);
  a.ups[0]->send(frame(FrameType::goodbye, 0), nullptr, 0);
  a.ups[0]->close();
  CHECK(run({&a, &b}, [&] { return !b.downs.empty(); }));
  CHECK(b.downs[0].code == Code::aborted);
  CHECK(b.downs[0].text.find("left the job") != std::string::npos);
  CHECK_EQ(b.received.size(), 11u);
  for (size_t i = 0; i < 10; ++i) CHECK(b.received[i].bytes == payload);
  CHECK(run({&a, &b}, [&] { return !a.ups[0]->up(); }));
  CHECK(a.downs.empty());
}

TEST(a_closed_link_needs_the_owners_memory_no_more) {
  Rank a(0, with_lanes(2));
  Rank b(1);
  CHECK(connect(a, b, 1));
  const auto original = pattern(kMaxPayload, 4);
  // A lane has joined once something has come over it: the link is cut with a message half sent.
  a.ups[0]->send(frame(FrameType::data, kMaxPayload), original.data(), 0);
  CHECK(run({&a, &b}, [&] { return b.received.size() == 1; }));
  auto payload = original;
  for (uint64_t i = 0; i < 10; ++i) a.ups[0]->send(frame(FrameType::data, kMaxPayload), payload.data(), i);
  a.ups[0]->send(frame(FrameType::goodbye, 0), nullptr, 0);
  a.ups[0]->close();
  std::fill(payload.begin(), payload.end(), std::byte{0});
  const size_t sent = a.cookies.size();
  CHECK(run({&a, &b}, [&] { return !b.downs.empty() && !a.ups[0]->up(); }));
  CHECK(b.downs[0].code == Code::aborted);
  for (const Received& r : b.received) CHECK(r.bytes == original);  // whole and right, or not at all
  CHECK_EQ(a.cookies.size(), sent);
}

TEST(both_may_leave_at_the_same_time) {
  Rank a(0);
  Rank b(1);
  CHECK(connect(a, b, 1));
  for (Rank* rank : {&a, &b}) {
    rank->ups[0]->send(frame(FrameType::goodbye, 0), nullptr, 0);
    rank->ups[0]->close();
  }
  CHECK(run({&a, &b}, [&] { return !a.ups[0]->up() && !b.ups[0]->up(); }, 5));
  CHECK(a.downs.empty());
  CHECK(b.downs.empty());
}

TEST(closing_does_not_wait_for_a_silent_peer) {
  Rank a(0);
  Rank b(1);
  CHECK(connect(a, b, 1));
  a.ups[0]->send(frame(FrameType::goodbye, 0), nullptr, 0);
  a.ups[0]->close();
  CHECK(a.ups[0]->up());  // b does not run
  CHECK(run({&a}, [&] { return !a.ups[0]->up(); }, 5));
  CHECK(a.transport->tick(now()) == Time::max());
}

TEST(closing_from_inside_an_upcall) {
  Rank a(0);
  Rank b(1);
  CHECK(connect(a, b, 1));
  b.on_arrived = [](Link& link, const Frame&) {
    link.send(frame(FrameType::goodbye, 0), nullptr, 0);
    link.close();
  };
  const auto payload = pattern(kPiece, 4);
  for (uint64_t i = 0; i < 20; ++i) a.ups[0]->send(frame(FrameType::data, kPiece), payload.data(), i);
  CHECK(run({&a, &b}, [&] { return !a.downs.empty() && !b.ups[0]->up(); }));
  CHECK_EQ(b.received.size(), 1u);
  CHECK(a.downs[0].code == Code::aborted);
  CHECK(b.downs.empty());
}

TEST(a_refused_connection_names_rank_and_address) {
  Rank a(0);
  uint16_t port = 0;
  {
    Rank gone(1);
    port = gone.port;
  }
  a.links.push_back(a.transport->dial(1, {"127.0.0.1"}, port));
  CHECK(a.downs.empty());
  CHECK(run({&a}, [&] { return !a.downs.empty(); }));
  CHECK(a.downs[0].code == Code::peer_lost);
  CHECK_EQ(a.downs[0].rank, 1);
  CHECK(a.downs[0].text.find("rank 1 at 127.0.0.1:" + std::to_string(port)) != std::string::npos);
}

TEST(addresses_are_tried_in_turn) {
  Rank a(0);
  Rank b(1);
  // Nobody listens on the first; the second is no address; the third is another rank's.
  Rank c(2);
  a.links.push_back(a.transport->dial(1, {"127.0.0.9", "no address", "127.0.0.1"}, b.port));
  CHECK(run({&a, &b}, [&] { return !a.ups.empty() && !b.ups.empty(); }));
  // A different rank under the right address: silence, and then lost.
  a.links.push_back(a.transport->dial(1, {"127.0.0.1"}, c.port));
  CHECK(run({&a, &c}, [&] { return !a.downs.empty(); }));
  CHECK(a.downs[0].code == Code::peer_lost);
  CHECK(!c.strangers.empty());
}

TEST(a_wrong_secret_is_refused_with_the_cure) {
  Rank a(0, {}, identity(0, "one secret"));
  Rank b(1, {}, identity(0, "another secret"));
  a.dial(b, 1);
  CHECK(run({&a, &b}, [&] { return !a.downs.empty() && !b.strangers.empty(); }));
  CHECK(a.downs[0].code == Code::refused);
  CHECK(a.downs[0].text.find("SLIPSTREAM_SECRET") != std::string::npos);
  CHECK(b.links.empty());
}

TEST(a_peer_that_accepts_and_says_nothing_is_lost) {
  TcpOptions options;
  options.connect_seconds = 1000;
  Rank a(0, options);
  const Rank silent(1);  // never runs
  a.dial(silent, 1);
  for (int i = 0; i < 20; ++i) a.poller.wait(5);
  CHECK(a.downs.empty());
  CHECK(a.transport->tick(now()) < Time::max());
  a.transport->tick(now() + seconds(1001));
  CHECK_EQ(a.downs.size(), 1u);
  CHECK(a.downs[0].code == Code::peer_lost);
}

TEST(knock) {
  Rank a(3);
  Rank b(1);
  a.transport->knock(1, {"127.0.0.1"}, b.port, a);
  CHECK(run({&a, &b}, [&] { return !a.knock_results.empty() && !b.knocks.empty(); }));
  CHECK(a.knock_results[0]);
  CHECK_EQ(b.knocks[0], 3);
  CHECK(b.links.empty());
  b.transport.reset();
  a.transport->knock(1, {"127.0.0.1"}, b.port, a);
  CHECK(run({&a}, [&] { return a.knock_results.size() == 2; }));
  CHECK(!a.knock_results[1]);
  CHECK(a.knock_why.find("rank 1") != std::string::npos);
}

TEST(links_outlive_the_transport) {
  Rank a(0);
  Rank b(1);
  CHECK(connect(a, b, 1));
  a.dial(b, 1);  // still on its way
  a.transport.reset();
  CHECK(run({&a, &b}, [&] { return a.ups.size() == 2 && b.ups.size() == 2; }));
  CHECK(a.ups[0]->send(frame(FrameType::ping, 0), nullptr, 0));
  CHECK(run({&a, &b}, [&] { return b.received.size() == 1; }));
  b.transport.reset();
  b.links.clear();
  CHECK(run({&a, &b}, [&] { return a.downs.size() == 2; }));
}

TEST(a_link_may_go_while_it_is_dialling) {
  Rank a(0);
  Rank b(1);
  a.dial(b, 1);
  a.links.clear();
  a.dial(b, 1);
  a.poller.wait(10);
  a.links.clear();
  CHECK(a.transport->tick(now()) == Time::max());
  CHECK(connect(a, b, 1));
}

int class_of(int fd, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  return ::getsockopt(fd, level, name, &value, &size) == 0 ? value : -1;
}

std::string congestion_of(int fd) {
  char name[16] = {};
  socklen_t size = sizeof(name) - 1;
  CHECK(::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0);
  return name;
}

TEST(connections_do_not_pace_unless_they_are_told_to) {
  const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto take = [&](const char* name) {
    return ::setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name, static_cast<socklen_t>(std::strlen(name))) == 0;
  };
  CHECK(take("reno"));  // every kernel has it, for everybody
  tune_tcp(fd.get(), {});
  CHECK(congestion_of(fd.get()) == "reno");
  if (!take("bbr")) return;  // this kernel has none
  tune_tcp(fd.get(), {"bbr"});
  CHECK(congestion_of(fd.get()) == "bbr");
  tune_tcp(fd.get(), {});
  CHECK(congestion_of(fd.get()) != "bbr");
}

TEST(packets_have_the_class_that_is_asked_for) {
  const Fd v4(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), v6(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  tune_tcp(v4.get(), {});
  CHECK_EQ(class_of(v4.get(), IPPROTO_IP, IP_TOS), 0);
  tune_tcp(v4.get(), {"", 0, 34});
  CHECK_EQ(class_of(v4.get(), IPPROTO_IP, IP_TOS), 34 << 2);
  CHECK_EQ(class_of(v4.get(), SOL_SOCKET, SO_PRIORITY), 4);
  tune_tcp(v4.get(), {"", 0, 63});
  CHECK_EQ(class_of(v4.get(), SOL_SOCKET, SO_PRIORITY), 6);  // 7 is not for everybody
  if (!v6) return;                                           // this kernel has none
  tune_tcp(v6.get(), {"", 0, 34});
  CHECK_EQ(class_of(v6.get(), IPPROTO_IPV6, IPV6_TCLASS), 34 << 2);
  CHECK_EQ(class_of(v6.get(), SOL_SOCKET, SO_PRIORITY), 4);
}

TEST(bad_options_are_refused) {
  for (int lanes : {0, -1, 65}) {
    bool thrown = false;
    try {
      Rank rank(0, with_lanes(lanes));
    } catch (const Failure& failure) {
      thrown = failure.error().code == Code::invalid;
    }
    CHECK(thrown);
  }
  bool thrown = false;
  try {
    TcpOptions options;
    options.congestion = "no such control";
    Rank rank(0, options);
  } catch (const Failure& failure) {
    thrown = failure.error().code == Code::invalid;
  }
  CHECK(thrown);
}
