// Frames of works that have not begun, and the other small containers of the engine.
#include "engine/early_frames.h"

#include <cstdint>

#include "engine/send_table.h"
#include "engine/submit_queue.h"
#include "tests/check.h"

namespace {

using namespace slipstream;
using Limit = EarlyFrames::Limit;

WorkHeader frame(uint64_t channel, uint32_t seq) {
  WorkHeader f;
  f.channel = channel;
  f.seq = seq;
  return f;
}

std::vector<std::byte> bytes(size_t n) { return std::vector<std::byte>(n, std::byte{1}); }

TEST(frames_come_back_in_order_of_arrival) {
  EarlyFrames early(SIZE_MAX);
  CHECK(early.keep(3, frame(7, 1), bytes(4)) == Limit::none);
  CHECK(early.keep(2, frame(7, 0), bytes(5)) == Limit::none);
  CHECK(early.keep(2, frame(7, 1), bytes(6)) == Limit::none);
  CHECK(early.first({7, 0})->order > early.first({7, 1})->order);
  CHECK(early.any_from(2, {7, 1}));
  CHECK(!early.any_from(3, {7, 0}));
  const auto taken = early.take({7, 1});
  CHECK_EQ(taken.size(), size_t{2});
  CHECK_EQ(taken[0].peer, 3);
  CHECK_EQ(taken[1].payload.size(), size_t{6});
  CHECK(early.first({7, 1}) == nullptr);
  CHECK(early.take({7, 1}).empty());
}

TEST(each_peer_has_its_own_limit_of_bytes) {
  const size_t one = sizeof(EarlyFrame) + 100;
  EarlyFrames early(2 * one);
  CHECK(early.keep(1, frame(7, 0), bytes(100)) == Limit::none);
  CHECK(early.keep(1, frame(7, 1), bytes(100)) == Limit::none);
  CHECK(early.keep(1, frame(7, 2), bytes(0)) == Limit::bytes);
  CHECK(early.keep(2, frame(7, 2), bytes(100)) == Limit::none);
  early.take({7, 0});
  CHECK(early.keep(1, frame(7, 2), bytes(100)) == Limit::none);
}

TEST(what_a_peer_has_lent_goes_with_its_link) {
  EarlyFrames early(3 * sizeof(EarlyFrame) + 4);
  const Payload lent{nullptr, 1 << 20, false, 1, 0x1000};
  CHECK(early.keep(1, frame(7, 0), {}, lent) == Limit::none);
  CHECK(early.keep(1, frame(7, 1), bytes(4)) == Limit::none);
  CHECK(early.keep(1, frame(7, 1), {}, lent) == Limit::none);
  CHECK(early.keep(1, frame(7, 2), {}, lent) == Limit::bytes);
  CHECK(early.keep(2, frame(7, 1), {}, lent) == Limit::none);
  CHECK(early.first({7, 0})->is_lent());
  early.drop_lent(1);
  CHECK(early.first({7, 0}) == nullptr);
  CHECK(early.keep(1, frame(7, 2), {}, lent) == Limit::none);  // as much as was dropped
  const auto taken = early.take({7, 1});
  CHECK_EQ(taken.size(), size_t{2});
  CHECK(!taken[0].is_lent());
  CHECK_EQ(taken[1].peer, 2);
  CHECK_EQ(taken[1].lent.remote, lent.remote);
}

TEST(a_cookie_is_used_again_once_its_send_is_removed) {
  SendTable sends;
  const uint64_t a = sends.add({nullptr, 1, 10});
  const uint64_t b = sends.add({nullptr, 2, 20});
  CHECK(a != b);
  CHECK_EQ(sends.remove(a).chunk, uint64_t{10});
  CHECK_EQ(sends.add({nullptr, 3, 30}), a);
  CHECK_EQ(sends.remove(b).step, 2u);
}

TEST(a_closed_queue_leaves_works_with_their_submitters) {
  SubmitQueue queue;
  WorkPtr first = std::make_shared<Work>(Request{}), second = std::make_shared<Work>(Request{});
  CHECK(!queue.push(first));
  CHECK(first == nullptr);
  CHECK_EQ(queue.size(), size_t{1});
  CHECK_EQ(queue.close(Error{Code::aborted, 1, {}, "why"}, Error{Code::aborted, 1, {}, "refused"}).size(), size_t{1});
  CHECK_EQ(queue.push(second).text, std::string("why"));
  CHECK_EQ(queue.push(second).text, std::string("refused"));
  CHECK(second != nullptr);
  second->deferred = true;  // its call came before the end
  CHECK_EQ(queue.push(second).text, std::string("why"));
  queue.close(Error{Code::timeout, 1, {}, "later"}, {});
  CHECK_EQ(queue.closed().text, std::string("why"));
  CHECK(queue.take().empty());
}

}  // namespace
