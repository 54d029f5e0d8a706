#include "transport/poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "base/error.h"

namespace slipstream {

struct Poller::Fetched {
  epoll_event events[kBatch];
  int count = 0;
};

// An eventfd: who sleeps on the poller's own descriptor is woken, too.
struct Poller::Knock final : Handler {
  explicit Knock(Poller& p) : poller(p), fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (!fd) throw Failure(Code::internal, errno_text("eventfd"));
    poller.add(fd.get(), EPOLLIN, this);
  }
  void ready(uint32_t) override {
    eventfd_t count = 0;
    (void)::eventfd_read(fd.get(), &count);
    // Those that ask once more are called in the turn after this one.
    for (size_t left = poller.again_.size(); left > 0 && !poller.again_.empty(); --left) {
      Handler* const handler = poller.again_.front();
      poller.again_.erase(poller.again_.begin());
      handler->ready(0);
    }
  }
  Poller& poller;
  Fd fd;
};

Poller::Poller() : epoll_(::epoll_create1(EPOLL_CLOEXEC)), fetched_(new Fetched) {
  if (!epoll_) throw Failure(Code::internal, errno_text("epoll_create1"));
}

Poller::~Poller() { delete fetched_; }

void Poller::add(int fd, uint32_t events, Handler* handler) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = handler;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
    throw Failure(Code::internal, errno_text("epoll_ctl add"));
}

void Poller::modify(int fd, uint32_t events, Handler* handler) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = handler;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0)
    throw Failure(Code::internal, errno_text("epoll_ctl mod"));
}

void Poller::remove(int fd, Handler* handler) {
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  for (int i = 0; i < fetched_->count; ++i)
    if (fetched_->events[i].data.ptr == handler) fetched_->events[i].data.ptr = nullptr;
}

void Poller::expect_again() {
  if (!knock_) knock_ = std::make_unique<Knock>(*this);
}

void Poller::again(Handler* handler) {
  if (std::find(again_.begin(), again_.end(), handler) != again_.end()) return;
  expect_again();
  again_.push_back(handler);
  (void)::eventfd_write(knock_->fd.get(), 1);
}

void Poller::not_later(Handler* handler) { std::erase(later_, handler); }

int Poller::wait(int timeout_ms) {
  const int n = ::epoll_wait(epoll_.get(), fetched_->events, kBatch, timeout_ms);
  if (n < 0) {
    if (errno == EINTR) return 0;
    throw Failure(Code::internal, errno_text("epoll_wait"));
  }
  fetched_->count = n;
  int called = 0;
  for (int i = 0; i < fetched_->count; ++i) {
    auto* handler = static_cast<Handler*>(fetched_->events[i].data.ptr);
    if (handler == nullptr) continue;
    handler->ready(fetched_->events[i].events);
    ++called;
  }
  fetched_->count = 0;
  while (!later_.empty()) {
    Handler* const handler = later_.back();
    later_.pop_back();
    handler->ready(0);
  }
  return called;
}

}  // namespace slipstream
