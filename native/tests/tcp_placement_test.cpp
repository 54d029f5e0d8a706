// Which path each lane takes.
#include <set>

#include "tests/check.h"
#include "transport/tcp/placement.h"

using namespace slipstream;

namespace {

const Time kStart = Time{} + seconds(100);

// Lanes of a peer with several addresses. The first one has answered.
struct Lanes {
  explicit Lanes(size_t count, const std::vector<std::string>& addresses = {"10.0.0.1", "10.0.1.1"})
      : placement(addresses, [this](size_t lane) { return open.contains(lane); }) {
    placement.set_lanes(count);
    placement.paths().answered(0);
  }
  size_t dial(size_t lane, Time now = kStart) {
    const size_t path = placement.pick(lane, now);
    placement.dials(lane, path);
    return path;
  }
  size_t connect(size_t lane, Time now = kStart) {
    const size_t path = dial(lane, now);
    placement.connected(lane);
    open.insert(lane);
    return path;
  }

  std::set<size_t> open;
  LanePlacement placement;
};

}  // namespace

TEST(lanes_that_are_being_dialled_count) {
  Lanes lanes(4);
  std::vector<int> on(2);
  for (size_t i = 0; i < 4; ++i) ++on[lanes.dial(i)];
  CHECK_EQ(on[0], 2);
  CHECK_EQ(on[1], 2);
}

TEST(a_lane_has_no_path_until_it_is_connected) {
  Lanes lanes(1);
  const size_t path = lanes.dial(0);
  CHECK_EQ(lanes.placement.path(0), Paths::kNone);
  CHECK(lanes.placement.proven().empty());
  lanes.placement.connected(0);
  CHECK_EQ(lanes.placement.path(0), path);
  CHECK(lanes.placement.proven() == std::vector<std::string>{lanes.placement.paths().address(path)});
}

TEST(a_path_that_fails_is_left_alone) {
  Lanes lanes(2);
  const size_t first = lanes.dial(0);
  lanes.placement.unreachable(0, kStart);
  CHECK(lanes.connect(0) != first);
  CHECK(lanes.connect(1) != first);
  lanes.open.erase(1);
  lanes.placement.broken(1, kStart);
  CHECK_EQ(lanes.connect(1, kStart + seconds(1.5)), first);  // a second later it is tried again
}

TEST(lanes_go_where_lanes_achieve_most) {
  Lanes lanes(4);
  for (size_t i = 0; i < 4; ++i) lanes.connect(i);
  std::vector<uint64_t> carried(4);
  lanes.placement.measure(carried, kStart);
  for (size_t i = 0; i < 4; ++i) carried[i] = lanes.placement.path(i) == 1 ? 100 << 20 : 10 << 20;
  lanes.placement.measure(carried, kStart + seconds(1));
  for (size_t i = 0; i < 4; ++i) CHECK_EQ(lanes.placement.pick(i, kStart + seconds(1)), 1u);
  CHECK(!lanes.placement.move(kStart + seconds(1)));  // pulling gives each path what it can carry
}

TEST(a_new_connection_is_not_judged_by_what_the_old_one_carried) {
  Lanes lanes(4);
  for (size_t i = 0; i < 4; ++i) lanes.connect(i);
  std::vector<size_t> slow;
  std::vector<uint64_t> carried(4);
  lanes.placement.measure(carried, kStart);
  for (size_t i = 0; i < 4; ++i) {
    if (lanes.placement.path(i) == 0) slow.push_back(i);
    carried[i] = lanes.placement.path(i) == 0 ? 10 << 20 : 100 << 20;
  }
  lanes.placement.measure(carried, kStart + seconds(1));
  CHECK_EQ(lanes.placement.pick(slow[0], kStart + seconds(1)), 1u);
  for (const size_t lane : slow) {
    lanes.placement.dials(lane, 0);
    lanes.placement.connected(lane);
  }
  CHECK_EQ(lanes.placement.pick(slow[0], kStart + seconds(1)), 0u);
}

TEST(a_path_that_comes_back_gets_a_lane) {
  Lanes lanes(3);
  lanes.placement.paths().failed(1, kStart);
  for (size_t i = 0; i < 3; ++i) CHECK_EQ(lanes.connect(i), 0u);
  CHECK(!lanes.placement.move(kStart));
  const auto move = lanes.placement.move(kStart + seconds(1.5));
  CHECK(move && move->path == 1);
}

TEST(a_slow_lane_blames_its_path_only_if_it_is_alone_there) {
  Lanes lanes(3);
  for (size_t i = 0; i < 3; ++i) lanes.connect(i);
  const size_t alone = lanes.placement.path(0) == lanes.placement.path(1)   ? 2
                       : lanes.placement.path(0) == lanes.placement.path(2) ? 1
                                                                            : 0;
  const size_t shared = alone == 0 ? 1 : 0;
  lanes.placement.too_slow(shared, kStart);
  CHECK(lanes.placement.paths().usable(kStart, lanes.placement.path(alone)));
  lanes.placement.too_slow(alone, kStart);
  CHECK(!lanes.placement.paths().usable(kStart, lanes.placement.path(shared)));
  lanes.placement.too_slow(7, kStart);  // there is no such lane
}
