// Frames that arrived before their work was submitted on this rank: their bytes are copied, or lie in their senders'
// memory until they are fetched. Driver's thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/work_header.h"
#include "engine/work_key.h"
#include "transport/link.h"

namespace slipstream {

struct EarlyFrame {
  int peer;
  uint64_t order;  // of arrival, over all works
  WorkHeader frame;
  std::vector<std::byte> payload;
  Payload lent{};  // in place of `payload`, if the sender lends its memory (Payload::remote)
  bool is_lent() const { return lent.remote != 0; }
  size_t bytes() const { return sizeof(EarlyFrame) + payload.size(); }
};

class EarlyFrames {
 public:
  static constexpr size_t kMostWorks = 1 << 20;

  // `most_bytes`: that one peer may send for works that have not begun.
  explicit EarlyFrames(size_t most_bytes) : most_bytes_(most_bytes) {}

  size_t most_bytes() const { return most_bytes_; }
  // What a frame that is kept exceeds, if anything; then it is not kept.
  enum class Limit : uint8_t { none, works, bytes };
  Limit keep(int peer, const WorkHeader& frame, std::vector<std::byte> payload, const Payload& lent = {}) {
    if (frames_.size() >= kMostWorks) return Limit::works;
    EarlyFrame early{peer, count_++, frame, std::move(payload), lent};
    size_t& kept = bytes_[peer];
    if (early.bytes() > most_bytes_ - kept) return Limit::bytes;
    kept += early.bytes();
    frames_[WorkKey{frame.channel, frame.seq}].push_back(std::move(early));
    return Limit::none;
  }
  // The frames of a work that begins, in order of arrival.
  std::vector<EarlyFrame> take(const WorkKey& key) {
    const auto it = frames_.find(key);
    if (it == frames_.end()) return {};
    std::vector<EarlyFrame> taken = std::move(it->second);
    frames_.erase(it);
    for (const EarlyFrame& early : taken) bytes_[early.peer] -= early.bytes();
    return taken;
  }

  // The link to `peer` has gone down: what it has lent cannot be fetched any more.
  void drop_lent(int peer) {
    size_t& kept = bytes_[peer];
    const auto gone = [&](const EarlyFrame& early) {
      const bool is_gone = early.peer == peer && early.is_lent();
      if (is_gone) kept -= early.bytes();
      return is_gone;
    };
    for (auto it = frames_.begin(); it != frames_.end();) {
      std::erase_if(it->second, gone);
      it = it->second.empty() ? frames_.erase(it) : std::next(it);
    }
  }

  // The frames of a work, in order of arrival; null if none has arrived.
  const std::vector<EarlyFrame>* all(const WorkKey& key) const {
    const auto it = frames_.find(key);
    return it == frames_.end() ? nullptr : &it->second;
  }
  // The first of them.
  const EarlyFrame* first(const WorkKey& key) const {
    const auto* const found = all(key);
    return found == nullptr ? nullptr : &found->front();
  }
  // True if `peer` has sent a frame of that work.
  bool any_from(int peer, const WorkKey& key) const {
    const auto it = frames_.find(key);
    return it != frames_.end() &&
           std::any_of(it->second.begin(), it->second.end(), [peer](const auto& early) { return early.peer == peer; });
  }

 private:
  size_t most_bytes_;
  uint64_t count_ = 0;
  std::unordered_map<WorkKey, std::vector<EarlyFrame>, WorkKey::Hash> frames_;
  std::unordered_map<int, size_t> bytes_;  // by peer
};

}  // namespace slipstream
