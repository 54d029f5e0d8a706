#include "reducers/shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace slipstream {

double relative_time(int workers, double rate) {
  const double n = workers;
  return rate < n ? 2 * n * (n - 1) / (n * n + n * rate - 2 * rate) : 1;
}

std::vector<double> fractions_of(int workers, std::span<const double> rates) {
  const double n = workers;
  const double sum = std::accumulate(rates.begin(), rates.end(), 0.0);
  const double each = sum < n ? relative_time(workers, sum) / n : 1 / sum;
  std::vector<double> fractions(rates.size() + 1);
  // What the reducers leave, written out: 1 less their parts would lose digits near 0.
  fractions[0] = sum < n ? n * (n - sum) / (n * n + n * sum - 2 * sum) : 0;
  for (size_t i = 0; i < rates.size(); ++i) fractions[i + 1] = each * rates[i];
  return fractions;
}

// Sums are rounded, not fractions: so all there is is given away, whatever the rates.
std::vector<uint32_t> shares_of(int workers, std::span<const double> rates) {
  constexpr uint32_t kWhole = 65536;
  const std::vector<double> fractions = fractions_of(workers, rates);
  size_t last = 0;
  for (size_t i = 1; i < fractions.size(); ++i)
    if (fractions[i] > 0) last = i;
  std::vector<uint32_t> shares(fractions.size());
  double until = 0;
  uint32_t given = 0;
  for (size_t i = 0; i <= last; ++i) {
    until += fractions[i];
    const auto end = i == last ? kWhole : std::min(kWhole, static_cast<uint32_t>(std::lround(kWhole * until)));
    shares[i] = end - given;
    given = end;
  }
  return shares;
}

}  // namespace slipstream
