// The boards of a session's groups: their memory, and what they use of the session.
//
// The leader of a group, its first rank, makes the memory when the group has had some calls that a board would take. It
// is a part of a region, and a `board` frame tells every other member where: Place, in the host's byte order. A member
// maps it and uses it from its next operation on. Nobody waits for that.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/trace.h"
#include "boards/board.h"
#include "engine/board_handler.h"
#include "engine/engine.h"
#include "engine/runner.h"
#include "transport/region.h"

namespace slipstream {

struct BoardOptions {
  int most_ranks = 16;            // of a group that has a board; 0: boards are off
  bool always = false;            // calls are tried whatever that costs: for tests
  bool relays = false;            // calls that have a route go along it
  double timeout_seconds = 1800;  // of a call that has none of its own
  Clock::duration patience{};     // that a call looks before it sleeps
  Clock::duration held{};         // that it keeps its core before it yields
};

class Boards final : public BoardHandler, private BoardHost {
 public:
  struct Parts {
    Engine& engine;
    Runner& runner;
    Regions& regions;
    Trace& trace;
    Counters& counters;
  };
  Boards(const Parts& parts, BoardOptions options) : parts_(parts), options_(options) {}

  // The board of a group whose ranks are all on this host; null if there are too many, or boards are off.
  std::shared_ptr<Board> of(const Group& group);
  // From now on no call goes over a board.
  void stop() { stopped_.store(true); }
  // Driver. Does what is due; returns when to call again.
  Time tick(Time now);
  // Before the session leaves: what is owed to sleepers is sent.
  void send_owed(Time deadline);

  Error offered_board(Link& link, const WorkHeader& frame, std::span<const std::byte> payload) override;
  void session_ended() override { ended_.store(true, std::memory_order_release); }
  bool undecided_on_board(uint64_t channel, uint32_t seq) override;
  std::optional<Channels::Past> latest_on_board(uint64_t channel) override;

 private:
  struct Place {
    uint64_t region;
    uint64_t offset;
  };
  // Members that have to be told where a board is.
  struct Untold {
    int leader;  // this rank
    uint64_t group;
    std::shared_ptr<std::byte> memory;
    size_t bytes;
    std::vector<int> ranks;
  };

  // A region of this leader's, which its boards hold in common.
  struct Made {
    uint32_t id;
    size_t bytes;
    std::weak_ptr<std::byte> memory;
    size_t used = 0;  // bytes
  };

  bool idle() const override;
  bool ended() const override { return ended_.load(std::memory_order_acquire); }
  bool always() const override { return options_.always; }
  bool relays() const override { return options_.relays && !parts_.trace.on(); }
  Clock::duration patience() const override { return options_.patience; }
  Clock::duration held() const override { return options_.held; }
  void want(const std::shared_ptr<Board>& board, const Group& group) override;
  WorkPtr work_of(const BoardCall& call, uint64_t number) override;
  void enter(const WorkPtr& work, uint64_t number) override;
  void submit(const WorkPtr& work) override { parts_.runner.submit(work); }
  void broke() override;
  void complete(Work& work) override;
  void held_back() override { held_back_.store(true); }
  void wake(const Group& group, const std::vector<BoardRows::Wake>& wakes, bool at_once) override;
  WorkPtr wake_from(int from, const Work& sleeping, uint64_t number, std::byte* place) override;
  ShortMessages::State relay(const BoardCall& call, uint64_t number, bool patient, std::vector<int>& missing) override;
  bool traces() const override { return parts_.trace.on(); }
  void trace(const BoardCall& call, Time begin) override;

  std::shared_ptr<Board> find(uint64_t group);
  std::shared_ptr<std::byte> allocate(size_t bytes);
  void free_unused();
  void make(Board& board, const Group& group);
  void tell_members();
  bool tell(Untold& untold);
  void expire_held_back(Time now);

  const Parts parts_;
  const BoardOptions options_;
  const uint32_t forks_ = forks();
  std::atomic<bool> stopped_{false};
  std::atomic<bool> ended_{false};
  std::atomic<bool> held_back_{false};  // some board may hold works back

  std::mutex mutex_;
  std::unordered_map<uint64_t, std::weak_ptr<Board>> boards_;  // by group
  size_t most_boards_ = 64;                                    // with so many, those that are gone are forgotten
  std::vector<WorkPtr> owed_;                                  // messages under way to sleepers
  // Driver's.
  std::vector<Untold> untold_;
  std::vector<Made> made_;  // the latest boards are in the last one
};

}  // namespace slipstream
