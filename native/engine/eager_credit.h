// Flow control of eager messages between this rank and a peer: the sender does not ask, so what the receiver has not
// consumed yet is bounded. The receiver says now and then how much it has consumed. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace slipstream {

class EagerCredit {
 public:
  static constexpr uint64_t kBytes = 1 << 20;  // that a peer may hold unconsumed
  static constexpr uint64_t kStep = kBytes / 8;
  static constexpr uint64_t kFrameCost = 64;  // what a frame costs its receiver beside the payload
  static constexpr uint64_t kBulkBytes = kBytes / 2 + kBytes / 16;  // half, and the cost of a thousand frames

  // True if `bytes` more may be sent now.
  bool spend(uint64_t bytes) {
    if (sent_ + bytes > kBytes) return false;
    sent_ += bytes;
    return true;
  }
  // The same for bulk, which leaves nearly half of it to small messages.
  bool spend_on_bulk(uint64_t bytes) {
    if (sent_ + bytes > kBulkBytes) return false;
    sent_ += bytes;
    return true;
  }
  // The peer says that it has consumed so many.
  void repaid(uint64_t bytes) { sent_ -= std::min(sent_, bytes); }
  // We have consumed so many. Returns how many to tell the peer of now; 0: it is told later.
  uint32_t consumed(uint64_t bytes) {
    consumed_ += bytes;
    return consumed_ < kStep ? 0 : static_cast<uint32_t>(std::exchange(consumed_, 0));
  }

 private:
  uint64_t sent_ = 0;      // and not repaid
  uint64_t consumed_ = 0;  // and not told
};

}  // namespace slipstream
