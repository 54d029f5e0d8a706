// Links of a host with many ranks: only those whose ranks have left a mark are looked at.
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
  while (!ranks.others[0]->transport.congested()) {
    ranks.link(0).send(frame, data.data(), 0);
    ++sent;
  }
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
