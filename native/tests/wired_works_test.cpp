// Works whose f32 data travels between hosts in a wire type, with ranks as threads.
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "kernels/kernels.h"
#include "reducers/offer.h"
#include "tests/check.h"
#include "tests/plans.h"
#include "tests/ranks.h"

namespace slipstream::testing {

namespace {

using Floats = std::vector<float>;
using PlanMaker = std::shared_ptr<const Plan> (*)(int, int);

constexpr WireType kWireTypesUsed[] = {WireType::bf16, WireType::f16, WireType::f8, WireType::int8};
constexpr size_t kCounts[] = {1, 255, 256, 257, 1023, 100'003};

std::shared_ptr<const Plan> two_a_host(int rank, int n) { return hierarchical_all_reduce(rank, n, 2); }

std::shared_ptr<const Plan> three_a_host(int rank, int n) { return hierarchical_all_reduce(rank, n, 3); }

struct Case {
  PlanMaker plan;
  WireType wire;
  size_t count;
  bool in_place = false;
  double prescale = 1.0, postscale = 1.0;
  uint64_t divisor = 1;
};

Request request_of(const Case& c, int rank, int size, const float* in, float* out) {
  Request request;
  request.plan = c.plan(rank, size);
  auto group = std::make_shared<Group>();
  group->id = 7;
  group->rank = rank;
  for (int r = 0; r < size; ++r) group->ranks.push_back(r);
  request.group = group;
  request.signature.operation = "all_reduce/test";
  request.signature.reduces = true;
  request.signature.count = c.count;
  request.signature.wire = c.wire;
  request.chunk_bytes = request.signature.chunk_bytes = 4096 * 5 + 200;  // no multiple of a block
  request.timeout_seconds = 60;
  request.prescale = c.prescale;
  request.postscale = c.postscale;
  request.divisor = c.divisor;
  request.spaces[0] = {reinterpret_cast<std::byte*>(const_cast<float*>(in)), c.count, {}};
  request.spaces[1] = {reinterpret_cast<std::byte*>(out), c.count, {}};
  request.spaces[2] = {nullptr, c.count, {}};
  return request;
}

// Positive, so that nothing cancels and an error of a sum is one of its numbers.
Floats input(int rank, size_t count) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::uniform_real_distribution<float> spread(1, 2);
  Floats found(count);
  for (float& x : found) x = spread(random);
  return found;
}

// The largest relative error of rounding a number that is half of its block's largest, or more.
double bound(WireType wire) {
  constexpr double bounds[] = {0x1p-8, 0x1p-11, 0x1p-4, 1.0 / 127};
  return bounds[static_cast<int>(wire) - 1] * 1.01;
}

bool same_bits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

std::vector<Floats> run(Ranks& ranks, const Case& c) {
  std::vector<Floats> results(static_cast<size_t>(ranks.size()), Floats(c.count));
  ranks.each([&](int r, RankUnderTest& rank) {
    const Floats in = input(r, c.count);
    Floats& out = results[static_cast<size_t>(r)];
    if (c.in_place) out = in;
    const auto work = rank.prepare(request_of(c, r, ranks.size(), c.in_place ? out.data() : in.data(), out.data()));
    CHECK(rank.run(work, now() + seconds(60)));
    CHECK_EQ(work->error().text, std::string());
  });
  return results;
}

void check_sum(Ranks& ranks, const Case& c) {
  const int n = ranks.size();
  const std::vector<Floats> results = run(ranks, c);
  for (const Floats& result : results) CHECK(same_bits(result, results.front()));
  double worst = 0, mean = 0;
  std::vector<double> want(c.count);
  for (int r = 0; r < n; ++r) {
    const Floats in = input(r, c.count);
    for (size_t i = 0; i < c.count; ++i) want[i] += static_cast<double>(in[i]);
  }
  for (size_t i = 0; i < c.count; ++i) {
    const double right = want[i] * c.prescale / static_cast<double>(c.divisor) * c.postscale;
    const double off = static_cast<double>(results.front()[i]) / right - 1;
    worst = std::max(worst, std::fabs(off));
    mean += off / static_cast<double>(c.count);
  }
  // A partial sum is rounded once for each hop; all of them together weigh at most n / 2 + 2 times the sum.
  if (worst > bound(c.wire) * (n / 2.0 + 2) || (c.count > 1000 && std::fabs(mean) > 0.2 / n))
    check::failed(__FILE__, __LINE__,
                  std::string(name_of(c.wire)) + " of " + std::to_string(c.count) + " on " + std::to_string(n) +
                      ": off by " + std::to_string(worst) + ", " + std::to_string(mean) + " in the mean");
}

void check_sums(Ranks& ranks, PlanMaker plan) {
  for (const WireType wire : kWireTypesUsed)
    for (const size_t count : kCounts) check_sum(ranks, {plan, wire, count, count % 2 == 0});
}

std::vector<int> hosts_of(int size, int local) {
  std::vector<int> hosts;
  for (int r = 0; r < size; ++r) hosts.push_back(r / local);
  return hosts;
}

}  // namespace

TEST(sums_have_the_same_bits_on_all_ranks_and_few_errors) {
  for (const int n : {2, 3, 4, 5, 8}) {
    Ranks ranks(hosts_of(n, 1));
    for (const PlanMaker plan : {ring_all_reduce, halving_doubling_all_reduce, direct_all_reduce})
      check_sums(ranks, plan);
  }
}

TEST(some_ranks_share_a_host) {
  for (const int n : {3, 4, 7}) {
    Ranks ranks(hosts_of(n, 2));
    for (const PlanMaker plan : {ring_all_reduce, halving_doubling_all_reduce, direct_all_reduce})
      check_sums(ranks, plan);
  }
}

TEST(sums_by_host) {
  Ranks two(hosts_of(4, 2)), three(hosts_of(6, 3)), most(hosts_of(8, 2));
  check_sums(two, two_a_host);
  check_sums(three, three_a_host);
  check_sums(most, two_a_host);
}

TEST(sums_over_tcp) {
  Ranks ranks(Wire::tcp, 3);
  for (const PlanMaker plan : {ring_all_reduce, halving_doubling_all_reduce, direct_all_reduce})
    check_sums(ranks, plan);
  Ranks mixed(Wire::mixed, 4);
  for (const PlanMaker plan : {ring_all_reduce, direct_all_reduce}) check_sums(mixed, plan);
}

TEST(large_sums_over_tcp) {
  Ranks ranks(Wire::tcp, 2, 3);
  for (const WireType wire : kWireTypesUsed) check_sum(ranks, {ring_all_reduce, wire, 3'000'017, true});
}

TEST(scales_and_averages) {
  Ranks ranks(hosts_of(3, 1));
  for (const WireType wire : kWireTypesUsed)
    for (const PlanMaker plan : {ring_all_reduce, halving_doubling_all_reduce, direct_all_reduce})
      check_sum(ranks, {plan, wire, 10'007, false, 0.25, 3.0, 3});
}

TEST(within_a_host_sums_are_exact) {
  Ranks ranks(hosts_of(4, 4));
  const std::vector<Floats> found = run(ranks, {ring_all_reduce, WireType::f8, 1023});
  const std::vector<Floats> exact = run(ranks, {ring_all_reduce, WireType::exact, 1023});
  for (size_t r = 0; r < found.size(); ++r) CHECK(same_bits(found[r], exact[r]));
}

TEST(more_small_works_than_the_credit_of_eager_data_lasts_for) {
  Ranks ranks(hosts_of(3, 1));
  for (int i = 0; i < 300; ++i) check_sum(ranks, {ring_all_reduce, WireType::int8, 6000});
}

TEST(a_part_that_no_other_rank_gets_is_not_rounded) {
  constexpr size_t kCount = 2 * 256;
  Ranks ranks(hosts_of(2, 1));
  const std::vector<Floats> found = run(ranks, {direct_reduce_scatter, WireType::f8, kCount});
  for (size_t r = 0; r < 2; ++r) {
    const Floats own = input(static_cast<int>(r), kCount);
    Floats other = input(static_cast<int>(1 - r), kCount);
    round_to(WireType::f8, other.data() + r * 256, 256);
    for (size_t i = r * 256; i < (r + 1) * 256; ++i) CHECK_EQ(found[r][i], own[i] + other[i]);
  }
}

TEST(what_is_gathered_is_the_same_on_all_ranks) {
  constexpr size_t kEach = 5003;
  for (const WireType wire : kWireTypesUsed)
    for (const std::vector<int>& hosts : {hosts_of(3, 1), hosts_of(4, 2), hosts_of(5, 2)}) {
      Ranks ranks(hosts);
      const auto n = static_cast<size_t>(ranks.size());
      std::vector<Floats> results(n, Floats(n * kEach));
      ranks.each([&](int r, RankUnderTest& rank) {
        const Floats in = input(r, kEach);
        Case c{ring_all_gather, wire, n * kEach};
        Request request = request_of(c, r, ranks.size(), in.data(), results[static_cast<size_t>(r)].data());
        request.signature.reduces = false;
        request.spaces[0].offsets.assign(n + 1, 0);
        for (size_t b = static_cast<size_t>(r) + 1; b <= n; ++b) request.spaces[0].offsets[b] = kEach;
        for (size_t b = 0; b <= n; ++b) request.spaces[1].offsets.push_back(b * kEach);
        const auto work = rank.prepare(std::move(request));
        CHECK(rank.run(work, now() + seconds(60)));
        CHECK_EQ(work->error().text, std::string());
      });
      Floats want;
      for (size_t r = 0; r < n; ++r) {
        Floats part = input(static_cast<int>(r), kEach);
        round_to(wire, part.data(), kEach);
        want.insert(want.end(), part.begin(), part.end());
      }
      for (const Floats& result : results) CHECK(same_bits(result, want));
    }
}

TEST(an_overflow_that_exact_data_has_not_stays_away) {
  Ranks ranks(hosts_of(2, 1));
  for (const WireType wire : kWireTypesUsed) {
    ranks.each([&](int r, RankUnderTest& rank) {
      Floats data(1000, r == 0 ? std::numeric_limits<float>::max() : 0.0f);
      const auto work = rank.prepare(request_of({ring_all_reduce, wire, 1000}, r, 2, data.data(), data.data()));
      CHECK(rank.run(work, now() + seconds(60)));
      for (const float x : data) CHECK(std::isfinite(x));
    });
  }
}

TEST(ranks_that_differ_in_the_wire_are_told) {
  for (const size_t count : {size_t{10}, size_t{50'000}}) {
    Ranks ranks(Wire::tcp, 3);
    std::atomic<int> told{0};
    ranks.each([&](int r, RankUnderTest& rank) {
      Floats data(count);
      const WireType wire = r == 1 ? WireType::int8 : WireType::exact;
      const auto work = rank.prepare(request_of({ring_all_reduce, wire, count}, r, 3, data.data(), data.data()));
      CHECK(rank.run(work, now() + seconds(60)));
      if (work->error().code == Code::mismatch && work->error().text.find("wire=int8") != std::string::npos) ++told;
    });
    CHECK_EQ(told.load(), 3);
  }
}

TEST(an_offer_has_a_wire_that_its_data_can_travel_in) {
  Offer offer;
  offer.signature.operation = "all_reduce/reducers";
  offer.signature.reduces = true;
  offer.signature.chunk_bytes = 64 << 10;
  offer.signature.wire = WireType::f8;
  offer.count = 1000;
  const auto read = decode_offer(encode_offer(offer));
  CHECK(read && read->signature.wire == WireType::f8 && read->signature.hash() == offer.signature.hash());
  offer.signature.wire = static_cast<WireType>(kWireTypes);
  CHECK(!decode_offer(encode_offer(offer)));
  offer.signature.wire = WireType::int8;
  offer.signature.op = Op::max;
  CHECK(!decode_offer(encode_offer(offer)));
  offer.signature.op = Op::sum;
  offer.signature.dtype = DType::f64;
  CHECK(!decode_offer(encode_offer(offer)));
}

}  // namespace slipstream::testing
