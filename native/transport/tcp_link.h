// One tcp link: a control lane, bulk lanes, what they carry, and the repair of those that break. Private to this
// folder; see tcp.h.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/blocks.h"
#include "transport/tcp_core.h"
#include "transport/tcp_dial.h"
#include "transport/tcp_inbox.h"
#include "transport/tcp_lane.h"
#include "transport/tcp_outbox.h"
#include "transport/tcp_paths.h"

namespace slipstream {

class TcpLink final : public Link, private Timed {
 public:
  // The peer dialled us: its control lane is authenticated.
  TcpLink(std::shared_ptr<TcpCore> core, int peer, uint64_t token, Connection control);
  // We dial.
  TcpLink(std::shared_ptr<TcpCore> core, Dial::Target target, uint64_t token);
  ~TcpLink() override;

  bool send(const Frame& frame, const std::byte* data, uint64_t cookie) override;
  void release(const Payload& payload) override;
  // When it returns the link needs none of the owner's memory and makes no more upcalls. Bulk data that the peer does
  // not have by then is not sent; control frames are, by the poller, over other connections if the one that there is
  // breaks. up() turns false when the peer has read them, or leaves itself, or does not take them (tcp_close.cpp).
  void close() override;
  size_t window() const override;
  double rate() const override;
  bool superseded() override;
  std::string trouble() const override;
  LinkStatistics statistics() const override;

  void come_up();
  // An authenticated bulk lane, the first with this number (from 0) or one that takes its place. False: no such lane.
  bool add_lane(Connection connection, uint32_t number);
  // An authenticated connection that takes the control lane's place, the `generation`th since the first.
  void replace_control(Connection connection, uint32_t generation);
  // The peer wants another control lane than that of this generation.
  void control_wanted(uint32_t generation);
  // Gives the control lane the connection of a bulk lane, as soon as that has been emptied; tcp_promote.cpp. False: not
  // now, or not by this side.
  bool promote(size_t number);

  // For the lanes. Each upcall may close the link, so the caller looks at finished() and closing() afterwards.
  TcpCore& core() { return *core_; }
  Outbox& outbox() { return outbox_; }
  Inbox& inbox() { return inbox_; }
  bool finished() const { return finished_; }
  bool closing() const { return closing_; }
  bool dialled() const { return !accepted_; }
  void heard() { last_heard_ = now(); }
  int lanes() const { return static_cast<int>(bulk_.size()); }
  std::optional<Outbox::Out> pull(BulkLane& lane, Time now);
  enum class Place { found, full, none };  // none: the link ends
  Place place(const SegmentHeader& segment, std::byte*& into);
  void complete(const SegmentHeader& segment);
  // The peer has taken messages `first` to `last`. False: the link ends, or closes.
  bool taken(uint64_t first, uint64_t last);
  void control_frame(const Frame& frame, const std::byte* payload);
  void control_resumed();
  void wrote();  // progress, for close()
  void nonsense(const char* what);
  void lane_ended(Lane& lane, int error);
  // What came over it is not what was sent. `number`: from 1, 0 is the control lane.
  void damaged(Lane& lane, uint32_t number);
  void lane_promoted(BulkLane& lane, Connection connection, uint32_t generation);
  void watch();  // something has been sent: looks for ways that are cut until it is acknowledged

 private:
  static constexpr double kTendSeconds = 0.002;

  // Looks after a link that has something under way: late segments, slow lanes.
  struct Tender final : Timed {
    explicit Tender(TcpLink& l) : link(l) {}
    void due(Time now) override { link.tend(now); }
    TcpLink& link;
  };

  // Says what has been taken if no data said so by the way.
  struct Words final : Timed {
    explicit Words(TcpLink& l) : link(l) {}
    void due(Time) override { link.say_taken(); }
    TcpLink& link;
  };

  // Looks whether ways to the peer are cut; tcp_watch.cpp.
  struct Watcher final : Timed {
    explicit Watcher(TcpLink& l) : link(l) {}
    void due(Time now) override { link.look(now); }
    TcpLink& link;
  };

  void due(Time now) override;
  void dial_control();
  void control_dialled(Dial::Result result);
  void dial_lane(size_t number);
  void dial_lane(size_t number, size_t path, double delay = 0);
  void lane_dialled(size_t number, Dial::Result result);
  bool repairs() const { return static_cast<bool>(core_->directory); }
  void repair_control(int error);
  void repair_failed(const Dial::Result& result);
  void watch_control();
  void bulk_ended(BulkLane& lane, int error);
  void drop(BulkLane& lane);
  void complete(uint64_t message);
  void took(uint64_t message, bool soon);
  void owe_words();
  void say_taken();
  bool spreads() const { return bulk_.size() > 1 && !core_->options.round_robin; }
  bool too_slow(BulkLane& lane, uint32_t size, Time now);
  void kick();
  void tend(Time now);
  void copy_late(Time now);
  void watch_pace(Time now);
  void look(Time now);
  bool suspects_size(Time now) const;
  void suspect_size(const Lane& lane, bool inwards, Time now);
  bool small_data_passes(const Lane& lane, bool inwards, Time now) const;
  void size_proven(uint64_t segment);
  void try_size(int segment, Time now);
  void watch_size(Time now);
  void probe_size(Time now);
  void replace_cut_control(Time now);
  void leave_cut_lanes(Time now);
  void leave(BulkLane& lane, Time now);
  void cut_by_peer(uint64_t number, uint32_t port);
  void spread_lanes(Time now);
  void seek_faster_lane(Time now);
  bool changes_control() const;
  void see_what_lanes_achieve(Time now);
  void avoid_path_of(size_t number, Time now);
  std::vector<Paths::Lane> lanes_and_paths(size_t but) const;
  Dial::Target target_by(std::vector<std::string> addresses) const;
  bool bulk_alive() const;
  bool dialling_lanes() const;
  bool all_ended() const;
  void rearm_lanes();
  bool repairs_while_closing() const { return repairs() && !(accepted_ && core_->options.only_answers); }
  void while_closing(const Frame& frame);
  void step_close();
  void settle();
  DialTerms again_terms() const;
  void lanes_lost(Error error, bool gone);
  void time_losses();
  void losses_due(Time now);
  void fail(Error error);
  void shut_down();
  // For the timeline. `lane`: from 1, 0 is the control lane.
  void note(TraceEvent::Kind what, const Lane& lane, uint32_t number) const;
  std::string name() const { return "rank " + std::to_string(peer_); }
  const char* damage() const { return core_->identity.encrypt ? "damaged or tampered with" : "damaged"; }

  std::shared_ptr<TcpCore> core_;
  uint64_t token_;
  bool accepted_;
  Dial::Target target_;
  Paths paths_;  // to the peer, if we dial
  size_t control_path_ = Paths::kNone;
  std::vector<size_t> lane_paths_;  // by number
  std::vector<size_t> dial_paths_;  // by number; of those that are being dialled
  std::vector<int> lane_segments_;  // by number; as `segment_` was when they were dialled
  struct Achieved {
    std::optional<uint64_t> carried;  // bytes, at the last look; null: the connection is newer than that
    double rate = -1;                 // bytes a second between two looks, negative: not known
  };
  std::vector<Achieved> achieved_;  // by number
  Time achieved_at_{};
  Outbox outbox_;
  Inbox inbox_;
  Blocks blocks_;
  Watermark taken_;  // of the messages that have come, those that need no block any more
  Words words_;
  bool words_owed_ = false;                      // they are called for
  std::unordered_map<uint64_t, uint64_t> kept_;  // messages in blocks that the owner has: by block
  ControlLane control_;
  std::vector<std::unique_ptr<BulkLane>> bulk_;  // by number; some may not be open
  size_t last_bulk_ = 0;                         // the one used last
  std::unique_ptr<Dial> control_dial_;
  std::vector<std::unique_ptr<Dial>> lane_dials_;  // by number
  uint32_t generation_ = 0;                        // of the control lane, or the one that is being dialled
  uint32_t control_generation_ = 0;                // of the one that there is
  int resumptions_ = 0;                            // begun since one has worked
  std::optional<Time> unanswered_since_;           // a ping over the control lane
  uint64_t heard_then_ = 0;                        // of the peer's control stream
  Time anew_at_ = Time::max();                     // when lanes are dialled again, while there are none
  Fd former_control_;                              // until the peer says that it has left it too
  uint32_t promoted_from_ = 0;                     // lane, from 1, whose connection the control lane is about to have
  struct Said {                                    // until the last look
    uint64_t sent = 0;
    uint64_t received = 0;
  };
  std::vector<Said> said_;  // by number
  uint64_t control_said_ = 0;
  int faster_looks_ = 0;  // in a row that have found a faster lane for control
  double promotion_wait_ = 0;
  Time next_seek_{};
  Time next_promotion_{};
  Tender tender_;
  bool tended_ = false;  // the tender has been called for
  Watcher watcher_;
  bool watched_ = false;
  Time next_control_try_{};
  Time next_lane_try_{};
  Time next_find_{};
  Time next_move_{};
  struct Load {  // of all lanes together
    Time at{};
    double rate = 0;     // bytes a second
    double backlog = 0;  // bytes in sockets
  };
  Load load_;
  std::vector<int> slow_;  // by number: for how many looks the lane has been far behind the others
  Time fed_{};             // when a lane last found something to take
  Time next_copy_{};       // when to look for late segments again
  Time next_look_{};
  int segment_ = 0;                // bytes of payload in the packets of new connections; 0: as the interfaces allow
  int proven_segment_ = 0;         // larger packets have been seen to vanish; 0: no
  Time trial_ends_ = Time::max();  // of a smaller size that nothing has proved to be needed
  Time stalled_at_{};              // when a connection last stalled
  Time answers_at_{};              // when it was last looked what is acknowledged
  uint64_t lost_ = 0;
  uint64_t replaced_ = 0;
  uint64_t damaged_ = 0;
  int hasty_ = 0;               // bulk lanes in a row that broke soon after they were made
  int damaged_in_row_[2] = {};  // control lanes, bulk lanes, since one has brought anything new that was whole
  bool goodbye_ = false;        // the peer leaves in good order
  std::string goodbye_words_;
  bool closing_ = false;     // we do
  bool shut_write_ = false;  // the peer has what it needs of us, and is told that there is no more
  bool finished_ = false;
  // What becomes of the link unless there is better news until then.
  struct Loss {
    Error error;
    Time due = Time::max();
    explicit operator bool() const { return static_cast<bool>(error); }
  };
  Loss control_loss_;   // there is no control lane
  Loss lanes_loss_;     // there are no bulk lanes
  std::string met_at_;  // the peer's address, as the connection showed it that it made
};

}  // namespace slipstream
