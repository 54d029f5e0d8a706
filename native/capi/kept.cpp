#include "capi/kept.h"

#include <bit>
#include <mutex>

namespace slipstream::capi {

namespace {

bool reduces(int32_t collective) {
  return collective == SLIPSTREAM_ALL_REDUCE || collective == SLIPSTREAM_REDUCE_SCATTER ||
         collective == SLIPSTREAM_REDUCE;
}

bool has_root(int32_t collective) {
  return collective == SLIPSTREAM_BROADCAST || collective == SLIPSTREAM_REDUCE || collective == SLIPSTREAM_GATHER ||
         collective == SLIPSTREAM_SCATTER;
}

bool is_message(int32_t collective) { return collective == SLIPSTREAM_SEND || collective == SLIPSTREAM_RECV; }

}  // namespace

// A field that the collective does not use makes no other kind of it.
Kind kind_of(const Ask& ask) {
  const slipstream_call& call = ask.call;
  Kind kind;
  kind.collective = call.collective;
  if (call.collective == SLIPSTREAM_BARRIER) return kind;
  kind.dtype = call.dtype;
  if (reduces(call.collective)) {
    kind.op = call.op;
    kind.prescale = call.prescale;
    kind.postscale = call.postscale;
  }
  if (has_root(call.collective) || is_message(call.collective)) kind.root = call.root;
  if (is_message(call.collective)) {
    kind.tag = call.tag;
    return kind;
  }
  kind.wire = call.wire;
  switch (call.collective) {
    case SLIPSTREAM_ALL_REDUCE:
    case SLIPSTREAM_BROADCAST:
    case SLIPSTREAM_REDUCE:
      // The plan is made for a power of two, and the tables of such a request depend on no size.
      kind.size = static_cast<uint64_t>(std::bit_width(ask.count * size_of(static_cast<DType>(call.dtype))));
      return kind;
    default:
      break;
  }
  if (call.counts == nullptr) {
    kind.size = ask.count;
    return kind;
  }
  kind.counts.assign(call.counts, call.counts + ask.ranks);
  if (call.collective == SLIPSTREAM_ALL_TO_ALL)
    kind.counts.insert(kind.counts.end(), call.recv_counts, call.recv_counts + ask.ranks);
  return kind;
}

size_t Kept::Hash::operator()(const Kind& kind) const {
  uint64_t h = 0xcbf29ce484222325ULL;
  const auto mix = [&h](uint64_t v) {
    h = (h ^ v) * 0x9e3779b97f4a7c15ULL;
    h ^= h >> 29;
  };
  mix(static_cast<uint32_t>(kind.collective) | static_cast<uint64_t>(static_cast<uint32_t>(kind.dtype)) << 32);
  mix(static_cast<uint32_t>(kind.op) | static_cast<uint64_t>(static_cast<uint32_t>(kind.root)) << 32);
  mix(static_cast<uint32_t>(kind.tag) | static_cast<uint64_t>(static_cast<uint32_t>(kind.wire)) << 32);
  mix(kind.size);
  mix(std::bit_cast<uint64_t>(kind.prescale));
  mix(std::bit_cast<uint64_t>(kind.postscale));
  for (const uint64_t count : kind.counts) mix(count);
  return h;
}

std::shared_ptr<const Prepared> Kept::find(const Kind& kind) const {
  const std::shared_lock lock(mutex_);
  const auto found = known_.find(kind);
  return found == known_.end() ? nullptr : found->second;
}

void Kept::keep(const Kind& kind, std::shared_ptr<const Prepared> prepared) {
  const std::lock_guard lock(mutex_);
  if (known_.size() >= kMost) known_.clear();
  known_.insert_or_assign(kind, std::move(prepared));
}

void Kept::clear() {
  const std::lock_guard lock(mutex_);
  known_.clear();
}

}  // namespace slipstream::capi
