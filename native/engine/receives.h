// Receives that may take their message from several ranks, in the order of their submission, until one has sent.
// Driver's thread only.
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
  struct Receive {
    WorkPtr work;
    Stall stall;
    const std::vector<Candidate>& candidates() const { return work->request.candidates; }
  };

  Receive& add(WorkPtr work);
  // The receive that gets the next message of the channel; null if none waits for it.
  Receive* first(uint64_t channel);
  WorkPtr remove(Receive& receive);
  void clear();

  // True if a receive may have its message from this global rank.
  bool may_come_from(int global_rank) const;
  bool empty() const { return waiting_.empty(); }
  std::list<Receive>& all() { return waiting_; }
  const std::list<Receive>& all() const { return waiting_; }

 private:
  std::list<Receive> waiting_;
  std::unordered_map<uint64_t, std::deque<Receive*>> lines_;  // by channel
};

}  // namespace slipstream
