// One work being executed: its plan's steps over its chunks, as bytes arrive and leave. Driver's thread only.
//
// Arrivals are handled before new chunks are begun: a chunk goes through all its steps while it is in cache. What may
// run is the Schedule's, how data is cut the Geometry's, and what peers let us send the SendGates'.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/encoded_sends.h"
#include "engine/fabric.h"
#include "engine/geometry.h"
#include "engine/held_pieces.h"
#include "engine/intake.h"
#include "engine/lateness.h"
#include "engine/private_sends.h"
#include "engine/scaled_input.h"
#include "engine/schedule.h"
#include "engine/send_gate.h"
#include "engine/send_table.h"
#include "engine/shared_copies.h"
#include "engine/stall.h"
#include "engine/step_operator.h"
#include "engine/step_trace.h"
#include "engine/work.h"
#include "engine/work_header.h"
#include "engine/work_memory.h"
#include "transport/link.h"
#include "transport/region.h"

namespace slipstream {

// What an execution uses of its session, which outlives it.
struct ExecutionContext {
  Fabric& fabric;
  Arena& arena;
  const Regions& regions;
  SendTable& sends;
  Intake& intake;
  Receiving& receiving;
};

class Execution {
 public:
  Execution(const ExecutionContext& context, WorkPtr work);
  Execution(const Execution&) = delete;

  // Bytes to and from a peer of the plan, in all.
  std::pair<uint64_t, uint64_t> traffic(size_t peer_index) const {
    return geometry_.traffic(plan_.peers()[peer_index]);
  }
  // Sends `ready` for what comes in bulk, and begins the sends that need no `ready`.
  void start();
  // Begins the next chunk if the window allows. True if it did.
  bool start_chunk();
  bool finished() const { return schedule_.finished(); }

  Events::Landing land(int peer_index, const WorkHeader& frame);
  // An error if the frame cannot be right.
  [[nodiscard]] Error arrived(int peer_index, Link& link, const WorkHeader& frame, const Payload& payload);
  void sent(uint32_t step, uint64_t chunk);
  // The peer has submitted this work; `placement` is what its say_ready() sent.
  void peer_ready(int peer_index, Link& link, std::span<const std::byte> placement);
  void link_up(int peer_index);
  // The peer has room again for what is sent without its leave.
  void credit_came(int peer_index);
  // The link is going down, with its memory: takes over what has come through it and waits for its turn.
  void outlive(const Link& link) { held_.outlive(link); }
  // Asks peers that have not said `ready` to say it if they can.
  void nudge();

  // The peer of the plan that is this global rank; -1 if none is.
  int peer_index(int global_rank) const;
  // Global ranks this work waits for now.
  std::vector<int> waiting_on() const;
  const WorkPtr& work() const { return work_; }
  bool bulk() const { return bulk_; }
  // True of a message once its receiver can fetch all of it without this rank's help.
  bool is_lent_out() const {
    return private_sends_.lends_message() && schedule_.begun() == schedule_.chunks() && gates_.front().sends.is_open();
  }
  int urgency() const { return request_.urgency; }
  uint64_t progress() const { return progress_; }

  Stall stall;        // StallWatch's
  Lateness lateness;  // FrameDispatch's

 private:
  struct Gate {
    SendGate sends;
    bool must_say_ready = false;  // to the peer, before its bulk may come
  };

  int global_rank(int group_rank) const { return request_.group->ranks[static_cast<size_t>(group_rank)]; }
  Link* link_to(int group_rank) const { return context_.fabric.up(global_rank(group_rank)); }
  size_t peers_here() const;  // of the plan, on this host
  uint64_t widest_window() const;
  // Chunks that may be under way now: what the links are good for.
  uint64_t allowance() const;
  // Tells the peer that its bulk may come, and where in shared memory it may put it.
  void say_ready(int peer_index);
  void try_open(int peer_index);
  void run_ready();
  void issue(uint32_t step, uint64_t chunk);
  void issue_send(uint32_t step, uint64_t chunk);
  bool leaves_early(Link* link, const Step& step, uint64_t chunk);
  void issue_recv(uint32_t step, uint64_t chunk);
  void complete(uint32_t step, uint64_t chunk);
  void consume(uint32_t step, Link* link, const WorkHeader& frame, const Payload& payload);
  // The step a data frame belongs to, -1 if the frame cannot be right.
  int step_of(int peer_index, const WorkHeader& frame, uint32_t& expected_bytes) const;
  // A frame that is before its turn, and may not be kept: it has come before, or its sender cannot be so far yet.
  bool is_excess(uint32_t step, const WorkHeader& frame) const;
  static uint64_t send_key(uint32_t step, uint64_t chunk) { return chunk << 24 | step; }

  const ExecutionContext& context_;
  WorkPtr work_;
  const Request& request_;
  const std::optional<SharedPart>& part_;
  const Plan& plan_;
  Geometry geometry_;
  bool network_;  // it leaves the host
  bool bulk_ = false;
  Schedule schedule_;
  WorkMemory memory_;
  ScaledInput scaled_;
  bool past_cache_;
  StepOperator operator_;
  StepTrace trace_;
  EncodedSends encoded_;
  SharedCopies shared_copies_;
  PrivateSends private_sends_;
  HeldPieces held_;
  std::vector<Gate> gates_;  // by peer of the plan
  uint64_t progress_ = 0;
};

}  // namespace slipstream
