// The state of one wait that StallWatch looks at: since when, until when, and what other ranks have said about it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"

namespace slipstream {

// What a rank said about an operation that another one waits in.
struct Answer {
  Time said_at{};   // by the rank that it is about
  Time heard_at{};  // from that one, or another that passed it on
  bool takes_part = false;
  std::string text;  // "has not called it: ..."
};

struct Stall {
  uint64_t progress_seen = 0;
  Time progress_at{};
  Time asked_at{};
  Time warned_at{};
  bool unnamed = false;  // a warning is due that names it or counts it
  Time deadline = Time::max();
  Clock::duration limit = Clock::duration::max();
  std::map<int, Answer> answers;  // by global rank, members of the group only
  std::set<int> askers;           // global ranks that wait in the operation too, and want to know what we hear

  // The ranks that have said that they do not take part, in ascending order.
  std::vector<int> absent() const {
    std::vector<int> ranks;
    for (const auto& [rank, said] : answers)
      if (!said.takes_part) ranks.push_back(rank);
    return ranks;
  }
  void set_deadline(Time start, double timeout_seconds) {
    if (timeout_seconds <= 0) return;
    limit = seconds(timeout_seconds);
    deadline = start + limit;
  }
};

}  // namespace slipstream
