// How many lanes a link tries, by what it has carried. Time is what the test says.
#include "transport/tcp/lane_count.h"

#include <algorithm>

#include "tests/check.h"

using namespace slipstream;

namespace {

// A link that is looked at four times a second.
struct Link {
  LaneCount count{2, 16};
  LaneCount::Seen seen{0, 0, 2};
  Time now = Time{} + seconds(1000);
  std::optional<LaneCount::Trial> trial{};
  bool may_try = true;

  // Time passes, in which it carries `rate` bytes a second for `share` of the time. Lanes open at once.
  void go(double time, double rate, double share = 1) {
    for (double t = 0; t < time; t += 0.25) {
      now += seconds(0.25);
      seen.bytes += static_cast<uint64_t>(rate * share * 0.25);
      seen.busy += share * 0.25;
      if (const auto found = count.look(seen, may_try, now)) trial = found;
      seen.lanes = count.wanted();
    }
  }
};

}  // namespace

TEST(many_lanes_that_carry_more_are_kept) {
  Link link;
  link.go(0.75, 50e6);
  CHECK_EQ(link.count.wanted(), 16);
  link.go(1.5, 100e6);
  CHECK(link.trial.has_value());
  CHECK(link.trial->few > 49e6 && link.trial->few < 51e6);
  CHECK(link.trial->many > 99e6);
  link.go(1000, 10e6);
  CHECK_EQ(link.count.wanted(), 16);
}

TEST(many_lanes_that_carry_no_more_are_ended_and_tried_again_later) {
  Link link;
  link.go(0.75, 50e6);
  CHECK_EQ(link.count.wanted(), 16);
  link.go(1.5, 53e6);
  CHECK(link.trial.has_value());
  CHECK_EQ(link.count.wanted(), 2);
  link.trial.reset();
  link.go(55, 50e6);
  CHECK_EQ(link.count.wanted(), 2);
  link.go(10, 50e6);
  CHECK(link.trial.has_value());  // after a minute
  link.trial.reset();
  link.go(110, 50e6);
  CHECK(!link.trial.has_value());  // after two more
  link.go(20, 50e6);
  CHECK(link.trial.has_value());
}

TEST(time_without_work_does_not_count) {
  Link link;
  link.go(3, 50e6, 0.1);
  CHECK_EQ(link.count.wanted(), 2);
  link.go(4, 50e6, 0.1);
  CHECK_EQ(link.count.wanted(), 16);
  link.go(8, 100e6, 0.1);
  CHECK(link.trial.has_value());
  CHECK(link.trial->many > 99e6);
}

TEST(a_link_that_carries_little_needs_no_lanes) {
  Link link;
  link.go(100, 0.5e6);
  CHECK_EQ(link.count.wanted(), 2);
}

TEST(lanes_that_cannot_be_opened_are_not_waited_for) {
  Link link;
  for (int i = 0; i < 20; ++i) {
    link.go(0.25, 50e6);
    link.seen.lanes = std::min(link.count.wanted(), 3);
  }
  CHECK(link.trial.has_value());
}

TEST(while_the_peer_wants_many_nothing_is_tried) {
  Link link;
  for (int i = 0; i < 40; ++i) {
    link.seen.lanes = 16;
    link.go(0.25, 50e6);
  }
  CHECK_EQ(link.count.wanted(), 2);
}

TEST(without_room_for_more_lanes_nothing_is_tried) {
  Link link;
  link.may_try = false;
  link.go(10, 50e6);
  CHECK_EQ(link.count.wanted(), 2);
  link.may_try = true;
  link.go(0.5, 50e6);
  CHECK_EQ(link.count.wanted(), 16);
}

TEST(a_fixed_number_is_fixed) {
  Link link{.count = LaneCount(4, 4)};
  link.go(100, 1e9);
  CHECK_EQ(link.count.wanted(), 4);
}

TEST(a_number_that_is_set_is_kept_until_the_first_ones_are_set_again) {
  Link link;
  link.count.set(4, 4);
  link.go(10, 50e6);
  CHECK_EQ(link.count.wanted(), 4);
  CHECK(!link.trial.has_value());
  link.count.set(2, 16);
  CHECK_EQ(link.count.wanted(), 2);
  link.go(1, 50e6);
  CHECK_EQ(link.count.wanted(), 16);
}
