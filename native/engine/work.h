// What is asked of the engine (Request), and the handle of it while it runs (Work).
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/trace.h"
#include "engine/counters.h"
#include "engine/plan.h"
#include "transport/frame.h"

namespace slipstream {

class Board;

// The ranks that take part, by their global numbers, in group order.
struct Group : std::enable_shared_from_this<Group> {
  uint64_t id = 0;
  std::vector<int> ranks;
  int rank = 0;  // ours in the group
  // Numbers its collectives, and does small ones itself; null unless all ranks are on this host.
  std::shared_ptr<Board> board;

  std::vector<int> places;  // the rank in the group by global rank, -1: no member; `group_of` fills it

  // The rank in the group of a global rank; -1 if it is no member.
  int index_of(int global_rank) const {
    const auto i = static_cast<size_t>(global_rank);
    if (i < ranks.size() && ranks[i] == global_rank) return global_rank;
    if (i < places.size()) return places[i];
    const auto it = std::find(ranks.begin(), ranks.end(), global_rank);
    return it == ranks.end() ? -1 : static_cast<int>(it - ranks.begin());
  }
};

// Throws Failure(invalid) if `rank`, ours in a session of `size` ranks, is no member, or there is no such rank.
std::shared_ptr<Group> group_of(uint64_t id, std::vector<int> ranks, int rank, int size);

// Which side of a message this rank is, for people: the two sides' signatures are alike.
enum class Side : uint8_t { none, sender, receiver };

// What operations end with that know the dtype and the sizes of the other ranks' blocks only when these come: all are
// bytes to them.
inline constexpr std::string_view kWithSizes = "/with_sizes";

// What all ranks of a work must agree on. Its hash travels in every frame.
struct Signature {
  std::string operation;  // "all_reduce", with the algorithm: "all_reduce/ring"
  std::string name;       // the caller's, may be empty
  DType dtype = DType::f32;
  Op op = Op::sum;
  bool reduces = false;
  uint64_t count = 0;  // elements, 0 where ranks may differ
  int root = -1;
  uint32_t chunk_bytes = 0;
  uint64_t extra = 0;  // hash of anything else that must agree (tables, scales); of a message: its tag
  // As what f32 data travels between hosts. A reduction is a sum then, or an average, and its plan finishes each block
  // on one rank before it gives it to others: that rank rounds it, and all end with the same bits.
  WireType wire = WireType::exact;
  // Not compared:
  Side side = Side::none;
  int other_side = -1;  // the global rank; -1: any

  uint32_t hash() const;
  std::string describe() const;
};

// Where the blocks of one space lie.
struct Layout {
  std::byte* data = nullptr;
  uint64_t count = 0;             // elements in all, cut equally ...
  std::vector<uint64_t> offsets;  // ... or, if not empty, blocks + 1 offsets in elements
};

// A channel that a receive may take its message from.
struct Candidate {
  uint64_t channel = 0;
  std::shared_ptr<const Plan> plan;  // receives from one rank, the sender
  int source() const { return plan->peers().front().rank; }
};

// What makes a work a part of an all-reduce that workers and reducers share. The part is done between the workers and
// one reducer, or among the workers.
struct SharedPart {
  // What is reduced, where that is not what the signature says: the workers agree on something about the all-reduce.
  struct Elements {
    DType dtype;
    Op op;
  };
  std::optional<Elements> elements;
  // The reducer's end: the spaces are as large as what is under way, not as the data. The executor allocates them. The
  // plan has one block.
  bool windowed = false;
  size_t window_bytes = 0;    // what may be under way at most; 0: a limit for any link
  double window_seconds = 0;  // of what its links achieve; 0: as they say
  size_t window_least = 0;    // bytes, where that is less
  // What arrives is written whole chunks at a time: until then the memory keeps what it had.
  bool whole_chunks = false;
  std::shared_ptr<std::vector<uint8_t>> received;  // 1 for each chunk that has been; resized by the executor
  std::vector<std::byte> offer;                    // sent to every peer of the plan first
};

struct Request {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const Group> group;
  uint64_t channel = 0;
  uint32_t seq = 0;
  std::vector<Candidate> candidates;  // not empty: a receive that has no plan, channel and seq yet (ledger.h)
  Time awaited_since{};               // when such a receive began to wait for its source
  Signature signature;
  uint32_t signature_hash = 0;
  std::array<Layout, 3> spaces;  // tmp's data is allocated by the executor
  uint32_t chunk_bytes = 64 << 10;
  // Works of a channel with more of it begin, and go on, before those with less; but none makes the oldest one wait. A
  // work whose memory an earlier one needs, or that is offered to a reducer, has none.
  int urgency = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  uint64_t divisor = 1;  // AVG: exact division after the sum
  double timeout_seconds = 0;
  // That time is the caller's own: it runs from the call on, also while the work waits for its turn.
  bool timed = false;
  Time called{};  // of a part of a timed work: when that was called
  // A receive that waits until its peer has called the work of the same number in this channel; 0: none.
  uint64_t stands_for = 0;

  std::optional<SharedPart> part;  // of a work that workers and reducers share
  // What arrives for a block of `out` may be shorter than the block, which is one piece. Such a plan forwards nothing.
  bool ragged = false;
  // No operation: it is done when no earlier work needs its spaces, which the caller is about to copy from, or to. Of
  // this rank alone, so it takes no number.
  bool only_waits = false;
  CollectiveKind collective = CollectiveKind::none;  // as which it is counted
};

// What is reduced, and how.
inline DType dtype_of(const Request& request) {
  return request.part && request.part->elements ? request.part->elements->dtype : request.signature.dtype;
}
inline Op op_of(const Request& request) {
  return request.part && request.part->elements ? request.part->elements->op : request.signature.op;
}

inline WireType wire_of(const Request& request) {
  return request.part && request.part->elements ? WireType::exact : request.signature.wire;
}

// True if such data may travel as `wire`: what is added in f32, or moved.
inline bool fits(WireType wire, const Signature& signature) {
  if (wire == WireType::exact) return true;
  return signature.dtype == DType::f32 && (!signature.reduces || signature.op == Op::sum || signature.op == Op::avg);
}

// Bytes of so many elements between hosts.
inline uint64_t bytes_between_hosts(const Signature& signature, uint64_t count) {
  return signature.wire == WireType::exact ? count * size_of(signature.dtype) : wire_bytes(signature.wire, count);
}

// Elements of a full chunk; whole blocks of the wire type, so that all ranks cut alike what they encode.
inline uint64_t chunk_elements(uint32_t chunk_bytes, DType dtype, WireType wire) {
  const uint64_t elements = std::max<uint64_t>(1, chunk_bytes / size_of(dtype));
  return wire == WireType::exact ? elements : std::max(kWireBlock, elements / kWireBlock * kWireBlock);
}
inline uint64_t chunk_elements(const Request& request) {
  return chunk_elements(request.chunk_bytes, dtype_of(request), wire_of(request));
}

// A send, or a receive from one rank, that a link takes, or gives, at once.
inline bool is_short_message(const Request& request) {
  if (request.signature.side == Side::none || !request.candidates.empty()) return false;
  const uint64_t count = std::max(request.spaces[0].count, request.spaces[1].count);
  return count <= kAtOnceBytes / size_of(request.signature.dtype);
}

inline bool is_windowed(const Request& request) { return request.part && request.part->windowed; }

// Told once when a work is done: by the driver, or by the thread that listens too late. Must be quick.
class Listener {
 public:
  virtual ~Listener() = default;
  virtual void work_done() = 0;

 private:
  friend class Work;
  Listener* next_ = nullptr;
};

class Work {
 public:
  explicit Work(Request r) : request(std::move(r)) {}
  ~Work();
  Work(const Work&) = delete;

  bool done() const { return state_.load(std::memory_order_acquire) != kPending; }
  // After done(): the reason, or an error with Code::ok.
  const Error& error() const { return error_; }
  // Sleeps until done. False on time-out. Any thread.
  bool sleep_until_done(Time deadline);
  // Any thread.
  void listen(std::unique_ptr<Listener> listener);

  // When the time is up that runs from its submission.
  Time due() const { return submitted + seconds(request.timeout_seconds); }
  // What people know this work as, in place of its signature; null: that. Any thread. The first title stays.
  const std::string* title() const { return title_.load(std::memory_order_acquire); }
  void entitle(std::string title);
  // After done(): the rank of the group that a work of one peer talked to, -1 if there is none.
  int peer() const;

  // Driver only; `error` may be ok. The second call and later ones do nothing.
  void complete(const Error& error);

  Request request;
  struct Copy {
    std::byte* to = nullptr;
    const std::byte* from = nullptr;
    size_t bytes = 0;
    void run() const {
      if (bytes != 0) std::memcpy(to, from, bytes);
    }
  };
  Copy copy_in;                  // of a split work: into its input, when it begins
  Copy copy_out;                 // of a part of the result, when that is there
  bool split = false;            // its slices are works of their own; set before anybody else knows of it
  bool deferred = false;         // the splitter submits it, for a call that was made before
  Counters* counters = nullptr;  // its session's, if it is counted
  Time called{};                 // then; exact
  Time traced{};                 // when it was prepared, if the session had a timeline then
  Trace* steps = nullptr;        // where the steps of its plan are recorded, if they are
  Time submitted{};              // coarse
  Time finished{};               // after done(); coarse for small works that are not counted
  uint64_t entry = 0;            // of its channel: the order in which works came
  std::atomic<bool> begun{false};

 private:
  static constexpr uint32_t kPending = 0, kDone = 1;

  void tell_listeners();

  std::atomic<uint32_t> state_{kPending};
  std::atomic<uint32_t> sleepers_{0};
  std::atomic<Listener*> listeners_{nullptr};  // the latest first; whoever takes the list tells all of it
  std::atomic<const std::string*> title_{nullptr};
  Error error_;
};

using WorkPtr = std::shared_ptr<Work>;

}  // namespace slipstream
