// What all lanes of a tcp link have in common: one authenticated connection after the other. Private to this folder.
#pragma once

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/link.h"
#include "transport/poller.h"
#include "transport/sockets.h"
#include "transport/tcp/connection.h"

namespace slipstream {

struct LinkContext;
class TcpLink;

// A lane is one poll-able socket of a link, and the ones that take its place when it breaks.
class Lane : protected Handler {
 public:
  explicit Lane(TcpLink& link);
  ~Lane() override { shut(); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void shut();
  Connection release();                // gives the connection away as it is
  void finish_writing();               // nothing more will be written: tells the peer
  bool near() const { return near_; }  // both ends are on this machine
  bool is_open() const { return static_cast<bool>(fd_); }
  bool writable() const { return is_open() && !write_failed_; }
  bool ended() const { return ended_; }  // the peer has nothing more to say here
  // The peer's machine has acknowledged none of the retransmissions for this long.
  bool unanswered(double seconds) const { return is_open() && slipstream::unanswered(fd_.get(), seconds); }
  // Bytes in the socket that the peer's machine does not have.
  uint64_t unsent() const { return is_open() ? unacknowledged(fd_.get()) + sealed() : 0; }
  bool checks() const;  // payloads that go out get checksums
  bool encrypted() const { return records_ != nullptr; }
  double rtt() const { return is_open() ? smoothed_rtt(fd_.get()) : 0; }
  Time opened_at() const { return opened_at_; }  // of the connection that there is
  Passed passed() const { return is_open() ? slipstream::passed(fd_.get()) : Passed{}; }
  // Whether the peer has acknowledged anything since the last call, at `before`; null: that is too long ago.
  void look_at_answers(std::optional<Time> before);
  // Since then every call has found new acknowledgements; Time::max(): the last one has not.
  Time answered_since() const { return answered_since_; }
  // Both connect the same two addresses, also where the peer has reset one of them.
  bool same_way(const Lane& other) const;
  double least_rtt() const { return is_open() ? slipstream::least_rtt(fd_.get()) : 0; }
  std::string far_name() const { return is_open() ? peer_name(fd_.get()) : "unknown"; }
  uint16_t near_port() const { return is_open() ? local_port(fd_.get()) : 0; }
  uint16_t far_port() const { return far_port_; }  // stays when the connection breaks, as do the next two
  void describe(LaneStatistics& statistics) const;
  // Our ends of its connection, and of the one before it.
  const Endpoint& local() const { return local_; }
  const Endpoint& previous() const { return previous_; }

  // Reads or writes at most about this much per event, so that one busy lane does not starve the others.
  static constexpr size_t kTurn = 1 << 20;
  // Small segments go out in one call up to about this much.
  static constexpr uint32_t kTogether = 256 << 10;

 protected:
  void take_socket(Connection connection);
  void interest(bool in, bool out, bool errors = false);
  // Bytes that are encrypted and that the socket has not taken.
  size_t sealed() const { return records_ ? records_->out.waiting().size() : 0; }
  // There is something to read that has left the socket.
  bool opened() const { return records_ && records_->in.ready(); }
  // A write failed. What the peer said before may still be unread (an abort frame, a goodbye), so the reading side
  // is left to find the end; this also keeps Events::down out of send().
  void write_broke(int error);
  // The reading side came to its end: 0 is EOF, else an errno.
  void read_ended(int error);
  // The same of a call on the socket: EBADMSG means damage. `number` as below.
  void read_broke(int error, uint32_t number);
  // The data that arrived was damaged. `number`: from 1, 0 is the control lane.
  void read_damaged(uint32_t number);
  // Reads and drops; what a link does after close().
  void discard();

  TcpLink& link_;
  const LinkContext& at_;
  Fd fd_;
  std::unique_ptr<Records> records_;  // of an encrypted connection
  bool ended_ = false;
  bool write_failed_ = false;

 private:
  int write_error_ = 0;
  Endpoint local_;
  Endpoint previous_;
  uint16_t far_port_ = 0;
  std::string far_address_;
  bool near_ = false;
  Time opened_at_{};
  uint64_t acknowledged_ = 0;  // bytes, at the last look
  Time answered_since_ = Time::max();
  uint32_t registered_ = 0;
};

inline bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS; }

}  // namespace slipstream
