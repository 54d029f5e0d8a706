#include "tensorflow/line.h"

#include <algorithm>
#include <atomic>
#include <unordered_map>
#include <utility>

#include "capi/calls.h"
#include "capi/table.h"
#include "lines/form.h"
#include "lines/plan.h"
#include "tensorflow/explanation.h"
#include "tensorflow/plan.h"
#include "tensorflow/runs.h"

namespace slipstream::tensorflow {

namespace {

constexpr double kEndless = 1e9;  // seconds: as long as the others go on without this rank
constexpr const char* kQuestion = "slipstream: the next operation of a TensorFlow graph";
constexpr const char* kExplanation = "slipstream: what the next operation of a TensorFlow graph is";
constexpr const char* kJoin = "join (it takes part in what the others start)";
constexpr const char* kApart =
    ": the ranks are in different runs of its function, and this rank is behind. A step has failed on some ranks "
    "alone, some ranks call the function more often, or several threads run it at once. End the program then";
constexpr const char* kFlush = "what comes after a step that failed";

std::atomic<Opener> opener{nullptr};
std::atomic<bool> joining{false};
std::atomic<uint64_t> times_helped{0};

const slipstream_api& api() { return *capi::table(SLIPSTREAM_API_VERSION); }

// What a rank asks with, and the highest of all ranks in each place. A rank that has joined has zeros but for `joined`;
// one that waits for all to be at the same place has zeros but for `flushing`.
enum Asked : size_t {
  kDigest,
  kInverse,
  kFunction,
  kInverseFunction,
  kRun,
  kInverseRun,
  kJoined,
  kFlushing,
  kFormBytes,
  kAsked
};

constexpr size_t kEndedSteps = 64;

struct Known {
  std::mutex mutex;
  std::unordered_map<std::string, std::unique_ptr<Line>> lines;
};

// Never freed: TensorFlow's threads may outlive static variables.
Known& known() {
  static auto* const all = new Known;
  return *all;
}

}  // namespace

struct Line::Entry {
  enum class At : uint8_t { waits, asked, answered, explaining, explained };

  enum class Kind : uint8_t {
    operation,
    joined,    // this rank has
    flushing,  // it waits for all ranks to do so
    stale      // it has failed, or is asked about anew: only its question has to be answered
  };

  explicit Entry(Kind of_kind, std::shared_ptr<Ticket> of = nullptr) : kind(of_kind), ticket(std::move(of)) {}

  Kind kind;
  std::shared_ptr<Ticket> ticket;  // of an operation
  At at = At::waits;
  uint64_t opening = 0;  // in which it was asked
  std::array<uint64_t, kAsked> asked{};
  std::unique_ptr<Explanation> explanation;
  int32_t status = SLIPSTREAM_OK;
  std::string text;

  void fail(int32_t with, std::string why) {
    status = with;
    text = std::move(why);
  }
};

struct Line::Question {
  Line& line;
  std::shared_ptr<Entry> entry;
  Entry::At next;
};

void Line::start(std::shared_ptr<Ticket> ticket) {
  std::vector<Ended> ended;
  std::array<slipstream_group*, 2> gone{};
  bool opens = false;
  {
    const std::lock_guard lock(mutex_);
    if (joining.load() && has_joined()) {
      ended.push_back({ticket, kNone, SLIPSTREAM_INVALID,
                       ticket->label + " was started while another thread of this rank waits in join: the other ranks "
                                       "go on without it. Call join after all operations"});
    } else if (const std::string* const problem = why_ended(ticket->step)) {
      ended.push_back({ticket, kNone, SLIPSTREAM_MISMATCH, *problem});
    } else {
      entries_.push_back(std::make_shared<Entry>(Entry::Kind::operation, std::move(ticket)));
      if (state_ == State::open && has_ended(*operations_->session)) gone = close();
      opens = state_ == State::closed;
      if (opens) state_ = State::opening;
      go_on(ended, true);
    }
  }
  for (slipstream_group* const one : gone) api().group_release(one);
  tell(ended);
  if (!opens) return;
  try {
    opener.load()(name_);
  } catch (const Failure& failure) {
    refused(static_cast<int32_t>(failure.error().code), failure.what());
  } catch (const std::exception& error) {
    refused(SLIPSTREAM_INTERNAL, error.what());
  }
}

void Line::opened(slipstream_group* operations, slipstream_group* questions) {
  std::vector<Ended> ended;
  std::array<slipstream_group*, 2> gone{};
  {
    const std::lock_guard lock(mutex_);
    gone = close();
    operations_ = operations;
    questions_ = questions;
    state_ = State::open;
    go_on(ended, false);
  }
  for (slipstream_group* const one : gone) api().group_release(one);
  tell(ended);
}

void Line::refused(int32_t status, const std::string& text) {
  std::vector<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::opening) state_ = State::closed;
    for (const std::shared_ptr<Entry>& entry : entries_)
      if (entry->at == Entry::At::waits) {
        entry->fail(status, text);
        entry->at = Entry::At::answered;
      }
    go_on(ended, false);
  }
  tell(ended);
}

void Line::join() {
  std::vector<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::closed) return;
    entries_.push_back(std::make_shared<Entry>(Entry::Kind::joined));
    go_on(ended, false);
  }
  tell(ended);
}

void Line::forget() {
  std::array<slipstream_group*, 2> gone{};
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::open) gone = close();
  }
  forget_runs();
  for (slipstream_group* const one : gone) api().group_release(one);
}

// Returns what is to be released without the lock.
std::array<slipstream_group*, 2> Line::close() {
  state_ = State::closed;
  ++opening_;
  // In the next job all ranks begin at the same place.
  std::erase_if(entries_, [](const auto& entry) {
    return entry->at == Entry::At::waits && entry->kind == Entry::Kind::flushing;
  });
  return {std::exchange(operations_, nullptr), std::exchange(questions_, nullptr)};
}

bool Line::has_joined() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const auto& entry) { return entry->kind == Entry::Kind::joined; });
}

void Line::tell(const std::vector<Ended>& ended) {
  for (const Ended& one : ended)
    if (one.call == kNone)
      one.ticket->close({code_of(one.status), one.text});
    else
      one.ticket->ended(one.call, one.status, one.text.c_str());
}

// Asks what is to be asked, and begins what can be begun. The lock is held. `may_run`: a question may be looked after
// in this thread for a moment.
void Line::go_on(std::vector<Ended>& ended, bool may_run) {
  do {
    for (size_t i = 0; i < entries_.size() && state_ == State::open; ++i) {
      const std::shared_ptr<Entry> entry = entries_[i];
      if (entry->at == Entry::At::waits) ask(entry, may_run);
      // How many questions these two have is not known.
      if (entry->kind == Entry::Kind::joined || entry->kind == Entry::Kind::flushing) break;
    }
  } while (take_first(ended));
}

void Line::ask(const std::shared_ptr<Entry>& entry, bool may_run) {
  const Ticket* const ticket = entry->ticket.get();
  const bool joined = entry->kind == Entry::Kind::joined;
  if (ticket == nullptr) {
    entry->asked = {};
    entry->asked[joined ? kJoined : kFlushing] = 1;
  } else {
    const uint64_t digest = ticket->digest();
    const uint64_t function = lines::digest_of(ticket->function);
    entry->asked = {digest, ~digest, function, ~function, ticket->run, ~ticket->run, 0, 0, ticket->form.size()};
  }
  entry->opening = opening_;
  entry->at = Entry::At::answered;
  if (api().group_size(questions_) == 1) return;
  slipstream_call call;
  slipstream_call_init(&call, SLIPSTREAM_ALL_REDUCE);
  call.src = call.dst = entry->asked.data();
  call.count = kAsked;
  call.dtype = SLIPSTREAM_U64;
  call.op = SLIPSTREAM_MAX;
  call.name = kQuestion;
  if (joined) call.timeout = kEndless;
  const std::string title = ticket != nullptr ? ticket->label : joined ? kJoin : kFlush;
  auto question = std::make_unique<Question>(Question{*this, entry, Entry::At::answered});
  try {
    if (may_run && ticket != nullptr) {
      if (capi::submit_or_run(*questions_, call, answered, question.get(), title)) return;
    } else {
      capi::submit(*questions_, call, answered, question.get(), title);
    }
    static_cast<void>(question.release());
    entry->at = Entry::At::asked;
  } catch (const Failure& failure) {
    entry->fail(static_cast<int32_t>(failure.error().code), failure.what());
  } catch (const std::exception& error) {
    entry->fail(SLIPSTREAM_INTERNAL, error.what());
  }
}

void Line::answered(void* user, int32_t status, const char* text) {
  const std::unique_ptr<Question> question(static_cast<Question*>(user));
  Line& line = question->line;
  std::vector<Ended> ended;
  {
    const std::lock_guard lock(line.mutex_);
    Entry& entry = *question->entry;
    entry.at = question->next;
    if (status != SLIPSTREAM_OK) entry.fail(status, text);
    line.go_on(ended, true);
  }
  tell(ended);
}

// False, if there is nothing to be done about the first entry now.
bool Line::take_first(std::vector<Ended>& ended) {
  if (entries_.empty()) return false;
  const std::shared_ptr<Entry> entry = entries_.front();
  if (entry->at != Entry::At::answered && entry->at != Entry::At::explained) return false;
  if (entry->status == SLIPSTREAM_OK && (state_ != State::open || entry->opening != opening_))
    entry->fail(SLIPSTREAM_ABORTED, "the job was left before this operation was started");
  if (entry->status != SLIPSTREAM_OK) {
    entries_.pop_front();
    if (entry->ticket != nullptr) ended.push_back({entry->ticket, kNone, entry->status, entry->text});
  } else if (entry->kind == Entry::Kind::stale) {
    entries_.pop_front();
  } else if (entry->at == Entry::At::explained) {
    follow(entry, ended);
  } else {
    judge(entry, ended);
  }
  return true;
}

// Ranks run the same function, but not as often. Operations with a name may be of other functions on other ranks.
bool Line::in_other_runs(const Entry& entry) {
  const auto& asked = entry.asked;
  return asked[kFunction] == ~asked[kInverseFunction] && asked[kRun] != ~asked[kInverseRun];
}

// All ranks have asked.
void Line::judge(const std::shared_ptr<Entry>& entry, std::vector<Ended>& ended) {
  const auto& asked = entry->asked;
  const bool operations = asked[kDigest] != 0 || asked[kInverse] != 0;
  if (entry->kind == Entry::Kind::flushing) {
    if (operations || asked[kJoined] != 0)
      entry->at = Entry::At::waits;  // once more
    else
      entries_.pop_front();
  } else if (asked[kFlushing] != 0) {  // it cannot be: all ranks flush after the same operation
    entries_.pop_front();
    const std::string text = "ranks disagree about what comes after an operation that failed";
    api().abort(operations_, text.c_str());
    if (entry->ticket != nullptr) ended.push_back({entry->ticket, kNone, SLIPSTREAM_INTERNAL, text});
  } else if (!operations) {
    entries_.pop_front();  // all ranks have joined
  } else if (asked[kJoined] == 0 && asked[kDigest] == ~asked[kInverse] && !in_other_runs(*entry)) {
    entries_.pop_front();
    begin(entry->ticket, ended);
  } else {
    explain(entry);
  }
}

// Some rank has joined, or calls something else, or the same in another run.
void Line::explain(const std::shared_ptr<Entry>& entry) {
  const auto ranks = static_cast<size_t>(api().group_size(operations_));
  const auto rank = static_cast<size_t>(api().group_rank(operations_));
  entry->explanation = std::make_unique<Explanation>(ranks, entry->asked[kFormBytes]);
  Explanation& own = *entry->explanation;
  if (entry->ticket != nullptr) own.write(rank, *entry->ticket);
  slipstream_call call;
  slipstream_call_init(&call, SLIPSTREAM_ALL_GATHER);
  call.src = own.of(rank);
  call.dst = own.of(0);
  call.count = own.bytes();
  call.dtype = SLIPSTREAM_U8;
  call.name = kExplanation;
  auto question = std::make_unique<Question>(Question{*this, entry, Entry::At::explained});
  entry->at = Entry::At::explaining;
  try {
    capi::submit(*operations_, call, answered, question.get(), entry->ticket == nullptr ? kJoin : entry->ticket->label);
    static_cast<void>(question.release());
  } catch (const Failure& failure) {
    entry->at = Entry::At::explained;
    entry->fail(static_cast<int32_t>(failure.error().code), failure.what());
  } catch (const std::exception& error) {
    entry->at = Entry::At::explained;
    entry->fail(SLIPSTREAM_INTERNAL, error.what());
  }
}

// What the first entry is, all ranks know.
void Line::follow(const std::shared_ptr<Entry>& entry, std::vector<Ended>& ended) {
  std::vector<int32_t> ranks(static_cast<size_t>(api().group_size(operations_)));
  api().group_ranks(operations_, ranks.data());
  const Explanation& known = *entry->explanation;
  const uint64_t latest = entry->asked[kRun];
  const bool apart = in_other_runs(*entry);
  const std::string problem = apart ? "" : known.problem(ranks);
  if (entry->kind == Entry::Kind::joined) {
    times_helped.fetch_add(1);
    if (!apart && problem.empty()) help(*entry, ended);
    entry->at = Entry::At::waits;  // for the next one
  } else if (apart && entry->ticket->run == latest) {
    entry->at = Entry::At::waits;  // for what the others start in the same run
  } else {
    entries_.pop_front();
    if (problem.empty() && !apart) {
      begin(entry->ticket, ended);
    } else {
      const std::string text = apart ? entry->ticket->label + kApart : problem;
      end_step(*entry->ticket, text);
      ended.push_back({entry->ticket, kNone, SLIPSTREAM_MISMATCH, text});
    }
  }
  entry->explanation.reset();
  if (apart || !problem.empty()) come_together(problem, ended);
}

// Has all ranks come to the same place: see above. Operations fail with `problem`; without one they are asked about
// anew.
void Line::come_together(const std::string& problem, std::vector<Ended>& ended) {
  std::deque<std::shared_ptr<Entry>> before, behind;
  for (const std::shared_ptr<Entry>& entry : entries_) {
    const std::shared_ptr<Ticket> ticket = std::move(entry->ticket);
    if (ticket != nullptr && !problem.empty()) {
      end_step(*ticket, problem);
      ended.push_back({ticket, kNone, SLIPSTREAM_MISMATCH, problem});
    } else {
      behind.push_back(std::make_shared<Entry>(entry->kind, ticket));
    }
    entry->kind = Entry::Kind::stale;
    if (entry->at != Entry::At::waits) before.push_back(entry);
  }
  entries_ = std::move(before);
  entries_.push_back(std::make_shared<Entry>(Entry::Kind::flushing));
  entries_.insert(entries_.end(), behind.begin(), behind.end());
}

// What is still to be started of it, does not start: TensorFlow cancels the step a moment later.
void Line::end_step(const Ticket& ticket, const std::string& problem) {
  if (why_ended(ticket.step) != nullptr) return;
  ended_steps_.emplace_back(ticket.step, problem);
  if (ended_steps_.size() > kEndedSteps) ended_steps_.pop_front();
}

const std::string* Line::why_ended(int64_t step) const {
  const auto found =
      std::find_if(ended_steps_.begin(), ended_steps_.end(), [&](const auto& one) { return one.first == step; });
  return found == ended_steps_.end() ? nullptr : &found->second;
}

// The part of a rank that has joined. The others count on it.
void Line::help(const Entry& entry, std::vector<Ended>& ended) {
  const Explanation& known = *entry.explanation;
  try {
    begin(neutral_ticket(known.form(), known.label()), ended);
  } catch (const std::exception& error) {
    api().abort(operations_,
                ("a rank that has joined could not take part in " + known.label() + ": " + error.what()).c_str());
  }
}

void Line::begin(const std::shared_ptr<Ticket>& ticket, std::vector<Ended>& ended) {
  lines::begin(*operations_, ticket,
               [&](size_t call, int32_t status, const char* text) { ended.push_back({ticket, call, status, text}); });
}

Line& line_of(const std::string& name) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Line>& place = all.lines[name];
  if (place == nullptr) place = std::make_unique<Line>(name);
  return *place;
}

void set_opener(Opener open) { opener.store(open); }
void set_joining(bool now) {
  joining.store(now);
  if (!now) forget_runs();  // ranks that have joined early have run less
}
uint64_t helped() { return times_helped.load(); }

}  // namespace slipstream::tensorflow
