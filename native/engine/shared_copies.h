// Memory that peers on this host can read, for sends of data that lies elsewhere. Driver's thread only.
//
// Sends of one batch carry the same bytes to several peers: these are copied once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/geometry.h"
#include "engine/plan.h"
#include "transport/region.h"

namespace slipstream {

class SharedCopies {
 public:
  // Room for `window` chunks, taken from the arena when it is first needed.
  SharedCopies(Arena& arena, const Regions& regions, const Plan& plan, const Geometry& geometry, uint64_t window)
      : arena_(arena),
        regions_(regions),
        batches_(plan.batches()),
        widest_(static_cast<size_t>(plan.widest_send())),
        piece_bytes_(geometry.chunk_bytes()),
        window_(window),
        staged_(window * batches_ * widest_) {}
  ~SharedCopies() { arena_.give_back(buffer_); }
  SharedCopies(const SharedCopies&) = delete;

  // Bytes that the sends of one chunk may need.
  static uint64_t bytes_per_chunk(const Plan& plan, const Geometry& geometry) {
    return geometry.chunk_bytes() * static_cast<uint64_t>(plan.widest_send()) * plan.batches();
  }

  // A chunk begins: nothing of it is staged yet.
  void begin(uint64_t chunk);
  // The same bytes where a peer can read them: at `data`, or in a copy that stays until the chunk's slot is used again.
  // `far`: Link::far().
  const std::byte* stage(const Step& step, uint64_t chunk, uint32_t piece, const std::byte* data, size_t bytes,
                         bool far = false);

 private:
  Arena& arena_;
  const Regions& regions_;
  size_t batches_;
  size_t widest_;  // pieces of the widest send
  size_t piece_bytes_;
  uint64_t window_;
  Arena::Buffer buffer_{};
  std::vector<uint8_t> staged_;  // by slot, batch and piece
};

}  // namespace slipstream
