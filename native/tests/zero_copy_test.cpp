// Sends without a copy: what is accounted for, when it ends by itself, and that nobody gets bytes of memory that has
// been changed. Loopback always copies in the end, so what a network card does is played by the pure part.
#include "transport/tcp/zero_copy.h"

#include <linux/capability.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "tests/check.h"
#include "tests/tcp_rig.h"
#include "transport/sockets.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

constexpr size_t kSize = 64 << 10;

ZeroCopy with_sends(int count) {
  ZeroCopy zero_copy;
  zero_copy.begin(true);
  for (int i = 0; i < count; ++i) zero_copy.record({100, true, false});
  return zero_copy;
}

// A connection over loopback.
struct Pair {
  Pair() {
    const Fd listener = listen_tcp("127.0.0.1", 0);
    us = raw_connect(local_port(listener.get()));
    pollfd waiting{listener.get(), POLLIN, 0};
    CHECK_EQ(::poll(&waiting, 1, 10'000), 1);
    peer = Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    CHECK(allow_zero_copy(us.get()));
  }

  Sent send(const std::vector<std::byte>& bytes) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    return send_message(us.get(), message, MSG_NOSIGNAL | MSG_DONTWAIT | MSG_ZEROCOPY);
  }
  std::vector<std::byte> receive(size_t size) {
    std::vector<std::byte> bytes(size);
    CHECK_EQ(::recv(peer.get(), bytes.data(), size, MSG_WAITALL), static_cast<ssize_t>(size));
    return bytes;
  }

  Fd us;
  Fd peer;
};

// No memory may be pinned while this lives.
struct NothingPinned {
  NothingPinned() {
    ::getrlimit(RLIMIT_MEMLOCK, &before);
    const rlimit none{0, before.rlim_max};
    ::setrlimit(RLIMIT_MEMLOCK, &none);
    ::syscall(SYS_capget, &header, held);
    __user_cap_data_struct without[2] = {held[0], held[1]};
    without[CAP_TO_INDEX(CAP_IPC_LOCK)].effective &= ~CAP_TO_MASK(CAP_IPC_LOCK);
    ::syscall(SYS_capset, &header, without);
  }
  ~NothingPinned() {
    ::syscall(SYS_capset, &header, held);
    ::setrlimit(RLIMIT_MEMLOCK, &before);
  }

  rlimit before{};
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct held[2] = {};
};

int socket_of(const LaneStatistics& lane) {
  int fd = 3;
  while (fd < 1024 && (tcp_state(fd).local != lane.local || peer_name(fd) != lane.remote)) ++fd;
  return fd;
}

bool all_up(const Rank& rank, const TcpOptions& options) {
  const auto lanes = rank.ups[0]->statistics().lanes;
  return lanes.size() == static_cast<size_t>(options.lanes) + 1 &&
         std::all_of(lanes.begin(), lanes.end(), [](const LaneStatistics& lane) { return lane.up; });
}

bool connect_lanes(Rank& a, Rank& b, const TcpOptions& options) {
  return connect(a, b, 1) && run({&a, &b}, [&] { return all_up(a, options) && all_up(b, options); });
}

// Two ranks whose addresses differ: to the transport, two machines.
struct Far {
  explicit Far(TcpOptions options, int window = 0) : a(0, options), b(1, options, identity(0), "127.0.0.2") {
    const int listener = socket_of({.local = address_name(b.address, b.port), .remote = "unknown"});
    if (window > 0) CHECK_EQ(::setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &window, sizeof(window)), 0);
    CHECK(connect_lanes(a, b, options));
  }

  // Both send `count` messages to each other; all arrive as they are.
  void exchange(uint32_t count) {
    const auto bytes = pattern(3 * kSize, 7);
    const Frame f = frame(FrameType::data, static_cast<uint32_t>(bytes.size()));
    for (Rank* rank : {&a, &b}) {
      rank->cookies.clear();
      rank->received.clear();
    }
    for (uint32_t i = 0; i < count; ++i)
      for (Rank* rank : {&a, &b}) rank->ups[0]->send(f, bytes.data(), i);
    CHECK(run({&a, &b}, [&] { return a.cookies.size() == count && b.cookies.size() == count; }));
    for (const Rank* rank : {&a, &b}) {
      CHECK_EQ(rank->received.size(), size_t{count});
      for (const Received& r : rank->received) CHECK(r.bytes == bytes);
    }
  }

  Rank a;
  Rank b;
};

}  // namespace

TEST(sends_are_done_in_any_order_and_in_ranges) {
  ZeroCopy zero_copy = with_sends(6);
  CHECK_EQ(zero_copy.lent(), 6u);
  zero_copy.done(2, 3, false);
  CHECK_EQ(zero_copy.lent(), 4u);
  zero_copy.done(0, 0, true);
  CHECK_EQ(zero_copy.lent(), 3u);
  CHECK_EQ(zero_copy.bytes(), 200u);
  zero_copy.done(1, 1, false);
  zero_copy.done(4, 5, false);
  CHECK_EQ(zero_copy.lent(), 0u);
  CHECK_EQ(zero_copy.bytes(), 500u);
  zero_copy.record({100, true, false});
  zero_copy.done(6, 6, false);
  CHECK_EQ(zero_copy.bytes(), 600u);
}

TEST(only_what_was_taken_counts) {
  ZeroCopy zero_copy = with_sends(0);
  zero_copy.record({-1, true, false});
  zero_copy.record({100, false, false});
  zero_copy.record({100, false, true});
  CHECK_EQ(zero_copy.lent(), 0u);
}

TEST(it_ends_where_the_kernel_copies_each_time) {
  for (const bool insist : {false, true}) {
    ZeroCopy zero_copy = with_sends(20);
    if (insist) zero_copy.insist();
    CHECK_EQ(zero_copy.from(), LendThreshold::kFirst);
    CHECK(zero_copy.lends(LendThreshold::kFirst));
    CHECK(!zero_copy.lends(LendThreshold::kFirst - 1));
    zero_copy.done(0, 2, true);
    zero_copy.done(3, 3, true);
    zero_copy.done(4, 4, true);
    zero_copy.done(5, 5, false);  // it can, and shows it
    for (uint32_t i = 6; i < 9; ++i) zero_copy.done(i, i, true);
    CHECK(zero_copy.on());
    zero_copy.record({100, false, true});
    CHECK_EQ(zero_copy.on(), insist);
    CHECK_EQ(zero_copy.lends(kSize), insist);
    CHECK_EQ(zero_copy.from() > 0, insist);
    zero_copy.begin(true);
    CHECK(zero_copy.on());
    CHECK_EQ(zero_copy.lent(), 0u);
    CHECK_EQ(zero_copy.bytes(), 100u);
  }
}

// 64 KiB in turn lent, at `lent` seconds each with all it takes, and copied in 10 us.
ZeroCopy after_sends(double lent, int count) {
  ZeroCopy zero_copy = with_sends(0);
  uint32_t number = 0;
  for (int i = 0; i < count && zero_copy.on(); ++i) {
    zero_copy.record({kSize, false, false}, kSize, 1e-5);
    zero_copy.before(lent / 4);
    zero_copy.record({kSize, true, false}, kSize, lent / 4);
    zero_copy.record({kSize, true, false}, kSize, 3 * lent / 4);
    zero_copy.read(1);  // in which nothing was said of a send
    zero_copy.done(number, number + 1, false);
    zero_copy.read(lent / 2);
    number += 2;
  }
  CHECK_EQ(zero_copy.bytes(), number * uint64_t{kSize});
  return zero_copy;
}

TEST(what_a_send_takes_is_all_that_belongs_to_it) {
  // Each is lent / 2 and 3 * lent / 4 by itself, and a quarter is its share of the words about both.
  CHECK_EQ(after_sends(0.9e-5, 20).from(), LendThreshold::kFirst);
  const ZeroCopy dearer = after_sends(1.4e-5, 20);
  CHECK(dearer.on());
  CHECK_EQ(dearer.from(), 2 * kSize);
}

TEST(it_ends_where_it_never_pays) {
  const ZeroCopy zero_copy = after_sends(1e-4, 1000);
  CHECK(!zero_copy.on());
  CHECK_EQ(zero_copy.from(), 0u);
  CHECK(!zero_copy.measures());
  CHECK(zero_copy.bytes() < 50 * kSize);
}

TEST(what_the_kernel_copied_says_nothing_about_lending) {
  ZeroCopy zero_copy = with_sends(0);
  zero_copy.insist();
  for (uint32_t i = 0; i < 100; ++i) {
    zero_copy.record({kSize, false, false}, kSize, 1e-5);
    zero_copy.record({kSize, true, false}, kSize, 1);
    zero_copy.done(i, i, true);
    zero_copy.read(1);
  }
  CHECK_EQ(zero_copy.from(), LendThreshold::kFirst);
}

TEST(a_socket_says_what_became_of_its_sends) {
  Pair pair;
  ZeroCopy zero_copy;
  zero_copy.begin(true);
  CHECK(!read_completions(pair.us.get(), zero_copy));
  for (uint32_t i = 0; i < 10; ++i) {
    const auto bytes = pattern(kSize, i);
    const Sent sent = pair.send(bytes);
    CHECK(sent.lent);
    CHECK_EQ(sent.bytes, static_cast<ssize_t>(kSize));
    zero_copy.record(sent);
    CHECK(pair.receive(kSize) == bytes);
    for (pollfd said{pair.us.get(), 0, 0}; zero_copy.lent() > 0 && ::poll(&said, 1, 10'000) == 1;)
      CHECK(read_completions(pair.us.get(), zero_copy));
    CHECK_EQ(zero_copy.lent(), 0u);
    CHECK(!read_completions(pair.us.get(), zero_copy));
    CHECK_EQ(zero_copy.on(), i + 1 < ZeroCopy::kMostInVain);
  }
  CHECK_EQ(zero_copy.bytes(), 0u);
}

TEST(what_may_not_be_pinned_is_copied) {
  Pair pair;
  const auto bytes = pattern(kSize, 1);
  {
    const NothingPinned limit;
    const Sent sent = pair.send(bytes);
    CHECK(sent.refused);
    CHECK(!sent.lent);
    CHECK_EQ(sent.bytes, static_cast<ssize_t>(kSize));
  }
  CHECK(pair.receive(kSize) == bytes);
  pair.peer.reset();
  Sent sent{1, false, false};
  for (int i = 0; i < 100 && sent.bytes > 0; ++i) sent = pair.send(bytes);
  CHECK_EQ(sent.bytes, ssize_t{-1});
  CHECK(errno == EPIPE || errno == ECONNRESET);
}

TEST(links_to_other_machines_lend_until_it_is_in_vain) {
  TcpOptions options;
  options.lanes = 3;
  Far far(options);
  for (const auto& lane : far.a.ups[0]->statistics().lanes) CHECK_EQ(lane.zero_copy, !lane.control);
  const auto lends = [](Rank& rank) {
    const auto lanes = rank.ups[0]->statistics().lanes;
    return std::any_of(lanes.begin(), lanes.end(), [](const LaneStatistics& lane) { return lane.zero_copy; });
  };
  for (int i = 0; i < 20 && (lends(far.a) || lends(far.b)); ++i) far.exchange(200);  // a lane may come late
  for (Rank* rank : {&far.a, &far.b}) {
    for (const auto& lane : rank->ups[0]->statistics().lanes) {
      CHECK(!lane.zero_copy);
      CHECK_EQ(lane.zero_copied, 0u);
    }
  }
}

TEST(links_within_a_machine_do_not_lend_and_nor_do_those_told_not_to) {
  Rank a(0);
  Rank b(1);
  TcpOptions options;
  CHECK(connect_lanes(a, b, options));
  options.lending = Lending::off;
  Far far(options);
  for (Rank* rank : {&a, &far.a})
    for (const auto& lane : rank->ups[0]->statistics().lanes) CHECK(!lane.zero_copy);
}

TEST(the_size_that_is_lent_may_be_given) {
  TcpOptions options;
  options.lending = Lending::always;
  options.lend_from = 100'000;
  Far far(options);
  far.exchange(20);
  for (const auto& lane : far.a.ups[0]->statistics().lanes) CHECK_EQ(lane.zero_copy_from, lane.control ? 0u : 100'000u);
}

TEST(lent_messages_arrive_as_they_are) {
  TcpOptions options;
  options.lanes = 3;
  options.lending = Lending::always;
  Far far(options);
  far.exchange(300);
  for (const auto& lane : far.a.ups[0]->statistics().lanes) CHECK_EQ(lane.zero_copy, !lane.control);
}

// The owner has its memory back once close() returns: the peer must not take for the message what is there then.
TEST(after_a_close_no_changed_memory_goes_out) {
  for (const Lending lending : {Lending::off, Lending::always}) {
    TcpOptions options;
    options.lanes = 1;
    options.lending = lending;
    Far far(options, 16 << 10);  // a part waits in our socket; but all of it is there
    auto bytes = pattern(kSize, 3);
    const auto before = bytes;
    far.a.ups[0]->send(frame(FrameType::data, static_cast<uint32_t>(bytes.size())), bytes.data(), 1);
    far.a.ups[0]->send(frame(FrameType::goodbye, 0), nullptr, 0);
    const uint64_t sent = far.a.ups[0]->statistics().lanes[1].sent;
    CHECK(sent > bytes.size());
    CHECK_EQ((sent - bytes.size()) % sizeof(SegmentHeader), 0u);
    far.a.ups[0]->close();
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    CHECK(run({&far.a, &far.b}, [&] { return !far.b.downs.empty(); }));
    CHECK(far.a.cookies.empty());
    CHECK_EQ(far.b.received.size(), lending == Lending::off ? 1u : 0u);  // a copy goes out
    for (const Received& r : far.b.received) CHECK(r.bytes == before);
  }
}

TEST(the_device_is_polled_for_words_from_other_machines_if_cores_are_free) {
  const auto polled = [](int fd) {
    int us = -1;
    socklen_t size = sizeof(us);
    return ::getsockopt(fd, SOL_SOCKET, SO_BUSY_POLL, &us, &size) == 0 ? us : -1;
  };
  const Pair pair;
  const int usual = polled(pair.us.get());
  poll_device(pair.us.get(), usual + 50);
  const int raised = polled(pair.us.get());  // a plain user may not
  for (const bool free_cores : {false, true}) {
    TcpOptions options;
    options.busy_poll_us = free_cores ? usual + 50 : 0;
    const Far far(options);
    for (const auto& lane : far.a.ups[0]->statistics().lanes)
      CHECK_EQ(polled(socket_of(lane)), lane.control && free_cores ? raised : usual);
    Rank a(0, options);
    Rank b(1, options);
    CHECK(connect_lanes(a, b, options));
    CHECK_EQ(polled(socket_of(a.ups[0]->statistics().lanes[0])), usual);
  }
}
