// Which lanes take work, by what each achieves.
#include "tests/check.h"
#include "transport/tcp/pacing.h"

using namespace slipstream;

namespace {

constexpr double kMiB = 1 << 20;
const Time kStart = Time{} + seconds(100);

Time after(double time) { return kStart + seconds(time); }

}  // namespace

TEST(the_load_is_measured_again_after_two_milliseconds) {
  Pacing pacing;
  CHECK(pacing.load_is_old(kStart));
  pacing.set_load({100 * kMiB, 0}, kStart);
  CHECK(!pacing.load_is_old(after(0.0015)));
  CHECK(pacing.load_is_old(after(0.0025)));
}

TEST(a_slow_lane_leaves_the_last_segments_to_the_others) {
  Pacing pacing;
  pacing.set_load({110 * kMiB, 0}, kStart);
  CHECK(pacing.is_slow(10 * kMiB, 2));
  CHECK(!pacing.is_slow(100 * kMiB, 2));
  CHECK(!pacing.is_slow(10 * kMiB, 32));  // most are slower
  constexpr uint32_t kSize = 1 << 20;     // 100 ms on the slow lane
  CHECK(!pacing.holds_up(10 * kMiB, 0, kSize, 20 << 20));
  CHECK(pacing.holds_up(10 * kMiB, 0, kSize, 5 << 20));
  // What its socket holds comes first.
  CHECK(pacing.holds_up(10 * kMiB, 2 << 20, kSize, 20 << 20));
  // The others' sockets are to be emptied as well.
  pacing.set_load({110 * kMiB, 20 * kMiB}, kStart);
  CHECK(!pacing.holds_up(10 * kMiB, 0, kSize, 5 << 20));
}

TEST(late_segments_are_looked_for_every_five_milliseconds) {
  Pacing pacing;
  CHECK(pacing.repeats(kStart));
  CHECK(!pacing.repeats(after(0.004)));
  CHECK(pacing.repeats(after(0.006)));
}

TEST(a_segment_is_late_where_an_idle_lane_is_far_quicker) {
  Pacing pacing;
  int asked = 0;
  const auto late = [&](double idle_rate, double rate, double since, double now) {
    const auto holder = [&] {
      ++asked;
      return Pacing::Holder{rate, 0};
    };
    return pacing.is_late(idle_rate, 1 << 20, after(since), after(now), holder);
  };
  pacing.fed(after(0));
  CHECK(!late(100 * kMiB, 1 * kMiB, 0, 0.005));  // there was something new a moment ago
  CHECK(!late(0, 1 * kMiB, 0, 0.02));            // nobody knows what the idle lane achieves
  CHECK_EQ(asked, 0);
  CHECK(late(100 * kMiB, 1 * kMiB, 0, 0.02));    // a second there, 10 ms here
  CHECK(!late(100 * kMiB, 50 * kMiB, 0, 0.02));  // 20 ms there
  CHECK(late(100 * kMiB, 50 * kMiB, 0, 0.2));    // but it has not come for long
  pacing.fed(after(2));
  CHECK(late(0, 50 * kMiB, 0.5, 2));  // whatever else there is
}

TEST(a_lane_that_stays_far_behind_is_named) {
  Pacing pacing;
  CHECK(pacing.compares(kStart));
  CHECK(!pacing.compares(after(0.4)));
  CHECK(pacing.compares(after(0.6)));
  const std::vector<Pacing::Lane> lanes{{100, true}, {6, true}, {100, true}, {120, true}};
  for (int look = 0; look < 9; ++look) CHECK(!pacing.far_behind(lanes, true));
  CHECK_EQ(pacing.far_behind(lanes, true).value_or(9), 1u);
  CHECK(!pacing.far_behind(lanes, true));  // the one in its place begins anew
}

TEST(a_lane_is_not_judged_without_reason) {
  const std::vector<std::vector<Pacing::Lane>> harmless{
      {{100, true}, {1, true}},                 // too few to compare
      {{100, true}, {100, true}, {7, true}},    // slow, but not far behind
      {{100, true}, {100, true}, {0, true}},    // not known
      {{100, true}, {100, true}, {1, false}}};  // gone already
  for (const auto& lanes : harmless) {
    Pacing pacing;
    for (int look = 0; look < 20; ++look) CHECK(!pacing.far_behind(lanes, true));
  }
  const std::vector<Pacing::Lane> slow{{100, true}, {100, true}, {1, true}};
  Pacing pacing;
  for (int look = 0; look < 9; ++look) pacing.far_behind(slow, true);
  pacing.far_behind(harmless[1], true);  // it has caught up
  CHECK(!pacing.far_behind(slow, true));
  Pacing kept;  // there is no way to replace it
  for (int look = 0; look < 20; ++look) CHECK(!kept.far_behind(slow, false));
}

TEST(a_lane_leaves_work_to_others_from_the_first_time_on) {
  LanePause pause;
  CHECK(!pause.active());
  pause.set(LanePause::Reason::others_are_faster, kStart);
  pause.set(LanePause::Reason::others_are_faster, after(1));
  CHECK(pause.active());
  CHECK(pause.leaves_work_for(seconds(1), after(1.5)));
  CHECK(!pause.leaves_work_for(seconds(2), after(1.5)));
  pause.set(LanePause::Reason::has_enough, after(2));
  CHECK(pause.active());
  CHECK(!pause.leaves_work_for(seconds(0), after(3)));
  pause.set(LanePause::Reason::others_are_faster, after(3));
  CHECK(!pause.leaves_work_for(seconds(1), after(3.5)));
}
