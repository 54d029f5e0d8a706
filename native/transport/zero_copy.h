// Sends without a copy (MSG_ZEROCOPY): the kernel sends from the pages of a message itself, and tells later, through
// the error queue of the socket, when it needs them no more. The accounting is pure; two functions make the calls.
//
// Nobody waits for those words before memory is used again:
//  - The memory of a message stays as it is until the peer has said `taken`. By then the peer has all of it, perhaps
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

#include <cstddef>
#include <cstdint>
#include <deque>

namespace slipstream {

// What a socket did with a message. `bytes` and errno are sendmsg's.
struct Sent {
  ssize_t bytes = 0;
  bool lent = false;     // without a copy, so far
  bool refused = false;  // it was to be, and could not: copied
};

class ZeroCopy {
 public:
  // Pinning pages and reading a completion cost about as much as copying 10 KiB (Linux,
  // Documentation/networking/msg_zerocopy.rst). What is lent should be clearly more.
  static constexpr size_t kLeast = 32 << 10;
  // Loopback, veth and devices without scatter-gather copy each time. A capture (tcpdump) may for a while.
  static constexpr int kMostInVain = 4;

  // A new connection; `on`: its socket can do it.
  void begin(bool on);
  // It stays on where the kernel copies; for tests.
  void insist() { insists_ = true; }
  bool suits(size_t bytes) const { return on_ && bytes >= kLeast; }
  void record(const Sent& sent);  // before its completion is read
  // Sends number `first` to `last`, counted from 0 modulo 2^32, are done.
  void done(uint32_t first, uint32_t last, bool copied);

  bool on() const { return on_; }
  size_t lent() const { return sends_.size() - done_; }  // sends that the kernel is not done with
  uint64_t bytes() const { return bytes_; }              // that went without a copy, over all connections

 private:
  struct Send {
    uint64_t bytes;
    bool done;
  };

  void in_vain();

  bool on_ = false;
  bool insists_ = false;
  int in_vain_ = 0;         // in a row
  std::deque<Send> sends_;  // the first is not done
  uint32_t first_ = 0;      // its number
  size_t done_ = 0;         // of sends_
  uint64_t bytes_ = 0;
};

// Lets a connected socket send without a copy. False: it cannot.
bool allow_zero_copy(int fd);
// sendmsg(). What the kernel does not take with MSG_ZEROCOPY (limits of pinned or socket memory, memory of devices)
// it is given without.
Sent send_message(int fd, const msghdr& message, int flags);
// Reads what the error queue says of sends. False: nothing, so that an EPOLLERR means an error.
bool read_completions(int fd, ZeroCopy& zero_copy);

}  // namespace slipstream
