#include "engine/ledger.h"

#include <algorithm>
#include <utility>

namespace slipstream {

void Ledger::enter(const WorkPtr& work) {
  WorkPtr forgotten = work;  // destroyed without the lock
  Request& request = work->request;
  work->submitted = request.called == Time{} ? coarse_now() : request.called;
  if (request.only_waits) return;
  std::lock_guard lock(mutex_);
  std::swap(forgotten, latest_[entered_++ % kRemembered]);
  auto& candidates = request.candidates;
  if (candidates.empty()) {
    Line& line = lines_[request.channel];
    if (line.unnumbered == 0) {
      request.seq = line.next++;
      return;
    }
    candidates = {{request.channel, request.plan}};
  } else if (candidates.size() == 1) {
    Line& line = lines_[candidates.front().channel];
    if (line.unnumbered == 0) return settle(request, Candidate(candidates.front()), line);
  }
  for (const Candidate& candidate : candidates) ++lines_[candidate.channel].unnumbered;
}

void Ledger::claim(Work& work, const Candidate& source) {
  std::lock_guard lock(mutex_);
  for (const Candidate& candidate : work.request.candidates) --lines_[candidate.channel].unnumbered;
  settle(work.request, Candidate(source), lines_[source.channel]);
}

void Ledger::settle(Request& request, const Candidate& source, Line& line) {
  request.channel = source.channel;
  request.plan = source.plan;
  request.seq = line.next++;
  request.candidates.clear();
}

uint32_t Ledger::next(uint64_t channel) const {
  std::lock_guard lock(mutex_);
  const auto it = lines_.find(channel);
  return it == lines_.end() ? 0 : it->second.next;
}

std::vector<Ledger::Entry> Ledger::latest() const {
  std::vector<Entry> entries;
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < std::min(entered_, kRemembered); ++i) {
    const WorkPtr& work = latest_[(entered_ - 1 - i) % kRemembered];
    entries.push_back({work, work->request.seq, work->request.candidates.empty()});
  }
  return entries;
}

}  // namespace slipstream
