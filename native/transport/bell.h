// Wakes a sleeping driver, from other threads and from other processes of the host.
//
// The driver raises `asleep`, looks once more for work, and only then sleeps in epoll; whoever gives it work first
// publishes the work and then looks at `asleep`. Both sides use sequentially consistent order, so one sees the other.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "base/error.h"
#include "base/fd.h"
#include "transport/region.h"

namespace slipstream {

class Bell {
 public:
  static constexpr size_t kPage = 4096;

  Bell() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), page_fd_(make_memfd("slipstream-bell", kPage)) {
    if (!event_) throw Failure(Code::internal, errno_text("eventfd"));
    page_ = Mapping(page_fd_.get(), kPage);
  }
  // A peer's bell, from the descriptors it passed us.
  Bell(Fd event, Fd page) : event_(std::move(event)), page_fd_(std::move(page)), page_(page_fd_.get(), kPage) {}

  void ring() {
    if (flag().load(std::memory_order_seq_cst) == 0) return;
    if (flag().exchange(0, std::memory_order_seq_cst) != 0) write_event();
  }
  void ring_always() { write_event(); }

  // The owner's side.
  void arm() { flag().store(1, std::memory_order_seq_cst); }
  void disarm() { flag().store(0, std::memory_order_seq_cst); }
  void clear() {
    uint64_t count = 0;
    [[maybe_unused]] const auto n = ::read(event_.get(), &count, sizeof(count));
  }

  int event_fd() const { return event_.get(); }
  int page_fd() const { return page_fd_.get(); }

 private:
  std::atomic<uint32_t>& flag() { return *reinterpret_cast<std::atomic<uint32_t>*>(page_.data()); }
  void write_event() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(event_.get(), &one, sizeof(one));
  }

  Fd event_;
  Fd page_fd_;
  Mapping page_;
};

}  // namespace slipstream
