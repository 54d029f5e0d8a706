// What operations cost: counted once, by collective and size, with the time in which any of them is under way.
#include "engine/counters.h"

#include <memory>
#include <thread>
#include <vector>

#include "engine/work.h"
#include "tests/check.h"

namespace slipstream::testing {

namespace {

Request request_of(const char* operation, uint64_t elements, int ranks = 4) {
  std::vector<int> members;
  for (int rank = 0; rank < ranks; ++rank) members.push_back(rank);
  Request request;
  request.group = group_of(7, members, 0, ranks);
  request.signature.operation = operation;
  for (Layout& space : request.spaces) space.count = elements;
  request.collective = Counters::collective_of(request);
  return request;
}

WorkPtr begun(Counters& counters, const char* operation, uint64_t elements) {
  auto work = std::make_shared<Work>(request_of(operation, elements));
  counters.begin(*work);
  return work;
}

const Counters::Cell* find(const std::vector<Counters::Cell>& cells, CollectiveKind collective, uint64_t largest) {
  for (const auto& cell : cells)
    if (cell.collective == collective && cell.largest == largest) return &cell;
  return nullptr;
}

}  // namespace

TEST(operations_have_names) {
  CHECK(request_of("all_reduce/ring", 1).collective == CollectiveKind::all_reduce);
  CHECK(request_of("all_gather[shape=2x3]/ring", 1).collective == CollectiveKind::all_gather);
  CHECK(request_of("all_gather_v2", 1).collective == CollectiveKind::other);
  Request send = request_of("send_recv", 1);
  send.signature.side = Side::sender;
  CHECK(Counters::collective_of(send) == CollectiveKind::send);
}

TEST(each_is_counted_once_by_its_size) {
  Counters counters(4);
  for (const uint64_t elements : {1024, 1024, 1025, 300'000}) {
    const WorkPtr work = begun(counters, "all_reduce/ring", elements);  // f32
    work->complete(Error{});
    work->complete(Error{});
  }
  const auto cells = counters.cells();
  CHECK_EQ(cells.size(), 3u);
  const Counters::Cell* small = find(cells, CollectiveKind::all_reduce, 4 << 10);
  CHECK(small != nullptr);
  CHECK_EQ(small->count, 2u);
  CHECK_EQ(small->bytes, 2u * 4096);
  CHECK_EQ(small->bus_bytes, 2u * 6144);  // 2 * 3/4 of them
  CHECK_EQ(find(cells, CollectiveKind::all_reduce, 64 << 10)->bytes, 4100u);
  CHECK_EQ(find(cells, CollectiveKind::all_reduce, 16 << 20)->count, 1u);
}

// Here and below time passes, which is what is counted: nobody waits for anything.
TEST(what_fails_is_not_counted_but_over) {
  Counters counters(4);
  begun(counters, "barrier", 1)->complete(Error{Code::aborted, -1, {}, "on purpose"});
  CHECK(counters.cells().empty());
  const uint64_t busy = counters.busy();
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  CHECK_EQ(counters.busy(), busy);
}

TEST(time_of_several_at_once_counts_once) {
  Counters counters(4);
  const Time begin = now();
  const WorkPtr first = begun(counters, "all_reduce", 1);
  const WorkPtr second = begun(counters, "all_reduce", 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CHECK(counters.busy() >= 5'000'000u);
  first->complete(Error{});
  second->complete(Error{});
  const auto all = static_cast<uint64_t>(std::chrono::nanoseconds(now() - begin).count());
  CHECK(counters.busy() <= all);
  CHECK(counters.busy() >= 5'000'000u);
  CHECK(counters.cells().front().nanoseconds >= 10'000'000u);
}

TEST(quick_calls_are_counted_beside_works) {
  Counters counters(2);
  const Request request = request_of("all_reduce", 0, 2);
  begun(counters, "all_reduce", 4)->complete(Error{});
  int timed = 0;
  for (int i = 0; i < Counters::kSample; ++i) {
    timed += counters.times_next() ? 1 : 0;
    counters.count_quick(request, 4, Clock::duration{});
  }
  CHECK_EQ(timed, 1);
  CHECK_EQ(counters.cells().front().count, 1u + Counters::kSample);
  CHECK_EQ(counters.cells().front().bytes, 16u * (1 + Counters::kSample));
}

TEST(waits_of_the_library_are_not_the_programs) {
  Counters counters(2);
  counters.add_wait(std::chrono::microseconds(3));
  std::thread([&] {
    Counters::in_background() = true;
    counters.add_wait(std::chrono::microseconds(5));
  }).join();
  counters.add_wait(std::chrono::microseconds(-1));
  CHECK_EQ(counters.waited(), 3000u);
  counters.add_late(1, std::chrono::microseconds(2));
  CHECK_EQ(counters.late()[1], 2000u);
  CHECK_EQ(counters.late()[0], 0u);
}

}  // namespace slipstream::testing
