// An operation of a graph between the node that starts it and the one that waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lines/ticket.h"
#include "tensorflow/abi.h"

namespace slipstream::tensorflow {

// How an operation has ended, as TensorFlow has it.
struct End {
  int code = kOk;
  std::string text;
};

// Of a status of slipstream.h. A lost rank is kUnknown, as with Horovod: after kAborted and kUnavailable a
// MonitoredSession of TensorFlow makes its session anew, for ever.
int code_of(int32_t status);

class Ticket final : public lines::Ticket {
 public:
  explicit Ticket(const Api& tf) : tf_(tf) {}
  ~Ticket() override { release(); }

  // References that live as long as the engine reads and writes.
  std::vector<Tensor*> held;

  // Has `after` called once: now, if it has ended. False, if something else waits for it, or has: then it is not
  // called.
  bool when_done(std::function<void()> after);
  // One of Python's has ended so, with a code of TensorFlow's. Nothing, if it has ended already.
  void close_as(End end);
  // Of one that has ended.
  End result() const;
  bool has_failed() const { return is_over() && result().code != kOk; }

 private:
  void told() override;
  void release();

  const Api& tf_;
  std::mutex mutex_;
  bool awaited_ = false;
  int code_ = kOk;  // of Python's
  std::function<void()> after_;
};

// Tickets by number, as long as the tensor that has the number lives.
int64_t give(std::shared_ptr<Ticket> ticket);
std::shared_ptr<Ticket> ticket_of(int64_t number);
void forget_ticket(int64_t number);

}  // namespace slipstream::tensorflow
