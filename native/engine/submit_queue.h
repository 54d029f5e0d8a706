// Hands works from the threads that submit them to the driver, until the session ends.
#pragma once

#include <atomic>
#include <cstddef>
#include <deque>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "engine/work.h"

namespace slipstream {

class SubmitQueue {
 public:
  // Any thread. Queues the work and returns Code::ok; or, once closed, leaves it with the caller and returns why: to
  // the first that learns of it and to deferred ones the reason, to others the refusal.
  Error push(WorkPtr& work) {
    const bool deferred = work->deferred;
    std::lock_guard lock(mutex_);
    if (!closed_) {
      works_.push_back(std::move(work));
      size_.store(works_.size(), std::memory_order_release);
    }
    return closed_ && std::exchange(told_, true) && !deferred ? refusal_ : closed_;
  }
  // Driver. All works that are queued.
  std::deque<WorkPtr> take() {
    std::deque<WorkPtr> taken;
    std::lock_guard lock(mutex_);
    taken.swap(works_);
    size_.store(0, std::memory_order_release);
    return taken;
  }
  // Driver. As take(); push() refuses works from now on, with `refusal`. The first reason stays.
  std::deque<WorkPtr> close(const Error& why, const Error& refusal) {
    std::deque<WorkPtr> taken;
    std::lock_guard lock(mutex_);
    if (!closed_) {
      closed_ = why;
      refusal_ = refusal;
    }
    taken.swap(works_);
    size_.store(0, std::memory_order_release);
    return taken;
  }

  // Driver. The program learns of the reason otherwise, too.
  void set_told() {
    std::lock_guard lock(mutex_);
    told_ = true;
  }

  // Any thread. Why it is closed; Code::ok if it is open.
  Error closed() const {
    std::lock_guard lock(mutex_);
    return closed_;
  }
  size_t size(std::memory_order order = std::memory_order_acquire) const { return size_.load(order); }

 private:
  mutable std::mutex mutex_;
  std::deque<WorkPtr> works_;  // guarded by mutex_
  Error closed_, refusal_;     // guarded by mutex_
  bool told_ = false;          // guarded by mutex_
  std::atomic<size_t> size_{0};
};

}  // namespace slipstream
