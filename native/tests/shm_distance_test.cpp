// How a link finds out that its peer runs on a far core.
#include <chrono>

#include "tests/check.h"
#include "transport/shm/distance.h"

namespace {

using namespace slipstream;
using std::chrono::nanoseconds;

struct Ends {
  Distance::End sender{};
  Distance::End receiver{};
  Distance of_sender{&sender, &receiver};
  Distance of_receiver{&receiver, &sender};
};

TEST(a_slow_read_makes_the_peer_far_and_many_quick_ones_make_it_near) {
  Ends ends;
  CHECK(!ends.of_sender.far());
  ends.of_receiver.judge(nanoseconds(300));
  CHECK(ends.of_sender.far());
  CHECK(!ends.of_receiver.far());  // the other direction has its own
  ends.of_receiver.judge(nanoseconds(60));
  CHECK(ends.of_sender.far());
  for (int i = 0; i < 20; ++i) ends.of_receiver.judge(nanoseconds(60));
  CHECK(!ends.of_sender.far());
}

TEST(slow_reads_are_not_remembered_for_ever) {
  Ends ends;
  for (int i = 0; i < 1000; ++i) ends.of_receiver.judge(nanoseconds(300));
  for (int i = 0; i < 20; ++i) ends.of_receiver.judge(nanoseconds(60));
  CHECK(!ends.of_sender.far());
}

TEST(the_line_is_written_at_the_chunks_at_which_it_is_read) {
  Ends ends;
  uint64_t written = 0;
  for (int chunk = 0; chunk < 64; ++chunk) {
    const uint64_t before = ends.sender.beat.load();
    ends.of_sender.sending();
    ends.of_receiver.arrived();
    written += ends.sender.beat.load() != before ? 1 : 0;
  }
  CHECK_EQ(written, uint64_t{16});
}

TEST(a_link_that_is_not_up_is_near) { CHECK(!Distance().far()); }

}  // namespace
