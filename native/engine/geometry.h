// How the data of a work is cut, in elements: spaces into blocks, blocks into chunks. Pure: it knows no memory.
//
// Step s of a plan handles chunk k of each of its blocks in one go. What it handles of one block is a *piece*, and
// travels as one data frame. Where all blocks of a step are small, they are one piece together, in chunk 0.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/work.h"

namespace slipstream {

class Geometry {
 public:
  struct Extent {
    uint64_t offset;  // elements into the space
    uint64_t count;   // elements
  };

  // Refers to the request, and to its plan.
  explicit Geometry(const Request& request);

  // What travels between this rank and these ranks of the group is encoded in the request's wire type, if it has one.
  template <class IsFar>
  void encode(IsFar is_far) {
    if (wire_ == WireType::exact) return;
    encoded_.resize(plan_.steps().size());
    for (size_t s = 0; s < encoded_.size(); ++s)
      encoded_[s] = plan_.steps()[s].kind <= StepKind::recv_reduce && is_far(plan_.steps()[s].peer) ? 1 : 0;
  }
  bool is_encoded(const Step& step) const { return !encoded_.empty() && encoded_[index_of(step)] != 0; }
  WireType wire() const { return wire_; }

  // TMP keeps no more than `window` chunks of each block: chunk k lies where chunk k - window was.
  void fold_tmp(uint64_t window);
  // Elements of the memory that TMP needs.
  uint64_t tmp_elements() const;

  DType dtype() const { return dtype_; }
  size_t element_bytes() const { return element_; }
  uint64_t chunk_elements() const { return chunk_elements_; }
  uint64_t chunk_bytes() const { return chunk_elements_ * element_; }
  // Of a chunk between hosts.
  uint64_t wire_chunk_bytes() const {
    return wire_ == WireType::exact ? chunk_bytes() : wire_bytes(wire_, chunk_elements_);
  }
  uint64_t chunks() const { return chunks_; }
  uint64_t largest_block() const { return largest_block_; }

  // Where a block begins.
  uint64_t block(Space space, int index) const {
    const Layout& layout = layouts_[static_cast<size_t>(space)];
    if (!layout.offsets.empty()) return layout.offsets[static_cast<size_t>(index)];
    return layout.count * static_cast<uint64_t>(index) / static_cast<uint64_t>(plan_.blocks());
  }
  // Elements of all blocks of a step ...
  uint64_t elements(Space space, const Step& step) const {
    return block(space, step.block + step.count) - block(space, step.block);
  }
  // ... and of a whole space.
  uint64_t elements(Space space) const {
    const Layout& layout = layouts_[static_cast<size_t>(space)];
    return layout.offsets.empty() ? layout.count : layout.offsets.back();
  }
  uint32_t pieces(const Step& step) const { return merged(step) ? 1u : static_cast<uint32_t>(step.count); }
  Extent piece(Space space, const Step& step, uint64_t chunk, uint32_t index) const {
    if (merged(step)) return {block(space, step.block), chunk == 0 ? elements(space, step) : 0};
    const int b = step.block + static_cast<int>(index);
    const uint64_t begin = block(space, b);
    const uint64_t size = block(space, b + 1) - begin;
    const uint64_t from = std::min(size, chunk * chunk_elements_);
    const uint64_t count = std::min(size - from, chunk_elements_);
    if (space == Space::tmp && tmp_fold_ != 0) return {static_cast<uint64_t>(b) * tmp_fold_ + from % tmp_fold_, count};
    return {begin + from, count};
  }

  // The blocks that a piece consists of, which are encoded one by one: f(elements of the piece before, elements). So
  // it does not matter to what is encoded which blocks travel together.
  template <class F>
  void each_block(Space space, const Step& step, const Extent& piece, F f) const {
    if (!merged(step) || piece.count == 0) return f(uint64_t{0}, piece.count);
    for (int b = step.block; b < step.block + step.count; ++b)
      f(block(space, b) - piece.offset, block(space, b + 1) - block(space, b));
  }
  // Bytes of a piece as it travels.
  uint64_t bytes(Space space, const Step& step, uint64_t chunk, uint32_t index) const;

  // True if chunk `chunk` of a step has no elements.
  bool is_empty(Space space, const Step& step, uint64_t chunk) const;

  // Bytes to and from a peer of the plan, in all.
  std::pair<uint64_t, uint64_t> traffic(const Plan::Peer& peer) const;
  // Messages to a peer of the plan.
  uint64_t frames(const Plan::Peer& peer) const;
  // Bytes of a chunk that come from peers.
  uint64_t received(uint64_t chunk) const;

 private:
  bool one_piece(Space space, const Step& step) const;
  uint64_t traffic(Space space, const Step& step) const;
  size_t index_of(const Step& step) const { return static_cast<size_t>(&step - plan_.steps().data()); }
  bool merged(const Step& step) const { return !merged_.empty() && merged_[index_of(step)] != 0; }

  const Plan& plan_;
  const std::array<Layout, 3>& layouts_;
  DType dtype_;
  WireType wire_;
  size_t element_;
  uint64_t chunk_elements_;
  uint64_t chunks_ = 1;
  uint64_t largest_block_ = 0;
  uint64_t tmp_fold_ = 0;         // elements of each block that TMP keeps; 0: all
  std::vector<uint8_t> merged_;   // by step: one_piece(); empty if no step has two blocks
  std::vector<uint8_t> encoded_;  // by step; empty if nothing is
};

}  // namespace slipstream
