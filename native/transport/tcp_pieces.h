// Pieces of bulk data on their way out of a link, and blocks for those on their way in.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "transport/frame.h"

namespace slipstream {

struct Piece {
  Frame frame;
  const std::byte* data = nullptr;
  uint64_t cookie = 0;
  std::shared_ptr<std::byte[]> copy;  // holds `data` once it is our own

  // From here on the owner's memory is not needed.
  void keep_copy() {
    copy = std::shared_ptr<std::byte[]>(new std::byte[frame.length]);
    std::memcpy(copy.get(), data, frame.length);
    data = copy.get();
  }
};

// First in, first out; whichever lane is writable pulls the next one, so a slow lane takes fewer. Frames name their
// piece, so the order of arrival does not matter.
class PieceQueue {
 public:
  void push(const Piece& piece) { pieces_.push_back(piece); }
  std::optional<Piece> pull() {
    if (pieces_.empty()) return std::nullopt;
    Piece piece = std::move(pieces_.front());
    pieces_.pop_front();
    return piece;
  }
  // Copies what the pieces point at, up to `limit` bytes in all; those beyond are dropped.
  void keep_copies(size_t limit) {
    size_t kept = 0;
    for (; kept < pieces_.size() && pieces_[kept].frame.length <= limit; ++kept) {
      limit -= pieces_[kept].frame.length;
      pieces_[kept].keep_copy();
    }
    pieces_.resize(kept);
  }
  bool empty() const { return pieces_.empty(); }
  size_t size() const { return pieces_.size(); }
  void clear() { pieces_.clear(); }

 private:
  std::deque<Piece> pieces_;
};

// Memory for pieces that arrive before the owner has a place for them. Bounded by kLimit bytes a link: beyond it
// take() fails, the lane stops reading, and TCP holds the sender back until the owner gives a block back.
class Blocks {
 public:
  static constexpr size_t kLimit = size_t{64} << 20;
  static constexpr size_t kSpare = size_t{8} << 20;  // given back, kept for the next piece

  struct Taken {
    uint64_t id = 0;  // 0: the limit is reached
    std::byte* data = nullptr;
  };

  Taken take(uint32_t size) {
    const size_t capacity = std::bit_ceil(std::max<size_t>(size, kSmallest));
    if (held_ + capacity > kLimit) return {};
    Block block = spare_of(capacity);
    held_ += capacity;
    std::byte* data = block.memory.get();
    const uint64_t id = ++last_id_;
    taken_.emplace(id, std::move(block));
    return {id, data};
  }

  void give(uint64_t id) {
    const auto it = taken_.find(id);
    if (it == taken_.end()) return;
    Block block = std::move(it->second);
    taken_.erase(it);
    held_ -= block.capacity;
    if (spare_bytes_ + block.capacity > kSpare) return;
    spare_bytes_ += block.capacity;
    spare_.push_back(std::move(block));
  }

  size_t held() const { return held_; }

 private:
  static constexpr size_t kSmallest = 64 << 10;

  struct Block {
    std::unique_ptr<std::byte[]> memory;
    size_t capacity = 0;
  };

  Block spare_of(size_t capacity) {
    for (auto it = spare_.rbegin(); it != spare_.rend(); ++it) {
      if (it->capacity != capacity) continue;
      Block block = std::move(*it);
      spare_.erase(std::next(it).base());
      spare_bytes_ -= capacity;
      return block;
    }
    return {std::unique_ptr<std::byte[]>(new std::byte[capacity]), capacity};  // not zeroed
  }

  std::unordered_map<uint64_t, Block> taken_;
  std::vector<Block> spare_;
  size_t held_ = 0;
  size_t spare_bytes_ = 0;
  uint64_t last_id_ = 0;
};

}  // namespace slipstream
