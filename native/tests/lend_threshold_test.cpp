// From which size on lending is cheaper: machines whose costs are known, and what is found out about them.
#include "transport/tcp/lend_threshold.h"

#include <functional>
#include <initializer_list>
#include <random>

#include "tests/check.h"

namespace {

using namespace slipstream;

// Seconds of a call with `bytes`. One in three is interrupted for long.
struct Machine {
  double call;        // each
  double copy;        // a byte
  double pin;         // a page
  double completion;  // each
  std::minstd_rand chance{1};

  double copied(size_t bytes) { return interrupted(call + copy * static_cast<double>(bytes)); }
  double lent(size_t bytes) {
    return interrupted(2 * call + completion + pin * static_cast<double>((bytes + 4095) / 4096));
  }
  double interrupted(double seconds) { return chance() % 3 == 0 ? seconds * (2 + chance() % 50) : seconds; }
};

// Pieces of these sizes in turn. How many of them were lent.
int feed(LendThreshold& threshold, Machine& machine, std::initializer_list<size_t> sizes, int rounds) {
  int lent = 0;
  for (int i = 0; i < rounds && !threshold.never(); ++i) {
    for (const size_t bytes : sizes) {
      const bool lends = threshold.lends(bytes);
      lent += lends ? 1 : 0;
      if (lends)
        threshold.lent(bytes, machine.lent(bytes) / static_cast<double>(bytes));
      else
        threshold.copied(bytes, machine.copied(bytes) / static_cast<double>(bytes));
    }
  }
  return lent;
}

const std::initializer_list<size_t> kAll = {8 << 10, 17 << 10, 40 << 10, 64 << 10, 200 << 10, 500 << 10, 900 << 10};

// Copying 10 GB/s, pinning 16 pages a microsecond.
Machine usual(double completion) { return {1e-6, 1e-10, 6e-8, completion}; }

}  // namespace

TEST(it_begins_where_lending_surely_pays) {
  LendThreshold threshold;
  CHECK_EQ(threshold.bytes(), LendThreshold::kFirst);
  CHECK(threshold.lends(LendThreshold::kFirst));
  CHECK(!threshold.lends(LendThreshold::kFirst - 1));
  CHECK(!threshold.never());
}

TEST(it_finds_where_lending_begins_to_pay) {
  // (call + completion) / (copy - pin / 4096) bytes: 35, 176 and 670 KiB; classes are powers of two.
  for (const auto& [completion, wanted] : {std::pair<double, size_t>{2e-6, 64 << 10}, {14e-6, 256 << 10}}) {
    LendThreshold threshold;
    Machine machine = usual(completion);
    feed(threshold, machine, kAll, 1500);
    CHECK(threshold.bytes() == wanted || threshold.bytes() == wanted / 2);
    CHECK(!threshold.never());
  }
}

TEST(what_is_cheap_to_lend_is_lent_however_small) {
  LendThreshold threshold;
  Machine machine{1e-7, 1e-10, 1e-8, 1e-7};
  feed(threshold, machine, kAll, 1500);
  CHECK_EQ(threshold.bytes(), LendThreshold::kLeast);
  CHECK(!threshold.lends(LendThreshold::kLeast - 1));
}

TEST(it_gives_up_where_lending_never_pays) {
  LendThreshold threshold;
  Machine machine = usual(1e-3);
  const int lent = feed(threshold, machine, kAll, 100'000);
  CHECK(threshold.never());
  CHECK(threshold.bytes() > (900 << 10));
  CHECK(lent < 600);
  threshold.forget();
  CHECK(!threshold.never());
  CHECK_EQ(threshold.bytes(), LendThreshold::kFirst);
}

TEST(a_size_that_is_rare_is_waited_for) {
  LendThreshold threshold;
  Machine machine = usual(14e-6);
  for (int i = 0; i < 5; ++i) feed(threshold, machine, {900 << 10}, 1);
  feed(threshold, machine, {20 << 10, 40 << 10}, 5000);  // in vain
  CHECK(!threshold.never());
  CHECK(threshold.bytes() > (40 << 10));
  CHECK(threshold.bytes() <= (512 << 10));
  feed(threshold, machine, {900 << 10}, 300);
  CHECK(!threshold.never());
  CHECK(threshold.bytes() <= (512 << 10));
}

TEST(it_changes_with_the_machine) {
  LendThreshold threshold;
  Machine cheap = usual(1e-6);
  Machine dear = usual(14e-6);
  feed(threshold, cheap, kAll, 1500);
  const size_t before = threshold.bytes();
  feed(threshold, dear, kAll, 3000);
  CHECK(threshold.bytes() > before);
  feed(threshold, cheap, kAll, 3000);
  CHECK_EQ(threshold.bytes(), before);
}

TEST(it_tries_the_other_way_rarely) {
  LendThreshold threshold;
  Machine machine = usual(2e-6);
  feed(threshold, machine, kAll, 1500);
  const int lent = feed(threshold, machine, {16 << 10}, 6400);
  CHECK_EQ(lent, 100);
  CHECK_EQ(feed(threshold, machine, {900 << 10}, 6400), 6300);
}

TEST(a_size_that_is_given_is_kept) {
  LendThreshold threshold;
  threshold.fix(5000);
  Machine machine = usual(1e-3);
  CHECK_EQ(feed(threshold, machine, kAll, 1000), 7000);
  CHECK_EQ(threshold.bytes(), 5000u);
  CHECK(!threshold.measures());
  CHECK(!threshold.never());
  CHECK(!threshold.lends(4999));
}
