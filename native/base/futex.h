// Sleep until another thread changes a number.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>
#include <mutex>

#include "base/clock.h"

namespace slipstream {

// Sleeps while `word` is `seen`, until `deadline` (Time::max(): for ever). It may return sooner. False: the deadline
// has passed.
inline bool futex_wait(const std::atomic<uint32_t>& word, uint32_t seen, Time deadline = Time::max()) {
  timespec relative{};
  timespec* wait = nullptr;
  if (deadline != Time::max()) {
    const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - now()).count();
    if (left <= 0) return false;
    relative.tv_sec = left / 1'000'000'000;
    relative.tv_nsec = left % 1'000'000'000;
    wait = &relative;
  }
  ::syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAIT_PRIVATE, seen, wait, nullptr, 0);
  return true;
}

inline void futex_wake(const std::atomic<uint32_t>& word, int sleepers) {
  ::syscall(SYS_futex, reinterpret_cast<const uint32_t*>(&word), FUTEX_WAKE_PRIVATE, sleepers, nullptr, nullptr, 0);
}

// A condition variable for several threads of which one at a time is woken. glibc's may lose such a wake-up until
// version 2.41 (https://sourceware.org/bugzilla/show_bug.cgi?id=25847), and then a thread sleeps beside its work.
class Condition {
 public:
  // The caller holds `lock`, as it does when it changes what `ready` looks at. False: the deadline has passed and it is
  // not ready.
  template <typename Ready>
  bool wait(std::unique_lock<std::mutex>& lock, const Ready& ready, Time deadline = Time::max()) {
    bool in_time = true;
    while (!ready()) {
      if (!in_time) return false;
      const uint32_t seen = notices_.load(std::memory_order_relaxed);
      ++sleepers_;
      lock.unlock();
      in_time = futex_wait(notices_, seen, deadline);
      lock.lock();
      --sleepers_;
    }
    return true;
  }

  // The caller holds `lock`, after its change; they release it.
  void notify_one(std::unique_lock<std::mutex>& lock) { notify(lock, 1); }
  void notify_all(std::unique_lock<std::mutex>& lock) { notify(lock, INT_MAX); }

 private:
  void notify(std::unique_lock<std::mutex>& lock, int threads) {
    notices_.fetch_add(1, std::memory_order_relaxed);
    const bool sleeps = sleepers_ > 0;
    lock.unlock();
    if (sleeps) futex_wake(notices_, threads);
  }

  std::atomic<uint32_t> notices_{0};
  uint32_t sleepers_ = 0;  // under the lock
};

}  // namespace slipstream
