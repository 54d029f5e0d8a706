#include "base/fd.h"

#include <pthread.h>

#include <array>
#include <bit>

namespace slipstream {

namespace {

// The descriptors that Fds own, a bit each. No lock: a thread of the parent may be anywhere when another one forks.
// What it is about to register or close just then may stay open in the child.
constexpr size_t kMost = size_t{1} << 20;  // the kernel's default limit of a process (fs.nr_open)
constinit std::array<std::atomic<uint64_t>, kMost / 64> owned{};
constinit std::atomic<uint32_t> count{0};

void set_owned(int fd, bool yes) {
  const auto i = static_cast<size_t>(fd);
  if (i >= kMost) return;
  const uint64_t bit = uint64_t{1} << (i % 64);
  if (yes)
    owned[i / 64].fetch_or(bit, std::memory_order_relaxed);
  else
    owned[i / 64].fetch_and(~bit, std::memory_order_relaxed);
}

void close_in_child() {
  count.fetch_add(1, std::memory_order_relaxed);
  for (size_t i = 0; i < owned.size(); ++i)
    for (uint64_t bits = owned[i].exchange(0, std::memory_order_relaxed); bits != 0; bits &= bits - 1)
      ::close(static_cast<int>(i * 64 + static_cast<size_t>(std::countr_zero(bits))));
}

[[maybe_unused]] const int registered = ::pthread_atfork(nullptr, nullptr, close_in_child);

}  // namespace

uint32_t forks() { return count.load(std::memory_order_relaxed); }

Fd::Fd(int fd) : fd_(fd), forks_(forks()) {
  if (fd >= 0) set_owned(fd, true);
}

int Fd::release() {
  if (fd_ >= 0 && forks_ == forks()) set_owned(fd_, false);
  return std::exchange(fd_, -1);
}

void Fd::reset() {
  const int fd = release();
  if (fd >= 0 && forks_ == forks()) ::close(fd);  // the number may be another file's in a forked child
}

}  // namespace slipstream
