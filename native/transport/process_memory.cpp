#include "transport/process_memory.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>

#include "base/fd.h"

namespace slipstream {

namespace {

// As in <linux/fs.h> from Linux 6.7 on.
struct PageScan {
  uint64_t size = sizeof(PageScan);
  uint64_t flags = 0;
  uint64_t start = 0;
  uint64_t end = 0;
  uint64_t walk_end = 0;
  uint64_t found = 0;  // where the kernel writes what it has found, in PageRange
  uint64_t found_length = 1;
  uint64_t max_pages = 0;
  uint64_t inverted = 0;
  uint64_t mask = 0;
  uint64_t any_of = 0;
  uint64_t wanted = 0;
};
struct PageRange {
  uint64_t start;
  uint64_t end;
  uint64_t categories;
};
constexpr unsigned long kScan = _IOWR('f', 16, PageScan);
constexpr uint64_t kHuge = 1 << 6;
constexpr uint64_t kSamples = 4;

}  // namespace

int read_process(pid_t pid, uint64_t address, std::byte* to, size_t bytes) {
  while (bytes > 0) {
    iovec here{to, bytes};
    iovec there{reinterpret_cast<void*>(static_cast<uintptr_t>(address)), bytes};
    const ssize_t n = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    if (n == 0) return EFAULT;
    address += static_cast<size_t>(n);
    to += n;
    bytes -= static_cast<size_t>(n);
  }
  return 0;
}

bool others_can_read(const std::byte* data, size_t bytes) {
  if (bytes == 0) return true;
  std::byte ends[2];
  iovec here{ends, sizeof(ends)};
  auto* first = const_cast<std::byte*>(data);
  const iovec there[2] = {{first, 1}, {first + bytes - 1, 1}};
  return ::process_vm_readv(::getpid(), &here, 1, there, 2, 0) == 2;
}

bool in_huge_pages(const std::byte* data, size_t bytes) {
  const Fd map(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  const auto page = static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  for (uint64_t i = 1; i <= kSamples && map; ++i) {
    const uint64_t address = reinterpret_cast<uintptr_t>(data) + bytes / (kSamples + 1) * i;
    PageRange found{};
    PageScan scan;
    scan.start = address / page * page;
    scan.end = scan.start + page;
    scan.found = reinterpret_cast<uintptr_t>(&found);
    scan.mask = scan.wanted = kHuge;
    if (::ioctl(map.get(), kScan, &scan) != 1) return false;
  }
  return static_cast<bool>(map);
}

void let_siblings_read() {
  static std::once_flag once;
  std::call_once(once, [] {
#ifdef PR_SET_PTRACER
    if (const pid_t parent = ::getppid(); parent > 0) ::prctl(PR_SET_PTRACER, parent, 0, 0, 0);
#endif
  });
}

}  // namespace slipstream
