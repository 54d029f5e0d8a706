#include "transport/tcp/lend_threshold.h"

#include <algorithm>
#include <bit>

namespace slipstream {

void LendThreshold::Costs::add(double seconds) { last_[count_++ % last_.size()] = seconds; }

double LendThreshold::Costs::low() const {
  std::array<double, std::tuple_size_v<decltype(last_)>> sorted = last_;
  const auto end = sorted.begin() + static_cast<ptrdiff_t>(std::min(count_, sorted.size()));
  const auto low = sorted.begin() + (end - sorted.begin()) / 8;
  std::nth_element(sorted.begin(), low, end);
  return *low;
}

size_t LendThreshold::class_of(size_t bytes) {
  const size_t above = std::bit_width(bytes / kLeast);
  return std::clamp<size_t>(above, 1, kClasses) - 1;
}

bool LendThreshold::lends(size_t bytes) {
  const bool best = bytes >= this->bytes();
  if (!measures()) return best;
  if (bytes < kLeast) return false;
  Class& one = classes_[class_of(bytes)];
  const uint32_t every = one.cheaper == Cheaper::unknown ? kTryEvery : kLookEvery;
  return ++one.turn % every == 0 ? !best : best;
}

void LendThreshold::lent(size_t bytes, double seconds) {
  if (!measures() || bytes < kLeast) return;
  Class& one = classes_[class_of(bytes)];
  one.lent.add(seconds);
  compare(one);
  if (one.cheaper == Cheaper::copying) ++in_vain_;
}

void LendThreshold::copied(size_t bytes, double seconds) {
  if (!measures() || bytes < kLeast) return;
  Class& one = classes_[class_of(bytes)];
  one.copied.add(seconds);
  compare(one);
}

bool LendThreshold::may_pay() const {
  return std::any_of(classes_.begin(), classes_.end(), [](const Class& one) {
    return one.cheaper == Cheaper::lending || (one.cheaper == Cheaper::unknown && one.lent.any());
  });
}

// If lending pays for a size it does for larger ones, if not then for no smaller one: the threshold lies above the
// largest size that is better copied, at the first above it that is better lent, and between them where it first was.
void LendThreshold::compare(Class& one) {
  if (!one.lent.enough() || !one.copied.enough()) return;
  const double limit = one.cheaper == Cheaper::lending ? 1 : kMargin;
  one.cheaper = one.lent.low() <= limit * one.copied.low() ? Cheaper::lending : Cheaper::copying;
  if (one.cheaper == Cheaper::lending) in_vain_ = 0;
  size_t low = 0;
  for (size_t i = 0; i < kClasses; ++i)
    if (classes_[i].cheaper == Cheaper::copying) low = i + 1;
  size_t high = low;
  while (high < kClasses && classes_[high].cheaper != Cheaper::lending) ++high;
  const size_t at = std::clamp(class_of(kFirst), low, high);
  threshold_ = at == kClasses ? kNothing : kLeast << at;
}

}  // namespace slipstream
