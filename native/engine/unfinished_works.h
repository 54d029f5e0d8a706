// The works that have been submitted and are not done: counts them, and ends each one.
#pragma once

#include <atomic>
#include <cstddef>

#include "base/error.h"
#include "base/trace.h"
#include "engine/work.h"

namespace slipstream {

// What the timeline says of a work that ends now.
TraceEvent event_of(const Work& work, const Error& error);
// Bytes of the larger buffer of a call of `count` elements, where there are no tables.
uint64_t bytes_of(const Request& request, uint64_t count);

class UnfinishedWorks {
 public:
  // Where works with a time in `traced` are recorded when they are done; null: nowhere.
  void set_trace(Trace* trace) { trace_ = trace; }

  // Any thread.
  void add() { count_.fetch_add(1, std::memory_order_relaxed); }
  // Any thread. True if no work uses memory, of those that this thread knows of.
  bool none() const { return count_.load(std::memory_order_acquire) == 0; }
  // Ends a work, with Code::ok or why it failed. Does nothing if it is done.
  void complete(Work& work, const Error& error);

 private:
  Trace* trace_ = nullptr;
  std::atomic<size_t> count_{0};
};

}  // namespace slipstream
