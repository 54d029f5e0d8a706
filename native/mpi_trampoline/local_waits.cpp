#include "mpi_trampoline/local_waits.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>

namespace slipstream::mpi {
namespace {

struct Waits {
  std::mutex mutex;
  std::condition_variable changed;
  std::string failure;  // under the mutex
};

// Never freed: threads of XLA may wait when the process ends.
Waits& all() {
  static auto* waits = new Waits;
  return *waits;
}

}  // namespace

std::mutex& local_mutex() noexcept { return all().mutex; }

Ended wait_locally(std::unique_lock<std::mutex>& lock, double seconds, const std::function<bool()>& done) {
  const auto ended = [&] { return done() || !all().failure.empty(); };
  all().changed.wait_for(lock, std::chrono::duration<double>(std::min(seconds, 1e9)), ended);
  if (done()) return Ended::done;
  return all().failure.empty() ? Ended::late : Ended::failed;
}

void wait_for_end(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done) {
  all().changed.wait(lock, done);
}

void wake_local_waits() noexcept { all().changed.notify_all(); }

void fail_local_waits(const std::string& why) noexcept {
  {
    const std::lock_guard lock(all().mutex);
    if (all().failure.empty()) all().failure = why;
  }
  all().changed.notify_all();
}

const std::string& local_failure() noexcept { return all().failure; }

}  // namespace slipstream::mpi
