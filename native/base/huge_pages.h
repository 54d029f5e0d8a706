// Large buffers in huge pages, where the kernel offers them: it clears 2 MiB at once, not 4 KiB.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

namespace slipstream {

// A hint for memory of this process that has not been touched yet. Does nothing where no whole huge page fits.
inline void prefer_huge_pages(uintptr_t address, size_t bytes) {
  constexpr uintptr_t kPage = uintptr_t{2} << 20;
  const uintptr_t begin = (address + kPage - 1) / kPage * kPage;
  const uintptr_t end = (address + bytes) / kPage * kPage;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

}  // namespace slipstream
