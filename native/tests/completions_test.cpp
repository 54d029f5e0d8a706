// The queue of finished works, under threads that add, complete and wait at once.
#include "engine/completions.h"

#include <thread>

#include "tests/check.h"

namespace slipstream::testing {

TEST(a_token_comes_when_the_work_is_done_and_only_once) {
  Completions completions;
  Work work{Request{}};
  completions.add(work, 5);
  CHECK(!completions.wait(now()).has_value());
  work.complete(Error{});
  work.complete(Error{Code::aborted, -1, {}, "too late"});
  CHECK_EQ(completions.wait(Time::max()).value_or(0), 5);
  CHECK(!completions.wait(now()).has_value());
}

TEST(a_work_that_is_done_already_gives_its_token_at_once) {
  Completions completions;
  Work work{Request{}};
  work.complete(Error{Code::timeout, 3, {}, "late"});
  completions.add(work, 6);
  completions.add(work, 7);
  CHECK_EQ(completions.wait(now()).value_or(0), 6);
  CHECK_EQ(completions.wait(now()).value_or(0), 7);
}

TEST(either_side_may_die_first) {
  Work outlives{Request{}};
  {
    Completions completions;
    completions.add(outlives, 1);
    Work dies{Request{}};
    completions.add(dies, 2);
  }
  outlives.complete(Error{});
  CHECK(outlives.done());
}

TEST(a_closed_queue_ends_every_wait_now_and_later) {
  Completions completions;
  std::atomic<int> closed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&] { closed += completions.wait(Time::max()) == Completions::kClosed ? 1 : 0; });
  completions.close();
  for (auto& t : threads) t.join();
  CHECK_EQ(closed.load(), 3);
  completions.post(9);
  CHECK_EQ(completions.wait(Time::max()).value_or(0), Completions::kClosed);
}

TEST(threads_that_add_complete_and_wait_at_once_lose_and_repeat_nothing) {
  constexpr size_t kWorks = 4000;
  constexpr size_t kAdders = 2;  // each listens to every work
  Completions completions;
  std::vector<std::unique_ptr<Work>> works;
  for (size_t i = 0; i < kWorks; ++i) works.push_back(std::make_unique<Work>(Request{}));
  std::vector<std::atomic<int>> seen(kWorks * kAdders);
  std::atomic<size_t> total{0};
  std::vector<std::thread> threads;
  for (size_t a = 0; a < kAdders; ++a)
    threads.emplace_back([&, a] {
      for (size_t i = 0; i < kWorks; ++i) completions.add(*works[i], static_cast<int64_t>(a * kWorks + i));
    });
  threads.emplace_back([&] {
    for (auto& work : works) work->complete(Error{});
  });
  for (int w = 0; w < 2; ++w)
    threads.emplace_back([&] {
      while (total.load() < kWorks * kAdders) {
        const auto token = completions.wait(now() + seconds(0.01));
        if (!token) continue;
        ++seen[static_cast<size_t>(*token)];
        ++total;
      }
    });
  for (auto& t : threads) t.join();
  for (auto& times : seen) CHECK_EQ(times.load(), 1);
}

}  // namespace slipstream::testing
