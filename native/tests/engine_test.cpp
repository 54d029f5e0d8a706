// The engine over every transport, with ranks as threads.
#include <cstring>
#include <random>

#include "reducers/offer.h"
#include "tests/check.h"
#include "tests/plans.h"
#include "tests/ranks.h"

namespace slipstream::testing {

namespace {

using PlanMaker = std::shared_ptr<const Plan> (*)(int, int);

const Wire kWires[] = {Wire::memory, Wire::shm, Wire::tcp, Wire::mixed};

std::shared_ptr<const Group> everyone(int rank, int size) {
  auto group = std::make_shared<Group>();
  group->id = 7;
  group->rank = rank;
  for (int r = 0; r < size; ++r) group->ranks.push_back(r);
  return group;
}

Request all_reduce(int rank, int size, std::shared_ptr<const Plan> plan, const float* in, float* out, size_t count) {
  Request request;
  request.plan = std::move(plan);
  request.group = everyone(rank, size);
  request.signature.operation = "all_reduce/test";
  request.signature.dtype = DType::f32;
  request.signature.reduces = true;
  request.signature.count = count;
  request.chunk_bytes = 4096 * 5;  // above the eager limit, so that small tests reach the deep paths
  request.signature.chunk_bytes = request.chunk_bytes;
  request.timeout_seconds = 60;
  auto* mutable_in = const_cast<float*>(in);
  request.spaces[0] = {reinterpret_cast<std::byte*>(mutable_in), count, {}};
  request.spaces[1] = {reinterpret_cast<std::byte*>(out), count, {}};
  request.spaces[2] = {nullptr, count, {}};
  return request;
}

float value(int rank, size_t i) { return static_cast<float>((static_cast<int>(i % 1000) + 1) * (rank + 1)); }

void check_all_reduce(Ranks& ranks, PlanMaker maker, size_t count, bool in_place, bool shared) {
  const int n = ranks.size();
  ranks.each([&](int r, RankUnderTest& rank) {
    std::vector<float> in(count), own(count);
    float* out = shared ? reinterpret_cast<float*>(rank.allocate(count * sizeof(float) + 1)) : own.data();
    for (size_t i = 0; i < count; ++i) in[i] = value(r, i);
    if (in_place) std::copy(in.begin(), in.end(), out);
    const auto work = rank.prepare(all_reduce(r, n, maker(r, n), in_place ? out : in.data(), out, count));
    CHECK(rank.run(work, now() + seconds(60)));
    CHECK_EQ(work->error().text, std::string());
    size_t wrong = 0;
    for (size_t i = 0; i < count; ++i) wrong += out[i] != value(0, i) * static_cast<float>(n * (n + 1) / 2);
    CHECK_EQ(wrong, size_t{0});
  });
}

}  // namespace

TEST(all_reduce_of_every_size_on_every_transport) {
  for (const Wire wire : kWires)
    for (const int n : {1, 2, 3, 4}) {
      Ranks ranks(wire, n);
      for (const PlanMaker maker : {ring_all_reduce, direct_all_reduce})
        for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1023}, size_t{100'003}}) {
          check_all_reduce(ranks, maker, count, false, false);
          check_all_reduce(ranks, maker, count, true, true);
        }
    }
}

TEST(large_all_reduce) {
  for (const Wire wire : kWires) {
    Ranks ranks(wire, 3, 3);
    check_all_reduce(ranks, ring_all_reduce, 3'000'017, true, false);
    check_all_reduce(ranks, direct_all_reduce, 3'000'017, false, wire == Wire::shm);
  }
}

TEST(many_asynchronous_works_waited_for_in_reverse) {
  for (const Wire wire : kWires) {
    constexpr size_t kWorks = 200;
    Ranks ranks(wire, 3);
    ranks.each([&](int r, RankUnderTest& rank) {
      std::mt19937 random(5);  // the same on all ranks
      std::vector<std::vector<float>> data;
      std::vector<WorkPtr> works;
      for (size_t w = 0; w < kWorks; ++w) {
        data.emplace_back(random() % 20'000, static_cast<float>(r + 1));
        works.push_back(
            rank.prepare(all_reduce(r, 3, ring_all_reduce(r, 3), data[w].data(), data[w].data(), data[w].size())));
        rank.submit(works.back());
      }
      for (size_t w = kWorks; w-- > 0;) {
        CHECK(rank.wait(*works[w], now() + seconds(60)));
        CHECK_EQ(works[w]->error().text, std::string());
        for (const float v : data[w])
          if (v != 6.0f) {
            CHECK_EQ(v, 6.0f);
            break;
          }
      }
    });
  }
}

TEST(mismatched_counts_are_an_error_on_all_ranks) {
  for (const Wire wire : kWires)
    for (const size_t base : {size_t{10}, size_t{50'000}}) {
      Ranks ranks(wire, 3);
      std::atomic<int> mismatches{0};
      ranks.each([&](int r, RankUnderTest& rank) {
        std::vector<float> data(base + (r == 1 ? 1 : 0));
        const auto work = rank.prepare(all_reduce(r, 3, ring_all_reduce(r, 3), data.data(), data.data(), data.size()));
        CHECK(rank.run(work, now() + seconds(60)));
        if (work->error().code == Code::mismatch) ++mismatches;
        CHECK(work->error().text.find(std::to_string(base)) != std::string::npos);
        CHECK(work->error().text.find(std::to_string(base + 1)) != std::string::npos);
      });
      CHECK_EQ(mismatches.load(), 3);
    }
}

TEST(a_rank_that_leaves_is_lost_to_those_who_wait_for_it) {
  for (const Wire wire : kWires) {
    Ranks ranks(wire, 3);
    check_all_reduce(ranks, ring_all_reduce, 10, true, false);
    ranks.each([&](int r, RankUnderTest& rank) {
      if (r == 2) return rank.leave();
      std::vector<float> data(100'000);
      const auto work = rank.prepare(all_reduce(r, 3, ring_all_reduce(r, 3), data.data(), data.data(), data.size()));
      CHECK(rank.run(work, now() + seconds(30)));
      CHECK(work->error().code == Code::peer_lost);
      CHECK_EQ(work->error().rank, 2);
    });
  }
}

TEST(a_work_that_cannot_start_fails_on_all_instead_of_hanging) {
  for (const Wire wire : kWires) {
    Ranks ranks(wire, 2);
    check_all_reduce(ranks, ring_all_reduce, 10, true, false);
    ranks.each([&](int r, RankUnderTest& rank) {
      std::vector<float> data(10);
      auto plan = ring_all_reduce(r, 2);
      if (r == 1) {  // a plan that needs temporary memory, of a size that cannot be had
        PlanBuilder b(r, 2, 1);
        b.add(StepKind::copy, -1, 0, {}, Space::tmp);
        plan = b.build();
      }
      Request request = all_reduce(r, 2, plan, data.data(), data.data(), data.size());
      if (r == 1) request.spaces[2].count = uint64_t{1} << 61;
      const auto work = rank.prepare(std::move(request));
      if (r == 1) rank.submit(work);  // in the engine thread, which must survive
      CHECK(r == 1 ? rank.wait(*work, now() + seconds(30)) : rank.run(work, now() + seconds(30)));
      CHECK(work->error().code == Code::internal);
      CHECK(work->error().text.find("cannot start") != std::string::npos);
      CHECK_EQ(work->error().rank, 1);
      const bool named = work->error().text.starts_with("rank 1") && work->error().text.find(" failed: ") < 40;
      CHECK_EQ(named, r != 1);
    });
  }
}

TEST(a_work_that_a_rank_never_calls_times_out_on_all_and_names_it) {
  for (const Wire wire : kWires) {
    Ranks ranks(wire, 3);
    check_all_reduce(ranks, ring_all_reduce, 10, true, false);
    ranks.each([&](int r, RankUnderTest& rank) {
      if (r == 2) return;
      std::vector<float> data(100'000);
      Request request = all_reduce(r, 3, ring_all_reduce(r, 3), data.data(), data.data(), data.size());
      request.timeout_seconds = 0.3;
      const auto work = rank.prepare(std::move(request));
      CHECK(rank.run(work, now() + seconds(30)));
      CHECK(work->error().code == Code::timeout);
      CHECK(work->error().text.find("rank 2") != std::string::npos);
    });
    std::vector<float> data(10);
    const auto late = ranks.at(2).prepare(all_reduce(2, 3, ring_all_reduce(2, 3), data.data(), data.data(), 10));
    CHECK(ranks.at(2).run(late, now() + seconds(30)));
    CHECK(late->error().code == Code::timeout);
  }
}

TEST(an_offer_is_read_as_it_was_written_or_refused) {
  Offer offer;
  offer.signature.operation = "all_reduce/split";
  offer.signature.dtype = DType::q8;
  offer.signature.chunk_bytes = 64;  // less than an element
  offer.count = 1000;
  const auto read = decode_offer(encode_offer(offer));
  CHECK(read.has_value());
  CHECK(read && read->signature.dtype == DType::q8 && read->count == 1000 && read->signature.chunk_bytes == 64);
  offer.count = uint64_t{1} << 32;  // more chunks than frames can number
  CHECK(!decode_offer(encode_offer(offer)));
  offer.count = 1000;
  offer.signature.op = Op::max;
  CHECK(!decode_offer(encode_offer(offer)));
  offer.signature.op = Op::sum;
  offer.signature.dtype = static_cast<DType>(kDTypes);
  CHECK(!decode_offer(encode_offer(offer)));
}

}  // namespace slipstream::testing
