// How many lanes a link tries, by what it has carried. Time is what the test says.
#include "transport/tcp/lane_count.h"

#include <algorithm>
#include <array>
#include <functional>

#include "tests/check.h"

using namespace slipstream;

namespace {

// Bytes a second over so many lanes.
using Rate = std::function<double(int)>;

// Each connection is limited.
double of_each(int lanes) { return 25e6 * lanes; }
// One connection fills the path.
double of_all(int) { return 50e6; }

// A link that is looked at four times a second. It begins at the end of a minute of the clock.
struct Link {
  LaneCount count{2, 16};
  LaneCount::Seen seen{0, 0, 2};
  Time now = Time{} + seconds(60 * 320 - 10);
  std::optional<LaneCount::Trial> trial{};
  int trials = 0;
  bool may_try = true;
  int least = 1;        // lanes that the peer wants
  double with_few = 0;  // seconds of busy time
  double total_busy = 0;

  // Time passes, in which it carries so much for `share` of the time. Lanes open at once.
  void go(double time, const Rate& rate, double share = 1) {
    for (double t = 0; t < time; t += 0.25) step(rate(seen.lanes), share);
  }
  void go(double time, double rate, double share = 1) {
    go(time, [rate](int) { return rate; }, share);
  }
  void step(double rate, double share = 1) {
    now += seconds(0.25);
    seen.bytes += static_cast<uint64_t>(rate * share * 0.25);
    seen.busy += share * 0.25;
    total_busy += share * 0.25;
    if (seen.lanes == count.few()) with_few += share * 0.25;
    if (const auto found = count.look(seen, may_try, now)) {
      trial = found;
      ++trials;
    }
    seen.lanes = std::max(count.wanted(), least);
  }
};

}  // namespace

TEST(many_lanes_that_carry_more_are_kept) {
  Link link;
  link.go(0.75, 50e6);
  CHECK_EQ(link.count.wanted(), 16);
  link.go(1, 100e6);
  CHECK_EQ(link.count.wanted(), 2);  // to see whether these carry less again
  CHECK_EQ(link.count.claimed(), 16);
  CHECK(!link.trial.has_value());
  link.go(1, 50e6);
  CHECK(link.trial.has_value());
  CHECK(link.trial->few > 49e6 && link.trial->few < 51e6);
  CHECK(link.trial->many > 99e6);
  link.go(30, 10e6);
  CHECK_EQ(link.count.wanted(), 16);
}

TEST(what_only_happens_to_be_faster_with_many_lanes_does_not_count) {
  Link link;
  link.go(0.75, 20e6);  // beside two other links
  link.go(20, 60e6);    // alone
  CHECK_EQ(link.trials, 1);
  CHECK_EQ(link.count.wanted(), 2);
  CHECK(link.trial->few > 59e6);
}

TEST(lanes_that_the_peer_wants_are_not_waited_for) {
  Link link;
  link.go(0.75, of_each);
  link.least = 16;
  link.go(5, of_each);
  CHECK_EQ(link.trials, 1);
  CHECK_EQ(link.count.wanted(), 16);
  Link other;
  other.go(2, of_each);
  CHECK_EQ(other.count.claimed(), 16);
  CHECK_EQ(other.count.wanted(), 2);
  other.least = 16;  // it begins to want them during the second look at the few
  other.go(3, of_each);
  CHECK_EQ(other.count.wanted(), 16);
}

TEST(a_lane_that_comes_late_does_not_end_the_second_look_at_the_few) {
  Link link;
  link.go(0.75, 20e6);
  link.go(1.25, 60e6);
  CHECK_EQ(link.count.claimed(), 16);
  CHECK_EQ(link.count.wanted(), 2);
  link.seen.lanes = 3;
  link.go(0.25, 60e6);
  CHECK(!link.trial.has_value());
  link.go(5, 60e6);
  CHECK_EQ(link.trials, 1);
  CHECK_EQ(link.count.wanted(), 2);
}

TEST(many_lanes_that_carry_no_more_are_ended_and_tried_again_later) {
  Link link;
  link.go(0.75, of_all);
  CHECK_EQ(link.count.wanted(), 16);
  link.go(4.25, of_all);
  CHECK_EQ(link.trials, 1);
  CHECK_EQ(link.count.wanted(), 2);
  link.go(60, of_all);
  CHECK_EQ(link.trials, 1);  // the minute ended too soon after the first trial
  link.go(10, of_all);
  CHECK_EQ(link.trials, 2);  // the next one
  link.go(60, of_all);
  CHECK_EQ(link.trials, 2);
  link.go(120, of_all);
  CHECK_EQ(link.trials, 3);  // at a multiple of two minutes
  const int before = link.trials;
  link.go(3 * 3600, of_all);
  CHECK(link.trials > before + 5);
  CHECK(link.trials < before + 12);  // every 32 minutes in the end
}

TEST(many_lanes_that_have_won_are_reviewed_in_little_time) {
  Link link;
  link.go(5, of_each);
  CHECK_EQ(link.count.wanted(), 16);
  link.with_few = link.total_busy = 0;
  link.go(150, of_each);
  CHECK_EQ(link.count.wanted(), 16);
  CHECK(link.trials >= 2);
  CHECK(link.with_few > 0);
  CHECK(link.with_few <= 0.02 * link.total_busy);
  link.go(3 * 3600, of_each);
  CHECK_EQ(link.count.wanted(), 16);
  CHECK(link.trials < 14);
  CHECK(link.with_few <= 0.001 * link.total_busy);
}

TEST(a_link_that_is_seldom_busy_is_reviewed_as_little) {
  Link link;
  link.go(200, of_each, 0.02);
  CHECK_EQ(link.count.wanted(), 16);
  link.with_few = link.total_busy = 0;
  link.go(3600, of_each, 0.02);
  CHECK(link.trials >= 2);
  CHECK(link.with_few <= 0.03 * link.total_busy);
}

TEST(lanes_that_have_won_end_once_the_network_has_changed) {
  Link link;
  link.go(5, of_each);
  CHECK_EQ(link.count.wanted(), 16);
  link.go(130, of_all);
  CHECK_EQ(link.count.wanted(), 2);
}

TEST(a_rate_that_falls_for_long_shortens_the_wait) {
  Link link;
  link.go(130 * 60, of_each);
  CHECK_EQ(link.count.wanted(), 16);
  const int before = link.trials;
  link.go(600, of_all);  // an eighth of what it was, half an hour before the next review
  CHECK_EQ(link.count.wanted(), 2);
  CHECK(link.trials > before);
  link.go(2 * 3600, of_all);
  const int later = link.trials;
  link.go(600, [](int lanes) { return 10e6 * lanes; });
  CHECK(link.trials > later);
  CHECK_EQ(link.count.wanted(), 16);
}

TEST(a_rate_that_goes_to_and_fro_does_not_keep_a_link_trying) {
  Link link;
  for (int i = 0; i < 360; ++i) link.go(60, [i](int lanes) { return i % 2 ? of_each(lanes) : 0.1 * of_each(lanes); });
  CHECK_EQ(link.count.wanted(), 16);
  CHECK(link.with_few <= 0.01 * link.total_busy);
}

TEST(a_review_waits_until_the_peer_wants_few) {
  Link link;
  link.go(5, of_each);
  CHECK_EQ(link.count.wanted(), 16);
  link.least = 16;
  link.go(3600, of_each);
  CHECK_EQ(link.count.wanted(), 2);  // it has let them go; the peer has not
  CHECK_EQ(link.trials, 1);
  link.least = 1;
  link.go(5, of_each);
  CHECK_EQ(link.trials, 2);
  CHECK_EQ(link.count.wanted(), 16);
}

// Links that share a port get of it what their lanes are of all lanes. Each alone gains by more lanes, all together do
// not: they find that out when they try at the same time.
TEST(links_that_push_each_other_to_many_lanes_let_them_go) {
  std::array<Link, 3> links;
  const auto lanes = [&links] {
    int sum = 0;
    for (const Link& link : links) sum += link.seen.lanes;
    return sum;
  };
  const auto all = [&links](int wanted) {
    return std::all_of(links.begin(), links.end(), [wanted](const Link& l) { return l.count.wanted() == wanted; });
  };
  const auto step = [&](size_t using_it) {
    const double each = 100e6 / lanes();
    for (size_t i = 0; i < links.size(); ++i) {
      const bool in_use = i < using_it;
      links[i].step(in_use ? each * links[i].seen.lanes : 0, in_use ? 1 : 0);
    }
  };
  const auto go = [&](int minutes, size_t using_it) {
    for (int i = 0; i < 240 * minutes; ++i) step(using_it);
  };
  go(1, 1);
  go(6, 2);
  go(1, 3);
  CHECK(!all(2));  // one after the other
  go(80, 3);
  CHECK(all(2));
}

TEST(time_without_work_does_not_count) {
  Link link;
  link.go(3, 50e6, 0.1);
  CHECK_EQ(link.count.wanted(), 2);
  link.go(4, 50e6, 0.1);
  CHECK_EQ(link.count.wanted(), 16);
  link.go(16, [](int lanes) { return lanes > 2 ? 100e6 : 50e6; }, 0.1);
  CHECK(link.trial.has_value());
  CHECK(link.trial->many > 99e6);
}

TEST(a_review_ends_where_the_few_lanes_carry_next_to_nothing) {
  Link link;
  link.go(5, of_each);
  CHECK_EQ(link.count.wanted(), 16);
  link.go(130, [](int lanes) { return lanes <= 2 ? 1e3 : 50e6; });  // both are on a path that has become slow
  CHECK(link.trials >= 2);
  CHECK_EQ(link.count.wanted(), 16);
}

TEST(a_link_that_carries_little_needs_no_lanes) {
  Link link;
  link.go(100, 0.1e6);
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
  link.go(0.75, 50e6);
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
