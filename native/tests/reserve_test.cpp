// Shared memory that the system cannot give is an error, not a signal.
#include "base/reserve.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/check.h"
#include "transport/region.h"

namespace {

using slipstream::Failure;
using slipstream::Mapping;

constexpr size_t kBytes = 64 << 10;

uintptr_t address_of(const Mapping& memory) { return reinterpret_cast<uintptr_t>(memory.data()); }

TEST(pages_are_there_and_keep_what_they_hold) {
  const slipstream::Fd fd = slipstream::make_memfd("test", kBytes);
  const Mapping memory(fd.get(), kBytes);
  memory.data()[5000] = std::byte{7};
  slipstream::reserve(address_of(memory), kBytes);
  struct stat file{};
  CHECK_EQ(::fstat(fd.get(), &file), 0);
  CHECK_EQ(static_cast<size_t>(file.st_blocks) * 512, kBytes);
  CHECK(memory.data()[5000] == std::byte{7});
}

TEST(pages_that_cannot_be_had_are_an_error) {
  const slipstream::Fd fd = slipstream::make_memfd("test", kBytes);
  const Mapping memory(fd.get(), kBytes);
  CHECK_EQ(::ftruncate(fd.get(), kBytes / 2), 0);  // the rest is as memory that the kernel does not give
  slipstream::reserve(address_of(memory), kBytes / 2);
  bool failed = false;
  try {
    slipstream::reserve(address_of(memory) + 100, kBytes - 100);
  } catch (const Failure& failure) {
    failed = failure.error().text.find("the system has no") == 0;
  }
  CHECK(failed);
}

}  // namespace
