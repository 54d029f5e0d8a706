// Operations that all ranks start in one order, on groups of their own.
//
// Before an operation begins, the ranks ask each other which one it is: 72 bytes of each, in one all-reduce. So a rank
// that has joined (it has no more batches) finds out that the others start one, and which: it takes part without data.
// Only if one has joined, or the ranks differ, they tell each other more, in an all-gather. Questions run ahead of
// operations: they have a group of their own.
//
// If the ranks differ, all of them fail the operation, and with it the steps that it belongs to. TensorFlow ends such a
// step at another place on each rank, so some have asked about more operations of it than others. Each rank fails what
// it has in its line, and asks with `flushing` from then on, until all ranks do: then all are at the same place again.
//
// A step may also fail for another reason, while operations of it wait for other ranks. If these start them in the same
// run of their function (runs.h), this rank takes part with its data. If ranks ask in different runs, those in the
// latest one wait for the others, whose steps fail until they are in the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "capi/handle.h"
#include "capi/slipstream.h"
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
  // The process has left the job.
  void forget();

 private:
  struct Entry;
  struct Question;
  enum class State : uint8_t { closed, opening, open };
  // What a ticket is to be told once the lock is free: whoever waits for it goes on in this thread, and may start
  // others.
  struct Ended {
    std::shared_ptr<Ticket> ticket;
    size_t call;     // kNone: it was not started
    int32_t status;  // as slipstream.h numbers them
    std::string text;
  };
  static constexpr size_t kNone = SIZE_MAX;

  static void answered(void* user, int32_t status, const char* text);
  static void tell(const std::vector<Ended>& ended);
  void go_on(std::vector<Ended>& ended, bool may_run);
  void ask(const std::shared_ptr<Entry>& entry, bool may_run);
  bool take_first(std::vector<Ended>& ended);
  static bool in_other_runs(const Entry& entry);
  void judge(const std::shared_ptr<Entry>& entry, std::vector<Ended>& ended);
  void explain(const std::shared_ptr<Entry>& entry);
  void follow(const std::shared_ptr<Entry>& entry, std::vector<Ended>& ended);
  void help(const Entry& entry, std::vector<Ended>& ended);
  void come_together(const std::string& problem, std::vector<Ended>& ended);
  void end_step(const Ticket& ticket, const std::string& problem);
  const std::string* why_ended(int64_t step) const;
  void begin(const std::shared_ptr<Ticket>& ticket, std::vector<Ended>& ended);
  bool has_joined() const;
  std::array<slipstream_group*, 2> close();

  const std::string name_;
  std::mutex mutex_;
  State state_ = State::closed;
  std::deque<std::shared_ptr<Entry>> entries_;  // not begun
  slipstream_group *operations_ = nullptr, *questions_ = nullptr;
  uint64_t opening_ = 0;                                     // how often it was opened
  std::deque<std::pair<int64_t, std::string>> ended_steps_;  // the latest, and why
};

// The line of this name; made at the first call.
Line& line_of(const std::string& name);
// Before any line is started.
void set_opener(Opener open);

// While this rank is in join, operations that it starts on lines that have joined fail.
void set_joining(bool joining);
// In how many operations of others this process has taken part.
uint64_t helped();

}  // namespace slipstream::tensorflow
