// Which steps may run: their order within a chunk, and chunks within the window.
#include "engine/schedule.h"

#include <vector>

#include "tests/check.h"
#include "tests/plans.h"

namespace {

using namespace slipstream;

// Two roots, then one that waits for both, then one that waits for that.
std::shared_ptr<const Plan> diamond() {
  testing::PlanBuilder b(0, 2, 1);
  const int send = b.add(StepKind::send, 1, 0, {}, Space::in);
  const int recv = b.add(StepKind::recv, 1, 0);
  const int finish = b.add(StepKind::finish, -1, 0, {send, recv});
  b.add(StepKind::send, 1, 0, {finish});
  return b.build();
}

std::vector<uint32_t> runnable(Schedule& schedule) {
  std::vector<uint32_t> steps;
  while (const auto found = schedule.next()) steps.push_back(found->step);
  return steps;
}

TEST(a_step_runs_when_all_it_waits_for_is_done) {
  const auto plan = diamond();
  Schedule schedule(*plan, 1, 1);
  CHECK(schedule.may_begin(1));
  CHECK_EQ(schedule.begin(), uint64_t{0});
  CHECK(runnable(schedule) == std::vector<uint32_t>({0, 1}));
  schedule.complete(1, 0);
  CHECK(runnable(schedule).empty());
  CHECK(!schedule.released(2, 0));
  schedule.complete(0, 0);
  CHECK(runnable(schedule) == std::vector<uint32_t>({2}));
  schedule.complete(2, 0);
  CHECK(runnable(schedule) == std::vector<uint32_t>({3}));
  CHECK(!schedule.finished());
  schedule.complete(3, 0);
  CHECK(schedule.finished());
  CHECK(!schedule.may_begin(1));
}

TEST(no_more_chunks_are_under_way_than_the_window_and_the_allowance) {
  const auto plan = diamond();
  Schedule schedule(*plan, 5, 3);
  for (uint64_t chunk = 0; chunk < 3; ++chunk) {
    CHECK(schedule.may_begin(chunk + 1));
    CHECK(!schedule.may_begin(chunk));
    schedule.begin();
  }
  CHECK(!schedule.may_begin(100));
  for (uint32_t step = 0; step < 4; ++step) schedule.complete(step, 1);  // not the oldest
  CHECK(!schedule.may_begin(100));
  CHECK_EQ(schedule.oldest(), uint64_t{0});
  for (uint32_t step = 0; step < 4; ++step) schedule.complete(step, 0);
  CHECK_EQ(schedule.oldest(), uint64_t{2});
  CHECK(schedule.may_begin(2));
}

TEST(a_receive_awaits_its_pieces_until_it_is_done) {
  const auto plan = diamond();
  Schedule schedule(*plan, 2, 1);
  schedule.begin();
  CHECK(!schedule.awaits(1, 0));
  schedule.await(1, 0, 2);
  CHECK(schedule.awaits(1, 0));
  CHECK_EQ(schedule.pieces_left(1, 0), 2u);
  CHECK(!schedule.awaits(1, 1));  // has not begun
  for (uint32_t step = 0; step < 4; ++step) schedule.complete(step, 0);
  CHECK(!schedule.awaits(1, 0));
  schedule.begin();  // in the same slot
  CHECK(!schedule.awaits(1, 1));
  CHECK(!schedule.released(2, 1));
}

TEST(a_plan_without_steps_is_done_at_once) {
  const auto plan = testing::PlanBuilder(0, 1, 1).build();
  Schedule schedule(*plan, 2, 2);
  schedule.begin();
  CHECK(!schedule.finished());
  CHECK(schedule.may_begin(1));
  schedule.begin();
  CHECK(schedule.finished());
}

}  // namespace
