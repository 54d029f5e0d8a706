// Messages cut into segments, lost, repeated, put together again: the outbox and the inbox without a network.
#include <algorithm>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <set>

#include "tests/check.h"
#include "tests/tcp_rig.h"
#include "transport/tcp/inbox.h"
#include "transport/tcp/outbox.h"
#include "transport/tcp/pace.h"
#include "transport/tcp/promotion.h"
#include "transport/tcp/receive_buffers.h"
#include "transport/tcp/watermark.h"

namespace {

using namespace slipstream;
using namespace slipstream::rig;

constexpr uint32_t kMost = 1 << 20;

Frame bulk(uint32_t length) { return frame(FrameType::data, length, 7); }

}  // namespace

TEST(a_lane_takes_from_the_oldest_message) {
  Outbox outbox;
  const auto bytes = pattern(kMost, 1);
  CHECK(outbox.empty());
  CHECK(!outbox.pull(0, kMost, now()));
  outbox.push(bulk(100'000), bytes.data(), 1, 2);
  outbox.push(bulk(50'000), bytes.data(), 2, 2);
  CHECK_EQ(outbox.waiting(), 150'000u);
  const auto first = outbox.pull(0, 64 << 10, now());
  CHECK_EQ(first->header.message, 1u);
  CHECK_EQ(first->header.size, uint32_t{64 << 10});
  CHECK(first->data == bytes.data());
  const auto second = outbox.pull(1, 64 << 10, now());
  CHECK_EQ(second->header.offset, uint32_t{64 << 10});
  CHECK_EQ(second->header.size, 100'000u - (64 << 10));
  CHECK_EQ(outbox.pull(0, kMost, now())->header.message, 2u);
  CHECK(!outbox.has_work(0));
  CHECK(!outbox.empty());
  CHECK_EQ(*outbox.taken(2), 2u);
  CHECK_EQ(*outbox.taken(1), 1u);
  CHECK(outbox.empty());
}

TEST(what_is_urgent_overtakes_what_has_not_begun_to_leave) {
  Outbox outbox;
  const auto bytes = pattern(kMost, 1);
  const auto push = [&](uint64_t cookie, int urgency) { outbox.push(bulk(50'000), bytes.data(), cookie, 1, urgency); };
  push(10, 0);
  CHECK_EQ(outbox.pull(0, 20'000, now())->header.message, 1u);
  for (const auto& [cookie, urgency] : {std::pair{20, 0}, {30, 2}, {40, 1}, {50, 2}})
    push(static_cast<uint64_t>(cookie), urgency);
  CHECK_EQ(outbox.waiting(), 230'000u);
  CHECK_EQ(outbox.pull(0, kMost, now())->header.offset, 20'000u);  // the rest of what has begun
  for (uint64_t number = 2; number <= 5; ++number) {
    CHECK(!outbox.has_left(number));
    CHECK_EQ(outbox.pull(0, kMost, now())->header.message, number);  // in the order in which they leave
    CHECK(outbox.has_left(number));
  }
  CHECK_EQ(outbox.waiting(), 0u);
  for (uint64_t number = 1; const uint64_t cookie : {10, 30, 50, 40, 20}) CHECK_EQ(*outbox.taken(number++), cookie);
  CHECK(outbox.empty());
}

TEST(nothing_is_overtaken_for_ever) {
  Outbox outbox;
  const auto bytes = pattern(kMost, 1);
  const auto push = [&](uint64_t cookie, int urgency) { outbox.push(bulk(50'000), bytes.data(), cookie, 1, urgency); };
  for (const uint64_t cookie : {1001, 1002}) push(cookie, 0);
  push(1003, 1);
  std::vector<uint64_t> left;
  for (uint64_t number = 1; number <= 3 * (Outbox::kOvertakes + 1); ++number) {
    push(number, 2);  // more urgent ones all the time
    CHECK(outbox.pull(0, kMost, now()));
    const uint64_t cookie = *outbox.taken(number);
    if (cookie > 1000) left.push_back(cookie);
  }
  CHECK(left == (std::vector<uint64_t>{1001, 1002, 1003}));  // the oldest ones, each after kOvertakes others
}

TEST(no_segment_is_a_crumb) {
  Outbox outbox;
  const auto bytes = pattern(kMost, 1);
  outbox.push(bulk(70'000), bytes.data(), 1, 1);
  CHECK_EQ(outbox.pull(0, 60'000, now())->header.size, 70'000u);  // 10,000 more rather than a segment of them
  outbox.push(bulk(70'000), bytes.data(), 2, 1);
  CHECK_EQ(outbox.pull(0, 1, now())->header.size, Outbox::kLeastSegment);
}

TEST(what_is_left_of_a_message_is_taken_whole_or_not) {
  Outbox outbox;
  const auto bytes = pattern(kMost, 1);
  CHECK(!outbox.pull_rest(0, kMost, now()));
  for (const uint32_t size : {100'000u, 20'000u, 30'000u, 40'000u}) outbox.push(bulk(size), bytes.data(), size, 2);
  outbox.pull(0, 70'000, now());
  CHECK(!outbox.pull_rest(0, 29'999, now()));
  CHECK_EQ(outbox.waiting(), 120'000u);
  const auto rest = outbox.pull_rest(0, 30'000, now());
  CHECK_EQ(rest->header.message, 1u);
  CHECK_EQ(rest->header.offset, 70'000u);
  CHECK_EQ(rest->header.size, 30'000u);
  CHECK_EQ(outbox.pull_rest(0, 20'000, now())->header.message, 2u);
  outbox.lost(0);  // what is lost goes first
  CHECK(!outbox.pull_rest(1, kMost, now()));
  uint32_t again = 0;
  while (again < 120'000) again += outbox.pull(1, kMost, now())->header.size;
  CHECK_EQ(again, 120'000u);
  CHECK_EQ(outbox.pull_rest(1, kMost, now())->header.message, 3u);
  CHECK_EQ(outbox.waiting(), 40'000u);
  CHECK(outbox.taken(3).has_value());
  Outbox dealt(Dealing::round_robin);
  dealt.push(bulk(20'000), bytes.data(), 1, 1);
  CHECK(!dealt.pull_rest(0, kMost, now()));
}

TEST(word_of_what_was_not_sent_is_refused) {
  Outbox outbox;
  const auto bytes = pattern(kMost, 1);
  CHECK(!outbox.taken(0));
  CHECK(!outbox.taken(1));
  outbox.push(bulk(70'000), bytes.data(), 1, 1);
  CHECK(!outbox.taken(1));  // nothing of it has left
  CHECK(outbox.pull(0, kMost, now()).has_value());
  CHECK(outbox.taken(1).has_value());
  CHECK(!outbox.taken(1));
}

TEST(segments_tell_what_has_been_taken) {
  Outbox outbox;
  const auto bytes = pattern(kMost, 1);
  for (const uint64_t cookie : {1, 2}) outbox.push(bulk(70'000), bytes.data(), cookie, 1);
  CHECK_EQ(outbox.pull(0, kMost, now())->header.taken, 0u);
  outbox.acknowledge(5);
  CHECK_EQ(outbox.acknowledged(), 0u);
  CHECK_EQ(outbox.pull(0, 30'000, now())->header.taken, 5u);
  CHECK_EQ(outbox.acknowledged(), 5u);
  CHECK(outbox.has_left(1));
  CHECK(!outbox.has_left(2));  // only its beginning
  outbox.acknowledge(6);
  CHECK_EQ(outbox.pull(0, kMost, now())->header.taken, 6u);
  outbox.lost(0);
  outbox.forget_acknowledged();
  CHECK_EQ(outbox.acknowledged(), 0u);
  CHECK_EQ(outbox.pull(1, kMost, now())->header.taken, 6u);  // again, with today's news
  CHECK_EQ(outbox.acknowledged(), 6u);
  CHECK(outbox.has_left(2));
  CHECK(!outbox.has_left(0));
  CHECK(!outbox.has_left(3));
  CHECK_EQ(outbox.oldest_left(), 1u);
  CHECK_EQ(*outbox.taken(1), 1u);
  CHECK_EQ(outbox.oldest_left(), 2u);
  CHECK(outbox.has_left(1));
}

TEST(a_watermark_is_below_what_is_missing) {
  std::mt19937 random(3);
  std::vector<uint64_t> numbers(50);
  std::iota(numbers.begin(), numbers.end(), 1);
  for (int turn = 0; turn < 100; ++turn) {
    if (turn > 0) std::shuffle(numbers.begin(), numbers.end(), random);
    Watermark mark;
    std::set<uint64_t> added;
    for (const uint64_t number : numbers) {
      mark.add(number);
      added.insert(number);
      uint64_t missing = 1;
      while (added.contains(missing)) ++missing;
      CHECK_EQ(mark.below(), missing);
      for (const uint64_t other : numbers) CHECK_EQ(mark.has(other), added.contains(other));
    }
  }
}

TEST(what_a_lost_lane_had_goes_to_others_first) {
  Outbox outbox;
  const auto bytes = pattern(kMost, 1);
  outbox.push(bulk(300'000), bytes.data(), 1, 2);
  outbox.pull(0, 100'000, now());
  outbox.pull(1, 100'000, now());
  outbox.lost(0);
  std::set<uint32_t> again;
  for (int i = 0; i < 4; ++i) {
    const auto piece = outbox.pull(1, 100'000, now());
    CHECK_EQ(piece->header.size, 25'000u);
    again.insert(piece->header.offset);
  }
  CHECK((again == std::set<uint32_t>{0, 25'000, 50'000, 75'000}));
  CHECK_EQ(outbox.repeated(), 100'000u);
  outbox.lost(0);  // it has nothing any more
  CHECK_EQ(outbox.pull(1, 100'000, now())->header.offset, 200'000u);
  CHECK(!outbox.has_work(1));
}

TEST(a_late_segment_is_copied_once) {
  Outbox outbox;
  const auto bytes = pattern(kMost, 1);
  outbox.push(bulk(200'000), bytes.data(), 1, 2);
  outbox.pull(0, 100'000, now());
  outbox.pull(1, 100'000, now());
  const auto always = [](int, uint32_t, Time) { return true; };
  const auto never = [](int, uint32_t, Time) { return false; };
  CHECK(!outbox.pull_late(1, never));
  const auto copy = outbox.pull_late(1, always);
  CHECK_EQ(copy->header.offset, 0u);
  CHECK(!outbox.pull_late(1, always));
  CHECK_EQ(outbox.pull_late(0, always)->header.offset, 100'000u);
}

TEST(no_more_is_under_way_than_the_peer_can_keep) {
  Outbox outbox;
  const auto bytes = pattern(kMaxPayload, 1);
  const uint64_t most = ReceiveBuffers::kLimit / kMaxPayload;
  for (uint64_t i = 0; i < most + 2; ++i) outbox.push(bulk(kMaxPayload), bytes.data(), i, 1);
  for (uint64_t i = 0; i < most; ++i) CHECK(outbox.pull(0, kMaxPayload, now()).has_value());
  CHECK(!outbox.has_work(0));
  CHECK(!outbox.pull(0, kMaxPayload, now()));
  CHECK(outbox.taken(3).has_value());
  CHECK(outbox.has_work(0));
  CHECK_EQ(outbox.pull(0, kMaxPayload, now())->header.message, most + 1);
  CHECK(!outbox.has_work(0));
}

TEST(round_robin_deals_in_turn_whatever_lanes_do) {
  Outbox outbox(Dealing::round_robin);
  const auto bytes = pattern(kMost, 1);
  outbox.push(bulk(kMost), bytes.data(), 1, 4);
  for (int lane : {0, 1, 2, 3}) {
    for (uint32_t turn : {0u, 1u}) {
      const auto out = outbox.pull(lane, 16 << 10, now());
      CHECK_EQ(out->header.offset, (static_cast<uint32_t>(lane) + 4 * turn) * Outbox::kDealtSegment);
      CHECK_EQ(out->header.size, Outbox::kDealtSegment);
    }
    CHECK(!outbox.pull(lane, kMost, now()));
  }
  CHECK_EQ(outbox.waiting(), 0u);
  outbox.lost(2);
  CHECK_EQ(outbox.pull(0, kMost, now())->header.offset, 2 * Outbox::kDealtSegment);
}

TEST(segments_that_contradict_each_other_are_nonsense) {
  const auto begin = [](Inbox& inbox, uint64_t message, uint32_t offset, uint32_t size, uint32_t length = 100'000) {
    return inbox.begin({bulk(length), message, offset, size});
  };
  Inbox inbox;
  CHECK(begin(inbox, 1, 0, 50'000) == Inbox::SegmentState::fresh);
  CHECK(begin(inbox, 1, 50'000, 50'000) == Inbox::SegmentState::wanted);
  CHECK(begin(inbox, 1, 0, 50'000) == Inbox::SegmentState::wanted);            // not here yet: whichever comes first
  CHECK(begin(inbox, 1, 0, 50'000, 99'999) == Inbox::SegmentState::nonsense);  // another frame
  CHECK(begin(inbox, Inbox::kMostAhead + 1, 0, 50'000) == Inbox::SegmentState::nonsense);
  CHECK(!inbox.complete({bulk(100'000), 1, 0, 50'000}));
  CHECK(begin(inbox, 1, 0, 50'000) == Inbox::SegmentState::repeated);
  CHECK(inbox.complete({bulk(100'000), 1, 50'000, 50'000}));
  inbox.finish(1);
  CHECK(begin(inbox, 1, 7, 5) == Inbox::SegmentState::repeated);
  CHECK(inbox.find(1) == nullptr);
}

TEST(what_was_lost_may_come_in_pieces) {
  const auto segment = [](uint32_t offset, uint32_t size) { return SegmentHeader{bulk(100'000), 1, offset, size}; };
  Inbox inbox;
  CHECK(inbox.begin(segment(0, 100'000)) == Inbox::SegmentState::fresh);
  CHECK(!inbox.shared(segment(0, 100'000)));
  CHECK(inbox.begin(segment(20'000, 20'000)) == Inbox::SegmentState::wanted);
  CHECK(inbox.shared(segment(0, 100'000)) && inbox.shared(segment(20'000, 20'000)));
  CHECK(inbox.begin(segment(30'000, 20'000)) == Inbox::SegmentState::repeated);  // of no use: it comes in other pieces
  CHECK(inbox.begin(segment(0, 100'000)) == Inbox::SegmentState::repeated);
  CHECK(!inbox.complete(segment(20'000, 20'000)));
  CHECK(!inbox.complete(segment(20'000, 20'000)));
  CHECK(!inbox.wants(segment(20'000, 20'000)));
  CHECK(!inbox.wants(segment(0, 100'000)));  // it would overwrite what is here
  CHECK(inbox.begin(segment(25'000, 5'000)) == Inbox::SegmentState::repeated);
  CHECK(inbox.begin(segment(0, 20'000)) == Inbox::SegmentState::wanted);
  CHECK(inbox.begin(segment(40'000, 30'000)) == Inbox::SegmentState::wanted);
  CHECK(!inbox.complete(segment(0, 20'000)));
  CHECK(inbox.complete(segment(0, 100'000)));  // the lane that had begun with all of it
  inbox.finish(1);
}

TEST(what_is_lost_goes_again_in_pieces) {
  Outbox outbox;
  const auto bytes = pattern(kMost, 1);
  outbox.push(bulk(kMost - 7), bytes.data(), 1, 2);
  for (const uint32_t size : {kMost, kMost / 4, kMost / 16, Outbox::kLeastSegment, Outbox::kLeastSegment}) {
    std::map<uint32_t, uint32_t> found;
    while (const auto out = outbox.pull(0, kMost, now())) {
      CHECK(out->data == bytes.data() + out->header.offset);
      CHECK(out->header.size < size + Outbox::kLeastSegment && out->header.size > size / 2);
      CHECK(found.emplace(out->header.offset, out->header.size).second);
    }
    uint32_t end = 0;
    for (const auto& [offset, length] : found) {
      CHECK_EQ(offset, end);
      end += length;
    }
    CHECK_EQ(end, kMost - 7);
    outbox.lost(0);
    outbox.lost(0);  // it has nothing any more
  }
}

// A lane's socket takes all there is, and its connection breaks when the peer has a hundredth part.
TEST(connections_that_break_soon_bring_a_message_through) {
  Outbox outbox;
  Inbox inbox;
  const auto bytes = pattern(kMaxPayload, 1);
  outbox.push(bulk(kMaxPayload), bytes.data(), 1, 1);
  bool done = false;
  int connections = 0;
  for (; !done && connections < 1000; ++connections) {
    uint32_t carried = 0;
    while (const auto out = outbox.pull(0, kMaxPayload, now())) {
      carried += out->header.size;
      if (carried > kMaxPayload / 100) continue;
      if (inbox.begin(out->header) != Inbox::SegmentState::repeated) done = done || inbox.complete(out->header);
    }
    outbox.lost(0);
  }
  CHECK(done);
  CHECK(connections < 600);
}

// Random messages over random lanes that break at random: every message comes together once, all bytes right.
TEST(whatever_lanes_do_every_message_arrives_once) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    const int lanes = 1 + static_cast<int>(random() % 6);
    Outbox outbox(seed % 5 == 0 ? Dealing::round_robin : Dealing::pull);
    Inbox inbox;
    const auto bytes = pattern(kMost, seed);
    std::vector<std::deque<Outbox::Out>> wires(static_cast<size_t>(lanes));
    std::map<uint64_t, std::vector<std::byte>> memory;
    std::deque<uint64_t> words;  // that messages are here
    const uint64_t messages = 20;
    std::set<uint64_t> cookies;
    uint64_t pushed = 0;
    size_t arrived = 0;
    for (int step = 0; step < 100'000 && cookies.size() < messages; ++step) {
      const auto lane = static_cast<int>(random() % static_cast<unsigned>(lanes));
      auto& wire = wires[static_cast<size_t>(lane)];
      switch (random() % 8) {
        case 0:
          if (pushed < messages)
            outbox.push(bulk(kEagerBytes + 1 + random() % 600'000), bytes.data() + random() % 1000, pushed++, lanes,
                        static_cast<int>(random() % 3));
          break;
        case 1:
        case 2:
        case 3:
          if (auto out = outbox.pull(lane, random() % 200'000, now())) wire.push_back(*out);
          break;
        case 4:
          if (random() % 4 != 0) break;
          outbox.lost(lane);
          wire.resize(random() % (wire.size() + 1));  // what the peer had read by then
          break;
        case 5:
          if (auto copy = outbox.pull_late(lane, [&](int, uint32_t, Time) { return random() % 4 == 0; }))
            wire.push_back(*copy);
          break;
        case 6:
          if (!words.empty()) {
            const auto cookie = outbox.taken(words.front());
            CHECK(cookie.has_value());
            CHECK(cookies.insert(*cookie).second);
            words.pop_front();
          }
          break;
        default: {
          if (wire.empty()) break;
          const Outbox::Out out = wire.front();
          wire.pop_front();
          const auto verdict = inbox.begin(out.header);
          CHECK(verdict != Inbox::SegmentState::nonsense);
          if (verdict == Inbox::SegmentState::repeated) break;
          auto& into = memory[out.header.message];
          into.resize(out.header.frame.length);
          std::memcpy(into.data() + out.header.offset, out.data, out.header.size);
          if (!inbox.complete(out.header)) break;
          CHECK(std::memcmp(into.data(), out.data - out.header.offset, into.size()) == 0);
          inbox.finish(out.header.message);
          words.push_back(out.header.message);
          ++arrived;
        }
      }
    }
    CHECK_EQ(cookies.size(), size_t{messages});
    CHECK_EQ(arrived, size_t{messages});
    CHECK(outbox.empty());
  }
}

TEST(a_pace_is_learnt_while_the_lane_is_busy) {
  Pace pace;
  const Time start = now();
  CHECK_EQ(pace.rate(), 0.0);
  for (int i = 0; i <= 100; ++i) pace.took(10'000, true, start + std::chrono::milliseconds(i));  // 10 MB a second
  CHECK(pace.rate() > 9e6 && pace.rate() < 11e6);
  CHECK_EQ(pace.segment(100 << 20, 4), (uint32_t{80'000}) & ~4095u);  // 8 ms of it
  CHECK_EQ(pace.segment(100'000, 4), uint32_t{16 << 10});             // little is left for all
  CHECK(pace.segment(100'000, 1) > 100'000);                          // a lane that is alone cuts nothing up
  CHECK(pace.backlog(256 << 10) < 64 << 10);
  const double floor = 64 << 10;                                                 // of all lanes together
  CHECK(pace.enough(0, 1) - floor > 90e3 && pace.enough(0, 1) - floor < 110e3);  // 10 ms of it
  CHECK_EQ(pace.enough(0, 1) - pace.enough(0, 4), floor * 3 / 4);
  CHECK(pace.enough(0.05, 8) > 5 * pace.enough(0, 8));  // a long path takes more
  CHECK(Pace().enough(0.05, 1) > 1e18);                 // nothing is known: no limit
  const double before = pace.rate();
  pace.took(10'000, false, start + std::chrono::milliseconds(101));
  pace.took(1, true, start + std::chrono::seconds(10));  // it had nothing to do meanwhile: that says nothing
  CHECK(pace.rate() > 0.9 * before);
  pace.took(1, true, start + std::chrono::seconds(20));  // it had, and took a byte in ten seconds
  CHECK(pace.rate() < 0.7 * before);
  CHECK(pace.enough(0, 1) - floor > 0.009 * before);  // the best of the last moments counts
  for (const int ms : {20'060, 20'120}) pace.took(1, true, start + std::chrono::milliseconds(ms));
  CHECK(pace.enough(0, 1) - floor < 0.005 * before);
}

TEST(a_last_word_is_no_segment) {
  const SegmentHeader last = promotion(7);
  CHECK(is_promotion(last));
  CHECK(objection_to_segment(last) != nullptr);
  CHECK(!is_promotion(promotion(0)));
  CHECK(!is_promotion({bulk(100'000), 1, 0, 50'000}));
}

TEST(small_messages_go_where_they_take_half_as_long) {
  constexpr double kNone = 0.1;
  constexpr uint64_t kBusy = 10 << 20;
  // What lanes of 400 and 1600 Mbit/s look like. 16 KiB take 0.33 ms and 0.08 ms there.
  const std::vector<LaneSeen> idle{{0.01, 0.0001, 50e6, 0, 0}, {0.01, 0.0001, 200e6, 0, 0}};
  const auto choice = [](const LaneSeen& control, const std::vector<LaneSeen>& lanes, double most = 1) {
    const auto found = faster_lane(control, lanes, most);
    return found ? static_cast<int>(*found) : -1;
  };
  const LaneSeen slow{0.0014, kNone, 0, 100'000, 0};  // 16 KiB at 100 Mbit/s
  CHECK_EQ(choice(slow, idle), 1);
  CHECK_EQ(choice(slow, idle, 0.5), 0);  // too much of the bulk to go
  CHECK_EQ(choice(slow, idle, 0.1), -1);
  CHECK_EQ(choice({0.0006, kNone, 0, 100'000, 0}, idle), -1);  // less than half a millisecond better
  CHECK_EQ(choice({0.0014, kNone, 0, 1'000, 0}, idle), -1);    // nothing has been said lately
  CHECK_EQ(choice(slow, {{0.0001, 0.0001, 0, 0, 0}, {0.0001, 0.0001, 0, 0, 0}}), -1);      // no rate is known
  CHECK_EQ(choice(slow, {{0.0001, 0.0001, 6e6, 0, 0}, {0.0001, 0.0001, 6e6, 0, 0}}), -1);  // parts of one slow path
  // Under load: what round trips are there, not what they could be.
  const LaneSeen queued{0.02, kNone, 0, 100'000, 0};
  CHECK_EQ(choice(queued, {{0.015, 0.0001, 50e6, kBusy, 0}, {0.012, 0.0001, 200e6, kBusy, 0}}), -1);
  CHECK_EQ(choice(queued, {{0.015, 0.0001, 50e6, kBusy, 0}, {0.008, 0.0001, 200e6, kBusy, 0}}), 1);
  CHECK_EQ(choice(queued, {{0.001, 0.0001, 50e6, 0, kBusy}, {0.001, 0.0001, 200e6, 0, 0}}), -1);  // of long ago
  CHECK_EQ(choice(queued, {}), -1);
}
