// An operation of a graph between the node that starts it and the one that waits for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "lines/planned.h"
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

class Ticket : public lines::Planned, public std::enable_shared_from_this<Ticket> {
 public:
  // `tf`: of one that holds tensors.
  explicit Ticket(const Api* tf = nullptr) : tf_(tf) {}
  ~Ticket() override { release(); }

  int64_t step = 0;       // TensorFlow's number for the run that it belongs to
  uint64_t function = 0;  // a digest of the name of the function that it is in; 0 for an operation with a name
  // References that live as long as the engine reads and writes.
  std::vector<Tensor*> held;

  // The last one ends the ticket. Whoever waits goes on in this thread.
  void ended(size_t call, int32_t status, const char* text) override;
  // The whole of it has: it was not started, or has no calls. Nothing, if it has ended already.
  void close(End end);
  // Has `after` called once: now, if it has ended. False, if something else waits for it, or has: then it is not
  // called.
  bool when_done(std::function<void()> after);
  // Of one that has ended.
  const End& outcome() const { return end_; }
  bool has_failed();
  // Of all that the ranks have to agree about.
  uint64_t digest() const;
  // The same of one with this form. `title`: a digest.
  static uint64_t digest_with(std::string_view form, uint64_t title);

 private:
  void end(std::unique_lock<std::mutex> lock);
  void release();

  const Api* const tf_;
  std::mutex mutex_;
  size_t ended_ = 0;
  bool over_ = false, awaited_ = false;
  End end_;
  std::function<void()> after_;
};

// Tickets by number, as long as the tensor that has the number lives.
int64_t give(std::shared_ptr<Ticket> ticket);
std::shared_ptr<Ticket> ticket_of(int64_t number);
void forget_ticket(int64_t number);

}  // namespace slipstream::tensorflow
