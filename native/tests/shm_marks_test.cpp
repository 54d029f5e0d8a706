// Links of a host with many ranks: only those whose ranks have left a mark are looked at.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>

#include "tests/check.h"
#include "tests/shm_rig.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

constexpr size_t kMany = 64;

std::unique_ptr<ShmRank> rank(int number) {
  auto made = std::make_unique<ShmRank>(number);
  made->transport.set_ranks_of_host(kMany);
  return made;
}

struct Ranks {
  explicit Ranks(const std::vector<int>& numbers) : hub(0) {
    hub.transport.set_ranks_of_host(kMany);
    for (const int number : numbers) {
      others.push_back(rank(number));
      CHECK(connect(*others.back(), hub, 0));
    }
    while (hub.transport.pending()) hub.turn();  // links that have come up are looked at once
  }
  Link& link(size_t i) { return *others[i]->ups.back(); }

  ShmRank hub;
  std::vector<std::unique_ptr<ShmRank>> others;
};

Frame small_frame() {
  WorkHeader frame;
  frame.type = MessageType::ping;
  return frame;
}

// What a rank sends through memory that threads share: a thread sanitizer sees who reads what.
struct Line {
  Ring::Shared ends{};
  std::vector<std::byte> entries = std::vector<std::byte>(Ring::kLeast);
  Ring ring{&ends, entries.data(), Ring::kLeast};
  std::atomic<uint64_t> taken = 0;
};

constexpr uint64_t kSent = 20000;

// `each`: goes on only when the owner has taken what was sent last.
void send_all(Line& line, Bell& bell, int rank, bool each) {
  for (uint64_t number = 0; number < kSent; ++number) {
    std::byte* body = nullptr;
    while ((body = line.ring.reserve(1, number, sizeof(number), 0)) == nullptr) std::this_thread::yield();
    std::memcpy(body, &number, sizeof(number));
    line.ring.commit();
    bell.ring(rank);
    while (each && line.taken.load() <= number) std::this_thread::yield();
  }
}

// A few entries: true if it may have left some.
bool take_some(Line& line) {
  for (int i = 0; i < 8; ++i) {
    Ring::EntryHeader entry{};
    const std::byte* body = nullptr;
    if (line.ring.peek(entry, body) != Ring::Peek::entry) return false;
    uint64_t number = 0;
    std::memcpy(&number, body, sizeof(number));
    CHECK_EQ(number, line.taken.load());
    CHECK_EQ(entry.value, number);
    line.ring.pop();
    ++line.taken;
  }
  return true;
}

// False if nothing came for ten seconds.
bool sleep_until_rung(Bell& bell) {
  bell.arm();
  if (bell.any_marks()) return bell.disarm(), true;
  pollfd event{bell.event_fd(), POLLIN, 0};
  const bool rung = ::poll(&event, 1, 10000) > 0;
  bell.disarm();
  bell.clear();
  return rung;
}

// The owner takes what `ranks` send, and sleeps in between.
void take_all(size_t ranks, bool each) {
  Bell bell;
  bell.ask_for_marks();
  std::vector<Line> lines(ranks);
  std::vector<std::thread> senders;
  for (size_t i = 0; i < ranks; ++i)
    senders.emplace_back([&, i] { send_all(lines[i], bell, static_cast<int>(i), each); });
  const auto left = [&] { return std::ranges::any_of(lines, [](const Line& line) { return line.taken < kSent; }); };
  uint64_t due = 0;
  bool rung = true;
  while (rung && left()) {
    const uint64_t marks = due | bell.take_marks(0);
    due = 0;
    for (size_t i = 0; i < ranks; ++i)
      if ((marks >> i & 1) != 0 && take_some(lines[i])) due |= uint64_t{1} << i;
    if (marks == 0) rung = sleep_until_rung(bell);
  }
  CHECK(rung);
  while (left())  // so that the senders end
    for (Line& line : lines) take_some(line);
  for (std::thread& sender : senders) sender.join();
}

}  // namespace

TEST(what_ranks_send_is_found_by_their_marks) {
  Ranks ranks({1, 2, 15});
  CHECK(!ranks.hub.transport.pending());
  CHECK(!ranks.hub.transport.poll());
  for (size_t i = 0; i < 3; ++i) {
    ranks.link(i).send(small_frame(), nullptr, 0);
    CHECK(ranks.hub.transport.pending());
    CHECK(ranks.hub.transport.poll());
    CHECK_EQ(ranks.hub.frames.size(), i + 1);
    CHECK(!ranks.hub.transport.pending());
  }
}

TEST(what_a_turn_leaves_in_a_ring_is_found_in_the_next) {
  Ranks ranks({1, 2});
  constexpr size_t kFrames = 200;  // a turn takes 32 of a link
  for (size_t i = 0; i < kFrames; ++i) ranks.link(0).send(small_frame(), nullptr, 0);
  for (size_t turns = 0; turns < kFrames && ranks.hub.transport.pending(); ++turns) ranks.hub.transport.poll();
  CHECK_EQ(ranks.hub.frames.size(), kFrames);
  CHECK(!ranks.hub.transport.poll());
}

TEST(what_was_sent_before_a_link_came_up_is_found) {
  const auto dialler = rank(1), acceptor = rank(0);
  dialler->dial(*acceptor, 0);
  CHECK(run({dialler.get(), acceptor.get()}, [&] { return !acceptor->ups.empty(); }));
  CHECK(dialler->ups.empty());
  acceptor->ups.back()->send(small_frame(), nullptr, 0);
  dialler->transport.poll();  // takes the mark, and cannot look yet
  CHECK(dialler->frames.empty());
  CHECK(run({dialler.get()}, [&] { return !dialler->ups.empty() && !dialler->transport.pending(); }));
  CHECK_EQ(dialler->frames.size(), size_t{1});
}

TEST(who_has_no_room_goes_on_when_there_is_some) {
  Ranks ranks({1, 2});
  const std::vector<std::byte> data(4096);
  Frame frame = small_frame();
  frame.length = 4096;
  size_t sent = 0;
  for (; sent < 1000 && !ranks.others[0]->transport.congested(); ++sent) ranks.link(0).send(frame, data.data(), 0);
  CHECK(ranks.others[0]->transport.congested());
  for (int i = 0; i < 10; ++i, ++sent) ranks.link(0).send(frame, data.data(), 0);
  CHECK(run({&ranks.hub, ranks.others[0].get()}, [&] { return ranks.hub.frames.size() == sent; }));
  ranks.others[0]->turn();
  CHECK(!ranks.others[0]->transport.congested());
}

TEST(a_sleeper_is_woken_by_who_leaves_a_mark) {
  Ranks ranks({1, 2});
  ranks.hub.bell.arm();
  CHECK(!ranks.hub.transport.pending());
  ranks.link(1).send(small_frame(), nullptr, 0);
  uint64_t count = 0;
  CHECK_EQ(::read(ranks.hub.bell.event_fd(), &count, sizeof(count)), static_cast<ssize_t>(sizeof(count)));
  CHECK(ranks.hub.transport.pending());
  CHECK(ranks.hub.transport.poll());
}

TEST(marks_without_a_link_or_an_entry_are_nothing) {
  Ranks ranks({1});
  Bell& bell = ranks.hub.bell;
  for (const int rank : {1, 7, 500, 511, 513}) bell.ring(rank);  // 513 has the mark of 1
  CHECK(ranks.hub.transport.pending());
  CHECK(!ranks.hub.transport.poll());
  CHECK(!ranks.hub.transport.pending());
}

TEST(no_mark_is_lost_while_ranks_send_and_the_owner_sleeps) { take_all(3, false); }

TEST(the_last_mark_wakes_the_owner) { take_all(1, true); }
