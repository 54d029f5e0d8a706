#include "lines/pack.h"

#include <cstring>

namespace slipstream::lines {

void Pack::fill() {
  size_t bytes = 0;
  for (const Part& part : parts) bytes += part.bytes;
  memory.resize(bytes);
  std::byte* to = memory.data();
  for (const Part& part : parts) {
    if (part.bytes != 0) std::memcpy(to, part.from, part.bytes);
    to += part.bytes;
  }
}

void Pack::empty() const {
  const std::byte* from = memory.data();
  for (const Part& part : parts) {
    if (part.bytes != 0) std::memcpy(part.to, from, part.bytes);
    from += part.bytes;
  }
}

}  // namespace slipstream::lines
