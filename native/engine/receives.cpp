#include "engine/receives.h"

#include <algorithm>

namespace slipstream {

Receives::Receive& Receives::add(WorkPtr work) {
  Receive& receive = waiting_.emplace_back(Receive{std::move(work), {}});
  for (const Candidate& candidate : receive.candidates()) lines_[candidate.channel].push_back(&receive);
  return receive;
}

Receives::Receive* Receives::first(uint64_t channel) {
  if (lines_.empty()) return nullptr;
  const auto it = lines_.find(channel);
  return it == lines_.end() ? nullptr : it->second.front();
}

WorkPtr Receives::remove(Receive& receive) {
  for (const Candidate& candidate : receive.candidates()) {
    const auto it = lines_.find(candidate.channel);
    auto& line = it->second;
    line.erase(std::find(line.begin(), line.end(), &receive));
    if (line.empty()) lines_.erase(it);
  }
  WorkPtr work = std::move(receive.work);
  const auto it = std::find_if(waiting_.begin(), waiting_.end(), [&](const Receive& p) { return &p == &receive; });
  waiting_.erase(it);
  return work;
}

void Receives::clear() {
  lines_.clear();
  waiting_.clear();
}

bool Receives::may_come_from(int global_rank) const {
  for (const Receive& receive : waiting_)
    for (const Candidate& candidate : receive.candidates())
      if (receive.work->request.group->ranks[static_cast<size_t>(candidate.source())] == global_rank) return true;
  return false;
}

}  // namespace slipstream
