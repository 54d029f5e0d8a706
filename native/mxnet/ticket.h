// An operation of a framework between the moment at which it takes its place in a line and its end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "capi/slipstream.h"

namespace slipstream::mxnet {

// Tensors of one dtype that travel as one message: of small ones the messages are what costs. Their copies lie side by
// side.
struct Pack {
  struct Part {
    const void* from;
    void* to;
    size_t bytes;
  };
  std::vector<Part> parts;
  std::vector<std::byte> memory;

  void fill();
  void empty() const;
};

// How an operation has ended: a status of slipstream.h, and its text.
struct Outcome {
  int32_t status = SLIPSTREAM_OK;
  std::string text;
};

class Ticket : public std::enable_shared_from_this<Ticket> {
 public:
  Ticket() = default;
  virtual ~Ticket() = default;
  Ticket(const Ticket&) = delete;

  // Before it is ready: the calls of the engine. `form`: what all ranks have to agree about; `title`: the same for
  // people. `packs`: one for each call; empty for those that work on tensors.
  std::vector<slipstream_call> calls;
  std::vector<Pack> packs;
  std::string form, kind, title, what;
  // What the engine knows it as, so that it compares that as well.
  std::string label;
  // The ranks compare its form before it begins: if they differ, it fails, and the job goes on. Without, the engine
  // compares what operations are called, and ends the job where ranks differ.
  bool asks = true;
  // Not empty: this rank cannot run it, for this reason. The job ends in its turn, as the others wait for it.
  std::string given_up;

  // A call has come to its end. The last one ends the ticket. Whoever waits goes on in this thread.
  void ended(size_t call, int32_t status, const char* text);
  // The whole of it has: it was not started, or has no calls. Nothing, if it has ended already.
  void close(Outcome how);
  // Of one that has ended.
  const Outcome& outcome() const { return outcome_; }
  bool is_over() const { return over_.load(std::memory_order_acquire); }

  // What a call of the engine is told of it by. It owns a reference.
  struct Of {
    std::shared_ptr<Ticket> ticket;
    size_t call;
    static void done(void* user, int32_t status, const char* text);
  };

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

// Of a form.
uint64_t digest_of(const std::string& form);

}  // namespace slipstream::mxnet
