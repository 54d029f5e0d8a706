// How late each peer of an execution comes: its first word, after this rank has begun. Driver's thread only.
#pragma once

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/work.h"

namespace slipstream {

class Lateness {
 public:
  explicit Lateness(const Work& work) : work_(work), heard_(work.request.plan->peers().size()) {}

  // This rank begins. The time is coarse, as the differences that matter are not small.
  void begin() { begun_ = coarse_now(); }
  // The peer had sent something before that. -1: it is none.
  void was_early(int peer) {
    if (peer >= 0) heard_[static_cast<size_t>(peer)] = true;
  }
  // It takes part.
  void ready(int peer) {
    if (heard_[static_cast<size_t>(peer)]) return;
    heard_[static_cast<size_t>(peer)] = true;
    const int rank = peers()[static_cast<size_t>(peer)].rank;
    if (work_.counters != nullptr)
      work_.counters->add_late(work_.request.group->ranks[static_cast<size_t>(rank)], coarse_now() - begun_);
  }
  // Data of this stream has come from it. That tells when it began if it waits for nobody before it sends this.
  void sent(int peer, uint16_t stream) {
    const auto& recvs = peers()[static_cast<size_t>(peer)].recvs;
    if (heard_[static_cast<size_t>(peer)] || stream >= recvs.size()) return;
    if (std::ranges::all_of(peers(), [&](const Plan::Peer& other) {
          return other.recvs.empty() || recvs[stream] <= other.recvs.front();
        }))
      ready(peer);
  }

 private:
  const std::vector<Plan::Peer>& peers() const { return work_.request.plan->peers(); }

  const Work& work_;
  std::vector<bool> heard_;  // by peer of the plan
  Time begun_{};
};

}  // namespace slipstream
