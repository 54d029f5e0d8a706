// When a bulk lane's connection becomes the control lane's.
#include "tests/check.h"
#include "transport/tcp/promotion.h"

using namespace slipstream;

namespace {

const Time kStart = Time{} + seconds(100);

// A control lane with a round trip of 10 ms beside one lane with 1 ms; `looks`: how often they have been looked at.
struct Slow {
  std::optional<size_t> look(double at, double control_rtt = 0.01, uint64_t bytes = 100'000) {
    sent += bytes;
    return policy.look({control_rtt, 0.001, 0, sent, 0}, {{0.001, 0.001, 100e6, 0, 0}, {0.02, 0.02, 100e6, 0, 0}}, 1,
                       kStart + seconds(at));
  }
  PromotionPolicy policy;
  uint64_t sent = 0;
};

}  // namespace

TEST(a_faster_lane_has_to_be_found_twice) {
  Slow slow;
  CHECK(!slow.look(0));
  CHECK(!slow.policy.looks(kStart + seconds(0.9)));
  CHECK(slow.policy.looks(kStart + seconds(1.1)));
  CHECK_EQ(slow.look(1).value_or(9), 0u);
  Slow once;
  once.look(0);
  CHECK(!once.look(1, 0.001));  // the control lane was as fast
  CHECK(!once.look(2));
  CHECK(once.look(3).has_value());
}

TEST(what_has_been_sent_since_the_last_look_counts) {
  Slow slow;
  slow.look(0);
  CHECK(!slow.look(1, 0.01, 0));  // a round trip of long ago
  slow.look(2);
  CHECK(slow.look(3).has_value());
}

TEST(promotions_become_rare) {
  Slow slow;
  double at = 0;
  for (const double wait : {5, 10, 20, 40, 80, 80}) {
    while (!slow.look(at)) at += 1;
    slow.policy.promoted(kStart + seconds(at));
    const double end = at + wait;
    for (at += 1; at < end; at += 1) CHECK(!slow.look(at));
  }
}

TEST(a_promotion_that_cannot_be_made_is_tried_again) {
  Slow slow;
  slow.look(0);
  CHECK(slow.look(1).has_value());
  CHECK(slow.look(2).has_value());
}
