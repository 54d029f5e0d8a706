// Messages that need no work beside those that do: one end need not know what the other does.
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/plans.h"
#include "tests/ranks.h"

namespace slipstream::testing {

namespace {

constexpr uint64_t kChannel = uint64_t{1} << 63 | 77;

std::shared_ptr<const Group> two(int rank) {
  auto group = std::make_shared<Group>();
  group->id = 7;
  group->rank = rank;
  group->ranks = {0, 1};
  return group;
}

// From rank 0 to rank 1.
Request message(int rank, int tag) {
  Request request;
  PlanBuilder plan(rank, 2, 1);
  plan.add(rank == 0 ? StepKind::send : StepKind::recv, 1 - rank, 0, {}, Space::in);
  request.plan = plan.build();
  request.group = two(rank);
  request.channel = kChannel + static_cast<uint64_t>(tag);
  request.signature.operation = "send_recv/direct";
  request.signature.dtype = DType::u8;
  request.signature.chunk_bytes = request.chunk_bytes = 256 << 10;
  request.signature.extra = static_cast<uint64_t>(tag);
  request.signature.side = rank == 0 ? Side::sender : Side::receiver;
  request.signature.other_side = 1 - rank;
  request.timeout_seconds = 30;
  return request;
}

WorkPtr as_work(Session& session, Request request, std::byte* data, uint64_t count) {
  request.signature.count = count;
  for (size_t i = 0; i < 2; ++i) request.spaces[i] = {data, count, {}};
  const uint64_t channel = request.channel;
  return session.prepare(std::move(request), channel);
}

Session& session_of(RankUnderTest& rank) { return static_cast<SessionRank&>(rank).session; }

// Runs one as a work, so that there is a link.
void meet(Ranks& ranks) {
  ranks.each([](int r, RankUnderTest& rank) {
    std::byte data{};
    Session& session = session_of(rank);
    const WorkPtr work = as_work(session, message(r, 1000), &data, 1);
    CHECK(session.run(work, now() + seconds(30)));
    CHECK_EQ(work->error().text, std::string());
  });
}

bool received(Session& session, const Request& request, std::byte* data, uint64_t count, bool patient) {
  return receive_at_once(session, request, data, count, patient) == ShortMessages::State::taken;
}

std::byte value(size_t number, size_t at) {
  return static_cast<std::byte>((31 * number + 7 * at + number / 256) % 251);
}

struct Sent {
  int tag;
  size_t bytes;
};

// The same on both ranks.
std::vector<Sent> schedule(unsigned seed, size_t count) {
  std::mt19937 random(seed);
  std::vector<Sent> all;
  for (size_t i = 0; i < count; ++i) {
    const size_t kind = random() % 10;
    const size_t bytes = kind == 0   ? 0
                         : kind == 1 ? kEagerBytes - 1 + random() % 3
                         : kind == 2 ? kAtOnceBytes - 1 + random() % 3
                         : kind < 5  ? random() % 80'000
                                     : random() % 64;
    all.push_back({static_cast<int>(random() % 3), bytes});
  }
  return all;
}

}  // namespace

TEST(messages_arrive_in_their_order_whatever_each_end_does) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    Ranks ranks(Wire::shm, 2);
    meet(ranks);
    const std::vector<Sent> all = schedule(seed, 3000);
    std::array<size_t, 2> at_once{};
    ranks.each([&](int r, RankUnderTest& rank) {
      Session& session = session_of(rank);
      std::mt19937 random(100 * seed + static_cast<unsigned>(r));
      std::vector<std::vector<std::byte>> memory(all.size());
      std::vector<std::pair<size_t, WorkPtr>> running;
      const auto check = [&](size_t i) {
        size_t wrong = 0;
        for (size_t k = 0; r == 1 && k < all[i].bytes; ++k) wrong += memory[i][k] != value(i, k);
        CHECK_EQ(wrong, size_t{0});
      };
      const auto wait = [&] {
        for (const auto& [i, work] : running) {
          CHECK(session.wait(*work, now() + seconds(30)));
          CHECK_EQ(work->error().text, std::string());
          check(i);
        }
        running.clear();
      };
      for (size_t i = 0; i < all.size(); ++i) {
        const Request request = message(r, all[i].tag);
        memory[i].resize(all[i].bytes + 1);
        for (size_t k = 0; r == 0 && k < all[i].bytes; ++k) memory[i][k] = value(i, k);
        const bool tries = random() % 4 != 0;
        if (tries && (r == 0 ? send_at_once(session, request, memory[i].data(), all[i].bytes)
                             : received(session, request, memory[i].data(), all[i].bytes, random() % 2 != 0))) {
          ++at_once[static_cast<size_t>(r)];
          check(i);
          continue;
        }
        running.emplace_back(i, as_work(session, request, memory[i].data(), all[i].bytes));
        session.submit(running.back().second);
        if (random() % 3 != 0) wait();
      }
      wait();
    });
    CHECK(at_once[0] > 100);
    CHECK(at_once[1] > 100);
  }
}

TEST(a_message_that_has_come_before_is_taken) {
  Ranks ranks(Wire::shm, 2);
  meet(ranks);
  Session &sends = session_of(ranks.at(0)), &receives = session_of(ranks.at(1));
  std::vector<std::byte> data(16 << 10, std::byte{5}), place(16 << 10);
  CHECK(send_at_once(sends, message(0, 1), data.data(), data.size()));
  CHECK(send_at_once(sends, message(0, 2), data.data(), 100));
  CHECK(received(receives, message(1, 2), place.data(), 100, true));  // so the one before it is kept
  CHECK(place[99] == std::byte{5} && place[100] == std::byte{0});
  CHECK(received(receives, message(1, 1), place.data(), place.size(), true));
  CHECK(place == data);
  CHECK(!received(receives, message(1, 1), place.data(), place.size(), true));  // there is no other
}

TEST(a_sender_does_not_run_ahead_without_end) {
  Ranks ranks(Wire::shm, 2);
  meet(ranks);
  Session &sends = session_of(ranks.at(0)), &receives = session_of(ranks.at(1));
  std::vector<std::byte> data(16 << 10), place(16 << 10);
  size_t sent = 0;
  while (sent < 1000 && send_at_once(sends, message(0, 1), data.data(), data.size())) ++sent;
  CHECK(sent > 10);
  CHECK(sent <= EagerCredit::kBytes / data.size());
  const Time limit = now() + seconds(30);
  size_t count = 0;  // not all of them fit into the ring at a time
  while (count < sent && now() < limit)
    count += received(receives, message(1, 1), place.data(), place.size(), true) ? 1 : 0;
  CHECK_EQ(count, sent);
  const WorkPtr next = as_work(sends, message(0, 1), data.data(), data.size());  // waits for credit, which has come
  sends.submit(next);
  std::jthread other([&] {
    const WorkPtr work = as_work(receives, message(1, 1), place.data(), place.size());
    CHECK(receives.run(work, now() + seconds(30)));
  });
  CHECK(sends.wait(*next, now() + seconds(30)));
  CHECK(send_at_once(sends, message(0, 1), data.data(), data.size()));
}

TEST(long_messages_leave_room_for_short_ones) {
  Ranks ranks(Wire::shm, 2);
  meet(ranks);
  Session &sends = session_of(ranks.at(0)), &receives = session_of(ranks.at(1));
  std::vector<std::byte> data(kAtOnceBytes, std::byte{9}), place(kAtOnceBytes);
  constexpr size_t kMost = EagerCredit::kBulkBytes / (kAtOnceBytes + EagerCredit::kFrameCost);
  size_t sent = 0;
  const Time limit = now() + seconds(30);
  while (sent < kMost && now() < limit)  // the ring holds three of them at a time
    sent += send_at_once(sends, message(0, 1), data.data(), data.size()) ? 1 : 0;
  CHECK_EQ(sent, kMost);
  CHECK(!send_at_once(sends, message(0, 1), data.data(), data.size()));
  CHECK(send_at_once(sends, message(0, 2), data.data(), kEagerBytes));
  size_t count = 0;
  while (count == 0 && now() < limit)
    count += received(receives, message(1, 2), place.data(), kEagerBytes, true) ? 1 : 0;
  CHECK_EQ(count, size_t{1});
  count = 0;
  while (count < sent && now() < limit)
    count += received(receives, message(1, 1), place.data(), place.size(), true) ? 1 : 0;
  CHECK_EQ(count, sent);
  CHECK(place == data);
  bool again = false;  // once the receiver has said so
  while (!again && now() < limit) again = send_at_once(sends, message(0, 1), data.data(), data.size());
  CHECK(again);
}

TEST(messages_that_are_taken_in_another_order_give_their_room_back) {
  constexpr size_t kBytes = 16000;
  constexpr int kRounds = 200;  // three times what a receiver may hold
  for (const Wire wire : {Wire::shm, Wire::tcp})
    for (const bool tries : {false, true}) {
      Ranks ranks(wire, 2);
      meet(ranks);
      ranks.each([&](int r, RankUnderTest& rank) {
        Session& session = session_of(rank);
        std::vector<std::byte> data(kBytes);
        for (int round = 0; round < kRounds; ++round)
          for (const int tag : {r, 1 - r}) {
            const Request request = message(r, tag);
            if (r == 0) data.assign(kBytes, value(static_cast<size_t>(round), static_cast<size_t>(tag)));
            const bool done = tries && (r == 0 ? send_at_once(session, request, data.data(), kBytes)
                                               : received(session, request, data.data(), kBytes, true));
            if (!done) {
              const WorkPtr work = as_work(session, request, data.data(), kBytes);
              if (!session.run(work, now() + seconds(20))) return CHECK_EQ(round, kRounds);
              CHECK_EQ(work->error().text, std::string());
            }
            CHECK(data.back() == value(static_cast<size_t>(round), static_cast<size_t>(tag)));
          }
      });
    }
}

// Bulk leaves before its receiver says `ready`, which comes when the sender has forgotten it.
TEST(leave_to_send_what_has_long_been_sent_takes_no_memory) {
  constexpr size_t kBulk = kEagerBytes + 1;
  constexpr int kRounds = 400, kEach = 8, kShort = 70;  // more than a channel remembers
  EngineOptions options;
  options.early_bytes = 256 << 10;  // less than all of it would take, on the sender
  MemoryHub hub(2);
  MemoryRank sends(hub, 0, 2, {0, 1}, options), receives(hub, 1, 2, {0, 1}, options);
  std::vector<std::byte> data(kBulk, std::byte{3}), place(kBulk);
  const auto begin = [](MemoryRank& rank, int r, std::byte* at, size_t bytes) {
    Request request = message(r, 1);
    request.signature.count = bytes;
    for (size_t i = 0; i < 2; ++i) request.spaces[i] = {at, bytes, {}};
    const WorkPtr work = rank.prepare(request, request.channel);
    rank.submit(work);
    return work;
  };
  const auto finish = [](MemoryRank& rank, const std::vector<WorkPtr>& works) {
    for (const WorkPtr& work : works) {
      CHECK(rank.wait(*work, now() + seconds(30)));
      CHECK_EQ(work->error().text, std::string());
    }
  };
  const std::vector<WorkPtr> first{begin(sends, 0, data.data(), 1), begin(receives, 1, place.data(), 1)};
  finish(sends, {first[0]});  // now there is a link
  finish(receives, {first[1]});
  for (int round = 0; round < kRounds; ++round)
    for (const int r : {0, 1}) {
      MemoryRank& rank = r == 0 ? sends : receives;
      std::byte* const at = r == 0 ? data.data() : place.data();
      std::vector<WorkPtr> works;
      for (int i = 0; i < kEach + kShort; ++i) works.push_back(begin(rank, r, at, i < kEach ? kBulk : 1));
      finish(rank, works);
    }
  CHECK(place == data);
}

TEST(what_does_not_fit_is_an_error_that_names_both) {
  for (const bool leaves : {false, true}) {
    Ranks ranks(Wire::shm, 2);
    meet(ranks);
    Session &sends = session_of(ranks.at(0)), &receives = session_of(ranks.at(1));
    std::vector<std::byte> data(100);
    CHECK(send_at_once(sends, message(0, 1), data.data(), 10));
    if (leaves) sends.close();
    CHECK(!received(receives, message(1, 1), data.data(), 11, true));
    const WorkPtr work = as_work(receives, message(1, 1), data.data(), 11);
    CHECK(receives.run(work, now() + seconds(30)));
    CHECK(work->error().code == Code::mismatch);
    CHECK(work->error().text.find("10 elements") != std::string::npos);
    CHECK(work->error().text.find("11 elements") != std::string::npos);
    if (leaves) continue;
    const Time limit = now() + seconds(30);
    while (!sends.failure() && now() < limit) std::this_thread::yield();
    CHECK(sends.failure().code == Code::mismatch);
    CHECK(!send_at_once(sends, message(0, 1), data.data(), 10));
  }
}

TEST(a_receiver_far_behind_a_sender_that_has_forgotten_says_so) {
  Ranks ranks(Wire::shm, 2);
  meet(ranks);
  Session &sends = session_of(ranks.at(0)), &receives = session_of(ranks.at(1));
  std::vector<std::byte> data(100);
  for (int i = 0; i < 200; ++i) CHECK(send_at_once(sends, message(0, 1), data.data(), 10));
  const WorkPtr work = as_work(receives, message(1, 1), data.data(), 11);
  CHECK(receives.run(work, now() + seconds(30)));
  CHECK(work->error().code == Code::mismatch);
  CHECK(work->error().text.find("called another one, and has not said which") != std::string::npos);
}

TEST(a_message_for_a_number_that_was_another_one_fails_the_session) {
  Ranks ranks(Wire::shm, 2);
  meet(ranks);
  Session &first = session_of(ranks.at(0)), &second = session_of(ranks.at(1));
  std::vector<std::byte> data(100);
  Request both = message(1, 1);  // rank 1 sends, too, so each is done without the other
  PlanBuilder plan(1, 2, 1);
  plan.add(StepKind::send, 0, 0, {}, Space::in);
  both.plan = plan.build();
  both.signature.extra = 99;
  CHECK(send_at_once(second, both, data.data(), 10));
  CHECK(send_at_once(first, message(0, 1), data.data(), 10));
  const Time limit = now() + seconds(30);
  // Other numbers, until what they were is forgotten, or the session has failed.
  for (int sent = 0; sent < 200 && !first.failure() && !second.failure() && now() < limit;) {
    sent += send_at_once(first, message(0, 1), data.data(), 10) ? 1 : 0;
    sent += send_at_once(second, both, data.data(), 10) ? 1 : 0;
  }
  while ((!first.failure() || !second.failure()) && now() < limit) std::this_thread::yield();
  CHECK(first.failure().code == Code::mismatch);
  CHECK(second.failure().code == Code::mismatch);
}

TEST(what_no_message_of_this_kind_is_does_nothing) {
  for (const Wire wire : {Wire::shm, Wire::tcp}) {
    Ranks ranks(wire, 2);
    std::vector<std::byte> data(100'000);
    CHECK(!send_at_once(session_of(ranks.at(0)), message(0, 0), data.data(), 10));  // there is no link yet
    meet(ranks);
    Session& session = session_of(ranks.at(0));
    CHECK(!send_at_once(session, message(0, 0), data.data(), 0));
    CHECK(!send_at_once(session, message(0, 0), data.data(), kAtOnceBytes + 1));
    for (const uint64_t bytes : {kEagerBytes, kEagerBytes + 1, kAtOnceBytes})
      CHECK_EQ(send_at_once(session, message(0, 0), data.data(), bytes), wire == Wire::shm);
    const WorkPtr other = as_work(session, message(0, 1), data.data(), data.size());
    session.submit(other);
    CHECK(!send_at_once(session, message(0, 0), data.data(), 10));  // beside a work
    session.close();
    CHECK(!send_at_once(session, message(0, 0), data.data(), 10));
  }
}

}  // namespace slipstream::testing
