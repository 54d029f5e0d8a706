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

// An all-reduce of a few values by all ranks of a group.
WorkPtr reduce(MemoryRank& rank, int number, std::vector<int> ranks, std::array<float, 2>& value, uint64_t id = 12) {
  auto group = std::make_shared<Group>();
  group->id = id;
  group->ranks = std::move(ranks);
  group->rank = number;
  Request request;
  request.plan = ring_all_reduce(number, static_cast<int>(group->ranks.size()));
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
}

}  // namespace

TEST(many_operations_that_wait_are_reported_by_a_few_lines) {
  constexpr size_t kWorks = 1000;
  MemoryHub hub(2);
  EngineOptions options;
  options.stalls.warn_seconds = 0.05;
  MemoryRank waits(hub, 0, 2, {}, options), late(hub, 1, 2);
  std::deque<std::array<float, 2>> data;
  std::vector<WorkPtr> works;
  {
    StandardError said;
    const Time begun = now();
    // Others come to wait too long all the time; so many that wait are counted for all that.
    const auto counted = [&] { return said.have(" more operations have waited for "); };
    while (works.size() < kWorks || (!counted() && now() < begun + seconds(60))) {
      works.push_back(reduce(waits, 0, {0, 1}, data.emplace_back()));
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
  for (auto& value : others) theirs.push_back(reduce(late, 1, {0, 1}, value));
  for (size_t i = 0; i < works.size(); ++i) {
    CHECK(waits.wait(*works[i], now() + seconds(60)));
    CHECK(late.wait(*theirs[i], now() + seconds(60)));
    CHECK(!works[i]->error() && !theirs[i]->error());
  }
  std::thread other([&] { late.leave(); });
  waits.leave();
  other.join();
}

TEST(what_one_rank_holds_up_is_one_warning_whatever_the_group) {
  MemoryHub hub(2);
  EngineOptions options;
  options.heartbeat_seconds = 1e8;
  options.stalls.warn_seconds = 1000;
  options.stalls.warn_again_seconds = 1e8;
  MemoryRank waits(hub, 0, 2, {}, options), late(hub, 1, 2);
  std::array<std::array<float, 2>, 4> values{};
  std::array<WorkPtr, 2> works, theirs;
  const auto begin = [&] {
    for (const size_t i : {0, 1}) works[i] = reduce(waits, 0, {0, 1}, values[i], 12 + i);
  };
  const auto end = [&] {
    for (const size_t i : {0, 1}) theirs[i] = reduce(late, 1, {0, 1}, values[2 + i], 12 + i);
    for (const size_t i : {0, 1}) {
      CHECK(waits.wait(*works[i], now() + seconds(60)) && !works[i]->error());
      CHECK(late.wait(*theirs[i], now() + seconds(60)) && !theirs[i]->error());
    }
  };
  begin();
  end();  // there are links
  StandardError said;
  Time then = now();
  const auto pass = [&](int spans) {
    for (const Time last = then + seconds(1000 * spans); then < last; then += seconds(10)) waits.tick_at(then);
  };
  const auto named = [&] { return times(said.text(), " s for rank 1"); };
  // Two that go on before the rest is counted, and then two that wait longer.
  for (const size_t round : {1, 2}) {
    begin();
    const std::string number = round == 1 ? "#1 has" : "#2 has";
    const Time limit = now() + seconds(60);
    while (times(waits.report(), number) < 2 && now() < limit) std::this_thread::yield();
    for (const Time last = then + seconds(10000); then < last && named() < round; then += seconds(10))
      waits.tick_at(then);
    CHECK(named() == round);
    if (round == 2) pass(4);
    CHECK(named() == round);
    CHECK(times(said.text(), " more operation has waited ") == round - 1);
    end();
    pass(4);
    CHECK(times(said.text(), " more operation has waited ") == round - 1);
  }
  std::thread other([&] { late.leave(); });
  waits.leave();
  other.join();
}

TEST(an_answer_that_is_passed_on_keeps_its_age) {
  MemoryHub hub(3);
  MemoryRank asks(hub, 0, 3), late(hub, 1, 3), passes_on(hub, 2, 3);
  std::array<std::array<float, 2>, 3> values{};
  std::vector<WorkPtr> works{reduce(asks, 0, {0, 1, 2}, values[0]), reduce(passes_on, 2, {0, 1, 2}, values[2])};
  const auto said_since = [&] {  // seconds, as rank 0 reports it; -1: it has not heard of it
    const std::string text = asks.report();
    const std::string before = "was busy (it reported this ";
    const size_t at = text.find(before);
    return at == std::string::npos ? -1.0 : std::strtod(text.c_str() + at + before.size(), nullptr);
  };
  const auto pass_on = [&](uint16_t tenths) {
    passes_on.as_driver([&](Engine& engine) {
      WorkHeader frame;
      frame.type = MessageType::status;
      frame.channel = 12;
      frame.chunk = 1;  // it is about that rank
      frame.piece = tenths;
      const std::string_view text = "was busy";
      frame.length = static_cast<uint32_t>(text.size());
      engine.fabric().send(0, frame, std::as_bytes(std::span(text)));
    });
  };
  const Time limit = now() + seconds(60);
  while (said_since() < 0 && now() < limit) {  // rank 0 may not have begun it
    pass_on(3000);
    std::this_thread::yield();
  }
  CHECK(said_since() >= 299);
  works.push_back(reduce(late, 1, {0, 1, 2}, values[1]));
  CHECK(asks.wait(*works[0], now() + seconds(60)));
  CHECK(passes_on.wait(*works[1], now() + seconds(60)));
  CHECK(late.wait(*works[2], now() + seconds(60)));
  std::thread first([&] { late.leave(); }), second([&] { passes_on.leave(); });
  asks.leave();
  first.join();
  second.join();
}

}  // namespace slipstream::testing
