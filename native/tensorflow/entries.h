// What a rank has in a line (line.h), and asks the others about.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/explanation.h"
#include "tensorflow/started_steps.h"
#include "tensorflow/ticket.h"

namespace slipstream::tensorflow {

// What a rank asks with, and the highest of all ranks in each place. A rank that has joined has zeros but for `joined`.
enum Asked : size_t {
  kDigest,
  kInverse,
  kPlace,  // of an operation or a mark: how many operations its step has started before
  kInversePlace,
  kJoined,
  kFlushing,
  kFailed,  // of a mark: the rank and one
  // Of an operation: how many steps of which others do not know have failed before, times 2^kRankBits, and the rank.
  kDoubtful,
  kLeastDoubtful,  // the inverse of the number alone
  kFormBytes,
  kAsked
};

constexpr int kRankBits = 20;

struct Entry {
  enum class At : uint8_t { waits, asked, answered, explaining, explained };

  enum class Kind : uint8_t {
    operation,
    joined,    // this rank has
    mark,      // a step of this rank has failed
    flushing,  // it waits for all ranks to do so
    stale      // it has failed, or is asked about anew: only its question has to be answered
  };

  explicit Entry(Kind of_kind, uint64_t of_place = 0, std::shared_ptr<Ticket> of = nullptr, uint64_t of_doubtful = 0)
      : kind(of_kind), place(of_place), ticket(std::move(of)), doubtful(of_doubtful) {}

  // Nothing behind it is asked about before it has been judged.
  bool holds_back() const { return kind == Kind::joined || kind == Kind::mark || kind == Kind::flushing; }
  void fail(int32_t with, std::string why);
  // Sets what this rank asks with; it has this number in the line's groups.
  void fill_in(size_t rank);

  // Once it is answered. Some rank has asked about an operation.
  bool has_operations() const { return asked[kDigest] != 0 || asked[kInverse] != 0; }
  // The ranks are at the same place of a step.
  bool same_place() const { return asked[kPlace] == ~asked[kInversePlace]; }
  // Some ranks begin a step, and others are still in the one before, which is over for the former.
  bool are_apart() const { return asked[kInversePlace] == ~uint64_t{0} && asked[kPlace] > 0; }

  // Steps have failed of which some ranks do not know, and may be at another step.
  bool is_doubtful() const { return has_operations() && asked[kDoubtful] >> kRankBits != ~asked[kLeastDoubtful]; }

  Kind kind;
  uint64_t place;
  std::shared_ptr<Ticket> ticket;  // of an operation
  uint64_t doubtful;               // Line::doubtful_ when it was started
  At at = At::waits;
  uint64_t opening = 0;  // in which it was asked
  std::array<uint64_t, kAsked> asked{};
  std::unique_ptr<Explanation> explanation;
  int32_t status = SLIPSTREAM_OK;
  std::string text;
};

// Why an operation has met a mark, and why the job ends with one that is doubtful. `ranks`: the group's.
std::string why_marked(const Entry& entry, const std::vector<int32_t>& ranks);
std::string why_doubtful(const Entry& entry, const std::vector<int32_t>& ranks);

// What a ticket is to be told once the lock is free: whoever waits for it goes on in this thread, and may start others.
struct Ended {
  std::shared_ptr<Ticket> ticket;
  size_t call;     // kNone: it was not started
  int32_t status;  // as slipstream.h numbers them
  std::string text;
};
constexpr size_t kNone = SIZE_MAX;

using Entries = std::deque<std::shared_ptr<Entry>>;

// Has the ranks come to the same place, on each of them: what has been asked is dropped, and a `flushing` entry
// follows. With a `problem` the operations of the step fail, and its mark is not needed any more. All else is asked
// about anew.
void come_together(Entries& entries, const std::string& problem, StartedSteps& steps, std::vector<Ended>& ended);

// Whether these operations belong to more than this step before one of them has failed: functions run at the same time.
bool have_others(const Entries& entries, int64_t step);

}  // namespace slipstream::tensorflow
