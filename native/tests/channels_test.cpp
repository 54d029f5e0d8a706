// The order of works in a channel, without an engine.
#include "engine/channels.h"

#include <memory>
#include <vector>

#include "tests/check.h"
#include "tests/plans.h"

namespace {

using namespace slipstream;

constexpr uint64_t kBulk = 1 << 20, kSmall = 16;  // floats

std::shared_ptr<const Plan> any_plan() {
  testing::PlanBuilder b(0, 2, 1);
  b.add(StepKind::send, 1, 0, {}, Space::in);
  b.add(StepKind::recv, 1, 0);
  return b.build();
}

// A work whose input and output begin at `data`, which is never touched.
WorkPtr work(uint64_t channel, uint32_t seq, uint64_t data, uint64_t floats) {
  Request request;
  request.plan = any_plan();
  request.channel = channel;
  request.seq = seq;
  for (Layout& space : request.spaces) space = {reinterpret_cast<std::byte*>(data), floats, {}};
  return std::make_shared<Work>(std::move(request));
}

// What the engine does with a work that is submitted. True if it has begun.
bool submit(Channels& channels, const WorkPtr& work, bool bulk = true) {
  const Channels::Overlap overlap = channels.overlap(*work);
  CHECK(overlap.elsewhere == nullptr);
  Channels::Channel& channel = channels.at(work->request.channel);
  WorkPtr begins = channels.enter(channel, work, overlap.any) ? work : channels.next(channel);
  if (!begins) return false;
  CHECK(begins == work);
  begins->begun.store(true);
  channels.began(channel, *work, bulk);
  return true;
}

// The work is done. Returns the one that begins because of that.
WorkPtr end(Channels& channels, const WorkPtr& work, bool bulk = true) {
  Channels::Channel& channel = channels.at(work->request.channel);
  channels.ended(channel, *work, bulk);
  WorkPtr next = channels.next(channel);
  if (next) next->begun.store(true);
  return next;
}

TEST(two_bulk_works_of_a_channel_at_once) {
  Channels channels;
  std::vector<WorkPtr> works;
  for (uint32_t i = 0; i < 4; ++i) works.push_back(work(7, i, uint64_t{i + 1} << 32, kBulk));
  CHECK(submit(channels, works[0]));
  CHECK(submit(channels, works[1]));
  CHECK(!submit(channels, works[2]));
  CHECK(!submit(channels, works[3]));
  CHECK_EQ(channels.waiting(), size_t{2});
  CHECK(submit(channels, work(8, 0, uint64_t{9} << 32, kBulk)));  // another channel has its own two
  CHECK(end(channels, works[1]) == works[2]);
  CHECK_EQ(channels.waiting(), size_t{1});
}

TEST(a_more_urgent_work_begins_beside_others_and_before_them) {
  Channels channels;
  std::vector<WorkPtr> works;
  for (uint32_t i = 0; i < 6; ++i) {
    works.push_back(work(7, i, uint64_t{i + 1} << 32, kBulk));
    works.back()->request.urgency = i < 4 ? 1 : 2;
  }
  works[3]->request.urgency = 0;
  CHECK(submit(channels, works[0]));
  CHECK(submit(channels, works[1]));
  CHECK(!submit(channels, works[3]));
  CHECK(!submit(channels, works[2]));
  CHECK(submit(channels, works[4]));
  CHECK(submit(channels, works[5]));
  CHECK(end(channels, works[4]) == nullptr);   // two as urgent, and two older ones, run still
  CHECK(end(channels, works[0]) == works[3]);  // the oldest waits for older ones alone
  channels.began(channels.at(7), *works[3], true);
  CHECK(end(channels, works[1]) == works[2]);
  CHECK_EQ(channels.waiting(), size_t{0});
}

TEST(a_work_that_ends_after_all_lines_were_emptied) {
  Channels channels;
  const WorkPtr works[] = {work(7, 0, 1 << 30, kBulk), work(7, 1, 2u << 30, kBulk)};
  for (const WorkPtr& each : works) CHECK(submit(channels, each));
  channels.clear();
  CHECK(end(channels, works[1]) == nullptr);
}

TEST(a_work_that_needs_memory_of_an_earlier_one_is_not_urgent) {
  Channels channels;
  const WorkPtr first = work(7, 0, 1 << 30, kBulk), again = work(7, 1, 1 << 30, kBulk);
  again->request.urgency = 5;
  CHECK(submit(channels, first));
  CHECK(!submit(channels, again));
  CHECK_EQ(again->request.urgency, 0);
  CHECK(end(channels, first) == again);
}

TEST(a_ragged_work_passes_bulk_however_much_room_it_has) {
  Channels channels;
  for (uint32_t i = 0; i < 3; ++i) submit(channels, work(7, i, uint64_t{i + 1} << 32, kBulk));
  const WorkPtr ragged = work(7, 3, uint64_t{9} << 32, 32 << 10);
  ragged->request.ragged = true;
  CHECK(submit(channels, ragged, false));
}

TEST(a_small_work_passes_bulk_but_not_its_own_memory) {
  Channels channels;
  const WorkPtr bulk[] = {work(7, 0, 1 << 30, kBulk), work(7, 1, 2u << 30, kBulk)};
  for (const WorkPtr& each : bulk) CHECK(submit(channels, each));
  CHECK(submit(channels, work(7, 2, 3u << 30, kSmall), false));
  const WorkPtr same = work(7, 3, (1 << 30) + 64, kSmall);
  CHECK(!submit(channels, same, false));
  CHECK(end(channels, bulk[1]) == nullptr);
  CHECK(end(channels, bulk[0]) == same);
}

TEST(overlap_with_another_channel_is_told) {
  Channels channels;
  const WorkPtr first = work(7, 0, 1 << 30, kBulk);
  CHECK(submit(channels, first));
  const Channels::Overlap found = channels.overlap(*work(8, 0, 1 << 30, kBulk));
  CHECK(found.any);
  CHECK(found.elsewhere == first.get());
  CHECK(!channels.overlap(*work(8, 0, 2u << 30, kBulk)).any);
}

TEST(works_that_are_done_are_found_by_number) {
  Channels channels;
  const WorkPtr works[] = {work(7, 0, 1 << 30, kBulk), work(7, 1, 2u << 30, kBulk)};
  for (const WorkPtr& each : works) CHECK(submit(channels, each));
  CHECK(channels.past(7, 0) == nullptr);
  CHECK(channels.latest(7) == nullptr);
  end(channels, works[1]);  // they may end in any order
  end(channels, works[0]);
  CHECK(channels.past(7, 0) != nullptr);
  CHECK_EQ(channels.past(7, 1)->seq, 1u);
  CHECK(channels.past(7, 2) == nullptr);
  CHECK_EQ(channels.latest(7)->seq, 1u);
}

TEST(a_work_in_line_may_run_out_of_its_own_time) {
  Channels channels;
  for (uint32_t i = 0; i < 2; ++i) CHECK(submit(channels, work(7, i, uint64_t{i + 1} << 32, kBulk)));
  const WorkPtr timed = work(7, 2, uint64_t{3} << 32, kBulk);
  timed->request.timed = true;
  timed->request.timeout_seconds = 10;
  timed->submitted = now();
  CHECK(!submit(channels, timed));
  CHECK(channels.overdue(timed->submitted + seconds(9)) == nullptr);
  CHECK(channels.overdue(timed->submitted + seconds(10)) == timed.get());
}

TEST(a_work_that_could_not_begin_is_the_first_in_line) {
  Channels channels;
  const WorkPtr works[] = {work(7, 0, 1 << 30, kBulk), work(7, 1, 2u << 30, kBulk)};
  Channels::Channel& channel = channels.at(7);
  for (const WorkPtr& each : works) CHECK(!channels.enter(channel, each, false));
  WorkPtr first = channels.next(channel);
  channels.put_back(channel, first);
  CHECK(channels.clear() == std::vector<WorkPtr>({works[0], works[1]}));
  CHECK_EQ(channels.waiting(), size_t{0});
}

TEST(many_works_on_the_same_memory_begin_one_after_the_other) {
  Channels channels;
  constexpr uint32_t kMany = 50000;  // minutes, if each work looked at all that wait
  std::vector<WorkPtr> works;
  for (uint32_t seq = 0; seq < kMany; ++seq) works.push_back(work(7, seq, 1 << 30, seq % 2 ? kBulk : kSmall));
  CHECK(submit(channels, works[0]));
  for (uint32_t seq = 1; seq < kMany; ++seq) CHECK(!submit(channels, works[seq]));
  for (uint32_t seq = 1; seq < kMany; ++seq) CHECK(end(channels, works[seq - 1]) == works[seq]);
  CHECK_EQ(channels.waiting(), size_t{0});
}

TEST(a_work_of_another_channel_is_found_behind_those_of_the_own_one) {
  Channels channels;
  const WorkPtr own = work(7, 0, 1 << 30, kBulk), waits = work(7, 1, 1 << 30, kBulk);
  const WorkPtr other = work(8, 0, uint64_t{1} << 40, kBulk);
  CHECK(submit(channels, own));
  CHECK(!submit(channels, waits));
  CHECK(submit(channels, other));
  const WorkPtr both = work(7, 2, 1 << 30, kBulk);
  both->request.spaces[1].data = other->request.spaces[1].data;
  CHECK(channels.overlap(*both).elsewhere == other.get());
  end(channels, other);
  CHECK(channels.overlap(*both).elsewhere == nullptr);
  CHECK(channels.overlap(*both).any);
}

TEST(a_work_that_is_put_back_needs_its_memory_again) {
  Channels channels;
  const WorkPtr first = work(7, 0, 1 << 30, kBulk), second = work(7, 1, 1 << 30, kBulk);
  CHECK(submit(channels, first));
  channels.put_back(channels.at(7), first);
  CHECK(channels.overlap(*second).any);
  CHECK(channels.next(channels.at(7)) == first);
  CHECK(!submit(channels, second));
  CHECK(end(channels, first) == second);
}

TEST(a_channel_with_a_small_work_under_way_is_not_forgotten) {
  Channels channels;
  const WorkPtr stays = work(0, 0, uint64_t{1} << 40, kSmall);
  CHECK(submit(channels, stays, false));
  for (uint64_t id = 1; id < 5000; ++id) {
    const WorkPtr one = work(id, 0, 1 << 30, kSmall);
    CHECK(submit(channels, one, false));
    end(channels, one, false);
    channels.forget_idle();
  }
  const WorkPtr elsewhere = work(1, 1, uint64_t{1} << 40, kSmall);
  CHECK(channels.overlap(*elsewhere).elsewhere == stays.get());
  end(channels, stays, false);
  CHECK(channels.past(0, 0) != nullptr);
}

TEST(channels_without_works_are_forgotten_if_they_are_very_many) {
  Channels channels;
  constexpr uint64_t kMany = 5000;
  for (uint64_t id = 0; id < kMany; ++id) {
    const WorkPtr one = work(id, 0, 1 << 30, kSmall);
    CHECK(submit(channels, one, false));
    end(channels, one, false);
    channels.forget_idle();
  }
  uint64_t known = 0;
  for (uint64_t id = 0; id < kMany; ++id) known += channels.past(id, 0) != nullptr ? 1 : 0;
  CHECK(known >= 1000);
  CHECK(known < kMany / 2);
}

}  // namespace
