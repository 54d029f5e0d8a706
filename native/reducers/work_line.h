// The line in which works wait for memory that split works still need.
//
// An engine knows the memory of its session's works alone, and a split work runs in several sessions. So a split work
// and any other of its group on the same memory begin one after another here; those of other groups are refused.
#pragma once

#include <deque>
#include <string>

#include "engine/memory_in_use.h"
#include "engine/work.h"
#include "reducers/parts.h"

namespace slipstream {

// The context's mutex is held by whoever calls.
class WorkLine {
 public:
  explicit WorkLine(const ReducerContext& context) : context_(context) {}

  // Split works are all of this channel.
  void set_channel(uint64_t channel) { channel_ = channel; }
  // Why the work cannot be done; empty: it can.
  std::string objection(const Work& work) const;
  // Whether a work that is not split has to stand in line.
  bool must_wait(const Work& work) const;
  // It goes to the end of the line.
  void push(const WorkPtr& work);
  // The first in line, if it may begin; else null.
  WorkPtr front() const;
  // The first in line begins.
  void pop();
  // A work that is not split, and need not wait, begins.
  void pass(const WorkPtr& work) { use(work, others_); }

  // True if `work` waits, and is late before any other in line.
  bool is_due_first(const Work& work);
  // A work that has waited for longer than it may; null: none.
  const Work* overdue(Time now);
  // No work in line is late before.
  Time due() const { return due_; }
  // "all_reduce(...) has waited 3.0 s for its turn, behind ..."
  std::string describe_wait(const Work& work, Time now) const;
  // The same of the rank: "has waited 3.0 s for the turn of all_reduce(...), behind ..."
  std::string describe_late(const Work& work, Time now) const;

  // Nothing that stands in line begins any more.
  void fail(const Error& error);

 private:
  std::string behind(const Work& work) const;  // empty: nothing that has begun
  static const Work* conflict(const Work& work, const MemoryInUse& others, bool elsewhere = false);  // null: none
  void use(const WorkPtr& work, MemoryInUse& memory);

  const ReducerContext& context_;
  std::deque<WorkPtr> waiting_;
  Time due_ = Time::max();
  uint64_t channel_ = 0;
  uint64_t passing_ = 0;  // works in line that are not split: later ones of the group have to wait behind them
  MemoryInUse in_line_;   // of works in `waiting_`
  MemoryInUse begun_;     // of split works
  MemoryInUse others_;    // of works that are not split
};

}  // namespace slipstream
