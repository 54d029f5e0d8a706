// Strangers at the listener, and authenticated peers that talk nonsense. All random bytes are seeded.
#include <cstring>
#include <random>

#include "tests/check.h"
#include "tests/fuzz_frames.h"
#include "tests/open_files.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

std::vector<std::byte> noise(std::mt19937& random, size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

Hello good_hello(int rank, int target) {
  Hello hello;
  hello.rank = static_cast<uint32_t>(rank);
  hello.target = static_cast<uint32_t>(target);
  return hello;
}

// Frames that are mostly right, so that the fuzz gets past the first check.
std::vector<std::byte> plausible_frames(std::mt19937& random, bool bulk) {
  std::vector<std::byte> bytes;
  for (unsigned i = random() % 4 + 1; i > 0; --i) {
    const auto type = bulk ? FrameType::data : static_cast<FrameType>(random() % (kLastFrameType + 2));
    Frame f = frame(type, 0, static_cast<uint32_t>(random()));
    const uint32_t bounds[] = {0, 1, 100, kMaxText, kMaxText + 1, kEagerBytes, kEagerBytes + 1, 100'000};
    f.length = random() % 50 == 0 ? static_cast<uint32_t>(random()) : bounds[random() % 8];
    if (random() % 10 == 0) f.reserved = 1;
    const size_t at = bytes.size();
    if (!bulk) {
      bytes.resize(at + sizeof(f) + std::min<uint32_t>(f.length, 200'000));
      std::memcpy(bytes.data() + at, &f, sizeof(f));
      continue;
    }
    SegmentHeader header{f, random() % 3, 0, f.length};  // halves and wholes of few messages: they meet
    header.size = random() % 2 == 0 ? f.length : f.length / 2;
    header.offset = random() % 2 == 0 ? 0 : f.length - header.size;
    if (random() % 20 == 0) header.offset = static_cast<uint32_t>(random());
    if (random() % 20 == 0) header.message = random() << 16;
    bytes.resize(at + sizeof(header) + std::min<uint32_t>(header.size, 200'000));
    std::memcpy(bytes.data() + at, &header, sizeof(header));
  }
  if (random() % 3 == 0) bytes.resize(random() % (bytes.size() + 1));
  return bytes;
}

// The job is unharmed: the link that was there still works, and a new one can be opened.
void still_works(Rank& server, Rank& friendly) {
  const size_t before = server.received.size();
  CHECK(friendly.ups[0]->send(frame(FrameType::ping, 0), nullptr, 0));
  CHECK(run({&server, &friendly}, [&] { return server.received.size() == before + 1; }));
  CHECK(server.downs.empty());
  CHECK(friendly.downs.empty());
}

}  // namespace

TEST(ten_thousand_strangers_at_the_listener) {
  Rank server(1);
  Rank friendly(0);
  CHECK(connect(friendly, server, 1));
  std::mt19937 random(7);
  constexpr size_t kStrangers = 10'000;
  for (size_t i = 0; i < kStrangers; ++i) {
    const Fd fd = raw_connect(server.port);
    CHECK(static_cast<bool>(fd));
    auto bytes = noise(random, 1 + random() % 300);
    const Hello hello = good_hello(0, 1);
    if (random() % 2 == 0) std::memcpy(bytes.data(), &hello, std::min(bytes.size(), random() % (sizeof(hello) + 1)));
    raw_send(fd, bytes.data(), bytes.size());
    server.poller.wait(0);
  }
  CHECK(run({&server}, [&] { return server.strangers.size() == kStrangers; }));
  CHECK_EQ(server.links.size(), 1u);
  CHECK(server.knocks.empty());
  still_works(server, friendly);
}

TEST(silent_strangers_are_shown_out_in_time) {
  TcpOptions options;
  options.admission.seconds = 1000;
  Rank server(1, options);
  const Fd fd = raw_connect(server.port);
  const Hello hello = good_hello(0, 1);
  raw_send(fd, &hello, 40);
  for (int i = 0; i < 10; ++i) server.poller.wait(5);
  CHECK(server.strangers.empty());
  CHECK(server.transport->tick(now()) < Time::max());
  server.transport->tick(now() + seconds(1001));
  CHECK_EQ(server.strangers.size(), 1u);
  CHECK(server.strangers[0].find("127.0.0.1:") == 0);
  CHECK(server.strangers[0].find("in time") != std::string::npos);
  CHECK(raw_closed(server, fd));
  CHECK(server.transport->tick(now()) == Time::max());
}

TEST(the_poller_alone_expires_strangers) {
  TcpOptions options;
  options.admission.seconds = 0.05;
  Rank server(1, options);
  const Fd fd = raw_connect(server.port);
  for (int i = 0; i < 100 && server.strangers.empty(); ++i) server.poller.wait(-1);
  CHECK_EQ(server.strangers.size(), 1u);
}

TEST(four_hundred_pending_strangers_leave_room_for_friends) {
  const OpenFiles many(4096);
  Rank server(1);
  constexpr size_t kCrowd = 400;
  std::vector<Fd> crowd;
  for (size_t i = 0; i < kCrowd; ++i) crowd.push_back(raw_connect(server.port));
  CHECK(run({&server}, [&] { return server.strangers.size() == kCrowd - AdmissionLimits{}.most; }));
  CHECK(raw_closed(server, crowd[0]));  // the oldest went
  Rank friendly(0);
  CHECK(connect(friendly, server, 1));
  still_works(server, friendly);
}

TEST(a_caller_has_its_grace_before_it_gives_way) {
  TcpOptions options;
  options.admission = {1, 1000, 0.2};
  Rank server(1, options);
  const Time start = now();
  const Fd first = raw_connect(server.port);
  const Fd second = raw_connect(server.port);
  CHECK(run({&server}, [&] { return server.strangers.size() == 1; }));
  CHECK(now() - start >= seconds(0.2));
  CHECK(server.strangers[0].find(kGaveWay) != std::string::npos);
  CHECK(raw_closed(server, first));
}

TEST(a_replayed_dialogue_opens_nothing) {
  Rank server(1);
  // Record what an honest client says, then say it again.
  std::vector<std::byte> said(sizeof(Hello) + sizeof(Digest));
  {
    const Fd fd = raw_connect(server.port);
    Identity self = identity(0);
    int fds[2] = {-1, -1};
    CHECK_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    const Fd ours(fds[0]);
    const Fd client_end(fds[1]);
    auto client = Handshake::client(self, Purpose::knock, 1, 0, 0);
    size_t heard = 0;
    CHECK(run({&server}, [&] {
      client.advance(client_end.get());
      const ssize_t out = ::recv(ours.get(), said.data() + heard, said.size() - heard, MSG_DONTWAIT);
      if (out > 0) {
        raw_send(fd, said.data() + heard, static_cast<size_t>(out));
        heard += static_cast<size_t>(out);
      }
      std::byte back[64];
      const ssize_t in = ::recv(fd.get(), back, sizeof(back), MSG_DONTWAIT);
      if (in > 0) raw_send(ours, back, static_cast<size_t>(in));
      return !server.knocks.empty();
    }));
    CHECK_EQ(heard, said.size());
  }
  const Fd fd = raw_connect(server.port);
  raw_send(fd, said.data(), said.size());
  CHECK(run({&server}, [&] { return !server.strangers.empty(); }));
  CHECK_EQ(server.knocks.size(), 1u);
  CHECK(server.strangers[0].find("SLIPSTREAM_SECRET") != std::string::npos);
}

TEST(lanes_may_come_before_their_link_but_not_wait_for_ever) {
  TcpOptions options;
  options.admission.seconds = 1000;
  Rank server(1, options);
  const Fd lane = raw_connect(server.port);
  CHECK(raw_handshake(server, lane, 5, 1, Purpose::lane, 42));
  const Fd stray = raw_connect(server.port);
  CHECK(raw_handshake(server, stray, 5, 1, Purpose::lane, 43));
  const Fd control = raw_connect(server.port);
  CHECK(raw_handshake(server, control, 5, 1, Purpose::link, 42));
  CHECK(run({&server}, [&] { return server.ups.size() == 1; }));
  auto bytes = segment(frame(FrameType::data, kEagerBytes + 1), 1);
  seal_segment(bytes, 0);
  raw_send(lane, bytes.data(), bytes.size());
  CHECK(run({&server}, [&] { return server.received.size() == 1; }));
  server.transport->tick(now() + seconds(1001));
  CHECK(raw_closed(server, stray));
  CHECK(server.ups[0]->up());
}

TEST(a_link_cannot_be_opened_twice_nor_have_endless_lanes) {
  Rank server(1);
  const Fd control = raw_connect(server.port);
  CHECK(raw_handshake(server, control, 5, 1, Purpose::link, 42));
  const Fd second = raw_connect(server.port);
  CHECK(raw_handshake(server, second, 5, 1, Purpose::link, 42));
  CHECK(run({&server}, [&] { return server.strangers.size() == 1; }));
  std::vector<Fd> lanes;
  for (uint32_t i = 0; i < 65; ++i) {
    lanes.push_back(raw_connect(server.port));
    CHECK(raw_handshake(server, lanes.back(), 5, 1, Purpose::lane, 42, i + 1));
  }
  CHECK(run({&server}, [&] { return server.strangers.size() == 2; }));
  CHECK_EQ(server.links.size(), 1u);
  CHECK(server.ups[0]->up());
}

TEST(oversized_frames_end_the_link) {
  struct Case {
    bool bulk;
    FrameType type;
    uint32_t length;
  };
  const Case cases[] = {
      {false, FrameType::data, kEagerBytes + 1}, {false, FrameType::abort, kMaxText + 1},
      {false, FrameType::data, 0xffffffff},      {true, FrameType::data, kMaxPayload + 1},
      {true, FrameType::data, kEagerBytes},      {true, FrameType::ping, 0},
      {false, static_cast<FrameType>(0), 0},     {false, static_cast<FrameType>(kLastFrameType + 1), 0}};
  for (const Case& c : cases) {
    const Frame f = frame(c.type, c.length, 1);
    const SegmentHeader header{f, 1, 0, std::max(c.length, 1u)};
    FuzzedLink link;
    link.feed(c.bulk ? std::as_bytes(std::span(&header, 1)) : std::as_bytes(std::span(&f, 1)), c.bulk);
    CHECK(link.last.code == Code::internal);
    CHECK_EQ(link.last.rank, 1);
    CHECK(link.last.text.find("rank 1") != std::string::npos);
  }
}

TEST(frames_at_the_limit_are_fine) {
  Frame f = frame(FrameType::data, kMaxPayload, 1);
  auto bytes = segment(f, 1);
  FuzzedLink link;
  link.feed(bytes, true);
  CHECK(link.last.code == Code::peer_lost);
  f.length = kEagerBytes;
  bytes.assign(sizeof(f) + f.length, std::byte{0});
  std::memcpy(bytes.data(), &f, sizeof(f));
  link.feed(bytes, false);
  CHECK(link.last.code == Code::peer_lost);
}

TEST(ten_thousand_inputs_to_the_frame_reader) {
  std::mt19937 random(11);
  for (int i = 0; i < 10'000; ++i) {
    const auto bytes = i % 2 == 0 ? noise(random, random() % 2000) : plausible_frames(random, false);
    fuzz_reader(bytes, random() % 5000 + 1);
  }
}

TEST(two_thousand_inputs_to_a_link) {
  std::mt19937 random(13);
  FuzzedLink link;
  for (int i = 0; i < 2'000; ++i) {
    const bool bulk = i % 2 == 0;
    link.feed(i % 5 == 0 ? noise(random, random() % 2000) : plausible_frames(random, bulk), bulk);
    CHECK(static_cast<bool>(link.last));
  }
}
