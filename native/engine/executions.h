// The executions of a session: found by their works' names, and kept in the order in which they began, the most urgent
// first. Driver's thread only.
#pragma once

#include <algorithm>
#include <climits>
#include <functional>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/execution.h"
#include "engine/work_key.h"

namespace slipstream {

class Executions {
 public:
  void add(std::unique_ptr<Execution> execution) {
    const Request& request = execution->work()->request;
    const auto place = std::ranges::upper_bound(in_order_, execution->urgency(), std::ranges::greater{},
                                                [](const Execution* other) { return other->urgency(); });
    in_order_.insert(place, execution.get());
    by_key_.emplace(WorkKey{request.channel, request.seq}, std::move(execution));
  }
  // Null if that work is not under way.
  Execution* find(const WorkKey& key) const {
    const auto it = by_key_.find(key);
    return it == by_key_.end() ? nullptr : it->second.get();
  }
  // Each begins some chunks, if it may; but none does that is less urgent than one that did. True if any did.
  // `came_in`: so did others' in this turn. As much may leave then (ShmLink::poll), or one direction would wait for the
  // other; but many works are not looked at in every turn.
  bool start_chunks(bool came_in) {
    int most = size() <= kFew ? kStarts : came_in ? 0 : 1;
    int least = INT_MIN;
    bool any = false;
    for (bool moved = true; most > 0 && moved; --most) {
      moved = false;
      for (size_t i = 0; i < in_order_.size() && in_order_[i]->urgency() >= least; ++i)
        if (in_order_[i]->start_chunk()) {
          moved = any = true;
          least = std::max(least, in_order_[i]->urgency());
        }
    }
    return any;
  }
  // True if some would not end unless somebody drives.
  bool need_driver() const {
    return size() > kFew || !std::ranges::all_of(in_order_, [](const Execution* one) { return one->is_lent_out(); });
  }
  struct Ended {
    WorkPtr work;
    bool bulk;
  };
  // Destroys those that have finished, all in one pass: there may be tens of thousands. In their order.
  std::vector<Ended> remove_finished() {
    std::vector<Ended> ended;
    std::erase_if(in_order_, [&](const Execution* one) {
      if (!one->finished()) return false;
      ended.push_back({one->work(), one->bulk()});
      const Request& request = ended.back().work->request;
      by_key_.erase(WorkKey{request.channel, request.seq});
      return true;
    });
    return ended;
  }
  void clear() {
    in_order_.clear();
    by_key_.clear();
  }

  const std::vector<Execution*>& in_order() const { return in_order_; }
  size_t size() const { return in_order_.size(); }
  bool empty() const { return in_order_.empty(); }

 private:
  static constexpr int kStarts = 4;   // of chunks, by each work, in a turn
  static constexpr size_t kFew = 64;  // works

  std::unordered_map<WorkKey, std::unique_ptr<Execution>, WorkKey::Hash> by_key_;
  std::vector<Execution*> in_order_;
};

}  // namespace slipstream
