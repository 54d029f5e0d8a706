// epoll with handlers. One a session; used by the driver's thread only.
#pragma once

#include <cstdint>

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
  // Waits up to `timeout_ms` (-1: for ever, 0: not at all) and dispatches. Returns the number of handlers called.
  int wait(int timeout_ms);
  int fd() const { return epoll_.get(); }  // itself pollable, to wait without dispatching

 private:
  static constexpr int kBatch = 64;
  Fd epoll_;
  struct Fetched;
  Fetched* fetched_ = nullptr;
};

}  // namespace slipstream
