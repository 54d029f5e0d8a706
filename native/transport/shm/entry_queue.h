// The entries that go to the peer, in order: those for which its ring has no room wait here. An entry may name memory
// whose descriptor travels over the unix socket (DescriptorChannel), so the caller can hold entries back until that has
// been sent. The ring keeps room for a last entry until make_way(). Private to this folder.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "transport/frame.h"
#include "transport/shm/ring.h"

namespace slipstream {

class EntryQueue {
 public:
  static constexpr size_t kMostLast = sizeof(Frame) + kMostReasonBytes;  // bytes of the body of a last entry

  void open(Ring ring) { ring_ = ring; }

  // Appends an entry with `head` and `tail` as its body. True: it is in the ring. `hold`: it waits in any case.
  bool push(uint32_t kind, uint64_t value, std::span<const std::byte> head, std::span<const std::byte> tail, bool hold);
  // Whether push() would find room in the ring now for an entry whose body has so many bytes.
  bool takes(size_t bytes) const { return waiting_.empty() && ring_.has_room(bytes, spare_); }
  // Moves what waits into the ring, as far as there is room. True if anything moved.
  bool flush();
  bool empty() const { return waiting_.empty(); }
  // Whether an entry waits for which `f(kind, body)` holds.
  template <class F>
  bool any_waits(F f) const {
    return std::ranges::any_of(waiting_, [&](const Waiting& one) { return f(one.kind, one.body); });
  }
  // What waits, and finds no room now, is not sent; without `may_flush` none of it is. The next entry, which is the
  // last one, may take the room that was kept for it.
  void make_way(bool may_flush) {
    if (may_flush) flush();
    waiting_.clear();
    spare_ = 0;
  }

 private:
  struct Waiting {
    uint32_t kind;
    uint64_t value;
    std::vector<std::byte> body;
  };
  bool write(uint32_t kind, uint64_t value, std::span<const std::byte> head, std::span<const std::byte> tail);

  mutable Ring ring_;  // it remembers how far its reader was
  std::deque<Waiting> waiting_;
  size_t spare_ = kMostLast;  // bytes that stay free for the body of the last entry
};

}  // namespace slipstream
