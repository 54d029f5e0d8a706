// What the ledger remembers of works, without an engine.
#include "engine/ledger.h"

#include <memory>
#include <vector>

#include "tests/check.h"

namespace {

using namespace slipstream;

WorkPtr enter(Ledger& ledger) {
  Request request;
  request.channel = 7;
  auto work = std::make_shared<Work>(std::move(request));
  ledger.enter(work);
  return work;
}

TEST(the_oldest_pending_work_is_found_behind_any_number_of_later_ones) {
  Ledger ledger;
  CHECK(!ledger.oldest());
  std::vector<WorkPtr> works;
  for (size_t i = 0; i < 5 * Ledger::kRemembered; ++i) works.push_back(enter(ledger));
  for (const WorkPtr& work : works) {
    const auto oldest = ledger.oldest();
    CHECK(oldest && oldest->work == work);
    work->complete({});
  }
  CHECK(!ledger.oldest());
}

TEST(numbers_go_on_with_0_after_the_largest) {
  Ledger ledger;
  CHECK(ledger.is_ahead(7, 0));
  Request request;
  request.channel = 7;
  ledger.enter(std::make_shared<Work>(Request(request)), 0x7FFFFFFF);
  ledger.enter(std::make_shared<Work>(std::move(request)), 0xFFFFFFFE);
  CHECK(ledger.next(7) == 0xFFFFFFFF);
  for (const uint32_t seq : {0xFFFFFFFFU, 0U, 100U}) CHECK(ledger.is_ahead(7, seq));
  for (const uint32_t seq : {0xFFFFFFFEU, 0xFFFFF000U}) CHECK(!ledger.is_ahead(7, seq));
}

TEST(a_work_that_never_ends_keeps_few_that_are_done) {
  Ledger ledger;
  const WorkPtr first = enter(ledger);
  std::vector<std::weak_ptr<Work>> known;
  std::vector<WorkPtr> pending;
  for (size_t i = 0; i < 100 * Ledger::kRemembered; ++i) {
    pending.push_back(enter(ledger));
    known.push_back(pending.back());
    if (pending.size() <= 2 * Ledger::kRemembered) continue;  // some leave the latest ones before they are done
    pending.front()->complete({});
    pending.erase(pending.begin());
  }
  size_t kept = 0;
  for (const auto& one : known) kept += one.expired() ? 0 : 1;
  CHECK(kept <= 8 * Ledger::kRemembered);
  CHECK(ledger.oldest()->work == first);
}

}  // namespace
