// Copies of frames that arrived before their work was submitted on this rank. Driver's thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/work_header.h"
#include "engine/work_key.h"

namespace slipstream {

struct EarlyFrame {
  int peer;
  uint64_t order;  // of arrival, over all works
  WorkHeader frame;
  std::vector<std::byte> payload;
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
  Limit keep(int peer, const WorkHeader& frame, std::vector<std::byte> payload) {
    if (frames_.size() >= kMostWorks) return Limit::works;
    EarlyFrame early{peer, count_++, frame, std::move(payload)};
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

  // The first frame of a work; null if none has arrived.
  const EarlyFrame* first(const WorkKey& key) const {
    const auto it = frames_.find(key);
    return it == frames_.end() ? nullptr : &it->second.front();
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
