// The condition variable, under threads that wait and wake at once.
#include <atomic>
#include <thread>
#include <vector>

#include "base/futex.h"
#include "tests/check.h"

namespace slipstream::testing {

TEST(a_deadline_that_has_passed_ends_the_wait) {
  std::mutex mutex;
  Condition condition;
  std::unique_lock lock(mutex);
  CHECK(!condition.wait(lock, [] { return false; }, now()));
  CHECK(!condition.wait(lock, [] { return false; }, now() + std::chrono::milliseconds(1)));
  CHECK(condition.wait(lock, [] { return true; }, now()));
  CHECK(lock.owns_lock());
}

TEST(a_number_that_has_changed_is_not_waited_for) {
  const std::atomic<uint32_t> word{1};
  CHECK(futex_wait(word, 0));
  CHECK(!futex_wait(word, 1, now()));
}

// Each notification is for one thread. One that is lost leaves an item, and a thread that sleeps beside it for ever.
TEST(no_wake_up_is_lost) {
  constexpr int kThreads = 3, kItems = 20000;
  std::mutex mutex;
  Condition filled, emptied;
  int items = 0, taken = 0;
  bool over = false;
  std::vector<std::thread> takers;
  for (int i = 0; i < kThreads; ++i)
    takers.emplace_back([&] {
      for (;;) {
        std::unique_lock lock(mutex);
        filled.wait(lock, [&] { return items > 0 || over; });
        if (items == 0) return;
        --items;
        ++taken;
        emptied.notify_one(lock);
      }
    });
  for (int i = 0; i < kItems; ++i) {
    std::unique_lock lock(mutex);
    emptied.wait(lock, [&] { return items == 0; });
    ++items;
    filled.notify_one(lock);
  }
  {
    std::unique_lock lock(mutex);
    emptied.wait(lock, [&] { return items == 0; });
    over = true;
    filled.notify_all(lock);
  }
  for (std::thread& taker : takers) taker.join();
  CHECK_EQ(taken, kItems);
}

}  // namespace slipstream::testing
