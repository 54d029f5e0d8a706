// The control lane of a tcp link carries all frames that must not wait. Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "transport/tcp/control_frames.h"
#include "transport/tcp/lane.h"

namespace slipstream {

// The control lane is a stream that outlives its connections: what the peer has not acknowledged is kept, and sent
// again on the next connection.
class ControlLane final : public Lane {
 public:
  using Lane::Lane;
  ~ControlLane() override;
  void open(Connection connection);    // the first connection
  void resume(Connection connection);  // one that takes the old one's place
  // Takes a copy of the frame. Before the lane is open, and while it is broken, the copy waits.
  void send(const Frame& frame, const std::byte* data);
  // From within an event: together with all other frames of this turn of the poller.
  void send_soon(const Frame& frame);
  // Sends something small that is no news, to see whether it is acknowledged.
  void probe();
  bool flushed() const { return !writable() || (resuming_ ? ended_ : !wants_write()); }
  size_t backlog() const { return out_.size(); }  // bytes that the peer has not acknowledged
  // The peer has acknowledged everything, except for our acknowledgements.
  bool all_acknowledged() const { return start_ >= last_own_; }
  bool resuming() const { return resuming_; }
  uint64_t received() const { return read_; }  // bytes of the peer's stream
  bool between_frames() const { return reader_.between_frames(); }
  void update() { interest(!ended_, wants_write() && !deferred_); }
  uint64_t position() const { return start_ + out_.size(); }  // the length of the stream so far
  // The peer has acknowledged the first `bytes` of the stream. False: it cannot have.
  bool acknowledged(uint64_t bytes);

 private:
  void ready(uint32_t events) override;
  void read();
  bool parse();  // false: stop reading
  bool resumed(const Frame& frame);
  void acknowledge();
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
  uint64_t last_own_ = 0;      // the end of the last frame that is no acknowledgement
  size_t written_ = 0;         // of out_, to this connection
  uint64_t read_ = 0;          // of the peer's stream
  uint64_t acknowledged_ = 0;  // of that
  bool deferred_ = false;      // written when the poller's turn is over
  bool resuming_ = false;
  ControlHeader resume_;                // what this connection begins with, if it takes an old one's place
  size_t resume_at_ = sizeof(resume_);  // bytes of it that are written
};

}  // namespace slipstream
