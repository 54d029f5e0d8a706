// One work being executed: its plan's steps over its chunks, as bytes arrive and leave. Driver's thread only.
//
// Chunk k of a step runs when chunk k of every step it waits for is done; at most `window` chunks are in flight, so
// staging memory is bounded. Arrivals are handled before new chunks are begun: a chunk goes through all its steps
// while it is in cache.
#pragma once

#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/stall.h"
#include "engine/work.h"
#include "kernels/kernels.h"
#include "transport/link.h"
#include "transport/region.h"

namespace slipstream {

class Engine;

class Execution {
 public:
  Execution(Engine& engine, WorkPtr work);
  ~Execution();
  Execution(const Execution&) = delete;

  // Bytes to and from a peer of the plan, in all.
  std::pair<uint64_t, uint64_t> traffic(size_t peer_index) const;
  // Says `ready` for what comes in bulk, and begins what needs no leave.
  void start();
  // Begins the next chunk if the window allows. True if it did.
  bool start_chunk();
  bool finished() const { return done_chunks_ == chunks_; }

  Events::Landing land(int peer_index, const Frame& frame);
  void arrived(int peer_index, Link& link, const Frame& frame, const Payload& payload);
  void sent(uint32_t step, uint64_t chunk);
  // The peer has submitted this work; `places` is what its say_ready() sent.
  void peer_ready(int peer_index, Link& link, std::span<const std::byte> places);
  void link_up(int peer_index);
  // The link is going down, with its memory: takes over what has come through it and waits for its turn.
  void outlive(const Link& link);
  // Asks peers that have not said `ready` to say it if they can.
  void nudge();

  // Group ranks this work waits for now.
  std::vector<int> waiting_on() const;
  const WorkPtr& work() const { return work_; }
  bool bulk() const { return bulk_; }
  uint64_t progress() const { return progress_; }

  Stall stall;  // the engine's

 private:
  struct Gate {  // what a peer lets us send
    bool ready = false;
    bool open = false;
    bool eager = false;
    bool must_say_ready = false;
    Link::Shared out;                                    // the peer's OUT, if our bytes may be put there
    std::vector<uint64_t> places;                        // by stream: where in it, kNowhere if they may not
    std::vector<std::pair<uint32_t, uint64_t>> blocked;  // (step, chunk)
  };
  struct Held {  // arrived before its turn
    Link* link;  // null once it is down
    Frame frame;
    Payload payload;
    std::vector<std::byte> copy;
  };
  struct Piece {
    uint64_t offset;  // elements into the space
    uint64_t count;   // elements
  };

  void measure();
  // Chunks that may be in flight now: what the links are good for.
  uint64_t allowance() const;
  // Bytes of a chunk that come from peers.
  uint64_t intake(uint64_t chunk) const;
  // Tells the peer that its bulk may come, and where in shared memory it may put it.
  void say_ready(int peer_index);
  void try_open(int peer_index);
  void begin(uint64_t chunk);
  void run_ready();
  void issue(uint32_t step, uint64_t chunk);
  void issue_send(uint32_t step, uint64_t chunk);
  // Puts bytes where the peer wants them; false if it has failed or left.
  static bool put(Link& link, const Link::Shared& at, const std::byte* data, size_t bytes);
  void issue_recv(uint32_t step, uint64_t chunk);
  void issue_local(const Step& step, uint64_t chunk);
  void complete(uint32_t step, uint64_t chunk);
  void add_wide(const Step& step, uint64_t element, const std::byte* data, uint64_t count);
  void finish_wide(uint64_t element, std::byte* dst, uint64_t count);
  void consume(uint32_t step, Link* link, const Frame& frame, const Payload& payload);
  // The input is scaled piece by piece, where it is read (execution_scale.cpp).
  bool scales(const Step& step) const { return request_.prescale != 1.0 && step.src == Space::in; }
  const std::byte* scaled(const Step& step, uint64_t send, uint32_t piece, const std::byte* data, uint64_t count);
  const std::byte* input(const Step& step, const std::byte* data, uint64_t count);
  void drop_scaled(uint64_t send);
  const std::byte* stage(const Step& step, uint64_t chunk, uint32_t piece, const std::byte* data, size_t bytes);

  uint64_t block_offset(Space space, int block) const;
  uint64_t range_elements(Space space, const Step& step) const;
  // True if all blocks of a step travel as one piece. Both ends of a message must decide alike: only what both know of
  // it counts, the sizes of its blocks, and nothing that a rank sees in the other steps of its own plan.
  bool one_piece(Space space, const Step& step) const;
  bool merged(const Step& step) const {
    return !merged_.empty() && merged_[static_cast<size_t>(&step - plan_.steps().data())] != 0;
  }
  uint32_t pieces(const Step& step) const { return merged(step) ? 1u : static_cast<uint32_t>(step.count); }
  Piece piece(Space space, const Step& step, uint64_t chunk, uint32_t index) const;
  std::byte* address(Space space, uint64_t element) const;
  Request::Elements reduced() const;
  size_t slot(uint64_t chunk, uint32_t step) const { return (chunk % window_) * steps_ + step; }
  // The step a data frame belongs to, -1 if the frame cannot be right.
  int step_of(int peer_index, const Frame& frame, uint32_t& expected_bytes) const;
  bool ready_for(uint32_t step, uint64_t chunk) const {
    return chunk < begun_ && chunk >= oldest_ && armed_[slot(chunk, step)] != 0;
  }
  // A frame that is before its turn, and may not be kept: it has come before, or its sender cannot be so far yet.
  bool is_excess(uint32_t step, const Frame& frame) const;
  static uint64_t key(uint32_t step, uint64_t chunk) { return chunk << 24 | step; }

  Engine& engine_;
  WorkPtr work_;
  const Request& request_;
  const Plan& plan_;
  ReduceFn reduce_ = nullptr;
  size_t element_ = 1;
  size_t steps_ = 0;
  uint64_t chunk_elements_ = 1;
  uint64_t chunks_ = 1;
  uint64_t window_ = 1;
  std::vector<uint8_t> merged_;  // by step: one_piece(); empty if no step has two blocks
  bool bulk_ = false;
  bool network_ = false;  // it leaves the host

  std::array<Layout, 3> spaces_;
  std::vector<std::byte> tmp_;
  std::unique_ptr<std::byte[]> ring_;  // of a windowed request: all spaces in one
  uint64_t ring_elements_ = 0;         // 0: spaces are where the request says
  std::unique_ptr<float[]> wide_;      // the same ring, as f32, for sums of short floats: rounded once, at the end
  std::vector<float> term_;            // what is added to it
  Arena::Block staging_{};
  std::unordered_map<uint64_t, Arena::Block> scaled_;  // by key(): the input of sends under way, scaled
  std::vector<std::byte> scratch_;                     // of input()
  size_t stage_bytes_ = 0;

  uint64_t begun_ = 0;        // chunks begun
  uint64_t oldest_ = 0;       // first chunk not done
  uint64_t done_chunks_ = 0;  // chunks done
  uint64_t progress_ = 0;
  std::vector<uint32_t> deps_left_;
  std::vector<uint32_t> pieces_left_;
  std::vector<uint8_t> armed_;
  std::vector<uint8_t> staged_;  // per (window, batch, piece)
  std::vector<uint32_t> steps_left_;
  std::vector<Gate> gates_;
  std::vector<std::pair<uint32_t, uint64_t>> ready_;
  std::unordered_map<uint64_t, std::vector<Held>> held_;
};

}  // namespace slipstream
