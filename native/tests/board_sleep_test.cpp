// A call that goes to sleep on a board, with a host that fails it at that moment.
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "boards/board.h"
#include "boards/sleep.h"
#include "tests/check.h"

using namespace slipstream;

namespace {

// A session that ends while a call goes to sleep: whatever is submitted fails at once, in the thread of the caller.
class EndedHost final : public BoardHost {
 public:
  bool idle() const override { return true; }
  bool ended() const override { return false; }  // as the call looked
  Clock::duration patience() const override { return {}; }
  Clock::duration held() const override { return {}; }
  void want(const std::shared_ptr<Board>&, const Group&) override {}
  WorkPtr work_of(const BoardCall& call, uint64_t) override {
    if (no_memory) throw std::bad_alloc();
    return std::make_shared<Work>(call.request);
  }
  void enter(const WorkPtr&, uint64_t) override {}
  void submit(const WorkPtr& work) override {
    if (submitted++ == 0 && before) before();
    work->complete(Error{Code::aborted, 1, {}, "rank 1 has failed"});
  }
  void broke() override { ++broken; }
  void complete(Work& work) override { work.complete(Error{}); }
  void held_back() override {}
  void wake(const Group&, const std::vector<BoardRows::Wake>&, bool) override {}
  WorkPtr wake_from(int, const Work&, uint64_t, std::byte*) override { return std::make_shared<Work>(Request{}); }
  ShortMessages::State relay(const BoardCall&, uint64_t, bool, std::vector<int>&) override {
    return ShortMessages::State::needs_work;
  }
  bool traces() const override { return false; }
  void trace(const BoardCall&, Time) override {}

  int submitted = 0;
  int broken = 0;
  bool no_memory = false;
  std::function<void()> before;  // what happens before the first of them
};

// Three ranks, of which the first one calls, and what memory they share.
struct Scene {
  explicit Scene(EndedHost& host) {
    group->ranks = {0, 1, 2};
    request.group = group;
    form.kind = BoardForm::Kind::barrier;
    board = std::make_shared<Board>(host, *group, 1);
    lines.resize(board->bytes() / 64 + 1);
    const std::shared_ptr<std::byte> shared(lines.data()->bytes.data(), [](std::byte*) {});
    CHECK(board->take(shared));
    for (const int rank : {1, 2}) {
      others.emplace_back(shared.get(), rank, 3);
      others.back().join(1);
    }
  }
  BoardCall call() const { return {request, form, nullptr, nullptr, 0, name, 0}; }
  // The call, which finds nobody and goes to sleep.
  WorkPtr sleep() {
    const uint64_t number = board->begin(call());
    CHECK_EQ(number, 1u);
    CHECK(!board->look(call()));
    return board->end(call(), number);
  }

  struct alignas(64) Line {
    std::array<std::byte, 64> bytes{};
  };
  const std::shared_ptr<Group> group = std::make_shared<Group>();
  const std::string name;
  Request request;
  BoardForm form;
  std::vector<Line> lines;
  std::shared_ptr<Board> board;
  std::vector<BoardRows> others;
};

}  // namespace

TEST(a_session_that_fails_as_a_call_goes_to_sleep_ends_the_call) {
  EndedHost host;
  Scene scene(host);
  const WorkPtr work = scene.sleep();
  CHECK(work && work->done());
  CHECK(work && work->error().code == Code::aborted);
  CHECK_EQ(host.submitted, 3);  // a receive from each of the others, and the work
}

TEST(a_rank_that_is_gone_without_its_message_has_posted_before) {
  EndedHost host;
  Scene scene(host);
  host.before = [&] {
    for (BoardRows& other : scene.others) other.post(1, scene.call().hash());
  };
  const WorkPtr work = scene.sleep();
  CHECK(work && work->done());
  CHECK(work && !work->error());
  CHECK_EQ(host.submitted, 2);
}

TEST(a_call_for_which_there_is_no_memory_ends_the_session_and_holds_nothing_back) {
  EndedHost host;
  Scene scene(host);
  host.no_memory = true;
  const uint64_t number = scene.board->begin(scene.call());
  Request later = scene.request;
  later.seq = static_cast<uint32_t>(number);
  const WorkPtr held = std::make_shared<Work>(std::move(later));
  CHECK(scene.board->hold_back(held));
  bool thrown = false;
  try {
    (void)scene.board->end(scene.call(), number);
  } catch (const std::bad_alloc&) {
    thrown = true;
  }
  CHECK(thrown);
  CHECK_EQ(host.broken, 1);
  CHECK(held->done());
  CHECK(!scene.board->hold_back(held));
}

// ---- whether the board is worth it

namespace {

// Operations from 1 on of which each misses `missing` ranks: how many of `count` are tried.
int tried(BoardWorth& worth, int missing, uint64_t count) {
  int tries = 0;
  for (uint64_t number = 1; number <= count; ++number) {
    if (!worth.try_now(number)) continue;
    ++tries;
    missing == 0 ? worth.done(number) : worth.slept(number, missing);
  }
  return tries;
}

}  // namespace

TEST(calls_that_sleep_go_by_messages_if_those_are_fewer) {
  for (const int size : {2, 3, 4, 8, 16, 64}) {
    BoardWorth in_step(size), one_late(size);
    CHECK_EQ(tried(in_step, 0, 10'000), 10'000);
    CHECK_EQ(tried(one_late, 1, 10'000), 10'000);  // one message each, by whichever way
  }
  for (const int size : {4, 8, 16, 64}) {
    BoardWorth all_late(size);
    CHECK(tried(all_late, size - 1, 10'000) < 2000);
  }
}

TEST(a_rank_that_loses_its_core_again_and_again_goes_by_messages) {
  for (const int size : {2, 4, 16}) {
    BoardWorth once(size), twice(size), rarely(size);
    once.lost_its_core(1, std::chrono::seconds(1));
    once.done(1);
    CHECK(once.try_now(2));
    for (const uint64_t number : {1, 2}) {
      twice.lost_its_core(number, std::chrono::seconds(1));
      twice.done(number);
    }
    CHECK(!twice.try_now(3));
    for (uint64_t number = 1; number < 10'000; ++number) {
      if (number % 300 == 0) rarely.lost_its_core(number, std::chrono::milliseconds(2));
      rarely.done(number);
      CHECK(rarely.try_now(number + 1));
    }
  }
}

TEST(ranks_that_go_by_messages_try_again_together) {
  BoardWorth one(8), other(8);
  uint64_t number = 1;
  for (; one.try_now(number); ++number) one.slept(number, 7);
  for (number += 5; other.try_now(number); ++number) other.went_by_messages(number);
  for (; !one.try_now(number); ++number) CHECK(!other.try_now(number));
  CHECK(other.try_now(number));
}

TEST(ranks_that_are_in_step_again_forget_how_long_they_went_by_messages) {
  BoardWorth worth(8);
  uint64_t number = 1;
  for (; number < 100'000; ++number)
    if (worth.try_now(number)) worth.slept(number, 7);
  for (; number < 200'000; ++number)
    if (worth.try_now(number)) worth.done(number);
  for (; worth.try_now(number); ++number) worth.slept(number, 7);
  const uint64_t from = number;
  while (!worth.try_now(number)) ++number;
  CHECK(number - from <= 64);
}
