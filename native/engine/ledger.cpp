#include "engine/ledger.h"

#include <algorithm>
#include <utility>

namespace slipstream {

void Ledger::enter(const WorkPtr& work, std::optional<uint32_t> number) {
  WorkPtr forgotten = work;  // destroyed without the lock
  Request& request = work->request;
  work->submitted = request.called == Time{} ? coarse_now() : request.called;
  if (request.only_waits) return;
  std::lock_guard lock(mutex_);
  std::swap(forgotten, latest_[entered_++ % kRemembered]);
  while (!older_.empty() && older_.front()->done()) older_.pop_front();
  if (forgotten && !forgotten->done()) keep_older(std::move(forgotten));
  auto& candidates = request.candidates;
  if (candidates.empty()) {
    Line& line = lines_[request.channel];
    if (number) {
      request.seq = *number;
      if (static_cast<int32_t>(*number - line.next) >= 0) line.next = *number + 1;
      return;
    }
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

// A work that never ends must not keep all that are done behind it.
void Ledger::keep_older(WorkPtr work) {
  if (older_.size() >= most_older_) {
    std::erase_if(older_, [](const WorkPtr& one) { return one->done(); });
    most_older_ = std::max(kRemembered, 2 * older_.size());
  }
  older_.push_back(std::move(work));
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

std::optional<uint32_t> Ledger::take(uint64_t channel, std::optional<uint32_t> only) {
  std::lock_guard lock(mutex_);
  Line& line = lines_[channel];
  if (line.unnumbered != 0 || (only && *only != line.next)) return std::nullopt;
  return line.next++;
}

uint32_t Ledger::next(uint64_t channel) const {
  std::lock_guard lock(mutex_);
  const auto it = lines_.find(channel);
  return it == lines_.end() ? 0 : it->second.next;
}

bool Ledger::is_ahead(uint64_t channel, uint32_t seq) const { return static_cast<int32_t>(seq - next(channel)) >= 0; }

bool Ledger::is_pending(uint64_t channel, uint32_t seq) const {
  const auto is_it = [&](const WorkPtr& work) {
    const Request& request = work->request;
    return !work->done() && request.candidates.empty() && request.channel == channel && request.seq == seq;
  };
  std::lock_guard lock(mutex_);
  return std::ranges::any_of(older_, is_it) ||
         std::ranges::any_of(latest_, [&](const WorkPtr& work) { return work != nullptr && is_it(work); });
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

std::optional<Ledger::Entry> Ledger::oldest() const {
  const auto pending = [](const WorkPtr& work) { return !work->done() && work->request.candidates.empty(); };
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(older_.begin(), older_.end(), pending);
  if (found != older_.end()) return Entry{*found, (*found)->request.seq, true};
  for (size_t i = entered_ - std::min(entered_, kRemembered); i < entered_; ++i)
    if (const WorkPtr& work = latest_[i % kRemembered]; pending(work)) return Entry{work, work->request.seq, true};
  return std::nullopt;
}

}  // namespace slipstream
