// What the two ends of a shared-memory link say to each other about the memory that they share: where one writes in
// the other's, and that one has taken its own back because its session has ended.
//
// A process that is stopped may continue much later, in the middle of a copy. So an owner that gives up cannot wait for
// the other end; it has to know whether that end may still write:
//
//   writer   announces the range, then checks whether the memory was taken back, then copies, then ends the write
//   owner    announces that it takes the memory back, then checks whether the other end is writing
//
// Both use sequentially consistent order, so one sees the other: either the writer does not begin, or the owner knows
// the place and parts from it (Regions::part). A reader copies first and looks afterwards; what was taken back by then
// may have been anything, and does not count.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace slipstream {

class Access {
 public:
  // In the mapping of the link, one for each end. Zero memory is an end that does nothing.
  struct End {
    alignas(64) std::atomic<uint32_t> took_back;
    alignas(64) std::atomic<uint64_t> writing;  // in this region of the other end, counted from 1; 0: nowhere
    std::atomic<uint64_t> offset;
    std::atomic<uint64_t> bytes;
  };

  struct WriteRange {
    uint32_t region = 0;
    uint64_t offset = 0;
    uint64_t bytes = 0;
  };

  Access() = default;
  Access(End* own, End* other) : own_(own), other_(other) {}

  // False if the other end has taken its memory back. Else it knows where we write until end_write().
  bool begin_write(const WriteRange& range) {
    own_->offset.store(range.offset, std::memory_order_relaxed);
    own_->bytes.store(range.bytes, std::memory_order_relaxed);
    own_->writing.store(uint64_t{range.region} + 1, std::memory_order_seq_cst);
    if (other_->took_back.load(std::memory_order_seq_cst) == 0) return true;
    end_write();
    return false;
  }
  void end_write() { own_->writing.store(0, std::memory_order_release); }

  // To be asked after a read: what was read is what the other end had there for us.
  bool intact() const {
    std::atomic_thread_fence(std::memory_order_acquire);
    return other_->took_back.load(std::memory_order_relaxed) == 0;
  }

  // The owner's side.
  void take_back() { own_->took_back.store(1, std::memory_order_seq_cst); }
  // Where the other end is writing, after take_back(): it begins nothing new. What it says is not to be trusted.
  std::optional<WriteRange> written() const {
    const uint64_t region = other_->writing.load(std::memory_order_seq_cst);
    if (region == 0) return std::nullopt;
    return WriteRange{static_cast<uint32_t>(region - 1), other_->offset.load(std::memory_order_relaxed),
                      other_->bytes.load(std::memory_order_relaxed)};
  }

 private:
  End* own_ = nullptr;
  End* other_ = nullptr;
};

}  // namespace slipstream
