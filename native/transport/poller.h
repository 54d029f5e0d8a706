// epoll with handlers. One a session; used by the driver's thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/fd.h"

namespace slipstream {

class Handler {
 public:
  virtual ~Handler() = default;
  // `events` as epoll gives them. May delete other handlers' registrations, and its own.
  virtual void ready(uint32_t events) = 0;
};

class Poller {
 public:
  Poller();
  ~Poller();
  void add(int fd, uint32_t events, Handler* handler);
  void modify(int fd, uint32_t events, Handler* handler);
  // After remove() the handler is not called again, not even for events already fetched.
  void remove(int fd, Handler* handler);
  // From within ready(): calls `handler` without events once all others of this turn have been called.
  void later(Handler* handler) { later_.push_back(handler); }
  void not_later(Handler* handler);  // every handler that was put off says so before it dies
  // From anywhere: calls `handler` without events in the next turn, whatever descriptors say.
  void again(Handler* handler);
  void expect_again();  // so that a lack of descriptors shows here
  void not_again(Handler* handler) { std::erase(again_, handler); }
  // Waits up to `timeout_ms` (-1: for ever, 0: not at all) and dispatches. Returns the number of handlers called.
  int wait(int timeout_ms);
  int fd() const { return epoll_.get(); }  // itself pollable, to wait without dispatching

 private:
  static constexpr int kBatch = 64;
  Fd epoll_;
  struct Fetched;
  Fetched* fetched_ = nullptr;
  std::vector<Handler*> later_;
  std::vector<Handler*> again_;
  struct Knock;
  std::unique_ptr<Knock> knock_;  // made when first needed
};

}  // namespace slipstream
