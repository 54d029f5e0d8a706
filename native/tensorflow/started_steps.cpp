#include "tensorflow/started_steps.h"

#include <algorithm>

namespace slipstream::tensorflow {

namespace {

constexpr size_t kKept = 256;  // steps that may be under way at the same time

}  // namespace

uint64_t StartedSteps::started(int64_t step, uint64_t number) {
  Known& own = find_or_add(step);
  own.latest = number;
  return own.started++;
}

void StartedSteps::end(int64_t step, const std::string& problem) {
  Known& own = find_or_add(step);
  if (own.ended) return;
  own.ended = true;
  own.problem = problem;
}

const std::string* StartedSteps::why_ended(int64_t step) const {
  const auto found = std::find_if(steps_.begin(), steps_.end(), [&](const Known& one) { return one.step == step; });
  return found == steps_.end() || !found->ended ? nullptr : &found->problem;
}

std::optional<uint64_t> StartedSteps::given_up(uint64_t since) const {
  const auto latest = std::max_element(steps_.begin(), steps_.end(),
                                       [](const Known& a, const Known& b) { return a.latest < b.latest; });
  if (latest == steps_.end() || latest->latest <= since) return 0;
  if (latest->ended) return std::nullopt;
  return latest->started;
}

StartedSteps::Known& StartedSteps::find_or_add(int64_t step) {
  const auto found = std::find_if(steps_.begin(), steps_.end(), [&](const Known& one) { return one.step == step; });
  if (found != steps_.end()) return *found;
  if (steps_.size() == kKept) steps_.pop_back();
  return steps_.emplace_front(Known{.step = step, .problem = {}});
}

}  // namespace slipstream::tensorflow
