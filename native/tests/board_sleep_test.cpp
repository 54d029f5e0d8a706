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
  void want(const std::shared_ptr<Board>&, const Group&) override {}
  WorkPtr work_of(const BoardCall& call, uint64_t) override { return std::make_shared<Work>(call.request); }
  void enter(const WorkPtr&, uint64_t) override {}
  void submit(const WorkPtr& work) override {
    if (submitted++ == 0 && before) before();
    work->complete(Error{Code::aborted, 1, {}, "rank 1 has failed"});
  }
  void complete(Work& work) override { work.complete(Error{}); }
  void held_back() override {}
  void wake(const Group&, const std::vector<BoardRows::Wake>&, bool) override {}
  WorkPtr wake_from(int, const Work&, uint64_t, std::byte*) override { return std::make_shared<Work>(Request{}); }
  bool traces() const override { return false; }
  void trace(const BoardCall&, Time) override {}

  int submitted = 0;
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
    CHECK(!board->look());
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
