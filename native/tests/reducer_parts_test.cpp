// What an all-reduce beside reducers is cut into, and what the workers tell each other of it.
#include <set>
#include <vector>

#include "reducers/offer.h"
#include "reducers/parts.h"
#include "reducers/verdict.h"
#include "tests/check.h"

namespace {

using namespace slipstream;

Request whole(std::vector<double>& in, std::vector<double>& out) {
  Request request;
  request.signature.dtype = DType::f64;
  request.signature.reduces = true;
  request.signature.name = std::string(2000, 'n');
  request.prescale = 2;
  request.postscale = 3;
  request.divisor = 4;
  request.spaces[0] = {reinterpret_cast<std::byte*>(in.data()), in.size(), {}};
  request.spaces[1] = {reinterpret_cast<std::byte*>(out.data()), out.size(), {}};
  return request;
}

TEST(a_slice_is_where_its_elements_are) {
  std::vector<double> in(10), out(10);
  const Request slice = slice_of(whole(in, out), 3, 5);
  CHECK(slice.part.has_value());
  CHECK(slice.spaces[0].data == reinterpret_cast<std::byte*>(&in[3]));
  CHECK(slice.spaces[1].data == reinterpret_cast<std::byte*>(&out[3]));
  CHECK(slice.spaces[2].data == nullptr);
  for (const Layout& space : slice.spaces) CHECK_EQ(space.count, uint64_t{5});
}

TEST(a_reducer_is_offered_what_the_worker_sends) {
  std::vector<double> in(10), out(10);
  Request slice = slice_of(whole(in, out), 3, 5);
  send_to_reducer(slice, nullptr, nullptr, 4096);
  const auto offer = decode_offer(slice.part->offer);
  CHECK(offer.has_value());
  CHECK(offer->signature.hash() == slice.signature.hash());
  CHECK_EQ(offer->count, uint64_t{5});
  CHECK_EQ(offer->postscale, 3.0);
  CHECK_EQ(offer->divisor, uint64_t{4});
  CHECK_EQ(offer->signature.chunk_bytes, uint32_t{4096});
  CHECK(slice.part->received != nullptr);
}

TEST(what_is_summed_within_a_host_is_scaled_once) {
  std::vector<double> in(10), out(10);
  Request before = slice_of(whole(in, out), 3, 5), between = before, after = before;
  const Shards shards;
  reduce_within(before, shards);
  take_sums(between);
  gather_within(after, shards);
  CHECK(before.spaces[0].data != before.spaces[1].data);
  CHECK(before.prescale == 2 && before.postscale == 1 && before.divisor == 1);
  CHECK(between.spaces[0].data == reinterpret_cast<std::byte*>(&out[3]));
  CHECK(between.prescale == 1 && between.postscale == 3 && between.divisor == 4);
  CHECK(after.spaces[0].data == reinterpret_cast<std::byte*>(&out[3]));
  CHECK(after.prescale == 1 && after.postscale == 1 && after.divisor == 1);
}

TEST(a_worker_is_among_the_carriers_of_its_shards) {
  Group all;
  all.ranks = {0, 1, 2, 3, 4, 5};
  for (all.rank = 0; all.rank < 6; ++all.rank) {
    Shards shards;  // hosts of three, two, and one
    shards.carriers = {{0, 3, 5}, {0, 3, 5}, {1, 3, 5}, {1, 4, 5}, {2, 4, 5}, {2, 4, 5}};
    shards.make_groups(all, {all.rank});
    CHECK_EQ(shards.hosts(), 3);
    CHECK_EQ(shards.begin(0, 100), uint64_t{0});
    CHECK_EQ(shards.begin(6, 100), uint64_t{100});
    std::set<uint64_t> ids{shards.within->id};
    size_t carried = 0;
    for (size_t shard = 0; shard < shards.count(); ++shard) {
      if (!shards.carries(shard)) continue;
      ++carried;
      CHECK(ids.insert(shards.across[shard]->id).second);
      CHECK(shards.across[shard]->ranks == shards.carriers[shard]);
    }
    CHECK_EQ(carried, std::vector<size_t>({2, 2, 2, 3, 3, 6})[static_cast<size_t>(all.rank)]);
  }
}

TEST(a_bitwise_or_keeps_the_signature_and_scales_nothing) {
  std::vector<double> in(10), out(10);
  Request request = whole(in, out);
  const uint32_t before = request.signature.hash();
  uint64_t words[2] = {};
  make_bitwise_or(request, reinterpret_cast<std::byte*>(words), sizeof(words), DType::u64);
  CHECK_EQ(request.signature.hash(), before);
  CHECK(dtype_of(request) == DType::u64 && op_of(request) == Op::bor);
  CHECK(request.prescale == 1 && request.postscale == 1 && request.divisor == 1);
  CHECK(request.spaces[0].data == request.spaces[1].data && request.spaces[2].data == nullptr);
  CHECK_EQ(request.spaces[0].count, uint64_t{2});
}

TEST(every_use_has_a_channel_of_its_own) {
  Group group;
  group.id = 7;
  std::set<uint64_t> found;
  for (const uint64_t incarnation : {0, 1, 2})
    for (uint64_t use = 0; use < 1000; ++use) found.insert(channel_of(group, incarnation, use));
  CHECK_EQ(found.size(), size_t{3000});
}

TEST(a_verdict_says_what_was_put_in) {
  Verdict verdict(3);
  CHECK_EQ(verdict.bytes(), size_t{8 * (2 + 2 * 3)});
  verdict.set_lost(0b100);
  verdict.set_unusable(1);
  verdict.set_incarnation(2, 1234);
  verdict.set_rate(0, 0.5);
  CHECK(verdict.is_lost(2) && !verdict.is_lost(1) && verdict.lost() != 0);
  CHECK(verdict.is_unusable(1) && !verdict.is_unusable(2));
  CHECK_EQ(verdict.incarnation(2), uint64_t{1234});
  CHECK_EQ(verdict.incarnation(0), uint64_t{0});
  CHECK_EQ(verdict.rate(0), 0.5);
}

}  // namespace
