// Private memory of another process of the same user, read with process_vm_readv where the kernel allows it.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

namespace slipstream {

// Copies `bytes` bytes that lie at `address` in process `pid`. Returns 0, or an errno: then some of them may have come.
int read_process(pid_t pid, uint64_t address, std::byte* to, size_t bytes);

// Whether the kernel would give another process these bytes of ours. It does not where a device is mapped, as memory
// that a driver has pinned for an accelerator may be. Looks at both ends alone; true for no bytes.
bool others_can_read(const std::byte* data, size_t bytes);

// Whether this memory lies in huge pages, as far as a few samples tell; false if the kernel does not say (Linux before
// 6.7). The kernel reads small pages at less than half of the speed.
bool in_huge_pages(const std::byte* data, size_t bytes);

// Yama (kernel.yama.ptrace_scope=1) lets a process read the memory of its descendants only. From now on those of this
// process's parent may read ours, too: the ranks that one launcher has started. Without Yama this does nothing.
void let_siblings_read();

}  // namespace slipstream
