// The prescale of a work: its input is multiplied piece by piece, where a step reads it. So a work takes memory for
// what is under way alone, and its first chunk leaves at once. Driver's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/geometry.h"
#include "engine/plan.h"
#include "transport/region.h"

namespace slipstream {

class ScaledInput {
 public:
  ScaledInput(Arena& arena, const Geometry& geometry, double factor)
      : arena_(arena), geometry_(geometry), factor_(factor) {}
  ~ScaledInput();
  ScaledInput(const ScaledInput&) = delete;

  // True if what the step reads has to be scaled.
  bool applies(const Step& step) const { return factor_ != 1.0 && step.src == Space::in; }
  // What a send gives away. It stays until drop(send), in a region, so that a peer may read it.
  const std::byte* for_send(const Step& step, uint64_t send, uint32_t piece, const std::byte* data, uint64_t count);
  void drop(uint64_t send);
  // What another step reads, in memory that is good until the next call.
  const std::byte* read(const Step& step, const std::byte* data, uint64_t count);

 private:
  Arena& arena_;
  const Geometry& geometry_;
  double factor_;
  std::unordered_map<uint64_t, Arena::Buffer> sends_;  // under way
  std::vector<std::byte> scratch_;                     // of read()
};

}  // namespace slipstream
