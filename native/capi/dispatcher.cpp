#include "capi/dispatcher.h"

#include <atomic>
#include <utility>

#include "base/fd.h"
#include "base/log.h"
#include "base/thread.h"

namespace slipstream::capi {

namespace {

// A child has none of its parent's threads, and maybe a lock that one of them held.
struct Instance {
  Dispatcher dispatcher;
  const uint32_t forks = slipstream::forks();
};

}  // namespace

// Told by the driver, so it only passes the call on.
class Dispatcher::Done final : public Listener {
 public:
  Done(Dispatcher& dispatcher, const Work& work, Call call)
      : dispatcher_(dispatcher), work_(work), call_(std::move(call)) {}
  void work_done() override {
    const Error& error = work_.error();
    call_.status = static_cast<int32_t>(error.code);
    call_.text = error.text;
    dispatcher_.post(std::move(call_));
  }

 private:
  Dispatcher& dispatcher_;
  const Work& work_;  // which owns this
  Call call_;
};

// Never freed: works may run until the process ends.
Dispatcher& Dispatcher::instance() {
  static std::atomic<Instance*> current{nullptr};
  Instance* found = current.load(std::memory_order_acquire);
  while (found == nullptr || found->forks != forks()) {
    auto* const made = new Instance;
    if (current.compare_exchange_strong(found, made, std::memory_order_acq_rel)) return made->dispatcher;
    delete made;
  }
  return found->dispatcher;
}

std::unique_ptr<Listener> Dispatcher::listener(const Work& work, slipstream_done done, void* user) {
  {
    const std::lock_guard lock(mutex_);
    while (threads_ < kLeast) start_thread_locked();
  }
  return std::make_unique<Done>(*this, work, Call{done, user, 0, {}});
}

size_t Dispatcher::threads() const {
  const std::lock_guard lock(mutex_);
  return threads_;
}

void Dispatcher::start_thread_locked() {
  std::thread thread = start_thread("a thread of completions", [this] { serve(); });
  present(thread, "slipstream-done", {});
  thread.detach();
  ++threads_;
}

void Dispatcher::post(Call call) {
  std::unique_lock lock(mutex_);
  calls_.push_back(std::move(call));
  something_comes_.notify_one(lock);
}

void Dispatcher::serve() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    something_comes_.wait(lock, [this] { return !calls_.empty(); });
    --idle_;
    const Call call = std::move(calls_.front());
    calls_.pop_front();
    if (idle_ == 0 && threads_ < kMost) try {
        start_thread_locked();
      } catch (const Failure& failure) {  // those that are there will come to it
        log_warning(-1, failure.error().text);
      }
    lock.unlock();
    call.done(call.user, call.status, call.text.c_str());
    lock.lock();
  }
}

}  // namespace slipstream::capi
