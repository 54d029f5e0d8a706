// A single-producer single-consumer ring of entries in shared memory. Entries are contiguous and 16-byte aligned.
//
// Both ends belong to authenticated ranks of one job; the consumer nevertheless checks every length it reads, so
// that a damaged ring is an error and not an overrun.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace slipstream {

class Ring {
 public:
  static constexpr size_t kBytes = 256 << 10;

  struct Shared {
    alignas(64) std::atomic<uint64_t> head;  // consumed so far
    alignas(64) std::atomic<uint64_t> tail;  // produced so far
    alignas(64) std::byte data[kBytes];
  };

  struct EntryHeader {
    uint32_t size;  // of the entry with this header, before alignment; 0: skip to the ring's start
    uint32_t kind;
    uint64_t value;
  };
  static_assert(sizeof(EntryHeader) == 16);

  explicit Ring(Shared* shared = nullptr) : shared_(shared) {}

  // Producer: space for an entry with `bytes` of body, or null if the ring is full. commit() publishes it.
  std::byte* reserve(uint32_t kind, uint64_t value, size_t bytes) {
    const size_t size = sizeof(EntryHeader) + bytes;
    const size_t span = aligned(size);
    uint64_t tail = shared_->tail.load(std::memory_order_relaxed);
    const size_t at = tail % kBytes;
    const size_t skip = at + span > kBytes ? kBytes - at : 0;
    if (tail + skip + span - head_seen_ > kBytes) {
      head_seen_ = shared_->head.load(std::memory_order_acquire);
      if (tail + skip + span - head_seen_ > kBytes) return nullptr;
    }
    if (skip > 0) {
      const EntryHeader wrap{0, 0, 0};
      std::memcpy(shared_->data + at, &wrap, sizeof(wrap));
      tail += skip;
    }
    const EntryHeader entry{static_cast<uint32_t>(size), kind, value};
    std::byte* place = shared_->data + tail % kBytes;
    std::memcpy(place, &entry, sizeof(entry));
    next_tail_ = tail + span;
    return place + sizeof(entry);
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
      if (tail - head > kBytes || head != aligned(head)) return Peek::damaged;
      const size_t at = head % kBytes;
      std::memcpy(&entry, shared_->data + at, sizeof(entry));
      if (entry.size == 0) {
        shared_->head.store(head + (kBytes - at), std::memory_order_release);
        continue;
      }
      if (entry.size < sizeof(EntryHeader) || aligned(entry.size) > tail - head || at + entry.size > kBytes)
        return Peek::damaged;
      body = shared_->data + at + sizeof(entry);
      next_head_ = head + aligned(entry.size);
      return Peek::entry;
    }
  }
  void pop() { shared_->head.store(next_head_, std::memory_order_release); }

 private:
  static constexpr size_t aligned(size_t size) { return (size + 15) & ~size_t{15}; }

  Shared* shared_;
  uint64_t head_seen_ = 0;
  uint64_t next_tail_ = 0;
  uint64_t next_head_ = 0;
};

}  // namespace slipstream
