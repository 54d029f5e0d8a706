#include "tensorflow/line.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "capi/calls.h"
#include "capi/table.h"

namespace slipstream::tensorflow {

namespace {

constexpr size_t kMostForms = 4096;  // that a line keeps: functions are traced anew for new shapes
constexpr size_t kMostShown = 4;     // ranks that an error names

const slipstream_api& api() { return *capi::table(SLIPSTREAM_API_VERSION); }

// What a rank tells of its operation.
struct Told {
  uint64_t digest = 0;
  std::array<char, 504> title{};

  std::string text() const { return {title.data(), ::strnlen(title.data(), title.size())}; }
};
static_assert(sizeof(Told) == 512);

// Names a rank for each form that there is.
std::string mismatch(const Ticket& ticket, const std::vector<Told>& told) {
  std::string text = "Mismatched " + ticket.kind + " in TensorFlow graphs";
  if (!ticket.what.empty()) text += " (" + ticket.what + ")";
  std::vector<uint64_t> seen;
  for (size_t rank = 0; rank < told.size(); ++rank) {
    if (std::find(seen.begin(), seen.end(), told[rank].digest) != seen.end()) continue;
    text += (seen.empty() ? ": rank " : "; rank ") + std::to_string(rank) + " with " + told[rank].text();
    seen.push_back(told[rank].digest);
    if (seen.size() == kMostShown) break;
  }
  return text + ". All ranks must call the same operations in the same order, with the same shapes and dtypes";
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

}  // namespace

struct Line::Question {
  Line& line;
  std::vector<Told> told;
};

void Line::start(std::shared_ptr<Ticket> ticket) {
  std::vector<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(ticket));
    if (!asking_) go_on(ended);
  }
  tell(ended);
}

void Line::forget() {
  slipstream_group* gone = nullptr;
  {
    const std::lock_guard lock(mutex_);
    gone = std::exchange(group_, nullptr);
    agreed_.clear();
  }
  api().group_release(gone);
}

void Line::tell(const std::vector<Ended>& ended) {
  for (const Ended& one : ended)
    if (one.call == kNone)
      one.ticket->close({code_of(one.status), one.text});
    else
      one.ticket->ended(one.call, one.status, one.text.c_str());
}

// Begins what can be begun. The lock is held.
void Line::go_on(std::vector<Ended>& ended) {
  while (!waiting_.empty() && !asking_) {
    const std::shared_ptr<Ticket> ticket = waiting_.front();
    try {
      if (group_ == nullptr || has_ended(*group_->session)) renew();
      if (api().group_size(group_) > 1 && !agreed_.contains(ticket->form)) {
        ask(ticket);
        return;
      }
    } catch (const Failure& failure) {
      waiting_.pop_front();
      ended.push_back({ticket, kNone, static_cast<int32_t>(failure.error().code), failure.what()});
      continue;
    } catch (const std::exception& error) {
      waiting_.pop_front();
      ended.push_back({ticket, kNone, SLIPSTREAM_INTERNAL, error.what()});
      continue;
    }
    waiting_.pop_front();
    begin(ticket, ended);
  }
}

// The job may have been replaced by another one, of other ranks.
void Line::renew() {
  slipstream_group* const found = find_(name_);
  if (found != group_) agreed_.clear();
  slipstream_group* const before = std::exchange(group_, found);
  api().group_release(before);
}

void Line::ask(const std::shared_ptr<Ticket>& ticket) {
  const auto ranks = static_cast<size_t>(api().group_size(group_));
  auto question = std::make_unique<Question>(Question{*this, std::vector<Told>(ranks)});
  Told& own = question->told[static_cast<size_t>(api().group_rank(group_))];
  own.digest = digest_of(ticket->form);
  ticket->title.copy(own.title.data(), own.title.size());
  const std::string name = ticket->kind + " in a TensorFlow graph: what all ranks call";
  slipstream_call call;
  slipstream_call_init(&call, SLIPSTREAM_ALL_GATHER);
  call.src = &own;
  call.dst = question->told.data();
  call.count = sizeof(Told);
  call.dtype = SLIPSTREAM_U8;
  call.name = name.c_str();
  capi::submit(*group_, call, answered, question.get());
  question.release();
  asking_ = true;
}

void Line::answered(void* user, int32_t status, const char* text) {
  const std::unique_ptr<Question> question(static_cast<Question*>(user));
  question->line.take(*question, status, text);
}

void Line::take(Question& question, int32_t status, const char* text) {
  std::vector<Ended> ended;
  {
    const std::lock_guard lock(mutex_);
    const std::shared_ptr<Ticket> ticket = std::move(waiting_.front());
    waiting_.pop_front();
    asking_ = false;
    const std::vector<Told>& told = question.told;
    const auto differs = [&](const Told& one) { return one.digest != told[0].digest; };
    if (status != SLIPSTREAM_OK) {
      ended.push_back({ticket, kNone, status, text});
    } else if (std::any_of(told.begin(), told.end(), differs)) {
      ended.push_back({ticket, kNone, SLIPSTREAM_MISMATCH, mismatch(*ticket, told)});
    } else {
      if (agreed_.size() == kMostForms) agreed_.clear();  // on all ranks at the same operation
      agreed_.insert(ticket->form);
      if (group_ != nullptr)
        begin(ticket, ended);
      else
        ended.push_back({ticket, kNone, SLIPSTREAM_ABORTED, "the job was left before this operation was started"});
    }
    go_on(ended);
  }
  tell(ended);
}

void Line::begin(const std::shared_ptr<Ticket>& ticket, std::vector<Ended>& ended) {
  for (size_t i = 0; i < ticket->calls.size(); ++i) {
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
      ended.push_back({ticket, i, SLIPSTREAM_OK, ""});
    } catch (const Failure& failure) {
      ended.push_back({ticket, i, static_cast<int32_t>(failure.error().code), failure.what()});
    } catch (const std::exception& error) {
      ended.push_back({ticket, i, SLIPSTREAM_INTERNAL, error.what()});
    }
  }
}

Line& line_of(const std::string& name, Finder find) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  std::unique_ptr<Line>& place = all.lines[name];
  if (place == nullptr) place = std::make_unique<Line>(name, find);
  return *place;
}

void forget_line(const std::string& name) {
  Known& all = known();
  Line* found = nullptr;
  {
    const std::lock_guard lock(all.mutex);
    if (const auto at = all.lines.find(name); at != all.lines.end()) found = at->second.get();
  }
  if (found != nullptr) found->forget();
}

}  // namespace slipstream::tensorflow
