// Wakes a sleeping driver, from other threads and from other processes of the host.
//
// The driver raises `asleep`, looks once more for work, and only then sleeps in epoll; whoever gives it work first
// publishes the work and then looks at `asleep`. Both sides use sequentially consistent order, so one sees the other.
//
// An owner with many peers asks each that rings to leave a mark, so that it looks at those alone. Few peers leave none:
// to look at them all is cheaper than to have the marks' cache line change its core. No work is missed:
// - Who rings publishes the work, leaves the mark, and then looks at `asleep`; the owner raises `asleep` and then looks
//   for marks. As above, one sees the other.
// - The owner takes a mark before it looks for the work. It reads the mark that another has released, so it sees what
//   was published before; what is published later gets a new mark. A mark without work costs a look.
// - An owner that leaves some of the work for later, or takes the mark before it can look, has to remember that.
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
  static constexpr size_t kMarks = 512;  // one cache line of them
  static constexpr size_t kMarkWords = kMarks / 64;
  // Where `rank` leaves its mark, and others with the same remainder.
  static constexpr size_t mark_of(int rank) { return static_cast<size_t>(rank) % kMarks; }

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
  // As `from`, after the work has been published.
  void ring(int from) {
    if (marked().load(std::memory_order_relaxed) != 0) {
      const size_t mark = mark_of(from);
      marks(mark / 64).fetch_or(uint64_t{1} << mark % 64, std::memory_order_seq_cst);
    }
    ring();
  }

  // The owner's side.
  // Before it gives its descriptors to anybody: those that ring leave marks.
  void ask_for_marks() { marked().store(1, std::memory_order_relaxed); }
  // Marks 64 * word and the 63 after it, which are gone then.
  uint64_t take_marks(size_t word) {
    auto& found = marks(word);
    return found.load(std::memory_order_relaxed) == 0 ? 0 : found.exchange(0, std::memory_order_seq_cst);
  }
  bool any_marks() {
    for (size_t word = 0; word < kMarkWords; ++word)
      if (marks(word).load(std::memory_order_seq_cst) != 0) return true;
    return false;
  }
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
  std::atomic<uint32_t>& marked() { return *reinterpret_cast<std::atomic<uint32_t>*>(page_.data() + 4); }
  std::atomic<uint64_t>& marks(size_t word) {
    return reinterpret_cast<std::atomic<uint64_t>*>(page_.data() + 64)[word];
  }
  void write_event() {
    const uint64_t one = 1;
    [[maybe_unused]] const auto n = ::write(event_.get(), &one, sizeof(one));
  }

  Fd event_;
  Fd page_fd_;
  Mapping page_;
};

}  // namespace slipstream
