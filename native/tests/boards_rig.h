// A host of ranks that use boards, as threads with a session each; and plans and data for their calls.
#pragma once

#include <atomic>
#include <barrier>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "boards/boards.h"
#include "kernels/kernels.h"
#include "session/session.h"
#include "tests/check.h"
#include "tests/plans.h"

namespace slipstream::testing {

// ---- plans, as slipstream.plan makes them

inline std::shared_ptr<const Plan> doubling_all_reduce(int rank, int n) {
  PlanBuilder b(rank, n, 1);
  int power = 1;
  while (2 * power <= n) power *= 2;
  if (rank >= power) {
    b.add(StepKind::send, rank - power, 0, {}, Space::in);
    b.add(StepKind::recv, rank - power, 0);
    return b.build();
  }
  int rounds = 0;
  while (1 << rounds < power) ++rounds;
  Space here = Space::in;
  std::vector<int> ready, sent;
  const bool folds = rank + power < n;
  if (folds) {
    here = rounds % 2 != 0 ? Space::tmp : Space::out;
    ready = {b.add(StepKind::recv_reduce, rank + power, 0, {}, Space::in, here)};
  }
  for (int k = 0; k < rounds; ++k) {
    const Space there = here == Space::tmp ? Space::out : Space::tmp;
    const int peer = rank ^ 1 << k;
    const std::vector<int> free = sent;
    sent = {b.add(StepKind::send, peer, 0, ready, here)};
    std::vector<int> after = ready;
    after.insert(after.end(), free.begin(), free.end());
    ready = {b.add(StepKind::recv_reduce, peer, 0, after, here, there)};
    here = there;
  }
  if (here == Space::tmp) {
    std::vector<int> after = ready;
    after.insert(after.end(), sent.begin(), sent.end());
    ready = {b.add(StepKind::copy, -1, 0, after, Space::tmp)};
  }
  const int finished = b.add(StepKind::finish, -1, 0, ready);
  if (folds) b.add(StepKind::send, rank + power, 0, {finished});
  return b.build();
}

inline std::shared_ptr<const Plan> tree_all_reduce(int rank, int n) {
  PlanBuilder b(rank, n, 1);
  const int lowest = rank == 0 ? n : rank & -rank;
  std::vector<int> children, ready;
  for (int bit = 1; bit < lowest && rank + bit < n; bit *= 2) children.push_back(rank + bit);
  Space src = Space::in;
  for (const int child : children) {
    ready = {b.add(StepKind::recv_reduce, child, 0, ready, src)};
    src = Space::out;
  }
  if (rank == 0) {
    ready = {b.add(StepKind::finish, -1, 0, ready)};
  } else {
    b.add(StepKind::send, rank - lowest, 0, ready, src);
    ready = {b.add(StepKind::recv, rank - lowest, 0)};
  }
  for (auto child = children.rbegin(); child != children.rend(); ++child) b.add(StepKind::send, *child, 0, ready);
  return b.build();
}

inline std::shared_ptr<const Plan> tree_reduce(int rank, int n, int root) {
  PlanBuilder b(rank, n, 1);
  const auto from_root = [&](int v) { return (v + root) % n; };
  const int v = (rank - root + n) % n;
  const int lowest = v == 0 ? n : v & -v;
  const Space sums = v == 0 ? Space::out : Space::tmp;
  std::vector<int> ready;
  Space src = Space::in;
  for (int bit = 1; bit < lowest && v + bit < n; bit *= 2) {
    ready = {b.add(StepKind::recv_reduce, from_root(v + bit), 0, ready, src, sums)};
    src = sums;
  }
  if (v == 0)
    b.add(StepKind::finish, -1, 0, ready);
  else
    b.add(StepKind::send, from_root(v - lowest), 0, ready, src);
  return b.build();
}

inline std::shared_ptr<const Plan> direct_broadcast(int rank, int n, int root) {
  PlanBuilder b(rank, n, 1);
  if (rank != root) {
    b.add(StepKind::recv, root, 0);
    return b.build();
  }
  b.add(StepKind::copy, -1, 0, {}, Space::in);
  for (int k = 1; k < n; ++k) b.add(StepKind::send, (root + k) % n, 0, {}, Space::in);
  return b.build();
}

inline std::shared_ptr<const Plan> direct(int rank, int n, bool reduces) {
  PlanBuilder b(rank, n, n);
  if (!reduces) b.add(StepKind::copy, -1, rank, {}, Space::in);
  for (int k = 1; k < n; ++k) {
    const int owner = (rank - k + n) % n;
    b.add(StepKind::send, owner, reduces ? owner : rank, {}, Space::in);
  }
  int last = -1;
  for (int k = 1; k < n; ++k) {
    const int peer = (rank + k) % n;
    if (!reduces)
      b.add(StepKind::recv, peer, peer);
    else if (k == 1)
      last = b.add(StepKind::recv_reduce, peer, rank, {}, Space::in);
    else
      last = b.add(StepKind::recv_reduce, peer, rank, {last});
  }
  if (reduces) b.add(StepKind::finish, -1, rank, {last});
  return b.build();
}

// ---- a rank, as the bindings use it

class Rank {
 public:
  Rank(int r, int n, bool boards, double timeout, bool relays) : session(options(r, n, boards, timeout, relays)) {}

  std::shared_ptr<const Group> group;
  Session session;
  std::atomic<int> relayed{0};  // calls that went along a route, without a work

  struct Call {
    Request request;
    BoardForm form;
    std::byte* src = nullptr;
    std::byte* dst = nullptr;
    uint64_t count = 0;
    std::string name = {};
    double timeout = 0;
  };
  enum class Kind { all_reduce, reduce_scatter, all_gather, barrier, told, broadcast, reduce, tree_all_reduce };
  // Of `told`: the elements of 8 bytes that a rank tells all, and those that there is room for.
  static uint64_t told_by(int rank, uint64_t count) {
    return std::min<uint64_t>(count, 300) + static_cast<uint64_t>(rank % 3);
  }
  static uint64_t room_of_told(uint64_t count) { return std::min<uint64_t>(count, 300) + 2; }
  // Of `broadcast` and `reduce`.
  static int root_of(uint64_t count, int n) { return static_cast<int>(count % static_cast<uint64_t>(n)); }

  // `counts`: elements of each rank, of those that have tables.
  Call call(Kind kind, DType dtype, Op op, std::byte* src, std::byte* dst, uint64_t count, double prescale = 1,
            double postscale = 1) {
    return call_in(group, kind, dtype, op, src, dst, count, prescale, postscale);
  }
  static Call call_in(const std::shared_ptr<const Group>& group, Kind kind, DType dtype, Op op, std::byte* src,
                      std::byte* dst, uint64_t count, double prescale = 1, double postscale = 1) {
    const int n = static_cast<int>(group->ranks.size());
    const int me = group->rank;
    Call made;
    Request& r = made.request;
    r.group = group;
    const char* const names[] = {
        "all_reduce/recursive_doubling", "reduce_scatter/direct", "all_gather/direct", "barrier/recursive_doubling",
        "all_gather/with_sizes",         "broadcast/direct",      "reduce/binomial",   "all_reduce/tree"};
    r.signature.operation = names[static_cast<int>(kind)];
    r.signature.dtype = dtype;
    r.signature.op = op;
    r.signature.reduces = kind != Kind::all_gather && kind != Kind::broadcast;
    r.chunk_bytes = r.signature.chunk_bytes = 64 << 10;
    r.divisor = op == Op::avg ? static_cast<uint64_t>(n) : 1;
    r.prescale = prescale;
    r.postscale = postscale;
    if (kind == Kind::told) {
      r.ragged = true;
      r.signature.dtype = DType::u8;
      r.signature.reduces = false;
      r.plan = direct(me, n, false);
      const uint64_t own = 8 * told_by(me, count);
      for (int k = 0; k <= n; ++k) {
        r.spaces[0].offsets.push_back(k <= me ? 0 : own);
        r.spaces[1].offsets.push_back(8 * static_cast<uint64_t>(k) * room_of_told(count));
      }
      count = 0;
    } else if (kind == Kind::reduce_scatter || kind == Kind::all_gather) {
      r.plan = direct(me, n, kind == Kind::reduce_scatter);
      std::vector<uint64_t> all{0}, own;
      for (int k = 0; k < n; ++k) all.push_back(all.back() + count + static_cast<uint64_t>(k % 3));
      for (int k = 0; k <= n; ++k)
        own.push_back(k <= me ? 0 : all[static_cast<size_t>(me) + 1] - all[static_cast<size_t>(me)]);
      r.spaces[0].offsets = r.spaces[2].offsets = kind == Kind::reduce_scatter ? all : own;
      r.spaces[1].offsets = kind == Kind::reduce_scatter ? own : all;
      count = all.back();
    } else if (kind == Kind::broadcast) {
      r.signature.root = root_of(count, n);
      r.plan = direct_broadcast(me, n, r.signature.root);
    } else if (kind == Kind::reduce) {
      r.signature.root = root_of(count, n);
      r.plan = tree_reduce(me, n, r.signature.root);
    } else {
      r.plan = kind == Kind::tree_all_reduce ? tree_all_reduce(me, n) : doubling_all_reduce(me, n);
    }
    made.form = form_of(r);
    made.src = src;
    made.dst = dst;
    made.count = count;
    return made;
  }

  WorkPtr prepare(const Call& call) {
    Request r = call.request;
    r.signature.count = call.count;
    r.signature.name = call.name;
    r.spaces[0].data = call.src;
    r.spaces[1].data = call.dst;
    for (Layout& space : r.spaces) space.count = call.count;
    r.timeout_seconds = call.timeout;
    return session.prepare(std::move(r), 0);
  }
  WorkPtr submit(const Call& call) {
    WorkPtr work = prepare(call);
    session.submit(work);
    return work;
  }
  // True if it went over the board, without becoming a work.
  bool run(const Call& call, Error& error) {
    WorkPtr work = begin(call);
    if (!work) return true;
    session.wait(*work, Time::max());
    error = work->error();
    return false;
  }
  // The work that it has become, if it did not go over the board at once.
  WorkPtr begin(const Call& call) {
    if (call.form.kind != BoardForm::Kind::none && call.request.group->board != nullptr) {
      Board& board = *call.request.group->board;
      const Route route = route_of(call.request, call.form);
      const BoardCall small{call.request, call.form, call.src, call.dst, call.count, call.name, call.timeout, &route};
      if (const uint64_t number = board.begin_relay(small); number != 0) {
        std::vector<int> missing;
        const bool done = board.relay(small, number, false, missing) || board.relay(small, number, true, missing);
        relayed += done ? 1 : 0;
        return board.end_relay(small, number, done);
      }
      if (const uint64_t number = board.begin(small); number != 0) {
        if (!board.look_at_once()) board.look(small);
        return board.end(small, number);
      }
    }
    WorkPtr work = prepare(call);
    session.run(work, now());
    return work;
  }
  // Runs it, and expects no error.
  bool well(const Call& call) {
    Error error;
    const bool small = run(call, error);
    CHECK_EQ(error.text, std::string());
    return small;
  }
  bool barrier() { return well(call(Kind::barrier, DType::u8, Op::bor, &token, &token, 1)); }

  std::byte token{};

 private:
  static SessionOptions options(int r, int n, bool boards, double timeout, bool relays) {
    SessionOptions o;
    o.rank = r;
    o.size = n;
    o.job = "native-test";
    o.secret = std::string(32, 's');
    o.timeout_seconds = timeout;
    o.board_ranks = boards ? n : 0;
    o.board_always = true;
    o.relays = relays;
    o.spin_us = 20;
    return o;
  }
};

class Host {
 public:
  // `off`: a rank without boards. `relays`: of the ranks, one bit each, those whose calls go along routes.
  explicit Host(int n, double timeout = 60, int off = -1, unsigned relays = 0) : relays_(relays != 0) {
    std::vector<PeerAddress> all;
    for (int r = 0; r < n; ++r) {
      ranks_.push_back(std::make_unique<Rank>(r, n, r != off, timeout, (relays >> r & 1) != 0));
      all.push_back({"here", true, ranks_.back()->session.listen_shm(), {}, 0});
    }
    std::vector<int> everyone(static_cast<size_t>(n));
    std::iota(everyone.begin(), everyone.end(), 0);
    for (auto& rank : ranks_) {
      rank->session.start(all);
      rank->group = rank->session.make_group(7, everyone);
    }
  }
  ~Host() {
    each([](int, Rank& rank) { rank.session.close(); });
  }
  int size() const { return static_cast<int>(ranks_.size()); }
  bool relays() const { return relays_; }
  Rank& at(int r) { return *ranks_[static_cast<size_t>(r)]; }
  template <class F>
  void each(F f) {
    std::vector<std::jthread> threads;
    for (int r = 0; r < size(); ++r) threads.emplace_back([&, r] { f(r, at(r)); });
  }
  // Calls barriers until one has gone over the board on all ranks.
  void warm_up() {
    std::atomic<int> went{0};
    std::barrier meet(size(), [&]() noexcept {});
    std::atomic<bool> done{false};
    each([&](int, Rank& rank) {
      for (int i = 0; i < 100'000 && !done; ++i) {
        const bool small = rank.barrier();
        went += small ? 1 : 0;
        meet.arrive_and_wait();
        if (went == size()) done = true;
        meet.arrive_and_wait();
        went = 0;
        meet.arrive_and_wait();
      }
    });
    CHECK(done.load());
  }

 private:
  const bool relays_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

inline constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16,     DType::bf16, DType::f8e4m3, DType::f8e5m2,
                                 DType::i8,  DType::i16, DType::i32,     DType::i64,  DType::u8,     DType::u16,
                                 DType::u32, DType::u64, DType::boolean, DType::c64,  DType::c128,   DType::q8};

// Small numbers of the dtype: of most bytes at random there would be NaN.
inline std::vector<std::byte> numbers(DType dtype, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> found(count * size_of(dtype) + 1);
  std::byte* at = found.data() + 1;  // odd
  for (size_t i = 0; i < count * size_of(dtype); ++i) at[i] = static_cast<std::byte>(random());
  const bool floats = dtype != DType::q8 && reduce_fn(dtype, Op::sum) != nullptr &&
                      reduce_fn(dtype, Op::band) == nullptr && dtype != DType::boolean;
  if (!floats && dtype != DType::q8) return found;
  const bool wide = dtype == DType::f64 || dtype == DType::c128;
  const size_t parts = dtype == DType::c64 || dtype == DType::c128 ? 2 * count : count * numbers_of(dtype);
  std::vector<float> values(parts);
  for (float& v : values) v = static_cast<float>(static_cast<int>(random() % 2001) - 1000) / 64;
  if (wide)
    for (size_t i = 0; i < parts; ++i) {
      const double v = values[i] + 1e-9;
      std::memcpy(at + i * sizeof v, &v, sizeof v);
    }
  else if (dtype == DType::c64)
    std::memcpy(at, values.data(), parts * sizeof(float));
  else
    cast(DType::f32, dtype, at, values.data(), count);
  return found;
}

// ---- what tests do with them

// How many operations this rank has done on the board of `group`, of those it has called just now.
inline bool was_on_board(const Rank& rank, uint32_t number) {
  const auto latest = rank.group->board->latest();
  return latest && latest->seq == number;
}

// One call on all ranks over the board and by messages: both give the same bytes. Returns whether it was on the board.
inline bool compare(Host& host, Rank::Kind kind, DType dtype, Op op, uint64_t count, bool in_place, double scale_by) {
  const int n = host.size();
  std::atomic<int> on_board{0};
  host.each([&](int r, Rank& rank) {
    const size_t elements = (count + 2) * static_cast<size_t>(n);
    auto in = numbers(dtype, elements, static_cast<uint32_t>(r) * 1000 + static_cast<uint32_t>(count));
    std::vector<std::byte> out(elements * size_of(dtype) + 1), by_messages(out), both(in);
    const bool same = in_place && (kind == Rank::Kind::all_reduce || kind == Rank::Kind::tree_all_reduce ||
                                   kind == Rank::Kind::broadcast || kind == Rank::Kind::reduce);
    std::byte* src = (same ? both : in).data() + 1;
    std::byte* dst = (same ? both : out).data() + 1;
    rank.barrier();
    const auto call = rank.call(kind, dtype, op, src, dst, count, scale_by, 1 / scale_by);
    rank.well(call);
    const WorkPtr work =
        rank.submit(rank.call(kind, dtype, op, in.data() + 1, by_messages.data() + 1, count, scale_by, 1 / scale_by));
    rank.session.wait(*work, Time::max());
    CHECK_EQ(work->error().text, std::string());
    on_board += was_on_board(rank, work->request.seq - 1) ? 1 : 0;
    const auto& outputs = call.request.spaces[1].offsets;
    const size_t bytes = (outputs.empty() ? call.count : outputs.back()) * size_of(dtype);
    const bool gets = kind != Rank::Kind::reduce || call.request.signature.root == r;
    if (gets && std::memcmp(dst, by_messages.data() + 1, bytes) != 0)
      CHECK_EQ(std::string(name_of(dtype)) + " " + name_of(op) + ", " + std::to_string(count) + " elements",
               std::string("as by messages"));
  });
  CHECK(on_board == 0 || on_board == n || host.relays());  // all decide alike; what goes along routes, each by itself
  return on_board > 0;
}

inline void work_for(std::chrono::microseconds time) {
  for (const Time end = now() + time; now() < end;) {
  }
}

}  // namespace slipstream::testing
