#include "transport/tcp/timers.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>

#include "base/error.h"

namespace slipstream {

Timers::Timers(Poller& poller) : poller_(poller), fd_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)) {
  if (!fd_) throw Failure(Code::internal, errno_text("timerfd_create"));
  poller_.add(fd_.get(), EPOLLIN, this);
}

Timers::~Timers() { poller_.remove(fd_.get(), this); }

void Timers::set(Timed& timed, Time when) {
  cancel(timed);
  timed.when_ = when;
  queue_.emplace(when, &timed);
  if (when < armed_) arm(when);
}

void Timers::cancel(Timed& timed) {
  if (timed.when_ == Time::max()) return;
  queue_.erase({timed.when_, &timed});
  timed.when_ = Time::max();
}

Time Timers::tick(Time now) {
  while (!queue_.empty() && queue_.begin()->first <= now) {
    Timed* timed = queue_.begin()->second;
    queue_.erase(queue_.begin());
    timed->when_ = Time::max();
    timed->due(now);
  }
  return queue_.empty() ? Time::max() : queue_.begin()->first;
}

void Timers::ready(uint32_t) {
  uint64_t expirations = 0;
  if (::read(fd_.get(), &expirations, sizeof(expirations)) < 0) return;
  armed_ = Time::max();
  const Time next = tick(now());
  if (next < armed_) arm(next);
}

void Timers::arm(Time when) {
  // steady_clock is CLOCK_MONOTONIC; a time of zero would disarm.
  const auto ns =
      std::max<int64_t>(1, std::chrono::duration_cast<std::chrono::nanoseconds>(when.time_since_epoch()).count());
  itimerspec spec{};
  spec.it_value.tv_sec = static_cast<time_t>(ns / 1'000'000'000);
  spec.it_value.tv_nsec = static_cast<long>(ns % 1'000'000'000);
  if (::timerfd_settime(fd_.get(), TFD_TIMER_ABSTIME, &spec, nullptr) != 0)
    throw Failure(Code::internal, errno_text("timerfd_settime"));
  armed_ = when;
}

}  // namespace slipstream
