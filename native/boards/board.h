// The collectives of a group whose ranks are all on one host, as one rank calls them: their numbers; and small blocking
// calls, which go over the group's board (boards/rows.h), without the engine, if all ranks agree.
//
// A call posts its contribution, and looks for those of the others for a moment. Then it is done, or it has become a
// work: the engine's, if it goes by messages; or one that sleeps until the others come (boards/sleep.h).
//
// The root of a broadcast needs nobody's contribution, and may be the one that the others wait for somewhere else. So
// it looks for a short time only, and goes by messages then, as all do with it.
//
// Calls of the group that come before such a call is decided (of other threads, or after an interrupted call) go by
// messages, and the engine gets them after it: so it has the works of a channel in the order of their numbers, as on
// the other ranks.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/trace.h"
#include "boards/form.h"
#include "boards/rows.h"
#include "boards/worth.h"
#include "engine/channels.h"
#include "engine/short_messages.h"
#include "engine/work.h"

namespace slipstream {

// What a board uses of its session, which outlives the calls. Any thread.
class BoardHost {
 public:
  virtual ~BoardHost() = default;
  // Whether a call may go without the engine now: that has no works of this rank, and the session has not ended.
  virtual bool idle() const = 0;
  virtual bool ended() const = 0;
  // Whether calls go along their routes, where they have one.
  virtual bool relays() const { return false; }
  // Calls are tried on boards whatever that costs.
  virtual bool always() const { return false; }
  // How long a call looks before it sleeps.
  virtual Clock::duration patience() const = 0;
  // How long it keeps its core before it yields.
  virtual Clock::duration held() const = 0;
  // The group, whose leader this rank is, has had some calls that a board would take.
  virtual void want(const std::shared_ptr<Board>& board, const Group& group) = 0;

  // A work for `call`, which has this number.
  virtual WorkPtr work_of(const BoardCall& call, uint64_t number) = 0;
  // Gives the ledger a work with its number.
  virtual void enter(const WorkPtr& work, uint64_t number) = 0;
  virtual void submit(const WorkPtr& work) = 0;
  // To be called while an exception is handled, by a thread that holds no lock: it ends the session.
  virtual void broke() = 0;
  // Ends a work that was not submitted.
  virtual void complete(Work& work) = 0;
  // Works are held back: Board::holds_back() is to be asked now and then.
  virtual void held_back() = 0;

  // Sends the messages that this rank owes. `at_once`: they are on their way when this returns, if that can be.
  virtual void wake(const Group& group, const std::vector<BoardRows::Wake>& wakes, bool at_once) = 0;
  // A work that receives the message for which this rank has claimed the rank of the group `from`, in `sleeping`.
  virtual WorkPtr wake_from(int from, const Work& sleeping, uint64_t number, std::byte* place) = 0;

  // This rank's part in `call`, along its route, without a work, if that can be.
  virtual ShortMessages::State relay(const BoardCall& call, uint64_t number, bool patient,
                                     std::vector<int>& missing) = 0;

  virtual bool traces() const = 0;
  virtual void trace(const BoardCall& call, Time begin) = 0;
};

class Board : public std::enable_shared_from_this<Board> {
 public:
  // `next`: the number that the group's next operation gets, from 1.
  Board(BoardHost& host, const Group& group, uint64_t next);

  // Ranks of the session: this one, and the one that makes the memory.
  int session_rank() const { return session_rank_; }
  int leader() const { return leader_; }
  // Bytes of the memory.
  size_t bytes() const { return BoardRows::bytes(size_); }
  // Driver. From this rank's next operation on, it uses this memory. False if it has some.
  bool take(std::shared_ptr<std::byte> memory);

  // A collective of the group that goes by messages gets its number.
  void number(const WorkPtr& work);
  // To be asked before a work of the group's channel is submitted. True if that is done later.
  bool hold_back(const WorkPtr& work);
  // Whether any is held back; and one of those whose own time is up, if there is one.
  bool holds_back(Time now, WorkPtr& overdue);

  // Begins a blocking call: the number of the operation. 0: it goes by messages, and has no number yet. Else end()
  // follows.
  uint64_t begin(const BoardCall& call);
  // Looks until the call is decided, for a moment, or as long as is usual. True if it is.
  bool look_at_once();
  bool look(const BoardCall& call);
  // Before end(), if it is not decided yet: the ranks of the group that this one still waits for.
  std::vector<int> missing() const { return rows_->missing(); }
  // Null: the call is done. Or the work that it has become. This thread looks no more.
  WorkPtr end(const BoardCall& call, uint64_t number);

  // Begins a blocking call that goes along its route: the number of the operation. 0: that cannot be, and nothing has
  // happened. Else end_relay() follows.
  uint64_t begin_relay(const BoardCall& call);
  // Looks for what has to come: for a moment or, if `patient`, for some. True if the call is done. `missing`: the ranks
  // of the session that it waits for, if it has to.
  bool relay(const BoardCall& call, uint64_t number, bool patient, std::vector<int>& missing);
  // Null if it is `done`; or the work that it has become.
  WorkPtr end_relay(const BoardCall& call, uint64_t number, bool done);

  // Whether the operation with this number, from 0, is not decided yet.
  bool is_undecided(uint32_t seq);
  // The latest operation that was done on the board.
  std::optional<Channels::Past> latest();

 private:
  friend class BoardSleep;

  struct Latest {
    uint64_t number = 0;
    TraceEvent::Text<80> operation;  // "all_reduce[shape=2x3]"
    int root = -1;
    DType dtype = DType::f32;
    Op op = Op::sum;
    bool reduces = false;
    bool with_sizes = false;  // what the operation ends with
    uint64_t count = 0;
    Time at{};
  };

  void join();
  uint64_t take_number(const WorkPtr& work);
  WorkPtr decided(const BoardCall& call, uint64_t number);
  WorkPtr done(const BoardCall& call, uint64_t number);
  WorkPtr given(const BoardCall& call, uint64_t number);
  void conclude(const BoardCall& call, uint64_t number);
  // The call is decided: this rank does not look for it any more. `work`: what it runs by messages.
  void settle(const BoardCall& call, uint64_t number, const WorkPtr& work, bool on_board = true);
  // What `f` throws ends the session: the others have seen the number of the call, or wait for it.
  template <class F>
  void guarded(F f);
  // The session has ended because of that. Throws nothing.
  void abandon();
  void remember(const BoardCall& call, uint64_t number);
  void wake_others(const Group& group, uint64_t number, bool at_once);

  BoardHost& host_;
  const int rank_;  // of the group
  const int size_;
  const int session_rank_;
  const int leader_;

  std::mutex mutex_;
  uint64_t count_;                     // operations so far
  std::shared_ptr<std::byte> memory_;  // null: there is none yet
  std::optional<BoardRows> rows_;      // in it. What is looked for belongs to whoever has the call
  BoardWorth worth_;
  bool slept_ = false;      // the undecided call: it went to sleep, which worth_ knows
  Clock::duration lost_{};  // for which it had no core, as it looked. Belongs to whoever has the call
  bool joined_ = false;
  int calls_ = 0;              // that a board would have taken
  uint64_t undecided_ = 0;     // the call that this rank has posted for, or will; 0: none
  bool to_post_ = false;       // it will, as a root, unless another of this rank's calls comes before
  std::deque<WorkPtr> later_;  // held back until that is decided
  Latest latest_;
  Time called_{};  // of the undecided call, if there is a timeline
};

// The board that numbers the works of a channel; null if there is none.
inline Board* board_of(const Request& request) {
  return request.channel == request.group->id ? request.group->board.get() : nullptr;
}

// True if the work is submitted later, in its order.
inline bool hold_back(const WorkPtr& work) {
  Board* const board = board_of(work->request);
  return board != nullptr && board->hold_back(work);
}

}  // namespace slipstream
