// For tests of what happens when descriptors run out.
#pragma once

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace slipstream::rig {

// The process's limit of open files while this lives.
class OpenFiles {
 public:
  explicit OpenFiles(rlim_t most) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit wanted = before_;
    wanted.rlim_cur = before_.rlim_max == RLIM_INFINITY ? most : std::min(most, before_.rlim_max);
    ::setrlimit(RLIMIT_NOFILE, &wanted);
  }
  ~OpenFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  OpenFiles(const OpenFiles&) = delete;
  OpenFiles& operator=(const OpenFiles&) = delete;

 private:
  rlimit before_{};
};

// The number that the next descriptor will get: as a limit, none can be opened.
inline rlim_t next_descriptor() {
  const int next = ::dup(0);
  ::close(next);
  return static_cast<rlim_t>(next);
}

}  // namespace slipstream::rig
