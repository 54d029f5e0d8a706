// Numbers for sends whose memory the peer reads in place: it gives the number back when it has read. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace slipstream {

class Tickets {
 public:
  uint32_t take(uint64_t cookie) {
    if (free_.empty()) {
      cookies_.emplace_back(cookie);
      return static_cast<uint32_t>(cookies_.size() - 1);
    }
    const uint32_t ticket = free_.back();
    free_.pop_back();
    cookies_[ticket] = cookie;
    return ticket;
  }
  // The cookie of the send; null if no send has this ticket.
  std::optional<uint64_t> give_back(uint64_t ticket) {
    if (ticket >= cookies_.size() || !cookies_[ticket]) return std::nullopt;
    free_.push_back(static_cast<uint32_t>(ticket));
    return std::exchange(cookies_[ticket], std::nullopt);
  }

 private:
  std::vector<std::optional<uint64_t>> cookies_;  // by ticket; null: it is free
  std::vector<uint32_t> free_;
};

}  // namespace slipstream
