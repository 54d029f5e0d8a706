// One tcp link: a control lane, bulk lanes, the queue between them. Private to this folder; see tcp.h.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/tcp_core.h"
#include "transport/tcp_dial.h"
#include "transport/tcp_lane.h"
#include "transport/tcp_pieces.h"

namespace slipstream {

class TcpLink final : public Link, private Timed {
 public:
  // The peer dialled us: its control lane is authenticated.
  TcpLink(std::shared_ptr<TcpCore> core, int peer, uint64_t token, Fd control);
  // We dial.
  TcpLink(std::shared_ptr<TcpCore> core, Dial::Target target, uint64_t token);
  ~TcpLink() override;

  bool send(const Frame& frame, const std::byte* data, uint64_t cookie) override;
  void release(const Payload& payload) override;
  // When it returns the link needs none of the owner's memory and makes no more upcalls; what is queued goes out from
  // copies (64 MiB at most), by the poller. up() turns false when that is done or the peer does not take it.
  void close() override;

  void come_up();
  // An authenticated bulk lane. False: there are enough already.
  bool add_lane(Fd fd);

  // For the lanes. Each upcall may close the link, so the caller looks at finished() and closing() afterwards.
  TcpCore& core() { return *core_; }
  PieceQueue& queue() { return queue_; }
  Blocks& blocks() { return blocks_; }
  bool finished() const { return finished_; }
  bool closing() const { return closing_; }
  void heard() { last_heard_ = now(); }
  void control_frame(const Frame& frame, const std::byte* payload);
  Events::Landing land(const Frame& frame) { return core_->events.land(*this, frame); }
  void deliver(const Frame& frame, const Payload& payload) { core_->events.arrived(*this, frame, payload); }
  void sent(uint64_t cookie) { core_->events.sent(*this, cookie); }
  void wrote();  // progress, for close()
  void nonsense(const char* what);
  void lane_ended(Lane& lane, int error);

 private:
  void due(Time now) override;
  void control_dialled(Dial::Result result);
  void lane_dialled(size_t index, Dial::Result result);
  void dial_lanes(const std::string& address);
  void bulk_ended(BulkLane& lane, int error);
  bool bulk_alive() const;
  bool dialling_lanes() const;
  bool all_ended() const;
  bool flushed() const;
  void rearm_lanes();
  void step_close();
  void settle();
  void fail(Error error);
  void shut_down();
  std::string name() const { return "rank " + std::to_string(peer_); }

  std::shared_ptr<TcpCore> core_;
  uint64_t token_;
  bool accepted_;
  Dial::Target target_;
  PieceQueue queue_;
  Blocks blocks_;
  ControlLane control_;
  std::vector<std::unique_ptr<BulkLane>> bulk_;
  size_t last_bulk_ = 0;  // the one used last
  std::unique_ptr<Dial> control_dial_;
  std::vector<std::unique_ptr<Dial>> lane_dials_;
  bool goodbye_ = false;     // the peer leaves in good order
  bool closing_ = false;     // we do
  bool shut_write_ = false;  // all is sent and said to be so
  bool finished_ = false;
  Error doom_;  // what becomes of the link unless the control lane tells a better story soon
};

}  // namespace slipstream
