// Sends without a copy (MSG_ZEROCOPY): the kernel sends from the pages of a message itself, and tells later, through
// the error queue of the socket, when it needs them no more. The accounting is pure; two functions make the calls.
//
// Memory is used again before that notice comes:
//  - The memory of a message stays as it is until the peer has acknowledged it. By then the peer has all of it, perhaps
//    over another lane, and drops whatever still comes of it. So what the kernel repeats from changed memory hurts
//    nobody.
//  - Only payload is lent. The peer believes headers, and their memory is used again at once: those are copied.
//  - The kernel holds the pages themselves. Memory that is unmapped meanwhile stays there for it.
//  - A message that is not taken is given back by TcpLink::close() and by the end of the link alone. What the socket
//    still held of it could then reach the peer changed, complete a message there and be believed. So a connection
//    that is left while pages are lent is reset, which throws away what has not been sent. (A copying send goes on.)
//    Packets in the queue of the network device are beyond that: a millisecond's worth at most (TCP small queues),
//    with the reset behind them.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "transport/tcp/lend_threshold.h"

namespace slipstream {

// What a socket did with a message. `bytes` and errno are sendmsg's.
struct Sent {
  ssize_t bytes = 0;
  bool lent = false;     // without a copy, so far
  bool refused = false;  // it was to be, and could not: copied
};

class ZeroCopy {
 public:
  // Loopback, veth and devices without scatter-gather copy each time. A capture (tcpdump) may for a while.
  static constexpr int kMostInVain = 4;

  // A new connection, perhaps over another device; `on`: its socket can do it.
  void begin(bool on);
  // What is as large as `bytes` is lent. 0: what is measured to be cheaper lent.
  void fix(size_t bytes) { threshold_.fix(bytes); }
  // It stays on where the kernel copies; for tests.
  void insist() { insists_ = true; }
  // Whether to lend the payload of this size that comes next; asked once for each.
  bool lends(size_t bytes) { return on_ && threshold_.lends(bytes); }
  // Of one that is to be lent, whether to lend what is left; `begun`: some of it has gone out.
  bool lends_rest(size_t bytes, bool begun) const { return on_ && (!begun || bytes >= threshold_.bytes()); }
  // The most, up to `bytes`, that is copied as far as is known.
  uint32_t copied_most(uint32_t bytes) const {
    return on_ ? static_cast<uint32_t>(std::min<size_t>(bytes, threshold_.bytes() - 1)) : bytes;
  }
  // Whether sends are to be timed.
  bool measures() const { return on_ && threshold_.measures(); }
  // A call for the header of what is lent took so long.
  void before(double seconds) { before_ += seconds; }
  // A call that sent a segment, or several of `bytes` each, and took `seconds`; before its completion is read.
  void record(const Sent& sent, size_t bytes = 0, double seconds = 0);
  // Sends number `first` to `last`, counted from 0 modulo 2^32, are done.
  void done(uint32_t first, uint32_t last, bool copied);
  // To read such notices took so long.
  void read(double seconds);

  bool on() const { return on_; }
  // What is as large is lent, as far as is known; 0: nothing.
  size_t from() const { return on_ && threshold_.bytes() != LendThreshold::kNothing ? threshold_.bytes() : 0; }
  size_t lent() const { return sends_.size() - done_; }  // sends that the kernel is not done with
  uint64_t bytes() const { return bytes_; }              // that went without a copy, over all connections

 private:
  struct Send {
    uint64_t bytes;
    bool done;
    size_t segment;  // that they are of
    double seconds;  // 0: not known
  };

  void in_vain();

  bool on_ = false;
  bool insists_ = false;
  int in_vain_ = 0;         // in a row
  std::deque<Send> sends_;  // the first is not done
  uint32_t first_ = 0;      // its number
  size_t done_ = 0;         // of sends_
  uint64_t bytes_ = 0;
  LendThreshold threshold_;
  double before_ = 0;        // seconds for a header whose payload has not been sent yet
  std::vector<Send> heard_;  // done without a copy, by notices that have been read
};

// Lets a connected socket send without a copy. False: it cannot.
bool allow_zero_copy(int fd);
// sendmsg(). What the kernel does not take with MSG_ZEROCOPY (limits of pinned or socket memory, memory of devices)
// it is given without.
Sent send_message(int fd, const msghdr& message, int flags);
// Reads what the error queue says of sends. False: nothing, so that an EPOLLERR means an error.
bool read_completions(int fd, ZeroCopy& zero_copy);

}  // namespace slipstream
