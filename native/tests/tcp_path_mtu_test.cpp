// Packets that are too large for a path: when they are suspected, tried smaller, and proven to be the cause.
#include "tests/check.h"
#include "transport/tcp/path_mtu.h"

using namespace slipstream;

namespace {

using Finding = PathMtu::Finding;
const Time kStart = Time{} + seconds(100);
constexpr Clock::duration kTrial = std::chrono::seconds(10);

Time after(double time) { return kStart + seconds(time); }

// A connection made at `opened` on which nothing large has got through.
PathMtu::Stall stall(double opened, uint64_t segment = 1448) {
  return {.opened_at = after(opened), .passed = 600, .waiting = 100'000, .segment = segment};
}

struct Suspicious : PathMtu {
  Suspicious() { CHECK(stalled(stall(-1), kStart, kTrial) == Finding::suspected); }
  Finding then(PathMtu::Stall what, double at) { return stalled(what, after(at), kTrial); }
};

PathMtu::Stall beside_others(PathMtu::Stall what) {
  what.others_pass = true;
  return what;
}

}  // namespace

TEST(one_stall_proves_nothing) {
  Suspicious mtu;
  CHECK_EQ(mtu.segment(), 0);
  CHECK(mtu.suspects(after(29)));
  CHECK(!mtu.suspects(after(31)));
  CHECK(mtu.then(stall(-1), 1) == Finding::nothing);     // the same connection
  CHECK(mtu.then(stall(35), 40) == Finding::suspected);  // too long ago
}

TEST(a_connection_that_carries_large_packets_is_not_suspected) {
  Suspicious mtu;
  PathMtu::Stall large = stall(1);
  large.passed = 512 + 1448;
  CHECK(mtu.then(large, 2) == Finding::nothing);
  PathMtu::Stall nothing = stall(3);
  nothing.waiting = 512;
  CHECK(mtu.then(nothing, 4) == Finding::nothing);
  CHECK_EQ(mtu.segment(), 0);
}

TEST(smaller_packets_are_tried_for_a_while) {
  Suspicious mtu;
  CHECK(mtu.then(stall(1), 2) == Finding::tried);
  CHECK_EQ(mtu.segment(), 1200);
  CHECK(mtu.then(stall(3), 4) == Finding::nothing);  // it was made before the trial began
  mtu.end_trial(after(11));
  CHECK_EQ(mtu.segment(), 1200);
  mtu.end_trial(after(13));
  CHECK_EQ(mtu.segment(), 0);
  CHECK_EQ(mtu.proven(), 0);
  CHECK(mtu.suspects(after(13)));
}

TEST(what_does_not_help_is_given_up) {
  Suspicious mtu;
  CHECK(mtu.then(stall(1), 2) == Finding::tried);
  CHECK(mtu.then(stall(3, 1188), 4) == Finding::tried);
  CHECK_EQ(mtu.segment(), 536);
  CHECK(mtu.then(stall(5, 524), 6) == Finding::useless);
  CHECK_EQ(mtu.segment(), 0);
}

TEST(small_packets_that_pass_are_proof) {
  Suspicious mtu;
  CHECK(mtu.then(beside_others(stall(1)), 2) == Finding::proven);
  CHECK_EQ(mtu.proven(), 1200);
  CHECK_EQ(mtu.segment(), 1200);
  mtu.end_trial(after(100));
  CHECK_EQ(mtu.segment(), 1200);
  CHECK(mtu.then(beside_others(stall(3)), 4) == Finding::nothing);  // known
  CHECK(mtu.then(beside_others(stall(5, 1188)), 6) == Finding::proven);
  CHECK_EQ(mtu.segment(), 536);
  CHECK(mtu.then(beside_others(stall(7, 524)), 8) == Finding::hopeless);
}

TEST(a_trial_of_smaller_packets_goes_on_beside_proof_of_larger_ones) {
  Suspicious mtu;
  mtu.then(stall(1), 2);
  mtu.then(stall(3, 1188), 4);
  CHECK_EQ(mtu.segment(), 536);
  CHECK(mtu.then(beside_others(stall(5)), 6) == Finding::proven);
  CHECK_EQ(mtu.proven(), 1200);
  CHECK_EQ(mtu.segment(), 536);
  mtu.end_trial(after(20));
  CHECK_EQ(mtu.segment(), 1200);
}

TEST(looks_that_are_too_far_apart_do_not_count) {
  PathMtu mtu;
  CHECK(mtu.looks(kStart));
  CHECK(!mtu.look(kStart));
  CHECK(!mtu.looks(after(0.1)));
  CHECK(mtu.looks(after(0.2)));
  CHECK(mtu.look(after(0.2)) == std::optional(kStart));
  CHECK(!mtu.look(after(1)));
}

TEST(lanes_get_large_packets_back_after_a_trial) {
  Suspicious mtu;
  const auto open = [](size_t lane) { return lane != 1; };
  mtu.connected(0, 0);
  mtu.then(stall(1), 2);
  for (const size_t lane : {1, 2}) mtu.connected(lane, 1200);
  CHECK(!mtu.lane_to_enlarge(open));
  mtu.end_trial(after(13));
  CHECK_EQ(mtu.lane_to_enlarge(open).value_or(9), 2u);  // lane 1 has no connection
  mtu.connected(2, 0);
  CHECK(!mtu.lane_to_enlarge(open));
}
