// The token bucket, by a clock of the test's own.
#include "engine/bucket.h"

#include <cstdint>

#include "tests/check.h"

namespace {

using namespace slipstream;

constexpr double kRate = 1e6;
const Time kStart = Time(seconds(1000));

// What is taken in `time` by one who asks every `step` for `amount`, as long as there is any.
double taken(Bucket& bucket, Time from, double time, double step, uint64_t amount) {
  double sum = 0;
  for (Time t = from; t < from + seconds(time); t += seconds(step))
    while (bucket.take(amount, t)) sum += static_cast<double>(amount);
  return sum;
}

TEST(no_rate_no_bound) {
  Bucket bucket;
  CHECK(!bucket.bounded());
  for (int i = 0; i < 1000; ++i) CHECK(bucket.take(UINT64_MAX, kStart));
}

TEST(the_rate_is_kept_and_used_whatever_the_amount) {
  for (const uint64_t amount : {1u << 8, 1u << 12, 1u << 16, 1u << 20})
    for (const double step : {1e-4, 2e-3, 1e-2}) {
      Bucket bucket(kRate);
      const double got = taken(bucket, kStart, 10, step, amount);
      const double most = kRate * (10 + Bucket::kSavedSeconds) + static_cast<double>(amount);
      CHECK(got <= most);
      CHECK(got >= 0.98 * kRate * 10);
    }
}

TEST(little_is_saved_up_while_nothing_is_taken) {
  Bucket bucket(kRate);
  taken(bucket, kStart, 1, 1e-3, 1000);
  const double got = taken(bucket, kStart + seconds(100), 1e-9, 1e-9, 1000);
  CHECK(got <= kRate * Bucket::kSavedSeconds + 1000);
  CHECK(got >= kRate * Bucket::kSavedSeconds - 1000);
}

TEST(due_is_when_more_may_be_taken) {
  Bucket bucket(kRate);
  CHECK(bucket.take(2'000'000, kStart));
  CHECK(bucket.due() > kStart + seconds(1.9));
  CHECK(!bucket.take(1, bucket.due() - std::chrono::nanoseconds(1)));
  CHECK(bucket.take(1, bucket.due()));
}

TEST(an_amount_beyond_measure_ends_the_wait_some_day) {
  Bucket bucket(1e-9);
  CHECK(bucket.take(UINT64_MAX, kStart));
  CHECK(bucket.due() > kStart);
  CHECK(bucket.take(1, bucket.due()));
}

}  // namespace
