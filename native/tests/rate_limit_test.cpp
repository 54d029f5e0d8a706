// The token limit, by a clock of the test's own.
#include "engine/rate_limit.h"

#include <cstdint>

#include "tests/check.h"

namespace {

using namespace slipstream;

constexpr double kRate = 1e6;
const Time kStart = Time(seconds(1000));

// What is taken in `time` by one who asks every `step` for `amount`, as long as there is any.
double taken(RateLimit& limit, Time from, double time, double step, uint64_t amount) {
  double sum = 0;
  for (Time t = from; t < from + seconds(time); t += seconds(step))
    while (limit.take(amount, t)) sum += static_cast<double>(amount);
  return sum;
}

TEST(no_rate_no_bound) {
  RateLimit limit;
  CHECK(!limit.bounded());
  for (int i = 0; i < 1000; ++i) CHECK(limit.take(UINT64_MAX, kStart));
}

TEST(the_rate_is_kept_and_used_whatever_the_amount) {
  for (const uint64_t amount : {1u << 8, 1u << 12, 1u << 16, 1u << 20})
    for (const double step : {1e-4, 2e-3, 1e-2}) {
      RateLimit limit(kRate);
      const double got = taken(limit, kStart, 10, step, amount);
      const double most = kRate * (10 + RateLimit::kSavedSeconds) + static_cast<double>(amount);
      CHECK(got <= most);
      CHECK(got >= 0.98 * kRate * 10);
    }
}

TEST(little_is_saved_up_while_nothing_is_taken) {
  RateLimit limit(kRate);
  taken(limit, kStart, 1, 1e-3, 1000);
  const double got = taken(limit, kStart + seconds(100), 1e-9, 1e-9, 1000);
  CHECK(got <= kRate * RateLimit::kSavedSeconds + 1000);
  CHECK(got >= kRate * RateLimit::kSavedSeconds - 1000);
}

TEST(due_is_when_more_may_be_taken) {
  RateLimit limit(kRate);
  CHECK(limit.take(2'000'000, kStart));
  CHECK(limit.due() > kStart + seconds(1.9));
  CHECK(!limit.take(1, limit.due() - std::chrono::nanoseconds(1)));
  CHECK(limit.take(1, limit.due()));
}

TEST(an_amount_beyond_measure_ends_the_wait_some_day) {
  RateLimit limit(1e-9);
  CHECK(limit.take(UINT64_MAX, kStart));
  CHECK(limit.due() > kStart);
  CHECK(limit.take(1, limit.due()));
}

}  // namespace
