// Plans for the native tests, built here so that they need no Python: all-reduces as in src/slipstream/plan.
#pragma once

#include <memory>
#include <vector>

#include "engine/plan.h"

namespace slipstream::testing {

class PlanBuilder {
 public:
  PlanBuilder(int rank, int size, int blocks) : rank_(rank), size_(size), blocks_(blocks) {}

  int add(StepKind kind, int peer, int block, std::vector<int> after = {}, Space src = Space::out,
          Space dst = Space::out, int count = 1) {
    rows_.insert(rows_.end(), {static_cast<int>(kind), peer, block, count, static_cast<int>(src), static_cast<int>(dst),
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

// Non-powers of two fold: the ranks beyond hand their data in, and get the result.
inline std::shared_ptr<const Plan> halving_doubling_all_reduce(int rank, int n) {
  if (n == 1) return ring_all_reduce(rank, n);
  int power = 1;
  while (2 * power <= n) power *= 2;
  PlanBuilder b(rank, n, power);
  if (rank >= power) {
    b.add(StepKind::send, rank - power, 0, {}, Space::in, Space::out, power);
    b.add(StepKind::recv, rank - power, 0, {}, Space::in, Space::out, power);
    return b.build();
  }
  std::vector<int> after;
  Space source = Space::in;
  const bool folds = rank + power < n;
  if (folds) {
    after = {b.add(StepKind::recv_reduce, rank + power, 0, {}, Space::in, Space::out, power)};
    source = Space::out;
  }
  int low = 0, width = power;
  while (width > 1) {
    width /= 2;
    const bool high = (rank & width) != 0;
    const int keep = high ? low + width : low, give = high ? low : low + width, peer = rank ^ width;
    b.add(StepKind::send, peer, give, after, source, Space::out, width);
    after = {b.add(StepKind::recv_reduce, peer, keep, after, source, Space::out, width)};
    low = keep;
    source = Space::out;
  }
  std::vector<int> done = {b.add(StepKind::finish, -1, rank, after)};
  for (; width < power; width *= 2) {
    const int peer = rank ^ width;
    b.add(StepKind::send, peer, low, done, Space::out, Space::out, width);
    done.push_back(b.add(StepKind::recv, peer, low ^ width, {}, Space::in, Space::out, width));
    low &= ~width;
  }
  if (folds) b.add(StepKind::send, rank + power, 0, done, Space::out, Space::out, power);
  return b.build();
}

// `local` ranks on each host, one after another: direct within a host, rings between them.
inline std::shared_ptr<const Plan> hierarchical_all_reduce(int rank, int n, int local) {
  const int hosts = n / local, host = rank / local, mine = rank % local;
  PlanBuilder b(rank, n, n);  // `hosts` blocks for each rank of a host
  const auto member = [=](int index) { return host * local + index % local; };
  std::vector<int> ready;
  Space source = Space::in;
  for (int k = 1; k < local; ++k) {
    const int owner = (mine - k + local) % local;
    b.add(StepKind::send, member(owner), owner * hosts, {}, Space::in, Space::out, hosts);
  }
  for (int k = 1; k < local; ++k, source = Space::out)
    ready = {b.add(StepKind::recv_reduce, member(mine + k), mine * hosts, ready, source, Space::out, hosts)};
  const int next = (host + 1) % hosts * local + mine, previous = (host + hosts - 1) % hosts * local + mine;
  const auto block = [=](int i) { return mine * hosts + ((i % hosts) + hosts) % hosts; };
  int last = -1;
  for (int k = 0; k < hosts - 1; ++k) {
    const bool first = k == 0;
    b.add(StepKind::send, next, block(host - 1 - k), first ? ready : std::vector<int>{last},
          first ? source : Space::out);
    last = b.add(StepKind::recv_reduce, previous, block(host - 2 - k), ready, source);
  }
  std::vector<int> done = {b.add(StepKind::finish, -1, block(host), {last})};
  for (int k = 0; k < hosts - 1; ++k) {
    b.add(StepKind::send, next, block(host - k), {done.back()});
    done.push_back(b.add(StepKind::recv, previous, block(host - 1 - k)));
  }
  for (int k = 1; k < local; ++k)
    b.add(StepKind::send, member(mine - k + local), mine * hosts, done, Space::out, Space::out, hosts);
  for (int k = 1; k < local; ++k) {
    const int other = (mine + k) % local;
    b.add(StepKind::recv, member(other), other * hosts, {}, Space::in, Space::out, hosts);
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

// Block r of OUT is the reduction at rank r.
inline std::shared_ptr<const Plan> direct_reduce_scatter(int rank, int n) {
  PlanBuilder b(rank, n, n);
  for (int i = 1; i < n; ++i) b.add(StepKind::send, (rank + i) % n, (rank + i) % n, {}, Space::in);
  std::vector<int> after;
  for (int i = 1; i < n; ++i)
    after = {b.add(StepKind::recv_reduce, (rank + i) % n, rank, after, i == 1 ? Space::in : Space::out)};
  b.add(StepKind::finish, -1, rank, after);
  return b.build();
}

inline std::shared_ptr<const Plan> ring_all_gather(int rank, int n) {
  PlanBuilder b(rank, n, n);
  const auto block = [n](int i) { return ((i % n) + n) % n; };
  b.add(StepKind::copy, -1, rank, {}, Space::in);
  int last = b.add(StepKind::send, block(rank + 1), rank, {}, Space::in);
  for (int k = 1; k < n; ++k) {
    last = b.add(StepKind::recv, block(rank - 1), block(rank - k));
    if (k < n - 1) b.add(StepKind::send, block(rank + 1), block(rank - k), {last});
  }
  return b.build();
}

}  // namespace slipstream::testing
