// What a call may say. The same rules as in slipstream.comm.collectives.addresses.
#include <cstdint>
#include <limits>
#include <string>

#include "capi/calls.h"
#include "kernels/kernels.h"

namespace slipstream::capi {

namespace {

[[noreturn]] void invalid(std::string text) { throw Failure(Code::invalid, std::move(text)); }

const char* name_of_collective(int32_t collective) {
  constexpr const char* kNames[] = {"",       "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                                    "gather", "scatter",    "all_to_all",     "send",       "recv",      "barrier"};
  if (collective < SLIPSTREAM_ALL_REDUCE || collective > SLIPSTREAM_BARRIER)
    invalid("there is no collective " + std::to_string(collective));
  return kNames[collective];
}

// Sums and products of what a caller gives.
uint64_t added(uint64_t a, uint64_t b) {
  if (a > std::numeric_limits<uint64_t>::max() / 64 || b > std::numeric_limits<uint64_t>::max() / 64)
    invalid("a count is too large");
  return a + b;
}
uint64_t multiplied(uint64_t a, uint64_t b) {
  if (b != 0 && a > std::numeric_limits<uint64_t>::max() / 256 / b) invalid("a count is too large");
  return a * b;
}

// The blocks of all ranks, one after another.
struct OfRanks {
  uint64_t total = 0, before = 0, own = 0;
};

OfRanks blocks_of(const uint64_t* counts, uint64_t count, const Group& group) {
  const auto me = static_cast<uint64_t>(group.rank);
  const uint64_t ranks = group.ranks.size();
  if (counts == nullptr) return {multiplied(count, ranks), multiplied(count, me), count};
  OfRanks found;
  for (uint64_t r = 0; r < ranks; ++r) {
    if (r == me) found.before = found.total;
    found.total = added(found.total, counts[r]);
  }
  found.own = counts[me];
  return found;
}

std::byte* bytes_at(const void* address) { return const_cast<std::byte*>(static_cast<const std::byte*>(address)); }

class Check {
 public:
  Check(const slipstream_group& group, const slipstream_call& call)
      : group_(*group.group), call_(call), name_(name_of_collective(call.collective)) {
    src_ = bytes_at(call.src);
    dst_ = bytes_at(call.dst);
  }

  Memory memory(const std::byte* token) {
    if (call_.collective == SLIPSTREAM_BARRIER) {
      auto* const at = bytes_at(token);
      return {{at, 1}, {at, 1}, 1};
    }
    fields();
    Memory found = places();
    for (const Range& one : {found.in, found.out})
      if (one.bytes != 0 && one.data == nullptr) invalid(std::string(name_) + ": an address is NULL");
    if (found.in.data == nullptr) found.in.data = found.out.data;
    if (found.out.data == nullptr) found.out.data = found.in.data;
    return found;
  }

 private:
  void fields() {
    if (call_.dtype < 0 || call_.dtype >= kDTypes) invalid("unknown dtype code " + std::to_string(call_.dtype));
    if (call_.urgency < 0) invalid("an urgency is not negative");
    if (call_.wire < 0 || call_.wire >= kWireTypes) invalid("unknown wire code " + std::to_string(call_.wire));
    if (!(call_.timeout >= 0)) invalid("a timeout is a number of seconds from 0 on");
    size_ = size_of(static_cast<DType>(call_.dtype));
    const int32_t collective = call_.collective;
    const bool reduces = collective == SLIPSTREAM_ALL_REDUCE || collective == SLIPSTREAM_REDUCE_SCATTER ||
                         collective == SLIPSTREAM_REDUCE;
    if (reduces && (call_.op < 0 || call_.op >= kOps)) invalid("unknown op code " + std::to_string(call_.op));
    if (reduces && reduce_fn(static_cast<DType>(call_.dtype), static_cast<Op>(call_.op)) == nullptr)
      invalid(std::string("op ") + name_of(static_cast<Op>(call_.op)) + " is not defined for " +
              name_of(static_cast<DType>(call_.dtype)));
    const int32_t ranks = static_cast<int32_t>(group_.ranks.size());
    const bool message = collective == SLIPSTREAM_SEND || collective == SLIPSTREAM_RECV;
    const bool rooted = collective == SLIPSTREAM_BROADCAST || collective == SLIPSTREAM_REDUCE ||
                        collective == SLIPSTREAM_GATHER || collective == SLIPSTREAM_SCATTER;
    if (rooted && (call_.root < 0 || call_.root >= ranks))
      invalid("root " + std::to_string(call_.root) + " is not in 0.." + std::to_string(ranks - 1));
    if (message && (call_.root < 0 || call_.root >= ranks || call_.root == group_.rank))
      invalid(std::string("cannot ") + name_ + ": " + std::to_string(call_.root) +
              " is not another rank of a group of " + std::to_string(ranks));
  }

  Memory places() {
    const bool root = call_.root == group_.rank;
    switch (call_.collective) {
      case SLIPSTREAM_BROADCAST:
        if (!root && src_ == nullptr) src_ = dst_;
        [[fallthrough]];
      case SLIPSTREAM_ALL_REDUCE:
      case SLIPSTREAM_REDUCE: {
        const uint64_t bytes = multiplied(call_.count, size_);
        if (src_ != dst_) apart(bytes, bytes);
        return {{src_, bytes}, {dst_, bytes}, call_.count};
      }
      case SLIPSTREAM_SEND:
        return {{src_, multiplied(call_.count, size_)}, {src_, 0}, call_.count};
      case SLIPSTREAM_RECV:
        return {{dst_, 0}, {dst_, multiplied(call_.count, size_)}, call_.count};
      case SLIPSTREAM_ALL_TO_ALL:
        return exchanged();
      default:
        return blocks(root);
    }
  }

  Memory exchanged() {
    if ((call_.counts == nullptr) != (call_.recv_counts == nullptr))
      invalid("all_to_all needs counts and recv_counts, or none of them");
    const OfRanks sent = blocks_of(call_.counts, call_.count, group_);
    const OfRanks received = blocks_of(call_.recv_counts, call_.count, group_);
    if (sent.own != received.own) invalid("counts and recv_counts disagree about this rank's own block");
    const Range in{src_, multiplied(sent.total, size_)}, out{dst_, multiplied(received.total, size_)};
    apart(in.bytes, out.bytes);
    return {in, out, 0};
  }

  Memory blocks(bool root) {
    const OfRanks all = blocks_of(call_.counts, call_.count, group_);
    const uint64_t total = multiplied(all.total, size_), own = multiplied(all.own, size_);
    const uint64_t before = multiplied(all.before, size_);
    switch (call_.collective) {
      case SLIPSTREAM_REDUCE_SCATTER:
        if (src_ != dst_ || own != total) apart(total, own);
        return {{src_, total}, {dst_, own}, all.total};
      case SLIPSTREAM_ALL_GATHER:
        if (number(src_) != number(dst_) + before) apart(own, total);
        return {{src_, own}, {dst_, total}, all.total};
      case SLIPSTREAM_GATHER:
        if (root && number(src_) != number(dst_) + before) apart(own, total);
        return {{src_, own}, {dst_, root ? total : 0}, all.total};
      default:  // scatter
        if (root && number(dst_) != number(src_) + before) apart(total, own);
        return {{src_, root ? total : 0}, {dst_, own}, all.total};
    }
  }

  static std::uintptr_t number(const std::byte* address) { return reinterpret_cast<std::uintptr_t>(address); }

  void apart(uint64_t in, uint64_t out) const {
    if (number(src_) < number(dst_) + out && number(dst_) < number(src_) + in && in != 0 && out != 0)
      invalid(std::string(name_) +
              ": input and output overlap in part; give memory of their own to them, or one address for both where "
              "the operation works in place");
  }

  const Group& group_;
  const slipstream_call& call_;
  const char* name_;
  std::byte *src_, *dst_;
  uint64_t size_ = 0;
};

}  // namespace

Memory checked(const slipstream_group& group, const slipstream_call& call) {
  if (call.struct_bytes != sizeof(slipstream_call))
    invalid("struct_bytes of the call is " + std::to_string(call.struct_bytes) + ", and slipstream_call has " +
            std::to_string(sizeof(slipstream_call)) + " bytes here: use slipstream_call_init()");
  return Check(group, call).memory(&group.token);
}

}  // namespace slipstream::capi
