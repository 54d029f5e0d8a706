// The threads that tell callers what is done. There are two, and one more whenever all are busy: a callback may wait
// for an operation whose own callback has yet to be called.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "base/futex.h"
#include "capi/slipstream.h"
#include "engine/work.h"

namespace slipstream::capi {

class Dispatcher {
 public:
  static constexpr size_t kLeast = 2, kMost = 64;

  // Of this process; never ends. A forked child has its own.
  static Dispatcher& instance();

  // What tells `done` of the work that it listens to. Throws Failure if there can be no thread.
  std::unique_ptr<Listener> listener(const Work& work, slipstream_done done, void* user);
  size_t threads() const;

 private:
  struct Call {
    slipstream_done done = nullptr;
    void* user = nullptr;
    int32_t status = 0;
    std::string text;
  };
  class Done;

  void post(Call call);
  void serve();
  void start_thread_locked();

  mutable std::mutex mutex_;
  Condition something_comes_;
  std::deque<Call> calls_;
  size_t threads_ = 0, idle_ = 0;
};

}  // namespace slipstream::capi
