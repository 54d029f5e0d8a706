// Memory for messages that arrive before their owner has a place for them.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace slipstream {

// Bounded by kLimit bytes a link. The sender knows the bound and keeps to it; where one does not, take() fails, the
// lane stops reading, and TCP holds it back until the owner gives a buffer back.
class ReceiveBuffers {
 public:
  static constexpr size_t kLimit = size_t{64} << 20;
  static constexpr size_t kSpare = size_t{8} << 20;  // given back, kept for the next message

  struct Taken {
    uint64_t id = 0;  // 0: the limit is reached
    std::byte* data = nullptr;
  };

  // What a message of that size takes of the limit.
  static size_t capacity_of(uint32_t size) { return std::bit_ceil(std::max<size_t>(size, kSmallest)); }

  Taken take(uint32_t size) {
    const size_t capacity = capacity_of(size);
    if (held_ + capacity > kLimit) return {};
    Buffer buffer = spare_of(capacity);
    held_ += capacity;
    std::byte* data = buffer.memory.get();
    const uint64_t id = ++last_id_;
    taken_.emplace(id, std::move(buffer));
    return {id, data};
  }

  void give(uint64_t id) {
    const auto it = taken_.find(id);
    if (it == taken_.end()) return;
    Buffer buffer = std::move(it->second);
    taken_.erase(it);
    held_ -= buffer.capacity;
    if (spare_bytes_ + buffer.capacity > kSpare) return;
    spare_bytes_ += buffer.capacity;
    spare_.push_back(std::move(buffer));
  }

  size_t held() const { return held_; }

 private:
  static constexpr size_t kSmallest = 64 << 10;

  struct Buffer {
    std::unique_ptr<std::byte[]> memory;
    size_t capacity = 0;
  };

  Buffer spare_of(size_t capacity) {
    for (auto it = spare_.rbegin(); it != spare_.rend(); ++it) {
      if (it->capacity != capacity) continue;
      Buffer buffer = std::move(*it);
      spare_.erase(std::next(it).base());
      spare_bytes_ -= capacity;
      return buffer;
    }
    return {std::unique_ptr<std::byte[]>(new std::byte[capacity]), capacity};  // not zeroed
  }

  std::unordered_map<uint64_t, Buffer> taken_;
  std::vector<Buffer> spare_;
  size_t held_ = 0;
  size_t spare_bytes_ = 0;
  uint64_t last_id_ = 0;
};

}  // namespace slipstream
