// A call of a board whose peers have not come: it has become a work, which sleeps until they do.
//
// It claims each missing rank (boards/rows.h), and has the engine receive a message from it. These receives stand for
// the operation: they time out, warn, ask, and fail where a peer is gone, as the operation would. So the caller waits
// for the work as for any other, and may leave it (an exception of a signal handler): it goes on. With each message it
// looks again: then the work is done, or the engine gets it.
//
// A claim is not overwritten before its message has come: as long as a receive is under way, the session is not idle,
// and this rank posts nothing.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>

#include "boards/board.h"
#include "boards/form.h"
#include "boards/rows.h"
#include "engine/work.h"

namespace slipstream {

class BoardSleep : public std::enable_shared_from_this<BoardSleep> {
 public:
  BoardSleep(BoardHost& host, std::shared_ptr<Board> board, BoardForm form, WorkPtr work, uint64_t number);
  void begin();

 private:
  class Woken;

  // Driver: the message of a rank has come, or never will.
  void woken(bool failed);
  void look();
  void decide(const WorkPtr& by_messages);

  BoardHost& host_;
  const std::shared_ptr<Board> board_;
  const WorkPtr work_;
  const BoardCall call_;  // of the work
  const uint64_t number_;

  std::recursive_mutex mutex_;  // what begin() submits may fail at once
  bool decided_ = false;
  std::array<std::byte, BoardRows::kMostRanks> places_{};  // of the messages: a byte for each rank
};

}  // namespace slipstream
