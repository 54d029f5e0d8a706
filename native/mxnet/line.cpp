#include "mxnet/line.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "capi/calls.h"
#include "capi/table.h"
#include "lines/form.h"
#include "lines/mismatch.h"
#include "lines/plan.h"

namespace slipstream::mxnet {

namespace {

// The engine compares names, and ends the job if they differ: this one says nothing of the operation.
constexpr const char* kQuestion = "what all ranks call";

const slipstream_api& api() { return *capi::table(SLIPSTREAM_API_VERSION); }

// What a rank tells of its operation where the ranks differ.
using Title = std::array<char, 512>;

std::string text_of(const Title& title) { return {title.data(), ::strnlen(title.data(), title.size())}; }

}  // namespace

struct PushLine::Question {
  std::shared_ptr<PushLine> line;
  std::shared_ptr<Ticket> ticket;
  std::vector<uint64_t> digests;  // by rank
  std::vector<Title> titles;      // the same, once the digests are known to differ
};

PushLine::~PushLine() { drop_group(); }

void PushLine::take_place(std::shared_ptr<Ticket> ticket) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(ticket));
}

void PushLine::ready(Ticket& ticket) {
  std::unique_lock lock(mutex_);
  ticket.ready_ = true;
  if (!busy_) go_on(std::move(lock));
}

void PushLine::forget() {
  const std::lock_guard lock(mutex_);
  if (busy_)
    left_ = true;
  else
    drop_group();
}

void PushLine::drop_group() { api().group_release(std::exchange(group_, nullptr)); }

// Starts what can be started.
void PushLine::go_on(std::unique_lock<std::mutex> lock) {
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
bool PushLine::step(const std::shared_ptr<Ticket>& ticket) {
  try {
    if (group_ == nullptr || has_ended(*group_->session)) renew();
    if (!ticket->given_up.empty()) {
      group_->session->abort("rank " + std::to_string(group_->group->ranks[static_cast<size_t>(group_->group->rank)]) +
                             " " + ticket->given_up);
      ticket->close({SLIPSTREAM_ABORTED, "this rank " + ticket->given_up});
      return true;
    }
    if (ticket->asks && api().group_size(group_) > 1) {
      auto question = std::make_unique<Question>(Question{shared_from_this(), ticket, {}, {}});
      question->digests.resize(group_->group->ranks.size());
      question->digests[static_cast<size_t>(group_->group->rank)] = lines::digest_of(ticket->form);
      if (!exchange(question, question->digests.data(), sizeof(uint64_t))) return false;
      return judge(std::move(question), SLIPSTREAM_OK, "");
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
void PushLine::renew() {
  slipstream_group* const found = find_();
  slipstream_group* const before = std::exchange(group_, found);
  api().group_release(before);
}

// Has each rank tell the others its block of `told`. True: all is there; else answered() takes the question, and goes
// on.
bool PushLine::exchange(std::unique_ptr<Question>& question, void* told, size_t bytes) {
  slipstream_call call;
  slipstream_call_init(&call, SLIPSTREAM_ALL_GATHER);
  call.src = static_cast<std::byte*>(told) + bytes * static_cast<size_t>(group_->group->rank);
  call.dst = told;
  call.count = bytes;
  call.dtype = SLIPSTREAM_U8;
  call.name = kQuestion;
  const bool done = capi::submit_or_run(*group_, call, answered, question.get());
  if (!done) question.release();
  return done;
}

void PushLine::answered(void* user, int32_t status, const char* text) {
  std::unique_ptr<Question> question(static_cast<Question*>(user));
  const std::shared_ptr<PushLine> line = question->line;
  {
    const std::lock_guard lock(line->mutex_);
    if (std::exchange(line->left_, false)) line->drop_group();
  }
  if (line->judge(std::move(question), status, text)) line->go_on(std::unique_lock(line->mutex_));
}

// False: the ranks tell each other more now.
bool PushLine::judge(std::unique_ptr<Question> question, int32_t status, const char* text) {
  const std::shared_ptr<Ticket> ticket = question->ticket;
  const std::vector<uint64_t>& digests = question->digests;
  try {
    if (status != SLIPSTREAM_OK) {
      ticket->close({status, ticket->label + " waits for all ranks to call it: " + text});
    } else if (group_ == nullptr) {
      ticket->close({SLIPSTREAM_ABORTED, "the job was left before this operation was started"});
    } else if (std::all_of(digests.begin(), digests.end(), [&](uint64_t one) { return one == digests[0]; })) {
      begin(ticket);
    } else {
      if (question->titles.empty()) {
        question->titles.resize(digests.size());
        Title& own = question->titles[static_cast<size_t>(group_->group->rank)];
        ticket->full_title().copy(own.data(), own.size());
        if (!exchange(question, question->titles.data(), sizeof(Title))) return false;
      }
      ticket->close({SLIPSTREAM_MISMATCH, mismatch(*question)});
    }
  } catch (const Failure& failure) {
    ticket->close({static_cast<int32_t>(failure.error().code), failure.what()});
  } catch (const std::exception& error) {
    ticket->close({SLIPSTREAM_INTERNAL, error.what()});
  }
  return true;
}

std::string PushLine::mismatch(const Question& question) const {
  std::vector<lines::Called> called;
  for (size_t place = 0; place < question.digests.size(); ++place)
    called.push_back({group_->group->ranks[place], question.digests[place], text_of(question.titles[place])});
  return lines::mismatch(question.ticket->kind, called);
}

void PushLine::begin(const std::shared_ptr<Ticket>& ticket) {
  if (ticket->calls.empty()) {
    ticket->close({});
    return;
  }
  lines::begin(*group_, ticket,
               [&](size_t call, int32_t status, const char* text) { ticket->ended(call, status, text); });
}

}  // namespace slipstream::mxnet
