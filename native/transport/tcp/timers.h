// Deadlines of the tcp transport, kept in the poller by one timerfd: the owner may sleep for ever and still no
// deadline is missed. Nothing is armed while nothing is timed.
#pragma once

#include <set>
#include <utility>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/poller.h"

namespace slipstream {

class Timers;

class Timed {
 public:
  Timed() = default;
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 protected:
  ~Timed() = default;

 private:
  friend class Timers;
  // The deadline has come and is no longer set. May set it again, and may delete this object or any other.
  virtual void due(Time now) = 0;
  Time when_ = Time::max();
};

class Timers final : private Handler {
 public:
  explicit Timers(Poller& poller);
  ~Timers() override;

  void set(Timed& timed, Time when);  // replaces an earlier deadline
  void cancel(Timed& timed);          // every Timed that was set cancels before it dies
  // Runs what is due at `now`; returns the next deadline, Time::max() if there is none.
  Time tick(Time now);

 private:
  void ready(uint32_t events) override;
  void arm(Time when);

  Poller& poller_;
  Fd fd_;
  Time armed_ = Time::max();
  std::set<std::pair<Time, Timed*>> queue_;
};

}  // namespace slipstream
