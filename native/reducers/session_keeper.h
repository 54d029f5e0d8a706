// The thread that opens and closes sessions with reducers.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "session/session.h"

namespace slipstream {

class SessionKeeper {
 public:
  using SessionPtr = std::shared_ptr<Session>;
  // On the keeper's thread. May throw: then there is none.
  using Open = std::function<SessionPtr(size_t reducer, uint64_t incarnation)>;
  // On the keeper's thread. False: the session is of no use any more.
  using Take = std::function<bool(size_t reducer, uint64_t incarnation, const SessionPtr& session)>;

  SessionKeeper(Open open, Take take);
  ~SessionKeeper() { stop(); }

  void open(size_t reducer, uint64_t incarnation);
  void close(SessionPtr session);
  // Closes what it was given, and opens no more. Waits for that. False if it has stopped before.
  bool stop();
  // Closes them all at the same time: each may wait for a reducer that is silent.
  static void close_all(const std::vector<SessionPtr>& sessions);

 private:
  void loop();

  const Open open_;
  const Take take_;
  std::mutex mutex_;
  std::condition_variable bell_;
  std::vector<std::pair<size_t, uint64_t>> to_open_;
  std::vector<SessionPtr> to_close_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace slipstream
