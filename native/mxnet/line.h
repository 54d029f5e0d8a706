// Operations that all ranks start in one order, on a group of their own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "capi/handle.h"
#include "capi/slipstream.h"
#include "mxnet/ticket.h"

namespace slipstream::mxnet {

// The group of a line, of the job as it is now: a new reference. Throws Failure.
using Finder = std::function<slipstream_group*()>;

// Starts tickets in the order in which they took their places, each once it is ready. The ranks compare its form before
// (shapes, dtypes, arguments), if it asks for that: they tell a digest, and only where these differ, a text.
class PushLine : public std::enable_shared_from_this<PushLine> {
 public:
  explicit PushLine(Finder find) : find_(std::move(find)) {}
  ~PushLine();
  PushLine(const PushLine&) = delete;

  // None of these waits for other ranks, nor for a ticket that is being started. Any thread.
  void take_place(std::shared_ptr<Ticket> ticket);
  // Those that are ready are started, in this thread or in the one that is at it.
  void ready(Ticket& ticket);
  void start(const std::shared_ptr<Ticket>& ticket) {
    take_place(ticket);
    ready(*ticket);
  }
  // The process has left the job.
  void forget();

 private:
  struct Question;

  static void answered(void* user, int32_t status, const char* text);
  bool judge(std::unique_ptr<Question> question, int32_t status, const char* text);
  void go_on(std::unique_lock<std::mutex> lock);
  bool step(const std::shared_ptr<Ticket>& ticket);
  void renew();
  void drop_group();
  bool exchange(std::unique_ptr<Question>& question, void* told, size_t bytes);
  void begin(const std::shared_ptr<Ticket>& ticket);
  std::string mismatch(const Question& question) const;

  const Finder find_;
  std::mutex mutex_;
  std::deque<std::shared_ptr<Ticket>> waiting_;
  // A thread starts tickets, or the ranks compare a form, whose answer goes on. Only it touches what stands below.
  bool busy_ = false;
  bool left_ = false;  // the process has left the job meanwhile
  slipstream_group* group_ = nullptr;
};

}  // namespace slipstream::mxnet
