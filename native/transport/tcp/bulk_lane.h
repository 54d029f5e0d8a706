// The bulk lanes of a tcp link pull segments of messages and send them. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transport/tcp/io_threads.h"
#include "transport/tcp/lane.h"
#include "transport/tcp/outbox.h"
#include "transport/tcp/pace.h"
#include "transport/tcp/pacing.h"
#include "transport/tcp/segment_reader.h"
#include "transport/tcp/segment_writer.h"
#include "transport/tcp/zero_copy.h"

namespace slipstream {

class BulkLane final : public Lane {
 public:
  BulkLane(TcpLink& link, int number) : Lane(link), number_(number) {}
  void open(Connection connection);  // also one that takes an old one's place
  void shut();                       // with a reset, if the kernel still has memory of messages
  int number() const { return number_; }
  // Sends about a segment, with one system call. False: the socket is full, there is nothing to send, or the turn is
  // over, which end_turn() is to be told.
  bool write_segment(size_t& wrote, Time start);
  // Sends this segment next; only if idle().
  void start(const Outbox::Out& segment);
  bool idle() const { return writable() && !sending() && promoted_ == 0; }
  // It takes nothing new. When both sides have sent their last header (promotion()), its connection becomes the control
  // lane's, the `generation`th.
  void promote(uint32_t generation);
  uint32_t promoted() const { return promoted_; }  // 0: it is not
  // Our last header is on its way: the peer may have read it and have made the connection its control lane.
  bool sent_last() const { return sent_last_ && !sending(); }
  void drop_input();  // what is still on its way in goes nowhere
  // The bytes on their way fill the path and a few milliseconds of its queues.
  bool has_enough(int lanes, Time now);
  // It takes nothing more until asked again.
  LanePause& pause() { return pause_; }
  // Memory of messages that the kernel still holds is not sent any more.
  void take_back();
  void resume();  // there is room for messages again
  void update();
  // The peer has the message, and its memory is not ours any more: what this lane has not sent of it is padded.
  void forget_out(uint64_t message) { writer_.forget(message); }
  // The message is complete, or this segment of it: what still comes of it on this lane is dropped, also the rest of a
  // larger segment that has been cut up since. It would overwrite what has been checked.
  void forget_in(uint64_t message) { reader_.forget(message); }
  void forget_in(const SegmentHeader& segment) { reader_.forget(segment); }

  // One system call at a time: prepared here, performed anywhere, finished here. False: no more for now.
  bool prepare_write(IoCall& call, Time now);            // takes the next segments if there are none on their way out
  bool finish_write(const IoCall& call, size_t& wrote);  // adds up what went out
  bool prepare_read(IoCall& call);
  bool finish_read(const IoCall& call, size_t& got);  // makes upcalls
  void end_turn(size_t wrote, Time start);            // of writing, which began then
  // The same bytes of a message.
  bool reads_with(const BulkLane& other) const { return reader_.overlaps(other.reader_); }

  const Pace& pace() const { return pace_; }
  // Bytes a second that reach the peer while the lane is busy: a queue that fills looks faster than it is. 0: not
  // known.
  double seen_rate() const;
  uint64_t sent() const { return sent_bytes_; }
  uint64_t carried() const { return sent_bytes_ + received_bytes_; }
  void describe(LaneStatistics& statistics) const;

 private:
  void ready(uint32_t events) override;
  bool sending() const { return !writer_.empty(); }
  void pump();  // sends segments while there are any and the socket is writable
  void read();
  bool begin();  // the header is complete. False: stop reading
  bool receive_last();
  void hand_over();
  // The link is closing, and nothing that the peer may send here matters.
  bool discards() const;
  bool place();  // finds where the payload goes. False: stop reading
  bool deliver();
  bool undamaged() const;  // the payload that has come
  void account(const IoCall& call);
  bool take(Time now);  // segments to send. False: there are none for it
  void begin_zero_copy();
  void limit_backlog();

  const int number_;
  SegmentWriter writer_;  // on their way out
  bool lend_ = false;     // the first of them
  uint32_t promoted_ = 0;
  bool sent_last_ = false;      // our last header is in writer_, or gone
  bool received_last_ = false;  // the peer's is here: nothing more is read
  Pace pace_;
  LanePause pause_;
  double rtt_ = 0;   // the shortest, in seconds
  Time rtt_at_{};    // when that was looked up
  int backlog_ = 0;  // what the socket may hold unsent
  ZeroCopy zero_copy_;
  uint64_t sent_bytes_ = 0;
  uint64_t received_bytes_ = 0;

  SegmentReader reader_;  // on their way in
  bool stalled_ = false;  // no buffer for the message
};

}  // namespace slipstream
