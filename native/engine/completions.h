// Which works are done: a queue of tokens, for a thread that waits for many works at once.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>

#include "base/futex.h"
#include "engine/work.h"

namespace slipstream {

// Any thread may call anything, and many may wait: a token goes to exactly one of them. The tokens of works that
// outlive the queue go nowhere.
class Completions {
 public:
  static constexpr int64_t kClosed = -1;

  // Queues `token` once the work is done, or now if it is.
  void add(Work& work, int64_t token);
  void post(int64_t token) { queue_->post(token); }
  // The next token; kClosed after close(), whatever is queued; nothing if `deadline` passes first.
  std::optional<int64_t> wait(Time deadline) { return queue_->wait(deadline); }
  void close() { queue_->close(); }

 private:
  class Queue {
   public:
    void post(int64_t token);
    std::optional<int64_t> wait(Time deadline);
    void close();

   private:
    std::mutex mutex_;
    Condition something_comes_;
    std::deque<int64_t> tokens_;
    bool closed_ = false;
  };

  // What a work holds of us: it may be complete after we are gone.
  class Ticket final : public Listener {
   public:
    Ticket(std::shared_ptr<Queue> queue, int64_t token) : queue_(std::move(queue)), token_(token) {}
    void work_done() override { queue_->post(token_); }

   private:
    std::shared_ptr<Queue> queue_;
    int64_t token_;
  };

  std::shared_ptr<Queue> queue_ = std::make_shared<Queue>();
};

}  // namespace slipstream
