// Plans for the native tests, built here so that they need no Python: ring and direct all-reduce, pairwise all-to-all.
#pragma once

#include <memory>
#include <vector>

#include "engine/plan.h"

namespace slipstream::testing {

class PlanBuilder {
 public:
  PlanBuilder(int rank, int size, int blocks) : rank_(rank), size_(size), blocks_(blocks) {}

  int add(StepKind kind, int peer, int block, std::vector<int> after = {}, Space src = Space::out,
          Space dst = Space::out) {
    rows_.insert(rows_.end(), {static_cast<int>(kind), peer, block, 1, static_cast<int>(src), static_cast<int>(dst),
                               static_cast<int>(after.size())});
    deps_.insert(deps_.end(), after.begin(), after.end());
    return steps_++;
  }
  std::shared_ptr<const Plan> build() const { return Plan::compile(rank_, size_, blocks_, rows_, deps_); }

 private:
  int rank_, size_, blocks_, steps_ = 0;
  std::vector<int32_t> rows_, deps_;
};

inline std::shared_ptr<const Plan> ring_all_reduce(int rank, int n) {
  PlanBuilder b(rank, n, n);
  const auto block = [n](int i) { return ((i % n) + n) % n; };
  if (n == 1) {
    b.add(StepKind::finish, -1, 0, {b.add(StepKind::copy, -1, 0, {}, Space::in)});
    return b.build();
  }
  const int next = block(rank + 1), previous = block(rank - 1);
  int last = b.add(StepKind::send, next, rank, {}, Space::in);
  for (int s = 1; s < n; ++s) {
    last = b.add(StepKind::recv_reduce, previous, block(rank - s), {}, Space::in);
    if (s == n - 1) last = b.add(StepKind::finish, -1, block(rank - s), {last});
    b.add(StepKind::send, next, block(rank - s), {last});
  }
  for (int s = 0; s < n - 1; ++s) {
    last = b.add(StepKind::recv, previous, block(rank - s));
    if (s < n - 2) b.add(StepKind::send, next, block(rank - s), {last});
  }
  return b.build();
}

inline std::shared_ptr<const Plan> direct_all_reduce(int rank, int n) {
  if (n == 1) return ring_all_reduce(rank, n);
  PlanBuilder b(rank, n, n);
  const auto peer = [rank, n](int i) { return (rank + i) % n; };
  for (int i = 1; i < n; ++i) b.add(StepKind::send, peer(i), peer(i), {}, Space::in);
  int last = -1;
  for (int i = 1; i < n; ++i)
    last = i == 1 ? b.add(StepKind::recv_reduce, peer(i), rank, {}, Space::in)
                  : b.add(StepKind::recv_reduce, peer(i), rank, {last});
  last = b.add(StepKind::finish, -1, rank, {last});
  for (int i = 1; i < n; ++i) b.add(StepKind::send, peer(i), rank, {last});
  for (int i = 1; i < n; ++i) b.add(StepKind::recv, peer(i), peer(i));
  return b.build();
}

}  // namespace slipstream::testing
