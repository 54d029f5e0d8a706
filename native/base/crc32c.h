// CRC-32C (Castagnoli; RFC 3720, appendix B.4): it finds damage that TCP's own checksum of
// 16 bits misses. It is for accidents: somebody who changes data on purpose can compute a matching checksum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace slipstream {

// Of `bytes` that follow those with the checksum `before` (0: none do). Any thread.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t before = 0);

namespace crc {

// One way to compute it.
struct Method {
  const char* name;
  uint32_t (*update)(uint32_t state, const std::byte* data, size_t size);  // the state is the inverted checksum
};

// Those that this machine can use, the fastest first; the last one needs nothing.
const std::vector<Method>& methods();

}  // namespace crc
}  // namespace slipstream
