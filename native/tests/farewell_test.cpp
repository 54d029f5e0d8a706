// What becomes of works that wait for a rank that has left in good order.
#include <algorithm>
#include <array>
#include <latch>
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

}  // namespace slipstream::testing
