// What a peer lets this rank send of a work. Driver's thread only.
//
// Little data travels at once, within the peer's credit (eager), and so does the first bulk to another host. Other bulk
// travels only when the peer has said `ready`, because it has submitted the work, too. Sends that run before wait at
// the gate.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/geometry.h"
#include "engine/schedule.h"
#include "transport/link.h"

namespace slipstream {

// Where in its own memory a rank lets the sender of a peer's plan put what is to arrive: the payload of `ready`.
std::vector<uint64_t> encode_placement(const Link::Shared& out, uint64_t out_bytes, const Plan& plan,
                                       const Plan::Peer& peer, const Geometry& geometry);

// A receive that waits for no other step may be written at any time, so the sender can do it where it can reach OUT;
// but not what this rank has to decode.
inline bool sender_may_write(const Step& step, const Geometry& geometry) {
  return step.kind == StepKind::recv && step.deps == 0 && step.count == 1 && step.dst == Space::out &&
         !geometry.is_encoded(step);
}

class SendGate {
 public:
  bool is_open() const { return open_; }
  bool eager() const { return eager_; }
  void set_eager() { eager_ = true; }
  // The peer has said `ready`; `placement` is what encode_placement() made of its plan, or empty.
  void set_ready(std::span<const std::byte> placement, Link& link, const Plan& plan, const Plan::Peer& peer,
                 const Geometry& geometry);
  // True if it has not been open, and may be now.
  bool may_open() const { return !open_ && (ready_ || eager_); }
  // Opens it; returns the sends that have waited.
  std::vector<Schedule::ChunkStep> open() {
    open_ = true;
    return std::exchange(blocked_, {});
  }
  void block(const Schedule::ChunkStep& send) { blocked_.push_back(send); }
  // True if sends wait.
  bool blocks() const { return !blocked_.empty(); }

  // Where the peer wants byte `offset` of one of its streams; nothing if that has to travel through the link.
  std::optional<Link::Shared> place(uint32_t stream, uint64_t offset) const {
    if (places_.empty() || places_[stream] == kNowhere) return std::nullopt;
    return Link::Shared{out_.region, out_.offset + places_[stream] + offset};
  }

  static constexpr uint64_t kNowhere = ~uint64_t{0};

 private:
  bool ready_ = false;
  bool eager_ = false;
  bool open_ = false;
  Link::Shared out_;              // the peer's OUT, if some bytes may be put there
  std::vector<uint64_t> places_;  // by stream: where in it, kNowhere if they may not
  std::vector<Schedule::ChunkStep> blocked_;
};

}  // namespace slipstream
