// Names a work on all ranks that take part in it: its channel, and its number there.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream {

struct WorkKey {
  uint64_t channel;
  uint32_t seq;
  bool operator==(const WorkKey&) const = default;

  struct Hash {
    size_t operator()(const WorkKey& k) const { return (k.channel ^ k.seq) * 0x9e3779b97f4a7c15ULL >> 7; }
  };
};

}  // namespace slipstream
