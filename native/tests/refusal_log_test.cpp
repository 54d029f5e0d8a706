// What is logged of refused connections, by a clock of the test's own.
#include "base/refusal_log.h"

#include <string>
#include <vector>

#include "tests/check.h"

namespace {

using namespace slipstream;

using Lines = std::vector<std::string>;
const Time kStart = Time(seconds(1000));

TEST(a_flood_is_counted_and_hides_nobody_else) {
  RefusalLog log;
  Lines lines;
  const auto take = [&](Time now) {
    for (std::string& line : log.take(now)) lines.push_back(std::move(line));
  };
  for (int port = 0; port < 100'000; ++port) {
    log.add("10.0.0.1:" + std::to_string(port % 60'000), "wrong mac", kStart);
    take(kStart);
  }
  log.add("10.0.0.1:1", "too slow", kStart + seconds(1));
  take(kStart + seconds(1));
  log.add("[fe80::1]:1", "wrong mac", kStart + seconds(1));
  take(kStart + seconds(1));
  CHECK(lines ==
        Lines({"refused a connection from 10.0.0.1:0: wrong mac", "refused a connection from 10.0.0.1:1: too slow",
               "refused a connection from [fe80::1]:1: wrong mac"}));
  CHECK(log.ends() == kStart + seconds(10));
  CHECK(log.take(log.ends()) == Lines({"refused 99999 more such connections within 10 s"}));
  CHECK(log.ends() == Time::max());
  log.add("10.0.0.1:7", "wrong mac", kStart + seconds(11));
  CHECK(log.take(kStart + seconds(11)) == Lines({"refused a connection from 10.0.0.1:7: wrong mac"}));
  CHECK(log.take(kStart + seconds(12), true).empty());
}

TEST(what_is_known_of_refusals_is_bounded) {
  RefusalLog log;
  for (size_t i = 0; i < 10'000; ++i) log.add("10.0.0.1:1", "reason " + std::string(i % 100, 'x'), kStart);
  CHECK_EQ(log.take(kStart).size(), RefusalLog::kMostReasons);
  for (int i = 0; i < 10'000; ++i) log.add("host-" + std::to_string(i) + ":1", "wrong mac", kStart);
  CHECK_EQ(log.take(kStart).size(), RefusalLog::kMostNamed - RefusalLog::kMostReasons);
  const auto more = std::to_string(20'000 - RefusalLog::kMostNamed);
  CHECK(log.take(kStart, true) == Lines({"refused " + more + " more such connections within 10 s"}));
}

TEST(reasons_that_differ_in_a_number_are_one_and_hide_no_other) {
  RefusalLog log;
  for (int rank = 0; rank < 64; ++rank) log.add("10.0.0.1:1", "claims to be rank " + std::to_string(rank), kStart);
  log.add("10.0.0.1:2", "wrong mac", kStart);
  CHECK(log.take(kStart, true) ==
        Lines({"refused a connection from 10.0.0.1:1: claims to be rank 0",
               "refused a connection from 10.0.0.1:2: wrong mac", "refused 63 more such connections within 10 s"}));
}

TEST(what_is_taken_back_is_not_counted_among_the_others_either) {
  RefusalLog log;
  for (int i = 0; i < 1000; ++i) log.add("host-" + std::to_string(i) + ":1", "broke off", kStart);
  log.add("10.0.0.1:1", "wrong mac", kStart);
  log.forget([](const std::string& why) { return why == "broke off"; });
  CHECK(log.take(kStart, true) == Lines({"refused 1 more such connections within 10 s"}));
}

TEST(what_is_taken_back_is_neither_logged_nor_counted) {
  RefusalLog log;
  for (int i = 0; i < 3; ++i) log.add("10.0.0.1:1", "broke off", kStart);
  log.add("10.0.0.1:1", "wrong mac", kStart);
  log.forget([](const std::string& why) { return why == "broke off"; });
  CHECK(log.take(kStart, true) == Lines({"refused a connection from 10.0.0.1:1: wrong mac"}));
}

}  // namespace
