// What an operation is to a board: which bytes a rank contributes, and what it makes of those of all ranks.
//
// The result has the same bits as by messages: which way an operation goes depends on what the other ranks do at that
// moment, and a program that runs twice gets the same results twice. So the order of the reductions is that of the
// plan, and only operations whose plan's order is known here go over a board.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/work.h"

namespace slipstream {

// Of calls that have a request in common.
struct BoardForm {
  // told: blocks of bytes whose lengths only their rank knows (Request::ragged); one for all ranks, or one for each.
  enum class Kind : uint8_t {
    none,
    barrier,
    all_reduce,
    tree_all_reduce,
    reduce_scatter,
    all_gather,
    broadcast,
    reduce,
    told,
    told_each
  };
  Kind kind = Kind::none;
  uint64_t hash = 0;  // of what all ranks must agree on, but for the count and the name
};

// `request`: without memory.
BoardForm form_of(const Request& request);

constexpr uint64_t kMostRelayBytes = 16 << 10;  // of a message along a route

// The ranks, in the session, from which this one takes a message in a collective along a tree, and those that it then
// sends one to. Both empty: the collective is none of these.
struct Route {
  std::vector<int> from;
  std::vector<int> to;
  bool any() const { return !from.empty() || !to.empty(); }
};
Route route_of(const Request& request, const BoardForm& form);

// A blocking call. All it refers to outlives it.
struct BoardCall {
  const Request& request;  // without memory
  BoardForm form;
  std::byte* src = nullptr;
  std::byte* dst = nullptr;
  uint64_t count = 0;  // elements, where there are no tables
  const std::string& name;
  double timeout_seconds = 0;
  const Route* route = nullptr;                       // if it may go along one
  const std::vector<uint64_t>* own_blocks = nullptr;  // of told, if it is not the request's: where this rank's begin

  // Of a broadcast: this rank is the root, or another one is.
  bool gives() const {
    return form.kind == BoardForm::Kind::broadcast && request.signature.root == request.group->rank;
  }
  bool takes() const {
    return form.kind == BoardForm::Kind::broadcast && request.signature.root != request.group->rank;
  }

  // Along the route: from what has come, in the order of `from`, to what is sent. The result is in its place then.
  // `partial`: memory for a sum that this rank sends on.
  const std::byte* pass_on(std::span<const std::byte* const> come, std::byte* partial) const;

  uint64_t hash() const;
  // What the rank of the group `member` contributes. A rank knows that of all, if they agree; but not what others tell:
  // then this is more than what fits into a post's own line, as all of that kind is.
  size_t bytes_of(int member) const;
  size_t most_bytes() const;
  // Writes this rank's contribution.
  void contribute(std::byte* to) const;
  // `posted(member)`: the contribution of that rank of the group.
  template <class Posted>
  void conclude(Posted posted) const {
    const std::byte* all[64];
    for (size_t r = 0; r < request.group->ranks.size(); ++r) all[r] = posted(static_cast<int>(r));
    conclude_from(all);
  }

 private:
  const std::vector<uint64_t>& input() const { return own_blocks != nullptr ? *own_blocks : request.spaces[0].offsets; }
  bool tells() const { return form.kind == BoardForm::Kind::told || form.kind == BoardForm::Kind::told_each; }
  void gather(const std::byte* const* posted) const;
  void take_from_root(const std::byte* const* posted) const;
  void take_told(const std::byte* const* posted) const;
  void conclude_from(const std::byte* const* posted) const;
  void finish(std::byte* dst, uint64_t elements) const;
};

}  // namespace slipstream
