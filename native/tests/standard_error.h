// What the code under test logs.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/fd.h"

namespace slipstream::testing {

// What is written to standard error in its lifetime; it appears there in the end.
class StandardError {
 public:
  StandardError() : file_(::memfd_create("standard error", MFD_CLOEXEC)), before_(::dup(STDERR_FILENO)) {
    ::dup2(file_.get(), STDERR_FILENO);
  }
  ~StandardError() {
    ::dup2(before_.get(), STDERR_FILENO);
    const std::string all = text();
    [[maybe_unused]] const auto n = ::write(STDERR_FILENO, all.data(), all.size());
  }
  bool have(const std::string& part) const { return text().find(part) != std::string::npos; }

  std::string text() const {
    std::string all(static_cast<size_t>(::lseek(file_.get(), 0, SEEK_END)), ' ');
    const ssize_t n = ::pread(file_.get(), all.data(), all.size(), 0);
    return all.substr(0, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  }

 private:
  Fd file_;
  Fd before_;
};

}  // namespace slipstream::testing
