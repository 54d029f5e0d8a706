// Who sends without asking may not fill the receiver's memory.
#include "engine/eager_credit.h"

#include "tests/check.h"

using namespace slipstream;

TEST(credit_is_spent_once) {
  EagerCredit credit;
  CHECK(credit.spend(EagerCredit::kBytes - 1));
  CHECK(!credit.spend(2));
  CHECK(credit.spend(1));
  CHECK(!credit.spend(1));
  credit.repaid(10);
  CHECK(!credit.spend(11));
  CHECK(credit.spend(10));
}

TEST(bulk_leaves_nearly_half_to_small_messages) {
  EagerCredit credit;
  constexpr uint64_t kChunk = (256 << 10) + 64;  // the engine's between hosts, and its frame
  CHECK(credit.spend_on_bulk(kChunk));
  CHECK(credit.spend_on_bulk(kChunk));
  CHECK(!credit.spend_on_bulk(kChunk));
  CHECK(credit.spend(EagerCredit::kBytes - 2 * kChunk));
  credit.repaid(kChunk);
  CHECK(!credit.spend_on_bulk(1));
  credit.repaid(kChunk);
  CHECK(credit.spend_on_bulk(1));
}

TEST(a_peer_that_repays_too_much_gives_no_more_than_all) {
  EagerCredit credit;
  CHECK(credit.spend(5));
  credit.repaid(UINT64_MAX);
  CHECK(credit.spend(EagerCredit::kBytes));
  CHECK(!credit.spend(1));
}

TEST(the_peer_is_told_of_everything_in_steps) {
  EagerCredit credit;
  uint64_t told = 0;
  int times = 0;
  for (uint64_t i = 0; i < 4 * EagerCredit::kStep / 64; ++i) {
    const uint32_t now = credit.consumed(64);
    CHECK(now == 0 || now >= EagerCredit::kStep);
    told += now;
    times += now != 0;
  }
  CHECK_EQ(told, 4 * EagerCredit::kStep);
  CHECK_EQ(times, 4);
}
