// The lanes of a tcp link. A lane is one authenticated connection: the control lane carries all frames that must
// not wait, the bulk lanes pull pieces. Private to this folder.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "transport/poller.h"
#include "transport/tcp_frames.h"
#include "transport/tcp_pieces.h"

namespace slipstream {

class TcpLink;

// A lane is one poll-able socket of a link. It lives as long as its link, its socket may go earlier.
class Lane : protected Handler {
 public:
  explicit Lane(TcpLink& link) : link_(link) {}
  ~Lane() override { shut(); }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  void open(Fd fd);
  void shut();
  void finish_writing();  // nothing more will be written: tells the peer
  bool is_open() const { return static_cast<bool>(fd_); }
  bool writable() const { return is_open() && !write_failed_; }
  bool ended() const { return ended_; }  // the peer has nothing more to say here

 protected:
  // Reads or writes at most about this much per event, so that one busy lane does not starve the others.
  static constexpr size_t kTurn = 1 << 20;

  void interest(bool in, bool out);
  // A write failed. What the peer said before may still be unread (an abort frame, a goodbye), so the reading side
  // is left to find the end; this also keeps Events::down out of send().
  void write_broke(int error);
  // The reading side came to its end: 0 is EOF, else an errno.
  void read_ended(int error);
  // Reads and drops; what a link does after close().
  void discard();

  TcpLink& link_;
  Fd fd_;
  bool ended_ = false;
  bool write_failed_ = false;

 private:
  int write_error_ = 0;
  uint32_t registered_ = 0;
};

class ControlLane final : public Lane {
 public:
  using Lane::Lane;
  // Takes a copy of whatever the socket does not. Before the lane is open, of everything.
  void send(const Frame& frame, const std::byte* data);
  bool flushed() const { return !writable() || out_at_ == out_.size(); }
  bool between_frames() const { return reader_.between_frames(); }
  void update() { interest(!ended_, !flushed()); }

 private:
  void ready(uint32_t events) override;
  void read();
  bool parse();  // false: stop reading
  void flush();

  FrameReader reader_;
  std::vector<std::byte> out_;
  size_t out_at_ = 0;
};

class BulkLane final : public Lane {
 public:
  using Lane::Lane;
  // Free to start a piece at once.
  bool idle() const { return writable() && !sending_ && !pumping_; }
  // Only if idle(). True: all of it is written.
  bool start(const Piece& piece);
  bool receiving() const { return in_payload_ || stalled_ || header_at_ > 0; }
  bool sending() const { return sending_; }
  bool flushed() const { return !writable() || (!sending_ && !pumping_); }
  bool stalled() const { return stalled_; }
  void keep_copy() {
    if (sending_) piece_.keep_copy();
  }
  void resume();  // a block has come back
  void update();

 private:
  void ready(uint32_t events) override;
  void read();
  bool begin();  // the header is complete. False: stop reading
  bool deliver();
  void take_block();
  void pump();
  bool write(size_t& budget);  // true: the piece is written

  Piece piece_;        // on its way out
  size_t out_at_ = 0;  // of header and data together
  bool sending_ = false;
  bool pumping_ = false;  // pump() is on the stack: an upcall may send, but not through this lane

  std::array<std::byte, sizeof(Frame)> header_{};
  size_t header_at_ = 0;
  Frame frame_;  // the piece on its way in
  std::byte* into_ = nullptr;
  size_t in_at_ = 0;
  uint64_t hold_ = 0;
  bool in_payload_ = false;
  bool stalled_ = false;  // no block for the piece
};

}  // namespace slipstream
