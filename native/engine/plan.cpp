#include "engine/plan.h"

#include <algorithm>
#include <string>

#include "base/error.h"

namespace slipstream {

namespace {

[[noreturn]] void reject(size_t step, const char* why) {
  throw Failure(Code::invalid, "plan: step " + std::to_string(step) + " " + why);
}

bool talks(StepKind kind) { return kind <= StepKind::recv_reduce; }

Step decode(size_t index, std::span<const int32_t> row, int size, int rank, int blocks) {
  if (row[0] < 0 || row[0] > 5) reject(index, "has an unknown kind");
  const auto kind = static_cast<StepKind>(row[0]);
  if (talks(kind) ? (row[1] < 0 || row[1] >= size || row[1] == rank) : row[1] != -1) reject(index, "has a bad peer");
  if (row[2] < 0 || row[3] < 1 || row[2] + row[3] > blocks || row[3] > 0xffff) reject(index, "has a bad block range");
  if (row[4] < 0 || row[4] > 2 || row[5] < 0 || row[5] > 2) reject(index, "has a bad space");
  Step step{};
  step.kind = kind;
  step.peer = row[1];
  step.block = row[2];
  step.count = row[3];
  step.src = static_cast<Space>(row[4]);
  step.dst = static_cast<Space>(row[5]);
  step.deps = static_cast<uint32_t>(row[6]);
  return step;
}

}  // namespace

std::shared_ptr<const Plan> Plan::compile(int rank, int size, int blocks, std::span<const int32_t> rows,
                                          std::span<const int32_t> deps, bool split) {
  if (size < 1 || rank < 0 || rank >= size || blocks < 1 || rows.size() % kColumns != 0)
    throw Failure(Code::invalid, "plan: bad rank, size or table");
  auto plan = std::make_shared<Plan>();
  plan->rank_ = rank;
  plan->size_ = size;
  plan->blocks_ = blocks;
  plan->split_ = split;
  const size_t count = rows.size() / kColumns;
  size_t dep = 0;
  uint32_t batch_dep = 0;  // where the previous step's deps begin
  for (size_t i = 0; i < count; ++i) {
    Step step = decode(i, rows.subspan(i * kColumns, kColumns), size, rank, blocks);
    if (step.deps > deps.size() - dep) reject(i, "has more dependencies than the table holds");
    const auto mine = deps.subspan(dep, step.deps);
    for (const int32_t d : mine)
      if (d < 0 || static_cast<size_t>(d) >= i) reject(i, "waits for a step that is not before it");
    if (step.kind == StepKind::send) {
      const Step* last = plan->steps_.empty() ? nullptr : &plan->steps_.back();
      const bool same = last != nullptr && last->kind == StepKind::send && last->src == step.src &&
                        last->block == step.block && last->count == step.count && last->deps == step.deps &&
                        std::equal(mine.begin(), mine.end(), deps.begin() + batch_dep);
      step.batch = same ? last->batch : plan->batches_++;
      step.multicast = same;
      if (same) plan->steps_.back().multicast = true;
      plan->widest_send_ = std::max(plan->widest_send_, step.count);
    }
    plan->reads_[static_cast<size_t>(step.src)] |= step.kind != StepKind::recv && step.kind != StepKind::finish;
    plan->writes_[static_cast<size_t>(step.dst)] |= step.kind != StepKind::send;
    plan->uses_tmp_ |= step.src == Space::tmp || step.dst == Space::tmp;
    batch_dep = static_cast<uint32_t>(dep);
    dep += step.deps;
    plan->steps_.push_back(step);
  }
  plan->mark_last();
  plan->mark_given();
  plan->index_peers();
  plan->index_dependents(deps);
  return plan;
}

void Plan::mark_last() {
  std::array<std::vector<bool>, 3> read;  // by space and block
  read.fill(std::vector<bool>(static_cast<size_t>(blocks_)));
  const auto mark = [&read](Space space, const Step& step) {
    auto& blocks = read[static_cast<size_t>(space)];
    std::fill_n(blocks.begin() + step.block, step.count, true);
  };
  for (const Step& step : steps_) {
    if (step.kind != StepKind::recv && step.kind != StepKind::finish) mark(step.src, step);
    if (step.kind == StepKind::reduce || step.kind == StepKind::finish) mark(step.dst, step);
  }
  for (Step& step : steps_) {
    if (step.kind != StepKind::recv && step.kind != StepKind::copy) continue;
    const auto& blocks = read[static_cast<size_t>(step.dst)];
    step.last = std::none_of(blocks.begin() + step.block, blocks.begin() + step.block + step.count,
                             [](bool is_read) { return is_read; });
  }
}

void Plan::mark_given() {
  std::array<std::vector<bool>, 3> sent;  // later, by space and block
  sent.fill(std::vector<bool>(static_cast<size_t>(blocks_)));
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    auto& blocks = sent[static_cast<size_t>(step->kind == StepKind::send ? step->src : step->dst)];
    const auto first = blocks.begin() + step->block, last = first + step->count;
    if (step->kind == StepKind::send) std::fill(first, last, true);
    if (step->kind == StepKind::finish) step->given = std::find(first, last, true) != last;
  }
}

void Plan::index_peers() {
  peer_index_.assign(static_cast<size_t>(size_), -1);
  for (size_t i = 0; i < steps_.size(); ++i) {
    Step& step = steps_[i];
    if (!talks(step.kind)) continue;
    int& index = peer_index_[static_cast<size_t>(step.peer)];
    if (index < 0) {
      index = static_cast<int>(peers_.size());
      peers_.push_back({step.peer, {}, {}});
    }
    Peer& peer = peers_[static_cast<size_t>(index)];
    auto& list = step.kind == StepKind::send ? peer.sends : peer.recvs;
    step.stream = static_cast<uint32_t>(list.size());
    if (step.stream > 0xffff) reject(i, "is beyond 65,536 messages to one peer");
    list.push_back(static_cast<uint32_t>(i));
  }
}

void Plan::index_dependents(std::span<const int32_t> deps) {
  std::vector<uint32_t> counts(steps_.size() + 1, 0);
  for (const int32_t d : deps) ++counts[static_cast<size_t>(d) + 1];
  for (size_t i = 1; i < counts.size(); ++i) counts[i] += counts[i - 1];
  dependents_.resize(deps.size());
  for (size_t i = 0; i < steps_.size(); ++i) {
    steps_[i].dependents_begin = counts[i];
    steps_[i].dependents_end = counts[i + 1];
  }
  std::vector<uint32_t> next(counts.begin(), counts.end());
  size_t dep = 0;
  for (size_t i = 0; i < steps_.size(); ++i) {
    for (uint32_t k = 0; k < steps_[i].deps; ++k)
      dependents_[next[static_cast<size_t>(deps[dep++])]++] = static_cast<uint32_t>(i);
    if (steps_[i].deps == 0) roots_.push_back(static_cast<uint32_t>(i));
  }
}

}  // namespace slipstream
