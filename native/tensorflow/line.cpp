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

namespace slipstream::tensorflow {

namespace {

constexpr double kEndless = 1e9;  // seconds: as long as the others go on without this rank
constexpr const char* kQuestion = "slipstream: the next operation of a TensorFlow graph";
constexpr const char* kExplanation = "slipstream: what the next operation of a TensorFlow graph is";
constexpr const char* kJoin = "join (it takes part in what the others start)";
constexpr const char* kUnequal =
    ": some ranks call it more often in a step than others. All ranks must call the same operations in the same order";
constexpr const char* kThreads =
    " while several functions with operations of slipstream ran at the same time on this rank, in threads or in a "
    "tf.py_function of another one: which operations belong together on the ranks is not known any more. Run such "
    "functions one at a time, or give all of their operations names";
constexpr const char* kFunctions =
    ". The ranks are in different functions, and not at the same step of the program any more, so the job ends";
constexpr const char* kLeft = "the job was left before this operation was started";
constexpr const char* kFlush = "what comes after a step that failed";

std::atomic<Opener> opener{nullptr};
std::atomic<bool> joining{false};
std::atomic<uint64_t> times_helped{0};
std::atomic<uint64_t> times_started{0};
std::atomic<bool> some_given_up{false};  // some line has steps of which others do not know

const slipstream_api& api() { return *capi::table(SLIPSTREAM_API_VERSION); }

std::vector<int32_t> ranks_of(slipstream_group* group) {
  std::vector<int32_t> ranks(static_cast<size_t>(api().group_size(group)));
  api().group_ranks(group, ranks.data());
  return ranks;
}

int32_t status_of(const std::exception& error) {
  const auto* const failure = dynamic_cast<const Failure*>(&error);
  return failure != nullptr ? static_cast<int32_t>(failure->error().code) : SLIPSTREAM_INTERNAL;
}

struct Known {
  std::mutex mutex;
  std::unordered_map<std::string, std::unique_ptr<Line>> lines;
};

// Never freed: TensorFlow's threads may outlive static variables.
Known& known() {
  static auto* const all = new Known;
  return *all;
}

void tell_all_given_up() {
  some_given_up.store(false);
  std::vector<Line*> lines;
  {
    Known& all = known();
    const std::lock_guard lock(all.mutex);
    for (const auto& [name, line] : all.lines) lines.push_back(line.get());
  }
  for (Line* const line : lines) line->tell_given_up();
}

}  // namespace

struct Line::Question {
  Line& line;
  std::shared_ptr<Entry> entry;
  Entry::At next;
};

void Line::start(std::shared_ptr<Ticket> ticket) {
  if (some_given_up.load()) tell_all_given_up();
  const uint64_t number = ++times_started;
  std::vector<Ended> ended;
  std::array<slipstream_group*, 2> gone{};
  bool opens = false;
  {
    const std::lock_guard lock(mutex_);
    if (joining.load() && has_joined()) {
      ended.push_back({ticket, kNone, SLIPSTREAM_INVALID,
                       ticket->label + " was started while another thread of this rank waits in join: the other ranks "
                                       "go on without it. Call join after all operations"});
    } else if (const std::string* const problem = steps_.why_ended(ticket->step)) {
      ended.push_back({ticket, kNone, SLIPSTREAM_MISMATCH, *problem});
    } else {
      opens = needs_opening(gone, ended);
      const uint64_t place = steps_.started(ticket->step, number);
      entries_.push_back(std::make_shared<Entry>(Entry::Kind::operation, place, std::move(ticket), doubtful_));
      go_on(ended, true);
    }
  }
  for (slipstream_group* const one : gone) api().group_release(one);
  tell(ended);
  if (opens) open();
}

// Before an entry is added that is to be asked about. The lock is held. True: open() has to follow, without the lock.
bool Line::needs_opening(std::array<slipstream_group*, 2>& gone, std::vector<Ended>& ended) {
  if (state_ == State::open && has_ended(*operations_->session)) gone = close(ended);
  if (state_ != State::closed) return false;
  state_ = State::opening;
  return true;
}

void Line::open() {
  try {
    opener.load()(name_);
  } catch (const std::exception& error) {
    refused(status_of(error), error.what());
  }
}

void Line::opened(slipstream_group* operations, slipstream_group* questions) {
  std::vector<Ended> ended;
  std::array<slipstream_group*, 2> gone{};
  {
    const std::lock_guard lock(mutex_);
    gone = close(ended);
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
    given_up_ = doubtful_ = 0;  // without operations of its own
    if (state_ == State::closed) return;
    entries_.push_back(std::make_shared<Entry>(Entry::Kind::joined));
    go_on(ended, false);
  }
  tell(ended);
}

void Line::give_up(uint64_t since, bool certain, bool later) {
  std::vector<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    const std::optional<uint64_t> place = steps_.given_up(since);
    if (!place.has_value() || joining.load()) return;
    if (*place == 0 && !certain) {
      ++doubtful_;
    } else if (*place == 0) {
      ++given_up_;
      some_given_up.store(true);
    } else if (state_ != State::closed) {  // else it belongs to a job that the process has left
      entries_.push_back(std::make_shared<Entry>(Entry::Kind::mark, *place));
      go_on(ended, false);
    }
  }
  tell(ended);
  if (!later) tell_given_up();
}

void Line::tell_given_up() {
  std::vector<Ended> ended;
  std::array<slipstream_group*, 2> gone{};
  bool opens = false;
  {
    const std::lock_guard lock(mutex_);
    if (given_up_ == 0 || (state_ == State::open && has_ended(*operations_->session))) return;
    const uint64_t count = std::exchange(given_up_, 0);
    opens = needs_opening(gone, ended);
    for (uint64_t i = 0; i < count; ++i) entries_.push_back(std::make_shared<Entry>(Entry::Kind::mark));
    go_on(ended, false);
  }
  for (slipstream_group* const one : gone) api().group_release(one);
  tell(ended);
  if (opens) open();
}

void Line::forget() {
  std::vector<Ended> ended;
  std::array<slipstream_group*, 2> gone{};
  {
    const std::lock_guard lock(mutex_);
    given_up_ = doubtful_ = 0;
    if (state_ == State::open) gone = close(ended);
  }
  for (slipstream_group* const one : gone) api().group_release(one);
  tell(ended);
}

// Returns what is to be released without the lock.
std::array<slipstream_group*, 2> Line::close(std::vector<Ended>& ended) {
  if (state_ == State::open) {  // in the next job all ranks begin at the same place
    given_up_ = doubtful_ = 0;
    std::erase_if(entries_, [&ended](const auto& entry) {
      if (entry->at != Entry::At::waits) return false;
      if (entry->ticket != nullptr) {
        entry->fail(SLIPSTREAM_ABORTED, kLeft);
        ended.push_back({entry->ticket, kNone, entry->status, entry->text});
      }
      return true;
    });
  }
  state_ = State::closed;
  ++opening_;
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
      // What comes before it may take it back.
      if (entry->kind == Entry::Kind::mark && i > 0) break;
      if (entry->at == Entry::At::waits) ask(entry, may_run);
      if (entry->holds_back()) break;
    }
  } while (take_first(ended));
}

void Line::ask(const std::shared_ptr<Entry>& entry, bool may_run) {
  const Ticket* const ticket = entry->ticket.get();
  const bool joined = entry->kind == Entry::Kind::joined;
  entry->fill_in(static_cast<size_t>(api().group_rank(questions_)));
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
  } catch (const std::exception& error) {
    entry->fail(status_of(error), error.what());
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
    entry->fail(SLIPSTREAM_ABORTED, kLeft);
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

// All ranks have asked.
void Line::judge(const std::shared_ptr<Entry>& entry, std::vector<Ended>& ended) {
  const auto& asked = entry->asked;
  const bool operations = entry->has_operations();
  if (entry->is_doubtful()) {
    const std::string doubt = why_doubtful(*entry, ranks_of(operations_));
    entries_.pop_front();
    if (entry->ticket != nullptr) ended.push_back({entry->ticket, kNone, SLIPSTREAM_ABORTED, doubt});
    api().abort(operations_, doubt.c_str());
    return;
  }
  if (entry->kind == Entry::Kind::flushing) {
    if (operations || asked[kJoined] != 0)
      entry->at = Entry::At::waits;  // once more
    else
      entries_.pop_front();
  } else if (asked[kFlushing] != 0) {
    if (operations || entry->are_apart())
      meet_mark(entry, ended);
    else if (entry->kind == Entry::Kind::joined)
      entry->at = Entry::At::waits;
    else
      entries_.pop_front();  // the same step has failed on all ranks
  } else if (!operations) {
    entries_.pop_front();  // all ranks have joined
  } else if (asked[kJoined] == 0 && asked[kDigest] == ~asked[kInverse] && entry->same_place()) {
    entries_.pop_front();
    begin(entry->ticket, ended);
  } else {
    explain(entry);
  }
}

// The first entry, or that of another rank, is a mark.
void Line::meet_mark(const std::shared_ptr<Entry>& entry, std::vector<Ended>& ended) {
  const bool apart = entry->are_apart();
  const bool is_over = entry->kind != Entry::Kind::joined && (!apart || entry->place > 0);
  std::string problem;
  if (is_over) {
    entries_.pop_front();
    if (entry->kind == Entry::Kind::operation) {
      problem = why_marked(*entry, ranks_of(operations_));
      steps_.end(entry->ticket->step, problem);
      ended.push_back({entry->ticket, kNone, SLIPSTREAM_MISMATCH, problem});
    }
  }
  come_together(entries_, problem, steps_, ended);
}

// Some rank has joined, or calls something else, or is at another place of a step.
void Line::explain(const std::shared_ptr<Entry>& entry) {
  const auto ranks = static_cast<size_t>(api().group_size(operations_));
  const auto rank = static_cast<size_t>(api().group_rank(operations_));
  const std::string title = entry->ticket == nullptr ? std::string(kJoin) : entry->ticket->label;
  auto question = std::make_unique<Question>(Question{*this, entry, Entry::At::explained});
  entry->at = Entry::At::explaining;
  try {
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
    capi::submit(*operations_, call, answered, question.get(), title);
    static_cast<void>(question.release());
  } catch (const std::exception& error) {
    entry->at = Entry::At::explained;
    entry->fail(status_of(error), error.what());
    api().abort(operations_, (title + ": " + error.what()).c_str());  // the others wait for this rank
  }
}

// What the first entry is, all ranks know.
void Line::follow(const std::shared_ptr<Entry>& entry, std::vector<Ended>& ended) {
  const std::vector<int32_t> ranks = ranks_of(operations_);
  const Explanation& known = *entry->explanation;
  std::string problem = known.problem(ranks);
  if (problem.empty() && !entry->same_place()) problem = known.label() + kUnequal;
  const bool good = problem.empty();
  const bool threads = !good && entry->ticket != nullptr && have_others(entries_, entry->ticket->step);
  if (threads) problem += std::string(". This happened") + kThreads;
  const bool lost = !good && !entry->are_apart() && known.has_functions();
  if (lost) problem += kFunctions;
  if (threads || lost) api().abort(operations_, problem.c_str());
  if (entry->kind == Entry::Kind::joined) {
    times_helped.fetch_add(1);
    if (good) help(*entry, ended);
    entry->at = Entry::At::waits;  // for the next one
    problem.clear();
  } else if (!good && entry->are_apart() && entry->place == 0) {
    problem.clear();  // it waits for the ranks whose step fails
  } else {
    entries_.pop_front();
    if (good) {
      begin(entry->ticket, ended);
    } else {
      steps_.end(entry->ticket->step, problem);
      ended.push_back({entry->ticket, kNone, SLIPSTREAM_MISMATCH, problem});
    }
  }
  entry->explanation.reset();
  if (!good) come_together(entries_, problem, steps_, ended);
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
void set_joining(bool now) { joining.store(now); }
const std::atomic<uint64_t>& starts() { return times_started; }
uint64_t helped() { return times_helped.load(); }

}  // namespace slipstream::tensorflow
