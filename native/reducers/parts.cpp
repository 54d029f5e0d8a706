#include "reducers/parts.h"

#include <utility>

#include "base/cut.h"
#include "reducers/offer.h"

namespace slipstream {
namespace {

constexpr size_t kMostName = 1000;  // letters of a work's name that a reducer is told
constexpr uint64_t kMix = 0x9e3779b97f4a7c15ULL;
constexpr uint32_t kChunkWithin = 64 << 10;  // bytes: as for other reductions within a host

}  // namespace

uint64_t channel_of(const Group& group, uint64_t incarnation, uint64_t use) {
  const uint64_t mixed = ((group.id ^ incarnation) * kMix + use) * kMix;
  return (mixed ^ mixed >> 31) & ~(uint64_t{1} << 63);
}

Request slice_of(const Request& whole, uint64_t begin, uint64_t count) {
  Request slice = whole;
  slice.part.emplace();
  const size_t element = size_of(slice.signature.dtype);
  for (Layout& space : slice.spaces) {
    if (space.data != nullptr) space.data += begin * element;
    space.count = count;
  }
  return slice;
}

void send_to_reducer(Request& slice, std::shared_ptr<const Plan> star, std::shared_ptr<const Group> group,
                     uint32_t chunk_bytes) {
  slice.plan = std::move(star);
  slice.group = std::move(group);
  slice.signature.name = cut(slice.signature.name, kMostName);
  slice.chunk_bytes = slice.signature.chunk_bytes = chunk_bytes;
  slice.part->received = std::make_shared<std::vector<uint8_t>>();
  slice.part->offer = encode_offer({slice.signature, slice.spaces[0].count, slice.postscale, slice.divisor});
}

void reduce_within(Request& slice, const Shards& shards) {
  slice.plan = shards.reduce;
  slice.group = shards.within;
  slice.chunk_bytes = slice.signature.chunk_bytes = kChunkWithin;
  slice.postscale = 1;
  slice.divisor = 1;
}

void gather_within(Request& slice, const Shards& shards) {
  reduce_within(slice, shards);
  slice.plan = shards.gather;
  take_sums(slice);
}

void take_sums(Request& slice) {
  slice.spaces[static_cast<size_t>(Space::in)] = slice.spaces[static_cast<size_t>(Space::out)];
  slice.prescale = 1;
}

void make_bitwise_or(Request& request, std::byte* data, uint64_t bytes, DType dtype) {
  request.part.emplace().elements = {dtype, Op::bor};
  request.prescale = request.postscale = 1;
  request.divisor = 1;
  for (Layout& space : request.spaces) space = {data, bytes / size_of(dtype), {}};
  request.spaces[2].data = nullptr;
}

}  // namespace slipstream
