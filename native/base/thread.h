// What slipstream's own threads have in common.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <string>
#include <thread>
#include <vector>

namespace slipstream {

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
