#include "boards/form.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <string_view>
#include <utility>

#include "boards/rows.h"
#include "engine/short_messages.h"
#include "kernels/kernels.h"

namespace slipstream {

namespace {

constexpr size_t kBlockBytes = 4096;  // that are reduced at a time: partial sums stay in the cache
// Who reads what is told does not know its size, but where it is: never in a post's own line.
constexpr size_t kNotSmall = BoardRows::kSmallBytes + 1;

uint64_t mixed(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15ULL;
  return hash ^ hash >> 32;
}

uint64_t mixed(uint64_t hash, std::string_view text) {
  hash = mixed(hash, text.size());
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return mixed(hash, 0);
}

BoardForm::Kind kind_of(const Request& request) {
  using Kind = BoardForm::Kind;
  const std::string_view operation = request.signature.operation;
  const std::string_view collective = operation.substr(0, operation.find_first_of("[/"));
  const std::string_view algorithm = operation.substr(std::min(operation.rfind('/'), operation.size() - 1) + 1);
  if (request.signature.wire != WireType::exact) return Kind::none;
  if (request.ragged) return Kind::told;  // or told_each: who packs the blocks knows
  if (collective == "barrier") return Kind::barrier;
  if (collective == "all_reduce" && algorithm == "recursive_doubling") return Kind::all_reduce;
  if (collective == "all_reduce" && algorithm == "tree") return Kind::tree_all_reduce;
  const bool has_table = !request.spaces[0].offsets.empty();
  if (collective == "reduce_scatter" && algorithm == "direct" && has_table) return Kind::reduce_scatter;
  const bool scales = request.prescale != 1.0 || request.postscale != 1.0 || request.divisor != 1;
  if (collective == "all_gather" && !request.spaces[1].offsets.empty() && !scales) return Kind::all_gather;
  const bool has_root =
      request.signature.root >= 0 && std::cmp_less(request.signature.root, request.group->ranks.size());
  if (collective == "broadcast" && has_root && !scales) return Kind::broadcast;  // by any plan: nothing is reduced
  if (collective == "reduce" && algorithm == "binomial" && has_root) return Kind::reduce;
  return Kind::none;
}

// The reductions of one block of elements, each in the order of the plan that the ranks would run by messages.
class Reduction {
 public:
  Reduction(DType dtype, Op op, const std::byte* const* posted, int ranks)
      : reduce_(reduce_fn(dtype, op)), element_(size_of(dtype)), posted_(posted), ranks_(ranks) {}

  // plan/halving_doubling.py: ranks beyond the largest power of two have theirs added by that many ranks below; then
  // ranks that differ in one bit exchange, from the lowest bit on. The lower rank's is on the left.
  void doubling(std::byte* dst, uint64_t from, uint64_t count) {
    const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks_)));
    const std::byte* sum = doubled(dst, 0, power, from, count);
    if (sum != dst) std::memcpy(dst, sum, count * element_);
  }
  // plan/tree.py: a rank adds what its children bring, the one with the smallest subtree first. Ranks are counted from
  // the root.
  void tree(std::byte* dst, int root, uint64_t from, uint64_t count) {
    root_ = root;
    const std::byte* sum = treed(dst, 0, static_cast<int>(std::bit_ceil(static_cast<unsigned>(ranks_))), from, count);
    if (sum != dst) std::memcpy(dst, sum, count * element_);
  }
  // plan/direct.py: the ranks after `first`, in a circle; the lower one of the two operands is on the left.
  void circle(std::byte* dst, int first, uint64_t from, uint64_t count) const {
    const std::byte* sum = at(first, from);
    for (int k = 1; k < ranks_; ++k) {
      const int other = (first + k) % ranks_;
      if (other < first)
        reduce_(dst, at(other, from), sum, count);
      else
        reduce_(dst, sum, at(other, from), count);
      sum = dst;
    }
  }

 private:
  const std::byte* at(int rank, uint64_t element) const { return posted_[rank] + element * element_; }
  // The sum of `width` ranks from `rank` on, and of those that fold into them: in `place`, or where it lies anyway.
  const std::byte* doubled(std::byte* place, int rank, int width, uint64_t from, uint64_t count) {
    if (width > 1) {
      const std::byte* low = doubled(place, rank, width / 2, from, count);
      const std::byte* high = doubled(scratch(width), rank + width / 2, width / 2, from, count);
      reduce_(place, low, high, count);
      return place;
    }
    const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(ranks_)));
    if (rank + power >= ranks_) return at(rank, from);
    reduce_(place, at(rank, from), at(rank + power, from), count);
    return place;
  }

  // The sum of `width` ranks from `rank` on, or of as many as there are: in `place`, or where it lies anyway.
  const std::byte* treed(std::byte* place, int rank, int width, uint64_t from, uint64_t count) {
    if (width == 1) return at(from_root(rank), from);
    const std::byte* near = treed(place, rank, width / 2, from, count);
    const int child = rank + width / 2;
    if (child >= ranks_) return near;
    const std::byte* far = treed(scratch(width), child, width / 2, from, count);
    if (from_root(child) < from_root(rank)) std::swap(near, far);  // the lower rank's is on the left
    reduce_(place, near, far, count);
    return place;
  }
  int from_root(int rank) const { return (root_ + rank) % ranks_; }
  // Of its own for each width, a power of two.
  std::byte* scratch(int width) {
    return scratch_[static_cast<size_t>(std::countr_zero(static_cast<unsigned>(width)) - 1)].data();
  }

  ReduceFn reduce_;
  size_t element_;
  const std::byte* const* posted_;
  int ranks_;
  int root_ = 0;                                               // of a tree
  std::array<std::array<std::byte, kBlockBytes>, 6> scratch_;  // not initialised: written before it is read
};

// The messages of a plan along a tree, if it is no more than that: one block, of which one message comes from, or goes
// to, each peer, the former ones first.
Route messages_of(const Plan& plan, const Group& group) {
  Route route;
  if (plan.blocks() != 1) return {};
  for (const Step& step : plan.steps()) {
    if (step.peer < 0) continue;
    const Plan::Peer& peer = plan.peers()[static_cast<size_t>(plan.peer_index(step.peer))];
    const bool sends = step.kind == StepKind::send;
    if (peer.sends.size() + peer.recvs.size() != 1 || (!sends && !route.to.empty())) return {};
    (sends ? route.to : route.from).push_back(group.ranks[static_cast<size_t>(step.peer)]);
  }
  return route.from.size() <= Relay::kMost ? route : Route{};
}

}  // namespace

Route route_of(const Request& request, const BoardForm& form) {
  const bool is_tree = form.kind == BoardForm::Kind::broadcast || form.kind == BoardForm::Kind::reduce;
  return is_tree ? messages_of(*request.plan, *request.group) : Route{};
}

const std::byte* BoardCall::pass_on(std::span<const std::byte* const> come, std::byte* partial) const {
  const size_t bytes = count * size_of(request.signature.dtype);
  if (form.kind == BoardForm::Kind::broadcast) {
    const std::byte* const from = come.empty() ? src : come.front();
    if (from != dst) std::memcpy(dst, from, bytes);
    return dst;
  }
  const DType dtype = request.signature.dtype;
  const bool is_root = request.signature.root == request.group->rank;
  std::byte* const sum = is_root ? dst : partial;
  const std::byte* own = src;
  if (request.prescale != 1.0) {
    scale(dtype, sum, own, count, request.prescale);
    own = sum;
  }
  const ReduceFn reduce = reduce_fn(dtype, request.signature.op);
  for (size_t i = 0; i < come.size(); ++i) {  // the lower rank's is on the left
    const bool is_lower = request.group->index_of(route->from[i]) < request.group->rank;
    reduce(sum, is_lower ? come[i] : own, is_lower ? own : come[i], count);
    own = sum;
  }
  if (is_root) finish(dst, count);
  return own;
}

BoardForm form_of(const Request& request) {
  BoardForm form;
  const Plan& plan = *request.plan;
  if (request.group->board == nullptr || request.channel != 0 || plan.split() || request.part) return form;
  form.kind = kind_of(request);
  const Signature& all = request.signature;
  form.hash = mixed(mixed(0, all.operation), all.extra);
  form.hash = mixed(form.hash, static_cast<uint64_t>(all.dtype) << 16 | static_cast<uint64_t>(all.op) << 8 |
                                   static_cast<uint64_t>(all.reduces));
  form.hash = mixed(form.hash, static_cast<uint64_t>(all.chunk_bytes) << 32 | static_cast<uint32_t>(all.root));
  return form;
}

uint64_t BoardCall::hash() const {
  const uint64_t found = mixed(mixed(form.hash, static_cast<uint64_t>(form.kind)), count);
  return name.empty() ? found : mixed(found, name);
}

size_t BoardCall::bytes_of(int member) const {
  const size_t element = size_of(request.signature.dtype);
  const auto& in = input();
  const auto& out = request.spaces[1].offsets;
  const auto r = static_cast<size_t>(member);
  switch (form.kind) {
    case BoardForm::Kind::all_reduce:
    case BoardForm::Kind::tree_all_reduce:
    case BoardForm::Kind::reduce:
      return count * element;
    case BoardForm::Kind::reduce_scatter:
      return in.back() * element;
    case BoardForm::Kind::all_gather:
      return (out[r + 1] - out[r]) * element;
    case BoardForm::Kind::broadcast:
      return member == request.signature.root ? count * element : 0;
    case BoardForm::Kind::told:
    case BoardForm::Kind::told_each:
      return member == request.group->rank ? std::max(in.size() * sizeof(uint64_t) + in.back(), kNotSmall) : kNotSmall;
    default:
      return 0;
  }
}

size_t BoardCall::most_bytes() const {
  if (tells()) return bytes_of(request.group->rank);
  if (form.kind == BoardForm::Kind::broadcast) return bytes_of(request.signature.root);
  if (form.kind != BoardForm::Kind::all_gather) return bytes_of(0);
  size_t most = 0;
  for (size_t r = 0; r < request.group->ranks.size(); ++r) most = std::max(most, bytes_of(static_cast<int>(r)));
  return most;
}

void BoardCall::contribute(std::byte* to) const {
  if (tells()) {  // the table of the blocks, and the blocks
    const auto& in = input();
    std::memcpy(to, in.data(), in.size() * sizeof(uint64_t));
    if (in.back() != 0) std::memcpy(to + in.size() * sizeof(uint64_t), src, in.back());
    return;
  }
  const size_t bytes = bytes_of(request.group->rank);
  if (bytes == 0) return;
  if (request.prescale != 1.0)
    scale(request.signature.dtype, to, src, bytes / size_of(request.signature.dtype), request.prescale);
  else
    std::memcpy(to, src, bytes);
}

void BoardCall::finish(std::byte* at, uint64_t elements) const {
  const DType dtype = request.signature.dtype;
  if (request.divisor > 1) divide(dtype, at, elements, request.divisor);
  if (request.postscale != 1.0) scale(dtype, at, at, elements, request.postscale);
}

void BoardCall::gather(const std::byte* const* posted) const {
  const size_t element = size_of(request.signature.dtype);
  const auto& out = request.spaces[1].offsets;
  for (size_t r = 0; r + 1 < out.size(); ++r) {
    std::byte* to = dst + out[r] * element;
    const size_t bytes = bytes_of(static_cast<int>(r));
    const bool mine = static_cast<int>(r) == request.group->rank;
    if (bytes != 0 && (!mine || to != src)) std::memcpy(to, posted[r], bytes);
  }
}

void BoardCall::take_from_root(const std::byte* const* posted) const {
  const int root = request.signature.root;
  const size_t bytes = bytes_of(root);
  if (gives() && dst == src) return;
  if (bytes != 0) std::memcpy(dst, posted[root], bytes);
}

// A table that cannot be right is one of empty blocks: as a message that brings nothing.
void BoardCall::take_told(const std::byte* const* posted) const {
  const auto& out = request.spaces[1].offsets;
  const size_t ranks = request.group->ranks.size();
  const size_t table = (ranks + 1) * sizeof(uint64_t);
  const size_t most = BoardRows::room(static_cast<int>(ranks)) - table;
  for (size_t r = 0; r < ranks; ++r) {
    const size_t block = form.kind == BoardForm::Kind::told ? r : static_cast<size_t>(request.group->rank);
    std::array<uint64_t, 2> at{};
    std::memcpy(at.data(), posted[r] + block * sizeof(uint64_t), sizeof(at));
    const bool sound = at[0] <= at[1] && at[1] <= most && at[1] - at[0] <= out[r + 1] - out[r];
    if (sound && at[0] != at[1]) std::memcpy(dst + out[r], posted[r] + table + at[0], at[1] - at[0]);
  }
}

void BoardCall::conclude_from(const std::byte* const* posted) const {
  const DType dtype = request.signature.dtype;
  const size_t element = size_of(dtype);
  const int ranks = static_cast<int>(request.group->ranks.size());
  const int me = request.group->rank;
  if (form.kind == BoardForm::Kind::barrier) return;
  if (form.kind == BoardForm::Kind::all_gather) return gather(posted);
  if (form.kind == BoardForm::Kind::broadcast) return take_from_root(posted);
  if (tells()) return take_told(posted);
  const bool has_root = form.kind == BoardForm::Kind::reduce;
  if (has_root && request.signature.root != me) return;
  const bool scatters = form.kind == BoardForm::Kind::reduce_scatter;
  const auto& in = request.spaces[0].offsets;
  const uint64_t begin = scatters ? in[static_cast<size_t>(me)] : 0;
  const uint64_t elements = scatters ? in[static_cast<size_t>(me) + 1] - begin : count;
  Reduction reduction(dtype, request.signature.op, posted, ranks);
  const uint64_t block = kBlockBytes / element;
  for (uint64_t done = 0; done < elements; done += block) {
    const uint64_t now = std::min(block, elements - done);
    if (scatters)
      reduction.circle(dst + done * element, me, begin + done, now);
    else if (has_root || form.kind == BoardForm::Kind::tree_all_reduce)
      reduction.tree(dst + done * element, has_root ? me : 0, done, now);
    else
      reduction.doubling(dst + done * element, done, now);
  }
  finish(dst, elements);
}

}  // namespace slipstream
