// Receives that wait for a sender, in the order of their submission. Driver's thread only.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <unordered_map>

#include "engine/stall.h"
#include "engine/work.h"

namespace slipstream {

class Receives {
 public:
  struct Pending {
    WorkPtr work;
    Stall stall;
    const std::vector<Candidate>& candidates() const { return work->request.candidates; }
  };

  Pending& add(WorkPtr work);
  // Who takes the next message of the channel; null if nobody waits there.
  Pending* first(uint64_t channel);
  WorkPtr remove(Pending& pending);
  void clear();

  bool empty() const { return pending_.empty(); }
  std::list<Pending>& all() { return pending_; }
  const std::list<Pending>& all() const { return pending_; }

 private:
  std::list<Pending> pending_;
  std::unordered_map<uint64_t, std::deque<Pending*>> lines_;  // by channel
};

}  // namespace slipstream
