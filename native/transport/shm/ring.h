// A single-producer single-consumer ring of entries in shared memory. Entries are contiguous and 16-byte aligned.
//
// Both ends belong to authenticated ranks of one job; the consumer nevertheless checks every length it reads, so
// that a damaged ring is an error and not an overrun.
#pragma once

#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace slipstream {

class Ring {
 public:
  // Bytes of the entries of a ring: a power of two.
  static constexpr size_t kLeast = 64 << 10;
  static constexpr size_t kMost = 256 << 10;
  static constexpr bool is_size(size_t bytes) {
    return bytes >= kLeast && bytes <= kMost && std::has_single_bit(bytes);
  }

  struct Shared {
    alignas(64) std::atomic<uint64_t> head;  // consumed so far
    alignas(64) std::atomic<uint64_t> tail;  // produced so far
  };

  struct EntryHeader {
    uint32_t size;  // of the entry with this header, before alignment; 0: skip to the ring's start
    uint32_t kind;
    uint64_t value;
  };
  static_assert(sizeof(EntryHeader) == 16);

  Ring() = default;
  // `data`: `bytes` bytes, for the entries.
  Ring(Shared* shared, std::byte* data, size_t bytes) : shared_(shared), data_(data), bytes_(bytes) {}

  size_t bytes() const { return bytes_; }

  // Producer: space for an entry with `bytes` of body, or null if the ring has none, or would afterwards have none for
  // an entry with `spare` bytes of body (0: it need not). commit() publishes it.
  std::byte* reserve(uint32_t kind, uint64_t value, size_t bytes, size_t spare) {
    if (!has_room(bytes, spare)) return nullptr;
    const size_t size = sizeof(EntryHeader) + bytes;
    const size_t span = aligned(size);
    uint64_t tail = shared_->tail.load(std::memory_order_relaxed);
    const size_t skip = skip_before(tail, span);
    if (skip > 0) {
      const EntryHeader wrap{0, 0, 0};
      std::memcpy(data_ + (tail & (bytes_ - 1)), &wrap, sizeof(wrap));
      tail += skip;
    }
    const EntryHeader entry{static_cast<uint32_t>(size), kind, value};
    std::byte* place = data_ + (tail & (bytes_ - 1));
    std::memcpy(place, &entry, sizeof(entry));
    next_tail_ = tail + span;
    return place + sizeof(entry);
  }

  // Producer: whether reserve() would find space.
  bool has_room(size_t bytes, size_t spare) {
    const uint64_t end = end_of(shared_->tail.load(std::memory_order_relaxed), bytes, spare);
    if (end - head_seen_ <= bytes_) return true;
    head_seen_ = shared_->head.load(std::memory_order_acquire);
    return end - head_seen_ <= bytes_;
  }

  // Sequentially consistent, because it pairs with the consumer's "asleep" flag (see Bell).
  void commit() { shared_->tail.store(next_tail_, std::memory_order_seq_cst); }

  // Consumer.
  bool empty() const {
    return shared_->head.load(std::memory_order_relaxed) == shared_->tail.load(std::memory_order_seq_cst);
  }

  enum class Peek { none, entry, damaged };
  Peek peek(EntryHeader& entry, const std::byte*& body) {
    for (;;) {
      const uint64_t head = shared_->head.load(std::memory_order_relaxed);
      const uint64_t tail = shared_->tail.load(std::memory_order_acquire);
      if (head == tail) return Peek::none;
      if (tail - head > bytes_ || head != aligned(head)) return Peek::damaged;
      const size_t at = head & (bytes_ - 1);
      std::memcpy(&entry, data_ + at, sizeof(entry));
      if (entry.size == 0) {
        shared_->head.store(head + (bytes_ - at), std::memory_order_release);
        continue;
      }
      if (entry.size < sizeof(EntryHeader) || aligned(entry.size) > tail - head || at + entry.size > bytes_)
        return Peek::damaged;
      body = data_ + at + sizeof(entry);
      next_head_ = head + aligned(entry.size);
      return Peek::entry;
    }
  }
  void pop() { shared_->head.store(next_head_, std::memory_order_release); }

 private:
  static constexpr size_t aligned(size_t size) { return (size + 15) & ~size_t{15}; }
  // An entry of `span` bytes after `tail` would not fit before the ring's end: so many bytes are left there.
  size_t skip_before(uint64_t tail, size_t span) const {
    const size_t at = tail & (bytes_ - 1);
    return at + span > bytes_ ? bytes_ - at : 0;
  }

  // Where such an entry, and one with `spare` bytes behind it, would end.
  uint64_t end_of(uint64_t tail, size_t bytes, size_t spare) const {
    const size_t span = aligned(sizeof(EntryHeader) + bytes);
    const uint64_t end = tail + skip_before(tail, span) + span;
    if (spare == 0) return end;
    const size_t more = aligned(sizeof(EntryHeader) + spare);
    return end + skip_before(end, more) + more;
  }

  Shared* shared_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  uint64_t head_seen_ = 0;
  uint64_t next_tail_ = 0;
  uint64_t next_head_ = 0;
};

}  // namespace slipstream
