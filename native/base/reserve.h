// Pages of a mapping, had at once. The first touch of a page that the kernel cannot give ends the process (SIGBUS);
// this fails instead.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace slipstream {

// All pages of [address, address + bytes), which is writable and shared. What they hold stays. Throws Failure(internal)
// if there is no memory for them. Does nothing on Linux before 5.14.
inline void reserve(uintptr_t address, size_t bytes) {
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which old headers lack
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = address / kPage * kPage;
  while (::madvise(reinterpret_cast<void*>(begin), address + bytes - begin, kPopulateWrite) != 0) {
    const int error = errno;
    if (error == EINTR) continue;
    if (error == EINVAL) return;
    const std::string what = "the system has no " + std::to_string(bytes) + " bytes of memory for ranks to share";
    throw Failure(Code::internal, errno_text(what.c_str(), error));
  }
}

}  // namespace slipstream
