// Where the spaces of a work lie: in the caller's memory, or in memory of the work's own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/geometry.h"
#include "engine/work.h"
#include "transport/region.h"

namespace slipstream {

class WorkMemory {
 public:
  // A windowed work has one ring for all its spaces, as large as `window` chunks; others have their own temporary
  // space, from the arena if a peer of this host may read it (`shared`) and it is not too large to be kept.
  WorkMemory(Arena& arena, const Request& request, const Geometry& geometry, uint64_t window, bool shared);
  ~WorkMemory() { arena_.give_back(kept_); }
  WorkMemory(const WorkMemory&) = delete;

  std::byte* at(Space space, uint64_t element) const {
    if (ring_elements_ != 0) element %= ring_elements_;
    return spaces_[static_cast<size_t>(space)] + element * element_;
  }
  // Elements of the ring; 0 if there is none.
  uint64_t ring_elements() const { return ring_elements_; }

 private:
  Arena& arena_;
  size_t element_;
  uint64_t ring_elements_ = 0;
  std::array<std::byte*, 3> spaces_{};
  std::unique_ptr<std::byte[]> own_;  // the ring, or the temporary space
  Arena::Buffer kept_;                // a temporary space that the next work may have
};

}  // namespace slipstream
