// How bytes are split between reducers and the ring: against the published optimum.
#include "reducers/shares.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "tests/check.h"

namespace {

using namespace slipstream;

double fraction(uint32_t share) { return share / 65536.0; }

TEST(shares_are_all_there_is) {
  for (int n = 2; n <= 64; ++n)
    for (int k = 0; k <= 32; ++k) {
      std::vector<double> rates(static_cast<size_t>(k));
      for (int i = 0; i < k; ++i) rates[static_cast<size_t>(i)] = i % 5 == 4 ? 0 : 0.25 * (1 + i % 7);
      const auto shares = shares_of(n, rates);
      CHECK_EQ(shares.size(), rates.size() + 1);
      CHECK_EQ(std::accumulate(shares.begin(), shares.end(), uint32_t{0}), uint32_t{65536});
      for (int i = 0; i < k; ++i)
        if (rates[static_cast<size_t>(i)] == 0) CHECK_EQ(shares[static_cast<size_t>(i) + 1], uint32_t{0});
    }
}

TEST(rounding_gives_nothing_twice) {
  for (int n = 2; n <= 8; ++n)
    for (int step = 1; step < 2000; ++step) {
      const double rate = step * 21845 % 65536 / 65536.0;
      const auto shares = shares_of(n, std::vector<double>{rate, rate, rate, rate, rate, rate, 0});
      CHECK_EQ(std::accumulate(shares.begin(), shares.end(), uint32_t{0}), uint32_t{65536});
      CHECK_EQ(shares.back(), uint32_t{0});
    }
}

TEST(equal_rates_give_the_published_optimum) {
  for (int n = 2; n <= 16; ++n)
    for (int k = 1; k < n; ++k) {
      const auto shares = shares_of(n, std::vector<double>(static_cast<size_t>(k), 1.0));
      const double whole = double(n) * n + double(k) * n - 2.0 * k;
      for (int i = 0; i < k; ++i)
        CHECK(std::abs(fraction(shares[static_cast<size_t>(i) + 1]) - 2.0 * (n - 1) / whole) < 1e-4);
      CHECK(std::abs(fraction(shares[0]) - (double(n) * n - double(k) * n) / whole) < 1e-3);
    }
}

TEST(everybody_is_done_at_the_same_time) {
  const std::vector<double> rates{1.0, 0.5, 0.25};
  const int n = 8;
  const auto shares = shares_of(n, rates);
  double reduced = 0;
  for (size_t i = 0; i < rates.size(); ++i) reduced += fraction(shares[i + 1]);
  const double worker = 2.0 * (n - 1) / n * fraction(shares[0]) + reduced;  // bytes through it, of M, at rate 1
  for (size_t i = 0; i < rates.size(); ++i) CHECK(std::abs(n * fraction(shares[i + 1]) / rates[i] - worker) < 1e-3);
}

TEST(with_enough_reducers_nothing_is_left_for_the_ring) {
  for (int n = 2; n <= 8; ++n) {
    const auto shares = shares_of(n, std::vector<double>(static_cast<size_t>(n), 1.0));
    CHECK_EQ(shares[0], uint32_t{0});
    const auto half = shares_of(n, std::vector<double>(static_cast<size_t>(2 * n), 0.5));
    CHECK_EQ(half[0], uint32_t{0});
  }
  CHECK_EQ(shares_of(4, std::vector<double>{}).front(), uint32_t{65536});
}

}  // namespace
