// One tcp link: a control lane, bulk lanes, and the parts that send, receive, connect and repair. Private to this
// folder; see transport.h.
#pragma once

#include <memory>
#include <string>

#include "transport/tcp/bulk_lanes.h"
#include "transport/tcp/control_connection.h"
#include "transport/tcp/control_lane.h"
#include "transport/tcp/cut_detection.h"
#include "transport/tcp/link_context.h"
#include "transport/tcp/mtu_detection.h"
#include "transport/tcp/promotion.h"
#include "transport/tcp/receiver.h"
#include "transport/tcp/sender.h"

namespace slipstream {

class TcpLink final : public Link, private Timed {
 public:
  // The peer dialled us: its control lane is authenticated.
  TcpLink(std::shared_ptr<TcpCore> core, int peer, uint64_t token, Connection control);
  // We dial.
  TcpLink(std::shared_ptr<TcpCore> core, Dial::Target target, uint64_t token);
  ~TcpLink() override;

  bool send(const Frame& frame, const std::byte* data, uint64_t cookie, int urgency) override;
  void release(const Payload& payload) override { receiver_.release(payload); }
  // When it returns the link needs none of the owner's memory and makes no more upcalls. Bulk data that the peer does
  // not have by then is not sent; control frames are, by the poller, over other connections if the one that there is
  // breaks. up() turns false when the peer has read them, or leaves itself, or does not take them (close.cpp).
  void close() override;
  size_t window() const override { return sender_.window(); }
  double rate() const override { return sender_.rate(); }
  bool superseded() override;
  std::string trouble() const override;
  LinkStatistics statistics() const override;

  void come_up();

  // The parts. Each of them knows the others through this class.
  LinkContext& context() { return context_; }
  ControlLane& control() { return control_; }
  BulkLanes& bulk() { return bulk_; }
  Sender& sender() { return sender_; }
  Receiver& receiver() { return receiver_; }
  ControlConnection& control_connection() { return control_connection_; }
  MtuDetection& mtu_detection() { return mtu_detection_; }
  CutDetection& cuts() { return cuts_; }
  ControlPromotion& promotion() { return promotion_; }

  // What the parts report. Each may end the link or make upcalls that close it, so the caller looks at the context
  // afterwards.
  void heard() { last_heard_ = now(); }
  void control_frame(const Frame& frame, const std::byte* payload);
  void wrote();  // progress, for close()
  void lane_ended(Lane& lane, int error);
  // The data that arrived over it was damaged. `number`: from 1, 0 is the control lane.
  void damaged(Lane& lane, uint32_t number);
  void protocol_error(const char* what);
  void settle();       // a connection has ended: perhaps the last one of a link that leaves, or is left
  void time_losses();  // context().losses have changed
  void fail(Error error);

 private:
  TcpCore& core() { return *context_.core; }
  void due(Time now) override;
  void losses_due(Time now);
  bool extends(Time now);
  void peer_leaves(std::string reason);
  void while_closing(const Frame& frame);
  void step_close();
  bool all_ended() const;
  void stop_timers();
  void shut_down();

  LinkContext context_;
  ControlLane control_;
  BulkLanes bulk_;
  Sender sender_;
  Receiver receiver_;
  ControlConnection control_connection_;
  MtuDetection mtu_detection_;
  CutDetection cuts_;
  ControlPromotion promotion_;
  std::string goodbye_reason_;
};

}  // namespace slipstream
