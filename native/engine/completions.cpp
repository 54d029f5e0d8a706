#include "engine/completions.h"

namespace slipstream {

void Completions::add(Work& work, int64_t token) { work.listen(std::make_unique<Ticket>(queue_, token)); }

void Completions::Queue::post(int64_t token) {
  std::unique_lock lock(mutex_);
  if (closed_) return;
  tokens_.push_back(token);
  something_comes_.notify_one(lock);
}

std::optional<int64_t> Completions::Queue::wait(Time deadline) {
  std::unique_lock lock(mutex_);
  if (!something_comes_.wait(lock, [this] { return closed_ || !tokens_.empty(); }, deadline)) return std::nullopt;
  if (closed_) return kClosed;
  const int64_t token = tokens_.front();
  tokens_.pop_front();
  return token;
}

void Completions::Queue::close() {
  std::unique_lock lock(mutex_);
  closed_ = true;
  tokens_.clear();
  something_comes_.notify_all(lock);
}

}  // namespace slipstream
