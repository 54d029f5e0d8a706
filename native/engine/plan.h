// A plan as the executor runs it: the steps of slipstream.plan (docs/architecture.md), checked and indexed.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace slipstream {

enum class StepKind : uint8_t { send = 0, recv = 1, recv_reduce = 2, copy = 3, reduce = 4, finish = 5 };
enum class Space : uint8_t { in = 0, out = 1, tmp = 2 };

struct Step {
  StepKind kind;
  Space src;
  Space dst;
  int peer;                // rank in the group, -1 for local steps
  int block;               // first block
  int count;               // blocks
  uint32_t deps;           // how many steps it waits for
  uint32_t stream = 0;     // n-th send to, or receive from, this peer
  bool last = false;       // it moves data, and no step of this rank reads what it writes
  bool given = false;      // a finish: this rank sends what is finished
  bool multicast = false;  // another send carries the same bytes
  uint32_t batch = 0;      // sends of one batch carry the same bytes to several peers and are staged once
  uint32_t dependents_begin = 0;
  uint32_t dependents_end = 0;
};

// A shared pointer that Python hands us is the plan's own one, so that whoever drops it last needs no Python.
class Plan : public std::enable_shared_from_this<Plan> {
 public:
  static constexpr int kColumns = 7;  // kind, peer, block, count, src, dst, number of deps

  // `rows`: steps x kColumns; `deps`: the steps each step waits for, concatenated. Throws Failure(invalid).
  static std::shared_ptr<const Plan> compile(int rank, int size, int blocks, std::span<const int32_t> rows,
                                             std::span<const int32_t> deps, bool split = false);

  struct Peer {
    int rank;
    std::vector<uint32_t> sends;  // step indices by stream
    std::vector<uint32_t> recvs;
  };

  int rank() const { return rank_; }
  int size() const { return size_; }
  int blocks() const { return blocks_; }
  const std::vector<Step>& steps() const { return steps_; }
  std::span<const uint32_t> dependents(const Step& step) const {
    return {dependents_.data() + step.dependents_begin, step.dependents_end - step.dependents_begin};
  }
  const std::vector<uint32_t>& roots() const { return roots_; }
  const std::vector<Peer>& peers() const { return peers_; }
  // Index into peers(), -1 if this plan does not talk to `rank`.
  int peer_index(int rank) const { return peer_index_[static_cast<size_t>(rank)]; }
  uint32_t batches() const { return batches_; }
  int widest_send() const { return widest_send_; }  // blocks in the widest send step
  bool uses_tmp() const { return uses_tmp_; }
  bool reads(Space space) const { return reads_[static_cast<size_t>(space)]; }
  bool writes(Space space) const { return writes_[static_cast<size_t>(space)]; }
  bool split() const { return split_; }  // reducers take what part they can of what this plan would do

 private:
  void mark_last();
  void mark_given();
  void index_peers();
  void index_dependents(std::span<const int32_t> deps);

  int rank_ = 0, size_ = 1, blocks_ = 1;
  std::vector<Step> steps_;
  std::vector<uint32_t> dependents_;
  std::vector<uint32_t> roots_;
  std::vector<Peer> peers_;
  std::vector<int> peer_index_;
  uint32_t batches_ = 0;
  int widest_send_ = 1;
  bool uses_tmp_ = false;
  std::array<bool, 3> reads_{};
  std::array<bool, 3> writes_{};
  bool split_ = false;
};

}  // namespace slipstream
