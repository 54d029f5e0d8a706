// What slipstream's own threads have in common.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"

namespace slipstream {

// What is thrown where a thread cannot be had. `name`, for people: "the engine's thread".
inline Failure no_thread(const std::string& name, const std::system_error& e) {
  return Failure(Code::internal, "cannot start " + name + ": " + e.what() +
                                     "; the limits are those of processes (ulimit -u), of memory (ulimit -v) and of "
                                     "the control group");
}

// Starts a thread that runs f(); throws no_thread() if it cannot.
template <class F>
std::thread start_thread(const std::string& name, F f) {
  try {
    return std::thread(std::move(f));
  } catch (const std::system_error& e) {
    throw no_thread(name, e);
  }
}

// Names a thread, and confines it to `cpus`; none leaves it where it is. No thread needs either for correctness, so
// neither fails: CPUs that the process may not use are left out by the kernel.
inline void present(std::thread& thread, const std::string& name, const std::vector<int>& cpus) {
  ::pthread_setname_np(thread.native_handle(), name.c_str());
  if (cpus.empty()) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus)
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
  ::pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
}

}  // namespace slipstream
