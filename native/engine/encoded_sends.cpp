#include "engine/encoded_sends.h"

namespace slipstream {

EncodedSends::~EncodedSends() {
  for (const auto& [key, encoded] : encoded_) arena_.give_back(encoded.buffer);
}

void EncodedSends::drop(const Step& step, uint64_t chunk) {
  const auto it = encoded_.find(key(step, chunk));
  if (it == encoded_.end() || --it->second.sends != 0) return;
  arena_.give_back(it->second.buffer);
  encoded_.erase(it);
}

std::byte* EncodedSends::encode_blocks(const Step& step, const Geometry::Extent& piece, std::byte* to,
                                       const std::byte* from) const {
  geometry_.each_block(step.src, step, piece, [&](uint64_t before, uint64_t count) {
    encode(geometry_.wire(), to, from + before * sizeof(float), count);
    to += wire_bytes(geometry_.wire(), count);
  });
  return to;
}

}  // namespace slipstream
