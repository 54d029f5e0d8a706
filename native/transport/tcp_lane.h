// The lanes of a tcp link. A lane is one authenticated connection: the control lane carries all frames that must
// not wait, the bulk lanes pull segments. Private to this folder.
#pragma once

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "transport/connection.h"
#include "transport/io_threads.h"
#include "transport/poller.h"
#include "transport/sockets.h"
#include "transport/tcp.h"
#include "transport/tcp_frames.h"
#include "transport/tcp_outbox.h"
#include "transport/tcp_pace.h"
#include "transport/tcp_pieces.h"
#include "transport/zero_copy.h"

namespace slipstream {

class TcpLink;

// A lane is one poll-able socket of a link, and the ones that take its place when it breaks.
class Lane : protected Handler {
 public:
  explicit Lane(TcpLink& link) : link_(link) {}
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
  // The peer's machine has been asked again and again, and been silent for this long.
  bool unanswered(double seconds) const { return is_open() && slipstream::unanswered(fd_.get(), seconds); }
  // Bytes in the socket that the peer's machine does not have.
  uint64_t unsent() const { return is_open() ? unacknowledged(fd_.get()) + sealed() : 0; }
  bool checks() const;  // payloads that go out get checksums
  bool encrypted() const { return records_ != nullptr; }
  double rtt() const { return is_open() ? smoothed_rtt(fd_.get()) : 0; }
  Time opened_at() const { return opened_at_; }  // of the connection that there is
  Passed passed() const { return is_open() ? slipstream::passed(fd_.get()) : Passed{}; }
  // Looks whether anything has been acknowledged since the last look, at `before`; null: that is too long ago.
  void look_at_answers(std::optional<Time> before);
  // Every look since then has found that more was acknowledged; Time::max(): the last one has not.
  Time answered_since() const { return answered_since_; }
  bool same_way(const Lane& other) const;  // between the same two addresses
  double least_rtt() const { return is_open() ? slipstream::least_rtt(fd_.get()) : 0; }
  std::string far_name() const { return is_open() ? peer_name(fd_.get()) : "unknown"; }
  uint16_t near_port() const { return is_open() ? local_port(fd_.get()) : 0; }
  uint16_t far_port() const { return is_open() ? peer_port(fd_.get()) : 0; }
  void describe(LaneStatistics& statistics) const;
  // Our ends of its connection, and of the one before it; they stay when it breaks.
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
  // What has been read is not what was sent. `number`: from 1, 0 is the control lane.
  void read_damaged(uint32_t number);
  // Reads and drops; what a link does after close().
  void discard();

  TcpLink& link_;
  Fd fd_;
  std::unique_ptr<Records> records_;  // of an encrypted connection
  bool ended_ = false;
  bool write_failed_ = false;

 private:
  int write_error_ = 0;
  Endpoint local_;
  Endpoint previous_;
  bool near_ = false;
  Time opened_at_{};
  uint64_t acknowledged_ = 0;  // bytes, at the last look
  Time answered_since_ = Time::max();
  uint32_t registered_ = 0;
};

// The control lane is a stream that outlives its connections: what the peer has not read is kept, and said again on
// the next connection.
class ControlLane final : public Lane {
 public:
  using Lane::Lane;
  ~ControlLane() override;
  void open(Connection connection);    // the first connection
  void resume(Connection connection);  // one that takes the old one's place
  // Takes a copy of the frame. Before the lane is open, and while it is broken, the copy waits.
  void send(const Frame& frame, const std::byte* data);
  // From within an event: together with what else is to be said before the poller has handled this turn's events.
  void send_soon(const Frame& frame);
  // Says something small that is no news, to see whether it is acknowledged.
  void probe();
  bool flushed() const { return !writable() || (resuming_ ? ended_ : !wants_write()); }
  size_t backlog() const { return out_.size(); }       // bytes that the peer has not said to have read
  bool heard_out() const { return start_ >= spoke_; }  // the peer has read all, but for what is about its own stream
  bool resuming() const { return resuming_; }
  uint64_t heard() const { return read_; }  // bytes of the peer's stream
  bool between_frames() const { return reader_.between_frames(); }
  void update() { interest(!ended_, wants_write() && !put_off_); }
  uint64_t said() const { return start_ + out_.size(); }  // bytes of the stream
  // The peer has read the first `bytes` of the stream. False: it cannot have.
  bool seen(uint64_t bytes);

 private:
  void ready(uint32_t events) override;
  void read();
  bool parse();  // false: stop reading
  bool resumed(const Frame& frame);
  void say_seen();
  void busy_poll();
  bool wants_write() const {
    return writable() && (sealed() > 0 || resume_at_ < sizeof(resume_) || (!resuming_ && written_ < out_.size()));
  }
  void flush();
  void write();
  // send() and recv(), through the records of an encrypted connection.
  ssize_t put_out(std::span<const std::byte> bytes);
  ssize_t take_in(std::span<std::byte> space);
  void put(const Frame& frame, const std::byte* data);  // at the end of the stream

  FrameReader reader_;
  std::vector<std::byte> out_;  // the stream from position start_ on
  uint64_t start_ = 0;
  uint64_t spoke_ = 0;    // where the last frame ends that is not about the peer's stream
  size_t written_ = 0;    // of out_, to this connection
  uint64_t read_ = 0;     // of the peer's stream
  uint64_t told_ = 0;     // what we said of that
  bool put_off_ = false;  // the poller calls when the turn is over
  bool resuming_ = false;
  ControlHeader resume_;                // what this connection begins with, if it takes an old one's place
  size_t resume_at_ = sizeof(resume_);  // bytes of it that are written
};

class BulkLane final : public Lane {
 public:
  BulkLane(TcpLink& link, int number) : Lane(link), number_(number) {}
  void open(Connection connection);  // also one that takes an old one's place
  void shut();                       // with a reset, if the kernel still has memory of messages
  int number() const { return number_; }
  // Takes what there is, as long as the socket does.
  void pump();
  // Sends this segment next; only if idle().
  void start(const Outbox::Out& piece);
  bool idle() const { return writable() && !sending() && promoted_ == 0; }
  // It takes and gives nothing new, and its connection becomes the control lane's, the `generation`th, when both sides
  // have said so (promotion()).
  void promote(uint32_t generation);
  uint32_t promoted() const { return promoted_; }  // 0: it is not
  // The peer may have read our last word and have made the connection its control lane.
  bool said_last() const { return said_last_ && !sending(); }
  void drop_input();  // what is still on its way in goes nowhere
  // As much is on its way as the path and its queues are good for.
  bool has_enough(int lanes, Time now);
  // It takes nothing more until asked again: it has enough, or leaves what there is to faster lanes.
  enum class Rest : uint8_t { none, enough, declines };
  void rest(Rest rest, Time now) {
    if (rest != Rest::declines)
      declined_since_ = Time::max();
    else if (rest_ != Rest::declines)
      declined_since_ = now;
    rest_ = rest;
  }
  bool rests() const { return rest_ != Rest::none; }
  bool has_declined_for(Clock::duration time, Time now) const {
    return rest_ == Rest::declines && now - declined_since_ > time;
  }
  bool sending() const { return !pieces_.empty(); }
  // Nothing that the kernel still has of messages goes out from now on.
  void take_back();
  bool receiving() const { return in_payload_ || stalled_ || header_at_ > 0; }
  bool stalled() const { return stalled_; }
  void resume();  // a block has come back
  void update();
  // The peer has the message: what this lane still owes of it is padding, and its memory is not ours any more.
  void forget_out(uint64_t message) { pieces_.forget(message); }
  // The message is complete, or this segment of it: what still comes of it on this lane is dropped, also the rest of a
  // larger segment that has been cut up since. It would overwrite what has been checked.
  void forget_in(uint64_t message);
  void forget_in(const SegmentHeader& segment);

  // One system call at a time: prepared here, performed anywhere, finished here. False: no more for now.
  bool prepare_write(IoCall& call, Time now);            // takes the next segments if there are none on their way out
  bool finish_write(const IoCall& call, size_t& wrote);  // adds up what went out
  bool prepare_read(IoCall& call);
  bool finish_read(const IoCall& call, size_t& got);  // makes upcalls
  void end_turn(size_t wrote, Time start);            // of writing, which began then
  bool reads_with(const BulkLane& other) const;       // the same bytes of a message

  const Pace& pace() const { return pace_; }
  // Bytes a second that reach the peer while the lane is busy: a queue that fills looks faster than it is. 0: not
  // known.
  double seen_rate() const;
  uint64_t sent() const { return sent_bytes_; }
  uint64_t carried() const { return sent_bytes_ + received_bytes_; }
  void describe(LaneStatistics& statistics) const;

 private:
  void ready(uint32_t events) override;
  void read();
  bool begin();  // the header is complete. False: stop reading
  bool hear_last();
  void hand_over();
  // The link is closing, and the peer can say nothing that matters here.
  bool discards() const;
  bool place();  // finds where the payload goes. False: stop reading
  bool deliver();
  bool undamaged() const;  // the payload that has come
  void account(const IoCall& call);
  bool take(Time now);  // segments to send. False: there are none for it
  void begin_zero_copy();
  void limit_backlog();

  const int number_;
  Pieces pieces_;      // on their way out
  bool lend_ = false;  // the first of them
  uint32_t promoted_ = 0;
  bool said_last_ = false;   // our last word is in pieces_, or gone
  bool heard_last_ = false;  // the peer's is here: nothing more is read
  Pace pace_;
  Rest rest_ = Rest::none;
  Time declined_since_ = Time::max();
  double rtt_ = 0;   // the shortest, in seconds
  Time rtt_at_{};    // when that was looked up
  int backlog_ = 0;  // what the socket may hold unsent
  ZeroCopy zero_copy_;
  uint64_t sent_bytes_ = 0;
  uint64_t received_bytes_ = 0;

  std::array<std::byte, sizeof(SegmentHeader)> header_{};
  size_t header_at_ = 0;
  SegmentHeader segment_;      // on its way in
  std::byte* into_ = nullptr;  // null: dropped
  size_t in_at_ = 0;
  uint32_t in_crc_ = 0;    // of that much of the payload
  uint64_t in_place_ = 0;  // segments of this connection that have begun to come
  bool in_payload_ = false;
  bool stalled_ = false;  // no block for the message
};

inline bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS; }

}  // namespace slipstream
