#include "engine/completions.h"

namespace slipstream {

void Completions::add(Work& work, int64_t token) { work.listen(std::make_unique<Ticket>(queue_, token)); }

void Completions::Queue::post(int64_t token) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    tokens_.push_back(token);
  }
  bell_.notify_one();
}

std::optional<int64_t> Completions::Queue::wait(Time deadline) {
  std::unique_lock lock(mutex_);
  const auto ready = [this] { return closed_ || !tokens_.empty(); };
  if (deadline == Time::max())
    bell_.wait(lock, ready);
  else if (!bell_.wait_until(lock, deadline, ready))
    return std::nullopt;
  if (closed_) return kClosed;
  const int64_t token = tokens_.front();
  tokens_.pop_front();
  return token;
}

void Completions::Queue::close() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    tokens_.clear();
  }
  bell_.notify_all();
}

}  // namespace slipstream
