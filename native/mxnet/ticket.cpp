#include "mxnet/ticket.h"

#include <utility>

#include "lines/form.h"

namespace slipstream::mxnet {

void Ticket::describe(const lines::Asked& asked, const std::vector<lines::Operand>& operands) {
  lines::describe(asked, operands, *this);
  form += what;
}

std::string Ticket::full_title() const { return (what.empty() ? kind : what) + (title.empty() ? "" : " of " + title); }

void Ticket::ended(size_t call, int32_t status, const char* text) {
  if (status == SLIPSTREAM_OK) packs[call].empty();
  std::unique_lock lock(mutex_);
  if (status != SLIPSTREAM_OK && outcome_.status == SLIPSTREAM_OK)
    outcome_ = {status, *text == '\0' ? "the operation has failed" : text};
  if (++ended_ == calls.size()) end(std::move(lock));
}

void Ticket::close(Outcome how) {
  std::unique_lock lock(mutex_);
  if (over_.load(std::memory_order_relaxed)) return;
  outcome_ = std::move(how);
  end(std::move(lock));
}

void Ticket::end(std::unique_lock<std::mutex> lock) {
  packs.clear();
  over_.store(true, std::memory_order_release);
  lock.unlock();
  told();
}

}  // namespace slipstream::mxnet
