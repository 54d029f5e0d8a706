// An operation of a framework between the moment at which it takes its place in a line and its end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lines/planned.h"

namespace slipstream::mxnet {

// How an operation has ended: a status of slipstream.h, and its text.
struct Outcome {
  int32_t status = SLIPSTREAM_OK;
  std::string text;
};

class Ticket : public lines::Planned, public std::enable_shared_from_this<Ticket> {
 public:
  // All of these are there before it is ready.
  // The ranks compare its form before it begins: if they differ, it fails, and the job goes on. Without, the engine
  // compares what operations are called, and ends the job where ranks differ.
  bool asks = true;
  // Not empty: this rank cannot run it, for this reason. The job ends in its turn, as the others wait for it.
  std::string given_up;

  // Writes the kind, form, title and label of an operation on tensors. Others of the line have other names, so `what`,
  // which is there already, is compared, too.
  void describe(const lines::Asked& asked, const std::vector<lines::Operand>& operands);
  // What errors call it, with its arguments.
  std::string full_title() const;

  // The last one ends the ticket. Whoever waits goes on in this thread.
  void ended(size_t call, int32_t status, const char* text) override;
  // The whole of it has: it was not started, or has no calls. Nothing, if it has ended already.
  void close(Outcome how);
  // Of one that has ended.
  const Outcome& outcome() const { return outcome_; }
  bool is_over() const { return over_.load(std::memory_order_acquire); }

 protected:
  // It is over: called once, without a lock.
  virtual void told() = 0;

 private:
  friend class PushLine;

  void end(std::unique_lock<std::mutex> lock);

  std::mutex mutex_;
  size_t ended_ = 0;
  std::atomic<bool> over_{false};
  Outcome outcome_;
  bool ready_ = false;  // the line's
};

}  // namespace slipstream::mxnet
