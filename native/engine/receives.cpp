#include "engine/receives.h"

#include <algorithm>

namespace slipstream {

Receives::Pending& Receives::add(WorkPtr work) {
  Pending& pending = pending_.emplace_back(Pending{std::move(work), {}});
  for (const Candidate& candidate : pending.candidates()) lines_[candidate.channel].push_back(&pending);
  return pending;
}

Receives::Pending* Receives::first(uint64_t channel) {
  if (lines_.empty()) return nullptr;
  const auto it = lines_.find(channel);
  return it == lines_.end() ? nullptr : it->second.front();
}

WorkPtr Receives::remove(Pending& pending) {
  for (const Candidate& candidate : pending.candidates()) {
    const auto it = lines_.find(candidate.channel);
    auto& line = it->second;
    line.erase(std::find(line.begin(), line.end(), &pending));
    if (line.empty()) lines_.erase(it);
  }
  WorkPtr work = std::move(pending.work);
  const auto it = std::find_if(pending_.begin(), pending_.end(), [&](const Pending& p) { return &p == &pending; });
  pending_.erase(it);
  return work;
}

void Receives::clear() {
  lines_.clear();
  pending_.clear();
}

}  // namespace slipstream
