// How members of a communicator that are devices of one process wait for each other. A failure of the job ends all
// these waits: who is waited for may have been told of it, and comes no more.
#pragma once

#include <functional>
#include <mutex>
#include <string>

namespace slipstream::mpi {

enum class Ended { done, failed, late };

// Of all that these waits are about.
std::mutex& local_mutex() noexcept;

// Until `done`, which is asked under the lock, or until the job has failed or so many seconds have passed.
Ended wait_locally(std::unique_lock<std::mutex>& lock, double seconds, const std::function<bool()>& done);

// Until `done`, whatever else: another thread is about to end it, and uses this thread's memory meanwhile.
void wait_for_end(std::unique_lock<std::mutex>& lock, const std::function<bool()>& done);

// What is waited for may have come.
void wake_local_waits() noexcept;

// The job has failed. The first reason stays.
void fail_local_waits(const std::string& why) noexcept;

// Why the job has failed; empty if it has not. Under the mutex.
const std::string& local_failure() noexcept;

}  // namespace slipstream::mpi
