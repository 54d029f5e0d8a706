// What becomes of works that wait for a rank that has left in good order.
#include <algorithm>
#include <array>
#include <latch>
#include <span>
#include <thread>

#include "tests/check.h"
#include "tests/plans.h"
#include "tests/ranks.h"

namespace slipstream::testing {

namespace {

constexpr size_t kCount = 10;

Request all_reduce(int rank, const std::vector<int>& members, std::array<float, kCount>& data) {
  auto group = std::make_shared<Group>();
  group->id = 10 + members.size();
  group->ranks = members;
  group->rank = static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
  Request request;
  request.plan = ring_all_reduce(group->rank, static_cast<int>(members.size()));
  request.group = std::move(group);
  request.signature.operation = "all_reduce/test";
  request.signature.reduces = true;
  request.signature.count = kCount;
  request.timeout_seconds = 60;
  for (const size_t space : {0, 1}) request.spaces[space] = {reinterpret_cast<std::byte*>(data.data()), kCount, {}};
  request.spaces[2] = {nullptr, kCount, {}};
  return request;
}

// Rank 0 sends `count` numbers to rank 1.
Request message(int rank, std::span<float> data) {
  auto group = std::make_shared<Group>();
  group->id = 7;
  group->ranks = {0, 1};
  group->rank = rank;
  PlanBuilder plan(rank, 2, 1);
  plan.add(rank == 0 ? StepKind::send : StepKind::recv, 1 - rank, 0, {}, Space::in);
  Request request;
  request.plan = plan.build();
  request.group = std::move(group);
  request.signature.operation = "send_recv";
  request.signature.count = data.size();
  request.timeout_seconds = 60;
  for (const size_t space : {0, 1})
    request.spaces[space] = {reinterpret_cast<std::byte*>(data.data()), data.size(), {}};
  return request;
}

// What rank 1 reads in its first receive, of 8 numbers, if rank 0 has sent `counts` numbers each time and left by then.
Error after_messages(const std::vector<size_t>& counts) {
  MemoryHub hub(2);
  std::array<std::unique_ptr<MemoryRank>, 2> ranks;
  for (int r = 0; r < 2; ++r) ranks[static_cast<size_t>(r)] = std::make_unique<MemoryRank>(hub, r, 2);
  std::array<float, 8> sent{}, received{};
  for (const size_t count : counts) {
    const WorkPtr send = ranks[0]->prepare(message(0, std::span(sent).first(count)), 0);
    CHECK(ranks[0]->run(send, now() + seconds(60)));
    CHECK(!send->error());
  }
  ranks[0]->leave();
  while (!ranks[1]->heard_goodbye(0)) std::this_thread::yield();
  ranks[1]->tick_at(now() + seconds(1));
  const WorkPtr receive = ranks[1]->prepare(message(1, received), 0);
  CHECK(ranks[1]->run(receive, now() + seconds(60)));
  return receive->error();
}

struct Three {
  explicit Three(double farewell_seconds) : hub(3) {
    EngineOptions options;
    options.stalls.farewell_seconds = farewell_seconds;
    for (int r = 0; r < 3; ++r) ranks.push_back(std::make_unique<MemoryRank>(hub, r, 3, std::vector<int>{}, options));
  }

  // f(number, rank) in a thread for each.
  template <class F>
  void each(F f) {
    std::vector<std::thread> threads;
    for (int r = 0; r < 3; ++r) threads.emplace_back([&, r] { f(r, *ranks[static_cast<size_t>(r)]); });
    for (std::thread& thread : threads) thread.join();
  }

  // All have met; ranks 1 and 2 have begun `works` with rank 0, some before and some after it left, and know that.
  void rank_0_leaves(int r, MemoryRank& rank, std::array<std::array<float, kCount>, 2>& data,
                     std::array<WorkPtr, 2>& works) {
    std::array<float, kCount> all{};
    const WorkPtr first = rank.prepare(all_reduce(r, {0, 1, 2}, all), 0);
    CHECK(rank.run(first, now() + seconds(60)));
    if (r == 0) {
      begun.wait();
      return rank.leave();
    }
    for (size_t i = 0; i < 2; ++i) {
      works[i] = rank.prepare(all_reduce(r, {0, 1, 2}, data[i]), 0);
      if (i == 0) {
        rank.submit(works[i]);
        begun.count_down();
        while (!rank.heard_goodbye(0)) std::this_thread::yield();
      } else {
        rank.submit(works[i]);
      }
    }
    rank.tick_at(now() + seconds(1));
  }

  MemoryHub hub;
  std::vector<std::unique_ptr<MemoryRank>> ranks;
  std::latch begun{2};
};

}  // namespace

TEST(works_that_wait_for_a_rank_that_has_just_left_do_not_fail_the_others) {
  Three three(1e6);
  three.each([&](int r, MemoryRank& rank) {
    std::array<std::array<float, kCount>, 2> data{};
    std::array<WorkPtr, 2> works;
    three.rank_0_leaves(r, rank, data, works);
    if (r == 0) return;
    std::array<float, kCount> own{};
    own.fill(1);
    const WorkPtr last = rank.prepare(all_reduce(r, {1, 2}, own), 0);
    CHECK(rank.run(last, now() + seconds(60)));
    CHECK_EQ(last->error().text, std::string());
    CHECK_EQ(own.front(), 2.0f);
    for (const WorkPtr& work : works) CHECK(!work->done());
    rank.leave();
    for (const WorkPtr& work : works) CHECK(work->error().code == Code::aborted);
  });
}

TEST(works_that_wait_longer_for_a_rank_that_left_fail_and_name_it) {
  Three three(0);
  three.each([&](int r, MemoryRank& rank) {
    std::array<std::array<float, kCount>, 2> data{};
    std::array<WorkPtr, 2> works;
    three.rank_0_leaves(r, rank, data, works);
    if (r == 0) return;
    for (const WorkPtr& work : works) {
      CHECK(rank.wait(*work, now() + seconds(60)));
      CHECK(work->error().code == Code::peer_lost);
      CHECK_EQ(work->error().rank, 0);
    }
  });
}

TEST(a_receive_that_does_not_fit_the_message_of_a_rank_that_has_left_names_both_sides) {
  CHECK_EQ(after_messages({8}).text, std::string());
  const Error error = after_messages({4, 8});
  CHECK(error.code == Code::mismatch);
  CHECK_EQ(error.rank, 0);
  CHECK(error.text.find("rank 0 called send_recv(float32, 4 elements)") != std::string::npos);
  CHECK(error.text.find("rank 1 called send_recv(float32, 8 elements)") != std::string::npos);
}

TEST(a_receive_that_does_not_fit_a_message_too_old_to_be_described_is_a_mismatch_all_the_same) {
  std::vector<size_t> counts(Ledger::kRemembered + 8, 8);
  counts.front() = 4;
  const Error error = after_messages(counts);
  CHECK(error.code == Code::mismatch);
  CHECK(error.text.find("rank 0 called another one, and has not said which") != std::string::npos);
  CHECK(error.text.find("rank 1 called send_recv(float32, 8 elements)") != std::string::npos);
}

TEST(a_call_that_would_send_to_a_rank_that_left_long_ago_is_a_mismatch_if_that_called_something_else) {
  EngineOptions options;
  options.stalls.farewell_seconds = 0;
  MemoryHub hub(2);
  MemoryRank first(hub, 0, 2, {}, options);
  MemoryRank second(hub, 1, 2, {}, options);
  std::array<float, 8> sent{};
  const WorkPtr send = first.prepare(message(0, sent), 0);
  CHECK(first.run(send, now() + seconds(60)));
  first.leave();
  while (!second.heard_goodbye(0)) std::this_thread::yield();
  std::array<float, kCount> data{};
  Request other = all_reduce(1, {0, 1}, data);
  auto group = std::make_shared<Group>(*other.group);
  group->id = 7;  // that of the message
  other.group = std::move(group);
  const WorkPtr work = second.prepare(std::move(other), 0);
  CHECK(second.run(work, now() + seconds(60)));
  const Error error = work->error();
  CHECK(error.code == Code::mismatch);
  CHECK(error.text.find("rank 0 called send_recv(float32, 8 elements)") != std::string::npos);
  CHECK(error.text.find("rank 1 called all_reduce(") != std::string::npos);
}

TEST(a_work_that_is_complete_when_another_rank_fails_keeps_its_result) {
  MemoryHub hub(2);
  MemoryRank sender(hub, 0, 2);
  MemoryRank receiver(hub, 1, 2);
  std::array<float, 8> sent{}, received{};
  sent.fill(3);
  const auto send = [&] {
    const WorkPtr work = sender.prepare(message(0, sent), 0);
    CHECK(sender.run(work, now() + seconds(60)));
  };
  const auto receive = [&] { return receiver.prepare(message(1, received), 0); };
  send();
  CHECK(receiver.run(receive(), now() + seconds(60)));  // they are connected
  received.fill(0);
  const WorkPtr last = receive();
  receiver.as_driver([&](Engine& engine) {
    engine.submit(last);
    engine.turn();  // it begins; it reads all that comes after this at one go
    send();
    sender.as_driver([](Engine& failing) { failing.fail(Error{Code::aborted, 0, {}, "rank 0 raised"}); });
  });
  CHECK(receiver.wait(*last, now() + seconds(60)));
  CHECK_EQ(last->error().text, std::string());
  CHECK_EQ(received.back(), 3.0f);
  const WorkPtr next = receive();
  CHECK(receiver.run(next, now() + seconds(60)));
  CHECK(next->error().code == Code::aborted);
}

}  // namespace slipstream::testing
