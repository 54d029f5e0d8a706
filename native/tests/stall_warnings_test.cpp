// What a rank says of works that do not move: of a few, however many there are.
#include <array>
#include <deque>

#include "tests/check.h"
#include "tests/plans.h"
#include "tests/ranks.h"
#include "tests/standard_error.h"

namespace slipstream::testing {

namespace {

size_t times(const std::string& text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST(many_operations_that_wait_are_reported_by_a_few_lines) {
  constexpr size_t kWorks = 1000;
  MemoryHub hub(2);
  EngineOptions options;
  options.stalls.warn_seconds = 0.05;
  MemoryRank waits(hub, 0, 2, {}, options), late(hub, 1, 2);
  std::deque<std::array<float, 2>> data;
  const auto reduce = [](MemoryRank& rank, int number, std::array<float, 2>& value) {
    auto group = std::make_shared<Group>();
    group->id = 12;
    group->ranks = {0, 1};
    group->rank = number;
    Request request;
    request.plan = ring_all_reduce(number, 2);
    request.group = std::move(group);
    request.signature.operation = "all_reduce/test";
    request.signature.reduces = true;
    request.signature.count = value.size();
    for (const size_t space : {0, 1})
      request.spaces[space] = {reinterpret_cast<std::byte*>(value.data()), value.size(), {}};
    request.spaces[2] = {nullptr, value.size(), {}};
    WorkPtr work = rank.prepare(std::move(request), 0);
    rank.submit(work);
    return work;
  };
  std::vector<WorkPtr> works;
  {
    StandardError said;
    const Time begun = now();
    // Others come to wait too long all the time; so many that wait are counted for all that.
    const auto counted = [&] { return said.have(" more operations have waited for "); };
    while (works.size() < kWorks || (!counted() && now() < begun + seconds(60))) {
      works.push_back(reduce(waits, 0, data.emplace_back()));
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(counted());
    CHECK(said.have("#0 has waited "));
    // All wait for one rank: one of them is named in a span of warn_seconds.
    const size_t named = times(said.text(), " has waited ");
    CHECK(static_cast<double>(named) <= Seconds(now() - begun).count() / options.stalls.warn_seconds + 1);
  }
  std::vector<std::array<float, 2>> others(works.size());
  std::vector<WorkPtr> theirs;
  for (auto& value : others) theirs.push_back(reduce(late, 1, value));
  for (size_t i = 0; i < works.size(); ++i) {
    CHECK(waits.wait(*works[i], now() + seconds(60)));
    CHECK(late.wait(*theirs[i], now() + seconds(60)));
    CHECK(!works[i]->error() && !theirs[i]->error());
  }
  std::thread other([&] { late.leave(); });
  waits.leave();
  other.join();
}

}  // namespace slipstream::testing
