// The connections of a link's bulk lanes: made, made again when they break, and spread over the paths to the peer.
// Private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/tcp/bulk_lane.h"
#include "transport/tcp/dial.h"
#include "transport/tcp/lane_count.h"
#include "transport/tcp/placement.h"

namespace slipstream {

class TcpLink;

class BulkLanes {
 public:
  BulkLanes(TcpLink& link, const std::vector<std::string>& addresses);
  ~BulkLanes();
  BulkLanes(const BulkLanes&) = delete;
  BulkLanes& operator=(const BulkLanes&) = delete;

  // By number; some may not be open.
  const std::vector<std::unique_ptr<BulkLane>>& all() const { return lanes_; }
  int count() const { return static_cast<int>(lanes_.size()); }
  int open() const;  // of them; 1 at least
  bool is_open(size_t number) const { return number < lanes_.size() && lanes_[number]->is_open(); }
  bool alive() const;     // one of them at least
  bool dialling() const;  // one of them at least
  bool ended() const;     // all of them
  // There are several lanes, and each pulls its segments.
  bool spreads() const;
  LanePlacement& placement() { return placement_; }
  const LanePlacement& placement() const { return placement_; }

  // The side that dials: all that the options ask for.
  void dial_all();
  // Those that are not being dialled already, all of them or only those without a connection.
  void dial_missing(bool all);
  void dial(size_t number);
  bool dials(size_t number) const { return number < dials_.size() && dials_[number] != nullptr; }
  // This side connects the lanes, and has not begun.
  bool may_dial(size_t number) const;
  void stop_dialling();
  // Gives lanes to paths that have come back, and dials those that could not be had before.
  void spread(Time now);
  // Opens lanes, or ends some, by what the link has carried, and by what the options say now.
  void recount(Time now);
  // The other side, which cannot connect, has counted.
  void wanted_by_peer(uint64_t lanes);
  // Connects a lane again whose packets are smaller than necessary.
  void enlarge(Time now);

  // An authenticated connection, the lane's first or one that takes the place of another. False: no such lane.
  bool add(Connection connection, uint32_t number);
  // Closes the lane's connection and tells the peer if that one connects; other lanes send its segments.
  void give_up(BulkLane& lane);
  // Its connection broke.
  void broke(BulkLane& lane, int error);
  // It is far slower than the others.
  void replace(size_t number, Time now);

  void resume();  // there is room for messages again
  void update();

 private:
  void dial(size_t number, size_t path, double delay = 0);
  void dialled(size_t number, Dial::Result result);
  void set_count(int wanted);
  void want(int lanes);         // opens or ends lanes, or asks the side that dials to
  void reserve(int extra);      // lanes beyond the first few, of those that all links of the process share
  void retire(BulkLane& lane);  // it carries what it has begun, and ends in both directions
  void drop(BulkLane& lane);
  void none_left(Error error, bool gone);

  TcpLink& link_;
  LanePlacement placement_;
  std::vector<std::unique_ptr<BulkLane>> lanes_;
  std::vector<std::unique_ptr<Dial>> dials_;  // by number
  size_t wanted_ = 0;                         // lanes that the side that dials keeps open
  int hasty_ = 0;                             // connections in a row that broke soon after they were made
  Time next_find_{};
  Time next_move_{};
  LaneCount lane_count_;
  int reserved_ = 0;
  int told_;  // how many lanes this side has told the peer that it wants, or the peer this side
};

}  // namespace slipstream
