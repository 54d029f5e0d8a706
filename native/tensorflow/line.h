// Operations that all ranks start in one order, on groups of their own.
//
// Before an operation begins, the ranks ask each other which one it is: 80 bytes of each, in one all-reduce. So a rank
// that has joined (it has no more batches) finds out that the others start one, and which: it takes part without data.
// Only if one has joined, or the ranks differ, they tell each other more, in an all-gather. Questions run ahead of
// operations: they have a group of their own.
//
// If the ranks differ, all of them fail the operation, and with it the step that it belongs to.
//
// A step may end before it has started all of its operations, at another place on each rank. So a rank whose step has
// failed puts a mark into its line, behind what the step has started: it asks with `flushing` in place of an operation.
// A mark tells how many operations its step has started, and an operation how many its step has started before. So the
// ranks know what a mark meets:
// - marks of all ranks: the step has failed on all of them, and they go on.
// - the operation of the same step: it fails, and with it the step of its rank.
// - an operation of a later step, which is the first one of that: the step has failed on the rank of the mark alone,
//   when no other rank waited for it any more. The operation is asked about anew.
// For example, two ranks run steps of operations a, b and c. If rank 0 fails behind b, its mark says 2. Rank 1 asks
// about c, which has place 2: it fails. Or rank 1's c has met rank 0's, and rank 0 fails then: its mark says 3. Rank 1
// asks about a of the next step, which has place 0, and the mark is dropped: rank 0 asks about a of its next step, too.
//
// A step may have started nothing, and it may be that it would not have: its operations are in a condition, or it could
// not be traced. Then a mark would not tell which step it belongs to. So the rank counts such steps, and asks about its
// next operation with that number. If the ranks have different numbers, the job ends.
// Where a mark meets operations, the ranks have asked about more of them by then. So all ranks drop what they have
// asked, and ask with `flushing` until all do: then they are at the same place.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "capi/handle.h"
#include "capi/slipstream.h"
#include "tensorflow/entries.h"
#include "tensorflow/started_steps.h"
#include "tensorflow/ticket.h"

namespace slipstream::tensorflow {

// Has the ranks agree that there is this line, in the job as it is now. Line::opened() or refused() tells of the end of
// that, later and in another thread. Throws Failure. A line is known by its text, which means the same in every
// process: graphs are saved, and loaded by others.
using Opener = void (*)(const std::string& line);

class Line {
 public:
  explicit Line(std::string name) : name_(std::move(name)) {}
  Line(const Line&) = delete;

  // Any thread may call any of these. None of them waits for other ranks.

  // After all that came before.
  void start(std::shared_ptr<Ticket> ticket);
  // All ranks have agreed to open it. Takes a reference to each group: of the operations, and of the questions.
  void opened(slipstream_group* operations, slipstream_group* questions);
  // Or they have not.
  void refused(int32_t status, const std::string& text);
  // This rank takes part in what the others start, after what it has started itself, until all have called this as
  // often. Nothing, if no rank has used the line.
  void join();
  // A step that may have used the line has failed; it began after the start of this number (see starts()), and no other
  // step used the line meanwhile. The others hear of that. `certain`: the step would have started something here if it
  // had not failed. `later`: if it has started nothing, they hear of it with the next start of this rank on any line;
  // if the rank joins before, they do not.
  void give_up(uint64_t since, bool certain, bool later);
  // Has the others hear of it now.
  void tell_given_up();
  // The process has left the job.
  void forget();

 private:
  struct Question;
  enum class State : uint8_t { closed, opening, open };

  static void answered(void* user, int32_t status, const char* text);
  static void tell(const std::vector<Ended>& ended);
  void go_on(std::vector<Ended>& ended, bool may_run);
  void ask(const std::shared_ptr<Entry>& entry, bool may_run);
  bool take_first(std::vector<Ended>& ended);
  void judge(const std::shared_ptr<Entry>& entry, std::vector<Ended>& ended);
  void explain(const std::shared_ptr<Entry>& entry);
  void follow(const std::shared_ptr<Entry>& entry, std::vector<Ended>& ended);
  void help(const Entry& entry, std::vector<Ended>& ended);
  void meet_mark(const std::shared_ptr<Entry>& entry, std::vector<Ended>& ended);
  void begin(const std::shared_ptr<Ticket>& ticket, std::vector<Ended>& ended);
  bool has_joined() const;
  bool needs_opening(std::array<slipstream_group*, 2>& gone, std::vector<Ended>& ended);
  void open();
  std::array<slipstream_group*, 2> close(std::vector<Ended>& ended);

  const std::string name_;
  std::mutex mutex_;
  State state_ = State::closed;
  Entries entries_;  // not begun
  slipstream_group *operations_ = nullptr, *questions_ = nullptr;
  uint64_t opening_ = 0;  // how often it was opened
  StartedSteps steps_;
  uint64_t given_up_ = 0;  // steps that have started nothing here, and of which others do not know
  uint64_t doubtful_ = 0;  // since the rank joined: steps that have started nothing here, and perhaps would not have
};

// The line of this name; made at the first call.
Line& line_of(const std::string& name);
// Before any line is started.
void set_opener(Opener open);

// While this rank is in join, operations that it starts on lines that have joined fail.
void set_joining(bool joining);
// How many operations this process has started on all lines. The number stays where it is in memory.
const std::atomic<uint64_t>& starts();
// In how many operations of others this process has taken part.
uint64_t helped();

}  // namespace slipstream::tensorflow
