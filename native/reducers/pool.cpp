#include "reducers/pool.h"

#include <algorithm>
#include <numeric>

#include "base/log.h"
#include "reducers/shares.h"

namespace slipstream {
namespace {

constexpr double kPortSeconds = 0.02;  // of a port, in a switch: what all workers may have under way to a reducer
// Of the rate of all hosts of workers: reducers that have so much are better off alone, without a ring beside them.
constexpr double kNearlyFull = 0.9;
constexpr double kLagMemory = 0.95;
constexpr double kLagsBehind = 1.5;
constexpr double kLess = 0.9;
constexpr double kMore = 1.02;

}  // namespace

ReducerPool::ReducerPool(const ReducerContext& context, ReducerPoolOptions options)
    : context_(context),
      options_(std::move(options)),
      keeper_([this](size_t reducer, uint64_t incarnation) { return open(reducer, incarnation); },
              [this](size_t reducer, uint64_t incarnation, const auto& session) {
                const std::lock_guard lock(context_.mutex);
                const Reducer& found = reducers_[reducer];
                return incarnation == found.wanted && !found.session && take(reducer, incarnation, session);
              }) {
  if (options_.reducers.empty() || options_.reducers.size() > 32)
    throw Failure(Code::invalid, "a job has 1 to 32 reducers");
  for (const auto& one : options_.reducers) {
    Reducer reducer;
    reducer.state.name = one.name;
    reducer.state.used = one.incarnation != 0;
    reducer.state.incarnation = one.incarnation;
    reducer.wanted = one.incarnation;
    reducers_.push_back(std::move(reducer));
  }
  try {
    open_all();
  } catch (...) {
    close();
    throw;
  }
}

// ---- which reducers take part

bool ReducerPool::any_used() const {
  return std::ranges::any_of(reducers_, [](const Reducer& reducer) { return reducer.state.used; });
}

std::vector<uint64_t> ReducerPool::incarnations() const {
  std::vector<uint64_t> found;
  for (const Reducer& reducer : reducers_) found.push_back(reducer.state.used ? reducer.wanted : 0);
  return found;
}

std::vector<uint32_t> ReducerPool::shares() const {
  std::vector<double> rates;
  for (const Reducer& reducer : reducers_) rates.push_back(reducer.state.used ? reducer.agreed : 0);
  const double full = std::accumulate(rates.begin(), rates.end(), 0.0) / hosts();
  if (full >= kNearlyFull && full < 1)
    for (double& rate : rates) rate /= full;
  return shares_of(hosts(), rates);
}

size_t ReducerPool::window_least(size_t reducer) const {
  const double port = worker_rate_ * std::min(reducers_[reducer].most, 1.0) * kPortSeconds;
  return static_cast<size_t>(port / hosts()) / context_.shards.count();
}

std::vector<std::pair<size_t, Express*>> ReducerPool::ways() const {
  std::vector<std::pair<size_t, Express*>> found;
  for (size_t i = 0; i < reducers_.size(); ++i)
    if (reducers_[i].state.used && reducers_[i].express) found.emplace_back(i, reducers_[i].express.get());
  return found;
}

std::shared_ptr<Session> ReducerPool::session(size_t reducer) const {
  return reducers_[reducer].up() ? reducers_[reducer].session : nullptr;
}

void ReducerPool::lose(size_t index, uint64_t incarnation, const std::string& why) {
  Reducer& reducer = reducers_[index];
  if (reducer.failed || reducer.connected != incarnation) return;
  reducer.failed = true;
  reducer.why = why;
}

void ReducerPool::see_lags(const std::vector<double>& seconds) {
  if (rank() != 0) return;
  std::vector<double> took;
  std::ranges::copy_if(seconds, std::back_inserter(took), [](double one) { return one > 0; });
  if (took.size() < 2) return;
  const auto middle = took.begin() + static_cast<ptrdiff_t>(took.size() / 2);
  std::nth_element(took.begin(), middle, took.end());
  for (size_t i = 0; i < reducers_.size(); ++i) {
    if (seconds[i] == 0) continue;
    Reducer& reducer = reducers_[i];
    reducer.lag = kLagMemory * reducer.lag + (1 - kLagMemory) * seconds[i] / *middle;
    if (reducer.lag > kLagsBehind)
      reducer.state.rate = std::max(reducer.state.rate * kLess, reducer.most / 64);
    else
      reducer.state.rate = std::min(reducer.state.rate * kMore, reducer.most);
  }
}

// ---- verdicts

void ReducerPool::speak(Verdict& verdict) const {
  for (size_t i = 0; i < reducers_.size(); ++i) {
    const Reducer& reducer = reducers_[i];
    const bool over = reducer.express == reducer.fresh || !reducer.express || reducer.express->over();
    if (!reducer.up() || !over) verdict.set_unusable(i);
    if (rank() != 0) continue;
    verdict.set_incarnation(i, reducer.state.incarnation);
    verdict.set_rate(i, reducer.state.rate);
  }
}

void ReducerPool::warn(const Verdict& verdict, const std::vector<uint64_t>& incarnations) {
  for (size_t i = 0; i < reducers_.size(); ++i) {
    Reducer& reducer = reducers_[i];
    if (!verdict.is_lost(i) || incarnations[i] == reducer.warned) continue;
    reducer.warned = incarnations[i];
    ++reducer.state.lost;
    log_warning(rank(), name(i) + " is lost: " + (reducer.why.empty() ? "another rank cannot reach it" : reducer.why) +
                            "; the workers go on without it, and use it again when it is back");
  }
}

// Nothing here looks at what only this rank knows, but for its own sessions.
void ReducerPool::obey(const Verdict& verdict, const std::vector<uint64_t>& incarnations) {
  for (size_t i = 0; i < reducers_.size(); ++i) {
    Reducer& reducer = reducers_[i];
    const uint64_t incarnation = verdict.incarnation(i);
    if (verdict.is_lost(i) && reducer.state.used && incarnations[i] == reducer.wanted) leave(reducer);
    if (incarnation != 0 && incarnation != reducer.wanted) {
      leave(reducer);  // one that was lost before it was used
      reducer.wanted = reducer.state.incarnation = incarnation;
      keeper_.open(i, incarnation);
    } else if (!reducer.state.used && reducer.wanted != 0 && !verdict.is_unusable(i)) {
      reducer.state.used = true;
      reducer.express = reducer.fresh;
      reducer.express->agree();
      log_warning(rank(), name(i) + " is used again");
    }
    reducer.agreed = verdict.rate(i);
    if (rank() != 0) reducer.state.rate = reducer.agreed;
  }
}

// ---- what the program asks and tells

std::vector<ReducerState> ReducerPool::states() const {
  std::vector<ReducerState> found;
  for (const Reducer& reducer : reducers_) {
    found.push_back(reducer.state);
    found.back().ready = reducer.up();
  }
  return found;
}

std::vector<std::shared_ptr<Session>> ReducerPool::sessions() const {
  std::vector<std::shared_ptr<Session>> found;
  for (const Reducer& reducer : reducers_) found.push_back(reducer.session);
  return found;
}

void ReducerPool::set_rates(const std::vector<double>& rates, double worker) {
  worker_rate_ = worker;
  for (size_t i = 0; i < std::min(rates.size(), reducers_.size()); ++i) {
    Reducer& reducer = reducers_[i];
    if (rates[i] < 0 && reducer.state.used) leave(reducer);
    if (reducer.state.used && reducer.express != reducer.fresh) {
      reducer.express = reducer.fresh;
      reducer.express->agree();
    }
    reducer.state.rate = reducer.most = reducer.agreed = rates[i] < 0 ? 1 : rates[i];  // when it comes
    reducer.lag = 1;
  }
}

void ReducerPool::put_rates(Verdict& verdict) const {
  for (size_t i = 0; i < reducers_.size(); ++i) verdict.set_rate(i, reducers_[i].state.rate);
}

void ReducerPool::registered(size_t reducer, uint64_t incarnation) {
  if (reducer < reducers_.size()) reducers_[reducer].state.incarnation = incarnation;
}

}  // namespace slipstream
