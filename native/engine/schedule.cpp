#include "engine/schedule.h"

namespace slipstream {

uint64_t Schedule::begin() {
  const uint64_t chunk = begun_;
  const size_t first = slot(0, chunk);
  const auto& steps = plan_.steps();
  for (size_t s = 0; s < steps_; ++s) deps_left_[first + s] = steps[s].deps;
  std::fill_n(armed_.begin() + static_cast<ptrdiff_t>(first), steps_, uint8_t{0});
  steps_left_[chunk % window_] = static_cast<uint32_t>(steps_);
  ++begun_;
  if (steps_ == 0) {
    ++done_;
    oldest_ = begun_;
  }
  for (auto it = plan_.roots().rbegin(); it != plan_.roots().rend(); ++it) ready_.push_back({*it, chunk});
  return chunk;
}

void Schedule::complete(uint32_t step, uint64_t chunk) {
  const size_t first = slot(0, chunk);
  armed_[first + step] = 0;
  for (const uint32_t d : plan_.dependents(plan_.steps()[step]))
    if (--deps_left_[first + d] == 0) ready_.push_back({d, chunk});
  if (--steps_left_[chunk % window_] != 0) return;
  ++done_;
  while (oldest_ < begun_ && steps_left_[oldest_ % window_] == 0) ++oldest_;
}

}  // namespace slipstream
