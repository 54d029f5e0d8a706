#include "tensorflow/ticket.h"

#include <array>
#include <unordered_map>
#include <utility>

#include "lines/form.h"

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

void Ticket::ended(size_t call, int32_t status, const char* text) {
  if (status == SLIPSTREAM_OK) packs[call].empty();
  std::unique_lock lock(mutex_);
  if (status != SLIPSTREAM_OK && end_.code == kOk)
    end_ = {code_of(status), *text == '\0' ? "the operation has failed" : text};
  if (++ended_ == calls.size()) end(std::move(lock));
}

void Ticket::close(End how) {
  std::unique_lock lock(mutex_);
  if (over_) return;
  end_ = std::move(how);
  end(std::move(lock));
}

void Ticket::end(std::unique_lock<std::mutex> lock) {
  release();
  over_ = true;
  const std::function<void()> after = std::move(after_);
  lock.unlock();
  if (after) after();
}

bool Ticket::when_done(std::function<void()> after) {
  {
    const std::lock_guard lock(mutex_);
    if (awaited_) return false;
    awaited_ = true;
    if (!over_) {
      after_ = std::move(after);
      return true;
    }
  }
  after();
  return true;
}

bool Ticket::has_failed() {
  const std::lock_guard lock(mutex_);
  return over_ && end_.code != kOk;
}

uint64_t Ticket::digest() const { return digest_with(form, lines::digest_of(title)); }

uint64_t Ticket::digest_with(std::string_view form, uint64_t title) {
  const std::array<uint64_t, 2> both{lines::digest_of(form), title};
  return lines::digest_of({reinterpret_cast<const char*>(both.data()), sizeof both});
}

void Ticket::release() {
  for (Tensor* const one : held) tf_->delete_tensor(one);
  held.clear();
  packs.clear();
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
