#include "lines/line.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "capi/calls.h"
#include "capi/table.h"

namespace slipstream::lines {

namespace {

constexpr size_t kMostForms = 4096;  // that a line keeps: programs may go on to meet new shapes
constexpr size_t kMostShown = 4;     // ranks that an error names

const slipstream_api& api() { return *capi::table(SLIPSTREAM_API_VERSION); }

// What a rank tells of its operation.
struct Told {
  uint64_t digest = 0;
  std::array<char, 504> title{};

  std::string text() const { return {title.data(), ::strnlen(title.data(), title.size())}; }
};
static_assert(sizeof(Told) == 512);

}  // namespace

struct Line::Question {
  std::shared_ptr<Line> line;
  std::shared_ptr<Ticket> ticket;
  std::vector<Told> told;
};

Line::~Line() { drop_group(); }

void Line::take_place(std::shared_ptr<Ticket> ticket) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(ticket));
}

void Line::ready(Ticket& ticket) {
  std::unique_lock lock(mutex_);
  ticket.ready_ = true;
  if (!busy_) go_on(std::move(lock));
}

void Line::forget() {
  const std::lock_guard lock(mutex_);
  if (busy_)
    left_ = true;
  else
    drop_group();
}

void Line::drop_group() {
  agreed_.clear();
  api().group_release(std::exchange(group_, nullptr));
}

// Starts what can be started.
void Line::go_on(std::unique_lock<std::mutex> lock) {
  busy_ = true;
  while (!waiting_.empty() && waiting_.front()->ready_) {
    const std::shared_ptr<Ticket> ticket = std::move(waiting_.front());
    waiting_.pop_front();
    if (std::exchange(left_, false)) drop_group();
    lock.unlock();
    if (!step(ticket)) return;  // the answer goes on
    lock.lock();
  }
  if (std::exchange(left_, false)) drop_group();
  busy_ = false;
}

// False: the ranks compare its form now.
bool Line::step(const std::shared_ptr<Ticket>& ticket) {
  try {
    if (group_ == nullptr || has_ended(*group_->session)) renew();
    if (!ticket->given_up.empty()) {
      group_->session->abort("rank " + std::to_string(group_->group->ranks[static_cast<size_t>(group_->group->rank)]) +
                             " " + ticket->given_up);
      ticket->close({SLIPSTREAM_ABORTED, "this rank " + ticket->given_up});
      return true;
    }
    if (ticket->asks && api().group_size(group_) > 1 && !agreed_.contains(ticket->form)) {
      ask(ticket);
      return false;
    }
  } catch (const Failure& failure) {
    ticket->close({static_cast<int32_t>(failure.error().code), failure.what()});
    return true;
  } catch (const std::exception& error) {
    ticket->close({SLIPSTREAM_INTERNAL, error.what()});
    return true;
  }
  begin(ticket);
  return true;
}

// The job may have been replaced by another one, of other ranks.
void Line::renew() {
  slipstream_group* const found = find_();
  if (found != group_) agreed_.clear();
  slipstream_group* const before = std::exchange(group_, found);
  api().group_release(before);
}

void Line::ask(const std::shared_ptr<Ticket>& ticket) {
  const auto ranks = static_cast<size_t>(api().group_size(group_));
  auto question = std::make_unique<Question>(Question{shared_from_this(), ticket, std::vector<Told>(ranks)});
  Told& own = question->told[static_cast<size_t>(api().group_rank(group_))];
  own.digest = digest_of(ticket->form);
  ticket->title.copy(own.title.data(), own.title.size());
  const std::string name = ticket->kind + (where_.empty() ? "" : " " + where_) + ": what all ranks call";
  slipstream_call call;
  slipstream_call_init(&call, SLIPSTREAM_ALL_GATHER);
  call.src = &own;
  call.dst = question->told.data();
  call.count = sizeof(Told);
  call.dtype = SLIPSTREAM_U8;
  call.name = name.c_str();
  capi::submit(*group_, call, answered, question.get());
  question.release();
}

void Line::answered(void* user, int32_t status, const char* text) {
  const std::unique_ptr<Question> question(static_cast<Question*>(user));
  question->line->take(*question, status, text);
}

void Line::take(Question& question, int32_t status, const char* text) {
  const std::shared_ptr<Ticket> ticket = std::move(question.ticket);
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(left_, false)) drop_group();
  }
  const std::vector<Told>& told = question.told;
  const auto differs = [&](const Told& one) { return one.digest != told[0].digest; };
  if (status != SLIPSTREAM_OK) {
    ticket->close({status, text});
  } else if (std::any_of(told.begin(), told.end(), differs)) {
    question.ticket = ticket;
    ticket->close({SLIPSTREAM_MISMATCH, mismatch(question)});
  } else if (group_ == nullptr) {
    ticket->close({SLIPSTREAM_ABORTED, "the job was left before this operation was started"});
  } else {
    if (agreed_.size() == kMostForms) agreed_.clear();  // on all ranks at the same operation
    agreed_.insert(ticket->form);
    begin(ticket);
  }
  go_on(std::unique_lock(mutex_));
}

// Names a rank for each form that there is.
std::string Line::mismatch(const Question& question) const {
  const Ticket& ticket = *question.ticket;
  std::string text = "Mismatched " + ticket.kind;
  if (!where_.empty()) text += " " + where_;
  if (!ticket.what.empty()) text += " (" + ticket.what + ")";
  std::vector<uint64_t> seen;
  for (size_t place = 0; place < question.told.size(); ++place) {
    const Told& one = question.told[place];
    if (std::find(seen.begin(), seen.end(), one.digest) != seen.end()) continue;
    const int rank = group_ == nullptr ? static_cast<int>(place) : group_->group->ranks[place];
    text += (seen.empty() ? ": rank " : "; rank ") + std::to_string(rank) + " with " + one.text();
    seen.push_back(one.digest);
    if (seen.size() == kMostShown) break;
  }
  return text + ". All ranks must call the same operations in the same order, with the same shapes and dtypes";
}

void Line::begin(const std::shared_ptr<Ticket>& ticket) {
  const size_t calls = ticket->calls.size();  // the last one to end may free it
  for (size_t i = 0; i < calls; ++i) {
    Pack& pack = ticket->packs[i];
    slipstream_call& call = ticket->calls[i];
    if (!pack.parts.empty()) {
      pack.fill();
      call.src = call.dst = pack.memory.data();
    }
    std::unique_ptr<Ticket::Of> of(new Ticket::Of{ticket, i});  // clang 14 can do no better
    try {
      if (!capi::submit_or_run(*group_, call, Ticket::Of::done, of.get())) {
        of.release();
        continue;
      }
      ticket->ended(i, SLIPSTREAM_OK, "");
    } catch (const Failure& failure) {
      ticket->ended(i, static_cast<int32_t>(failure.error().code), failure.what());
    } catch (const std::exception& error) {
      ticket->ended(i, SLIPSTREAM_INTERNAL, error.what());
    }
  }
}

}  // namespace slipstream::lines
