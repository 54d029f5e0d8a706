#include "reducers/session_keeper.h"

#include <future>
#include <system_error>

#include "base/thread.h"

namespace slipstream {

SessionKeeper::SessionKeeper(Open open, Take take)
    : open_(std::move(open)),
      take_(std::move(take)),
      thread_(start_thread("the thread that opens sessions with reducers", [this] { loop(); })) {}

void SessionKeeper::open(size_t reducer, uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  to_open_.emplace_back(reducer, incarnation);
  bell_.notify_one();
}

void SessionKeeper::close(SessionPtr session) {
  const std::lock_guard lock(mutex_);
  to_close_.push_back(std::move(session));
  bell_.notify_one();
}

bool SessionKeeper::stop() {
  {
    const std::lock_guard lock(mutex_);
    if (stop_) return false;
    stop_ = true;
    bell_.notify_one();
  }
  thread_.join();
  return true;
}

void SessionKeeper::close_all(const std::vector<SessionPtr>& sessions) {
  std::vector<std::future<void>> closing;
  for (const auto& session : sessions) {
    try {
      closing.push_back(std::async(std::launch::async, [&session] { session->close(); }));
    } catch (const std::system_error&) {  // no thread
      session->close();
    }
  }
}

void SessionKeeper::loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    bell_.wait(lock, [this] { return stop_ || !to_open_.empty() || !to_close_.empty(); });
    auto closing = std::exchange(to_close_, {});
    auto opening = std::exchange(to_open_, {});
    if (stop_ && closing.empty()) return;
    if (stop_) opening.clear();
    lock.unlock();
    close_all(closing);
    closing.clear();
    for (const auto& [reducer, incarnation] : opening) {
      SessionPtr session;
      try {
        session = open_(reducer, incarnation);
      } catch (const std::exception&) {  // the reducer stays unused until it has another incarnation
        continue;
      }
      if (!take_(reducer, incarnation, session)) close(std::move(session));
    }
    lock.lock();
  }
}

}  // namespace slipstream
