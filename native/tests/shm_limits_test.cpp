// Shared memory where something runs out: room in a socket, places at a listener, file descriptors. And who may come.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

#include "tests/check.h"
#include "tests/open_files.h"
#include "tests/shm_rig.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

int raw_socket() { return ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

// connect() or bind().
bool raw_call(int (*call)(int, const sockaddr*, socklen_t), int fd, const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  return call(fd, reinterpret_cast<sockaddr*>(&address),
              static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) == 0;
}

bool raw_connect(int fd, const std::string& name) { return raw_call(::connect, fd, name); }

// As many connections as its listener has room for.
std::vector<Fd> crowd_at(const std::string& name) {
  std::vector<Fd> crowd;
  for (bool room = true; room && crowd.size() < 5000;) {
    crowd.emplace_back(raw_socket());
    room = raw_connect(crowd.back().get(), name);
  }
  CHECK_EQ(errno, EAGAIN);
  return crowd;
}

// A link that has not come up when its time is over: what it ends with.
std::string told_in_the_end(ShmRank& rank) {
  rank.transport.tick(now() + seconds(1000));
  CHECK_EQ(rank.downs.size(), 1u);
  return rank.downs.empty() ? "" : rank.downs[0].text;
}

}  // namespace

TEST(regions_wait_while_a_peer_does_not_take_them) {
  const OpenFiles many(4096);
  ShmRank sender(0), stopped(1);
  CHECK(connect(sender, stopped, 1));
  constexpr size_t kRegions = 600;  // a socket holds 278 messages
  WorkHeader frame;
  frame.length = 32 << 10;
  std::vector<std::shared_ptr<Region>> regions;
  for (size_t i = 0; i < kRegions; ++i) {
    regions.push_back(sender.regions.create(frame.length));
    regions.back()->memory.data()[7] = static_cast<std::byte>(i % 251);
    frame.seq = static_cast<uint32_t>(i);
    CHECK(!sender.ups[0]->send(frame, regions.back()->memory.data(), i + 1));
    sender.turn();
  }
  CHECK(sender.transport.congested());
  size_t right = 0;
  stopped.on_arrived = [&](Link& link, const Payload& payload) {
    right += payload.data[7] == static_cast<std::byte>(WorkHeader::of(stopped.frames.back()).seq % 251) ? 1 : 0;
    link.release(payload);
  };
  CHECK(run({&sender, &stopped}, [&] { return sender.cookies.size() == kRegions; }));
  CHECK_EQ(right, kRegions);
  CHECK(!sender.transport.congested());
  CHECK(sender.downs.empty());
  CHECK(stopped.downs.empty());
}

TEST(what_has_no_room_is_owed_if_it_is_data) {
  ShmRank sender(0), stopped(1);
  CHECK(connect(sender, stopped, 1));
  const std::vector<std::byte> bytes(4000);
  WorkHeader frame;
  frame.length = static_cast<uint32_t>(bytes.size());
  while (sender.ups[0]->takes_at_once(frame.length)) sender.ups[0]->send(frame, bytes.data(), 0);
  CHECK(!sender.transport.congested());
  WorkHeader ping;
  ping.type = MessageType::ping;
  while (!sender.transport.congested()) sender.ups[0]->send(ping, nullptr, 0);
  CHECK(sender.transport.owed().empty());
  sender.ups[0]->send(frame, bytes.data(), 0);
  CHECK(sender.transport.owed() == std::vector<int>{1});
}

TEST(all_ranks_of_a_large_host_may_come_at_once) {
  const OpenFiles many(8192);
  ShmRank late(1), others(0);
  constexpr size_t kOthers = 300;
  for (size_t i = 0; i < kOthers; ++i) others.dial(late, 1);
  for (int i = 0; i < 10; ++i) others.turn();
  CHECK(run({&others, &late}, [&] { return others.ups.size() == kOthers && late.ups.size() == kOthers; }));
  CHECK(others.downs.empty());
}

TEST(a_full_listener_is_tried_again) {
  const OpenFiles many(8192);
  ShmRank crowded(1), friendly(0);
  const std::vector<Fd> crowd = crowd_at(crowded.name);
  friendly.dial(crowded, 1);
  crowded.transport.knock(0, friendly.name, crowded);
  for (int i = 0; i < 10; ++i) friendly.turn();
  CHECK(friendly.downs.empty());
  CHECK(run({&friendly, &crowded}, [&] { return friendly.ups.size() == 1 && crowded.ups.size() == 1; }));
  CHECK(run({&friendly, &crowded}, [&] { return crowded.knock_results == std::vector<bool>{true}; }));
}

TEST(who_finds_no_room_is_told_of_that_and_of_no_secret) {
  const OpenFiles many(8192);
  ShmRank crowded(1), friendly(0);
  const std::vector<Fd> crowd = crowd_at(crowded.name);
  friendly.dial(crowded, 1);
  CHECK_EQ(told_in_the_end(friendly),
           "rank 1 could not be reached for 10 s (too many others connect to it at the same time)");
}

TEST(who_is_hung_up_on_each_time_is_told_of_that) {
  ShmRank friendly(0);
  const std::string name = "slipstream-test-" + std::to_string(::getpid());
  const Fd listener(raw_socket());
  CHECK(raw_call(::bind, listener.get(), name) && ::listen(listener.get(), 8) == 0);
  friendly.links.push_back(friendly.transport.dial(1, name));
  CHECK(Fd(::accept(listener.get(), nullptr, nullptr)));
  friendly.turn();
  CHECK(friendly.downs.empty());
  const std::string text = told_in_the_end(friendly);
  CHECK(text.starts_with("rank 1 could not be reached for 10 s ("));
  CHECK(text.find("SLIPSTREAM_SECRET") == std::string::npos);
}

TEST(who_cannot_open_a_socket_names_the_limit) {
  ShmRank poor(0), other(1);
  std::string text;
  {
    const OpenFiles none(next_descriptor());
    try {
      poor.dial(other, 1);
    } catch (const Failure& failure) {
      text = failure.error().text;
    }
  }
  CHECK_EQ(text, "this process has no more resources: socket: Too many open files (ulimit -n)");
}

TEST(a_listener_without_descriptors_waits) {
  ShmRank server(1), friendly(0);
  friendly.dial(server, 1);
  {
    const OpenFiles none(next_descriptor());
    server.turn();
    CHECK_EQ(server.strangers.size(), 1u);
    CHECK(server.strangers.back().find("Too many open files") != std::string::npos);
    CHECK_EQ(server.poller.wait(0), 0);  // though somebody is at the door
    CHECK(server.transport.tick(now()) < Time::max());
  }
  CHECK(run({&friendly, &server}, [&] { return friendly.ups.size() == 1 && server.ups.size() == 1; }));
}

TEST(who_cannot_take_a_descriptor_blames_itself) {
  ShmRank sender(0), poor(1);
  CHECK(connect(sender, poor, 1));
  const auto region = sender.regions.create(64 << 10);
  Frame frame;
  frame.length = 32 << 10;
  CHECK(!sender.ups[0]->send(frame, region->memory.data(), 1));
  std::string text;
  {
    const OpenFiles none(next_descriptor());
    try {
      poor.turn();
    } catch (const Failure& failure) {
      text = failure.error().text;
    }
  }
  CHECK(text.starts_with("rank 1 cannot take shared memory of rank 0: it has run out of file descriptors"));
  CHECK(poor.downs.empty());
}

TEST(another_user_is_shown_out) {
  if (::geteuid() != 0) return;  // only root can be another user
  ShmRank server(1);
  const std::string name = server.name;
  const pid_t child = ::fork();
  if (child == 0) {
    const int fd = raw_socket();
    char byte = 0;
    const bool connected = ::setuid(65534) == 0 && raw_connect(fd, name);
    ::alarm(20);
    ::fcntl(fd, F_SETFL, 0);
    ::_exit(connected && ::read(fd, &byte, 1) == 0 ? 0 : 1);
  }
  CHECK(run({&server}, [&] { return server.strangers.size() == 1; }));
  CHECK(server.strangers.back().find("another user") != std::string::npos);
  int status = -1;
  ::waitpid(child, &status, 0);
  CHECK_EQ(status, 0);
}
