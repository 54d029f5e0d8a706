// Numbers of sends that the peer reads in place.
#include "tests/check.h"
#include "transport/shm/tickets.h"

using namespace slipstream;

TEST(a_ticket_is_given_back_once) {
  Tickets tickets;
  const uint32_t first = tickets.take(7);
  const uint32_t second = tickets.take(8);
  CHECK(first != second);
  CHECK_EQ(tickets.give_back(second).value_or(0), 8u);
  CHECK(!tickets.give_back(second));
  CHECK_EQ(tickets.give_back(first).value_or(0), 7u);
}

TEST(tickets_are_used_again) {
  Tickets tickets;
  const uint32_t first = tickets.take(1);
  tickets.give_back(first);
  CHECK_EQ(tickets.take(2), first);
  CHECK_EQ(tickets.give_back(first).value_or(0), 2u);
}

TEST(a_ticket_that_was_never_taken_is_refused) {
  Tickets tickets;
  CHECK(!tickets.give_back(0));
  tickets.take(1);
  CHECK(!tickets.give_back(uint64_t{1} << 32));
}
