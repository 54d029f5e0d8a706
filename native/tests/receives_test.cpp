// Receives from any source, the report of what is under way, and threads that want the engine while it waits.
#include <algorithm>
#include <random>

#include "tests/check.h"
#include "tests/plans.h"
#include "tests/ranks.h"

namespace slipstream::testing {

namespace {

const Wire kWires[] = {Wire::memory, Wire::shm, Wire::tcp, Wire::mixed};
constexpr size_t kSizes[] = {0, 1, 4096, 4097, 70'000, 1'310'720};  // floats: eager, at its limit, bulk

uint64_t channel_of(int from, int to) { return uint64_t{1} << 63 | static_cast<uint64_t>(from * 64 + to); }

std::shared_ptr<const Plan> one_step(int rank, int size, StepKind kind, int peer) {
  PlanBuilder b(rank, size, 1);
  b.add(kind, peer, 0, {}, Space::in);
  return b.build();
}

Request message(int rank, int size, std::vector<float>& data) {
  auto group = std::make_shared<Group>();
  group->id = 7;
  group->rank = rank;
  for (int r = 0; r < size; ++r) group->ranks.push_back(r);
  Request request;
  request.group = std::move(group);
  request.signature.operation = "send_recv";
  request.signature.dtype = DType::f32;
  request.signature.count = data.size();
  request.chunk_bytes = request.signature.chunk_bytes = 64 << 10;
  request.timeout_seconds = 60;
  for (auto& space : request.spaces) space = {reinterpret_cast<std::byte*>(data.data()), data.size(), {}};
  return request;
}

WorkPtr send(RankUnderTest& rank, int me, int n, int to, std::vector<float>& data) {
  Request request = message(me, n, data);
  request.plan = one_step(me, n, StepKind::send, to);
  const auto work = rank.prepare(std::move(request), channel_of(me, to));
  rank.submit(work);
  return work;
}

WorkPtr receive(RankUnderTest& rank, int me, int n, int from, std::vector<float>& data) {
  Request request = message(me, n, data);
  request.plan = one_step(me, n, StepKind::recv, from);
  const auto work = rank.prepare(std::move(request), channel_of(from, me));
  rank.submit(work);
  return work;
}

WorkPtr receive_any(RankUnderTest& rank, int me, int n, std::vector<float>& data, double timeout = 60) {
  Request request = message(me, n, data);
  request.timeout_seconds = timeout;
  for (int from = 0; from < n; ++from)
    if (from != me) request.candidates.push_back({channel_of(from, me), one_step(me, n, StepKind::recv, from)});
  request.plan = request.candidates.front().plan;
  const auto work = rank.prepare(std::move(request), channel_of(n, me));
  rank.submit(work);
  return work;
}

void finish(RankUnderTest& rank, const WorkPtr& work) {
  CHECK(rank.wait(*work, now() + seconds(60)));
  CHECK_EQ(work->error().text, std::string());
}

}  // namespace

TEST(every_message_is_received_once_and_each_senders_in_order) {
  for (const Wire wire : kWires)
    for (const int n : {2, 3, 4})
      for (const size_t count : kSizes) {
        Ranks ranks(wire, n);
        const int messages = count > 70'000 ? 4 : 30;
        ranks.each([&](int r, RankUnderTest& rank) {
          std::vector<std::vector<float>> data;
          std::vector<WorkPtr> works;
          for (int i = 0; i < (r == 0 ? messages * (n - 1) : messages); ++i)
            data.emplace_back(count, static_cast<float>(r == 0 ? -1 : r * 1000 + i));
          for (auto& d : data) works.push_back(r == 0 ? receive_any(rank, r, n, d) : send(rank, r, n, 0, d));
          std::vector<int> next(static_cast<size_t>(n), 0);
          for (size_t i = 0; i < works.size(); ++i) {
            finish(rank, works[i]);
            if (r != 0) continue;
            const int source = works[i]->peer();
            const auto expected = static_cast<float>(source * 1000 + next[static_cast<size_t>(source)]++);
            const auto wrong = std::count_if(data[i].begin(), data[i].end(), [&](float v) { return v != expected; });
            CHECK_EQ(wrong, 0);
          }
          for (int s = 1; r == 0 && s < n; ++s) CHECK_EQ(next[static_cast<size_t>(s)], messages);
        });
      }
}

// Of chunks of 64 KiB, eight leave; seven if the first message of all has left so, too, and is not repaid yet.
TEST(bulk_leaves_a_host_before_its_receive_is_called_while_the_credit_lasts) {
  constexpr size_t kCount = 16 << 10;
  constexpr size_t kLeave = 7, kMost = 8, kMessages = 16;
  for (const Wire wire : {Wire::memory, Wire::tcp})
    for (const size_t each : {size_t{1}, size_t{2}, size_t{4}}) {  // chunks of a message
      Ranks ranks(wire, 2);
      std::atomic<bool> called{false};
      ranks.each([&](int r, RankUnderTest& rank) {
        std::vector<float> first(kCount, 0.5f);
        finish(rank, r == 0 ? send(rank, r, 2, 1, first) : receive(rank, r, 2, 0, first));  // there is a link now
        std::vector<std::vector<float>> data;
        std::vector<WorkPtr> works;
        for (size_t i = 0; i < kMessages; ++i) data.emplace_back(kCount * each, r == 0 ? static_cast<float>(i) : -1.0f);
        if (r == 1) called.wait(false);
        for (auto& d : data) works.push_back(r == 0 ? send(rank, r, 2, 1, d) : receive(rank, r, 2, 0, d));
        if (r == 0) {
          for (size_t i = 0; i < kLeave / each; ++i) finish(rank, works[i]);
          const auto done = std::count_if(works.begin(), works.end(), [](const WorkPtr& w) { return w->done(); });
          CHECK(static_cast<size_t>(done) <= kMost / each);
          called = true;
          called.notify_all();
        }
        for (const WorkPtr& work : works) finish(rank, work);
        for (size_t i = 0; r == 1 && i < kMessages; ++i)
          CHECK(std::all_of(data[i].begin(), data[i].end(), [i](float v) { return v == static_cast<float>(i); }));
      });
    }
}

TEST(receives_from_one_rank_do_not_overtake_those_from_any) {
  for (const Wire wire : kWires)
    for (const size_t count : {size_t{1}, size_t{30'000}}) {
      Ranks ranks(wire, 3);
      constexpr int kMessages = 40;
      ranks.each([&](int r, RankUnderTest& rank) {
        if (r == 2) return;  // a candidate that never sends
        std::mt19937 random(3);
        std::vector<std::vector<float>> data;
        std::vector<WorkPtr> works;
        for (int i = 0; i < kMessages; ++i) data.emplace_back(count, static_cast<float>(r == 0 ? -1 : i));
        for (auto& d : data)
          works.push_back(r == 1              ? send(rank, 1, 3, 0, d)
                          : random() % 2 == 0 ? receive(rank, 0, 3, 1, d)
                                              : receive_any(rank, 0, 3, d));
        for (size_t i = 0; i < works.size(); ++i) {
          finish(rank, works[i]);
          CHECK_EQ(data[i].back(), static_cast<float>(i));
        }
      });
    }
}

TEST(messages_of_ranks_that_have_left_are_received) {
  for (const Wire wire : kWires) {
    Ranks ranks(wire, 3);
    std::atomic<int> gone{0};
    ranks.each([&](int r, RankUnderTest& rank) {
      std::vector<float> data(100, static_cast<float>(r));
      if (r != 0) {
        std::vector<float> hello(1);
        finish(rank, receive(rank, r, 3, 0, hello));
        finish(rank, send(rank, r, 3, 0, data));
        rank.leave();
        ++gone;
        gone.notify_all();
        return;
      }
      std::vector<float> hello(1);
      for (int to : {1, 2}) finish(rank, send(rank, 0, 3, to, hello));
      for (int left = gone; left < 2; left = gone) gone.wait(left);
      std::vector<float> first(100), second(100), third(100);
      const auto a = receive_any(rank, 0, 3, first), b = receive_any(rank, 0, 3, second);
      finish(rank, a);
      finish(rank, b);
      CHECK_EQ(first[50] + second[50], 3.0f);
      const auto c = receive_any(rank, 0, 3, third);
      const Time start = now();
      CHECK(rank.wait(*c, now() + seconds(30)));
      CHECK(now() - start < seconds(10));
      CHECK(c->error().code == Code::peer_lost);
    });
  }
}

TEST(a_receive_that_gets_nothing_times_out_on_all) {
  for (const Wire wire : kWires) {
    Ranks ranks(wire, 3);
    ranks.each([&](int r, RankUnderTest& rank) {
      std::vector<float> data(10);
      const auto work = r == 0 ? receive_any(rank, 0, 3, data, 0.3) : receive(rank, r, 3, 0, data);
      CHECK(rank.wait(*work, now() + seconds(30)));
      CHECK(work->error().code == Code::timeout);
      CHECK(work->error().text.find("for any of rank 1") != std::string::npos);
      CHECK(work->error().text.find("has not called its side of") != std::string::npos);
    });
  }
}

TEST(a_message_of_another_size_is_a_mismatch) {
  for (const Wire wire : kWires)
    for (const size_t count : {size_t{10}, size_t{50'000}}) {
      Ranks ranks(wire, 3);
      ranks.each([&](int r, RankUnderTest& rank) {
        std::vector<float> data(count + (r == 1 ? 1 : 0));
        const auto work = r == 0   ? receive_any(rank, 0, 3, data)
                          : r == 1 ? send(rank, 1, 3, 0, data)
                                   : receive(rank, 2, 3, 0, data);
        CHECK(rank.wait(*work, now() + seconds(30)));
        if (r == 1) return;  // a small send is done before anybody objects
        CHECK(work->error().code == Code::mismatch);
        CHECK(work->error().text.find(std::to_string(count) + " elements") != std::string::npos);
        CHECK(work->error().text.find(std::to_string(count + 1) + " elements") != std::string::npos);
      });
    }
}

TEST(a_report_comes_at_once_while_the_engine_or_a_caller_waits) {
  for (const Wire wire : kWires)
    for (const bool caller : {false, true}) {
      Ranks ranks(wire, 2);
      std::vector<float> data(10), other(10);
      const auto work = receive(ranks.at(0), 0, 2, 1, data);
      std::thread waiter;
      if (caller) waiter = std::thread([&] { finish(ranks.at(0), work); });
      const Time start = now();
      for (int i = 0; i < 200; ++i)
        CHECK(ranks.at(0).report().find("send_recv(float32, 10 elements) #0") != std::string::npos);
      CHECK(now() - start < seconds(10));
      const auto sent = send(ranks.at(1), 1, 2, 0, other);
      finish(ranks.at(1), sent);
      if (caller) waiter.join();
      finish(ranks.at(0), work);
      CHECK(ranks.at(0).report().find(": done after ") != std::string::npos);
    }
}

TEST(a_session_closes_while_works_are_pending) {
  for (const Wire wire : kWires) {
    Ranks ranks(wire, 2);
    std::vector<float> data(10);
    const auto work = receive_any(ranks.at(0), 0, 2, data);
    CHECK(!ranks.at(0).wait(*work, now() + seconds(0.05)));
    ranks.at(0).leave();
    CHECK(work->done());
    CHECK(work->error().code == Code::aborted);
  }
}

}  // namespace slipstream::testing
