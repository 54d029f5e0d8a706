// What a work with a wire type sends to other hosts: encoded as it is sent, in memory that stays until it has been.
// Sends of one batch carry the same bytes to several peers and share it. Driver's thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>

#include "engine/geometry.h"
#include "engine/plan.h"
#include "kernels/kernels.h"
#include "transport/region.h"

namespace slipstream {

class EncodedSends {
 public:
  EncodedSends(Arena& arena, const Geometry& geometry) : arena_(arena), geometry_(geometry) {}
  ~EncodedSends();
  EncodedSends(const EncodedSends&) = delete;

  // The pieces of a send, one after another, each of Geometry::bytes(). read(piece) says where the numbers of one are.
  // Once for each send.
  template <class Read>
  const std::byte* take(const Step& step, uint64_t chunk, Read read) {
    Encoded& encoded = encoded_[key(step, chunk)];
    if (encoded.sends++ != 0) return encoded.buffer.data;
    uint64_t bytes = 0;
    for (uint32_t j = 0; j < geometry_.pieces(step); ++j) bytes += geometry_.bytes(step.src, step, chunk, j);
    encoded.buffer = arena_.take(bytes);
    std::byte* to = encoded.buffer.data;
    for (uint32_t j = 0; j < geometry_.pieces(step); ++j) {
      const Geometry::Extent piece = geometry_.piece(step.src, step, chunk, j);
      if (piece.count != 0) to = encode_blocks(step, piece, to, read(j));
    }
    return encoded.buffer.data;
  }
  // A send that has taken is done.
  void drop(const Step& step, uint64_t chunk);

 private:
  struct Encoded {
    Arena::Buffer buffer{};
    uint32_t sends = 0;  // of the batch, under way
  };

  std::byte* encode_blocks(const Step& step, const Geometry::Extent& piece, std::byte* to, const std::byte* from) const;
  static uint64_t key(const Step& step, uint64_t chunk) { return chunk << 24 | step.batch; }

  Arena& arena_;
  const Geometry& geometry_;
  std::unordered_map<uint64_t, Encoded> encoded_;  // by chunk and batch
};

}  // namespace slipstream
