#include "tensorflow/ticket.h"

#include <functional>
#include <unordered_map>
#include <utility>

namespace slipstream::tensorflow {

namespace {

struct Given {
  std::mutex mutex;
  std::unordered_map<int64_t, std::shared_ptr<Ticket>> tickets;
  int64_t latest = 0;
};

// Never freed: TensorFlow's threads may outlive static variables.
Given& given() {
  static auto* const all = new Given;
  return *all;
}

}  // namespace

int code_of(int32_t status) {
  switch (status) {
    case SLIPSTREAM_OK:
      return kOk;
    case SLIPSTREAM_MISMATCH:
      return kFailedPrecondition;
    case SLIPSTREAM_INVALID:
      return kInvalidArgument;
    default:
      return kUnknown;
  }
}

bool Ticket::when_done(std::function<void()> after) {
  {
    const std::lock_guard lock(mutex_);
    if (awaited_) return false;
    awaited_ = true;
    if (!is_over()) {
      after_ = std::move(after);
      return true;
    }
  }
  after();
  return true;
}

void Ticket::close_as(End end) {
  {
    const std::lock_guard lock(mutex_);
    if (!is_over()) code_ = end.code;
  }
  close({end.code == kOk ? SLIPSTREAM_OK : SLIPSTREAM_INTERNAL, std::move(end.text)});
}

End Ticket::result() const {
  const lines::Outcome& found = outcome();
  return {code_ == kOk ? code_of(found.status) : code_, found.text};
}

void Ticket::told() {
  release();
  std::function<void()> after;
  {
    const std::lock_guard lock(mutex_);
    after = std::move(after_);
  }
  if (after) after();
}

void Ticket::release() {
  for (Tensor* const one : held) tf_.delete_tensor(one);
  held.clear();
}

int64_t give(std::shared_ptr<Ticket> ticket) {
  Given& all = given();
  const std::lock_guard lock(all.mutex);
  all.tickets.emplace(++all.latest, std::move(ticket));
  return all.latest;
}

std::shared_ptr<Ticket> ticket_of(int64_t number) {
  Given& all = given();
  const std::lock_guard lock(all.mutex);
  const auto found = all.tickets.find(number);
  return found == all.tickets.end() ? nullptr : found->second;
}

void forget_ticket(int64_t number) {
  Given& all = given();
  std::shared_ptr<Ticket> gone;  // its end may free tensors, which may free tickets
  const std::lock_guard lock(all.mutex);
  const auto found = all.tickets.find(number);
  if (found == all.tickets.end()) return;
  gone = std::move(found->second);
  all.tickets.erase(found);
}

}  // namespace slipstream::tensorflow
