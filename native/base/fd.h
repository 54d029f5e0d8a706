// Owns a file descriptor. A forked child (a data loader's worker, say) has none of them: they are closed in it at once,
// so that no connection lives on in a process that knows nothing of it, when its owner has closed it or has died.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <utility>

namespace slipstream {

// How often this process has been forked off another that had slipstream loaded. What was made at another count belongs
// to the parent.
uint32_t forks();

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd);
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)), forks_(other.forks_) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      forks_ = other.forks_;
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release();
  void reset();

 private:
  int fd_ = -1;
  uint32_t forks_ = 0;
};

}  // namespace slipstream
