// The C table over sessions whose ranks are threads: every collective, on odd sizes, in all ways to call.
#include <array>
#include <condition_variable>
#include <cstring>
#include <map>
#include <numeric>

#include "capi/calls.h"
#include "capi/dispatcher.h"
#include "capi/table.h"
#include "tests/check.h"
#include "tests/plans.h"
#include "tests/ranks.h"

namespace slipstream::testing {
namespace {

const slipstream_api& api() { return *capi::table(SLIPSTREAM_API_VERSION); }

// Everybody to everybody, or to and from the root, without forwarding.
std::shared_ptr<const Plan> direct(int32_t collective, int me, int n, int root) {
  PlanBuilder b(me, n, n);
  const bool mine = me == root;
  switch (collective) {
    case SLIPSTREAM_REDUCE_SCATTER: {
      for (int k = 1; k < n; ++k) b.add(StepKind::send, (me + k) % n, (me + k) % n, {}, Space::in);
      std::vector<int> after;
      Space source = Space::in;
      for (int k = 1; k < n; ++k, source = Space::out)
        after = {b.add(StepKind::recv_reduce, (me + k) % n, me, after, source)};
      if (n == 1) after = {b.add(StepKind::copy, -1, 0, {}, Space::in)};
      b.add(StepKind::finish, -1, me, after);
      break;
    }
    case SLIPSTREAM_REDUCE: {  // all blocks at once
      if (!mine) {
        b.add(StepKind::send, root, 0, {}, Space::in, Space::out, n);
        break;
      }
      std::vector<int> after;
      Space source = Space::in;
      for (int k = 1; k < n; ++k, source = Space::out)
        after = {b.add(StepKind::recv_reduce, (me + k) % n, 0, after, source, Space::out, n)};
      if (n == 1) after = {b.add(StepKind::copy, -1, 0, {}, Space::in)};
      for (int block = 0; block < n; ++block) b.add(StepKind::finish, -1, block, after);
      break;
    }
    case SLIPSTREAM_BROADCAST:
      if (!mine) {
        b.add(StepKind::recv, root, 0, {}, Space::in, Space::out, n);
        break;
      }
      for (int k = 1; k < n; ++k) b.add(StepKind::send, (me + k) % n, 0, {}, Space::in, Space::out, n);
      b.add(StepKind::copy, -1, 0, {}, Space::in, Space::out, n);
      break;
    default: {  // blocks that move: which of mine goes to rank r, and which of mine comes from it
      const bool to_all = collective == SLIPSTREAM_ALL_TO_ALL || (collective == SLIPSTREAM_SCATTER && mine);
      const bool gives = collective != SLIPSTREAM_SCATTER || mine;
      const bool gets = collective != SLIPSTREAM_GATHER || mine;
      const auto sent = [&](int r) { return to_all ? r : me; };
      const auto got = [&](int r) { return collective == SLIPSTREAM_SCATTER ? me : r; };
      for (int k = 1; k < n; ++k) {
        const int r = (me + k) % n;
        if (gives && (collective != SLIPSTREAM_GATHER || r == root)) b.add(StepKind::send, r, sent(r), {}, Space::in);
      }
      for (int k = 1; k < n; ++k) {
        const int r = (me + k) % n;
        if (gets && (collective != SLIPSTREAM_SCATTER || r == root)) b.add(StepKind::recv, r, got(r));
      }
      if (gives && gets) b.add(StepKind::copy, -1, me, {}, Space::in);
    }
  }
  return b.build();
}

std::vector<uint64_t> offsets(const std::vector<uint64_t>& counts) {
  std::vector<uint64_t> found{0};
  for (const uint64_t count : counts) found.push_back(found.back() + count);
  return found;
}

// Makes requests as Python does, with plans of this file; counts how often it is asked.
class TestMaker final : public capi::Maker {
 public:
  explicit TestMaker(std::shared_ptr<const Group> group) : group_(std::move(group)) {}

  capi::Answer make(const capi::Ask& ask) override {
    ++made;
    const slipstream_call& call = ask.call;
    const int me = group_->rank, n = static_cast<int>(group_->ranks.size());
    Request r;
    r.group = group_;
    r.signature.dtype = static_cast<DType>(call.dtype);
    r.signature.operation = "collective " + std::to_string(call.collective) + "/test";
    r.signature.chunk_bytes = r.chunk_bytes = 4096;
    const bool reduces = call.collective == SLIPSTREAM_ALL_REDUCE || call.collective == SLIPSTREAM_REDUCE ||
                         call.collective == SLIPSTREAM_REDUCE_SCATTER || call.collective == SLIPSTREAM_BARRIER;
    r.signature.reduces = reduces;
    r.signature.op = static_cast<Op>(call.op);
    if (call.collective == SLIPSTREAM_BARRIER) {
      r.signature.dtype = DType::u8;
      r.signature.op = Op::bor;
    }
    if (r.signature.op == Op::avg) r.divisor = static_cast<uint64_t>(n);
    r.prescale = call.prescale;
    r.postscale = call.postscale;
    if (call.collective == SLIPSTREAM_SEND || call.collective == SLIPSTREAM_RECV) {
      const bool sends = call.collective == SLIPSTREAM_SEND;
      PlanBuilder b(me, n, 1);
      b.add(sends ? StepKind::send : StepKind::recv, call.root, 0, {}, Space::in);
      r.plan = b.build();
      const int from = sends ? me : call.root, to = sends ? call.root : me;
      r.signature.operation = "send_recv/test";
      r.channel = (uint64_t{1} << 63) | static_cast<uint64_t>(from * 1000 + to * 10 + call.tag);
    } else if (call.collective == SLIPSTREAM_ALL_REDUCE || call.collective == SLIPSTREAM_BARRIER) {
      r.plan = ring_all_reduce(me, n);
    } else {
      r.plan = direct(call.collective, me, n, call.root);
      tables(r, ask);
    }
    capi::Answer answer;
    answer.prepared = std::make_shared<capi::Prepared>(CallRequest(std::move(r)));
    return answer;
  }
  void settle(const capi::Ask&, const capi::Range& in, const capi::Range& out) override {
    settled += in.bytes + out.bytes;
  }

  std::atomic<int> made{0};
  std::atomic<uint64_t> settled{0};

 private:
  void tables(Request& r, const capi::Ask& ask) const {
    const slipstream_call& call = ask.call;
    const size_t n = ask.ranks, me = static_cast<size_t>(group_->rank);
    if (call.collective == SLIPSTREAM_BROADCAST || call.collective == SLIPSTREAM_REDUCE) return;
    std::vector<uint64_t> counts(n, ask.count);
    if (call.counts != nullptr) counts.assign(call.counts, call.counts + n);
    std::vector<uint64_t> received = counts;
    if (call.recv_counts != nullptr) received.assign(call.recv_counts, call.recv_counts + n);
    std::vector<uint64_t> own(n, 0);
    own[me] = counts[me];
    const bool root = call.root == group_->rank;
    const std::vector<uint64_t> none(n, 0);
    switch (call.collective) {
      case SLIPSTREAM_REDUCE_SCATTER:
        r.spaces[0].offsets = offsets(counts);
        r.spaces[1].offsets = offsets(own);
        break;
      case SLIPSTREAM_ALL_GATHER:
        r.spaces[0].offsets = offsets(own);
        r.spaces[1].offsets = offsets(counts);
        break;
      case SLIPSTREAM_GATHER:
        r.spaces[0].offsets = offsets(own);
        r.spaces[1].offsets = offsets(root ? counts : none);
        break;
      case SLIPSTREAM_SCATTER:
        r.spaces[0].offsets = offsets(root ? counts : none);
        r.spaces[1].offsets = offsets(own);
        break;
      default:
        r.spaces[0].offsets = offsets(counts);
        r.spaces[1].offsets = offsets(received);
    }
    r.spaces[2].offsets = r.spaces[0].offsets;
  }

  std::shared_ptr<const Group> group_;
};

// A rank's end of the table.
struct End {
  End(RankUnderTest& under_test, int n, uint64_t id = 7) {
    auto& session = static_cast<SessionRank&>(under_test).session;
    const std::shared_ptr<Session> shared(std::shared_ptr<void>(), &session);
    std::vector<int> all(static_cast<size_t>(n));
    std::iota(all.begin(), all.end(), 0);
    auto members = session.make_group(id, all);
    auto made = std::make_unique<TestMaker>(members);
    maker = made.get();
    group = std::make_unique<slipstream_group>(shared, members, std::move(made));
  }
  // `way`: 0 run, 1 submit, 2 begin.
  int32_t call(int way, const slipstream_call& what) const {
    if (way == 0) return api().run(group.get(), &what);
    if (way == 1) return submit(what);
    slipstream_work* work = nullptr;
    if (const int32_t status = api().begin(group.get(), &what, &work); status != SLIPSTREAM_OK) return status;
    int32_t status = api().work_test(work);
    while (status == SLIPSTREAM_PENDING) status = api().work_wait(work, 0.05);
    api().work_free(work);
    return status;
  }

  std::unique_ptr<slipstream_group> group;
  TestMaker* maker = nullptr;

 private:
  struct Told {
    std::mutex mutex;
    std::condition_variable bell;
    int32_t status = SLIPSTREAM_PENDING;
  };
  int32_t submit(const slipstream_call& what) const {
    Told told;
    const auto done = [](void* user, int32_t status, const char* message) {
      auto& mine = *static_cast<Told*>(user);
      const std::lock_guard lock(mine.mutex);
      mine.status = std::strlen(message) > 0 && status == SLIPSTREAM_OK ? SLIPSTREAM_INTERNAL : status;
      mine.bell.notify_one();
    };
    if (const int32_t status = api().submit(group.get(), &what, done, &told); status != SLIPSTREAM_OK) return status;
    std::unique_lock lock(told.mutex);
    told.bell.wait(lock, [&] { return told.status != SLIPSTREAM_PENDING; });
    return told.status;
  }
};

slipstream_call call_of(int32_t collective, const std::vector<int64_t>& src, std::vector<int64_t>& dst, uint64_t count,
                        int32_t root = 0) {
  slipstream_call call;
  slipstream_call_init(&call, collective);
  call.src = src.data();
  call.dst = dst.data();
  call.count = count;
  call.dtype = SLIPSTREAM_I64;
  call.root = root;
  return call;
}

std::vector<int64_t> numbers(int rank, uint64_t count) {
  std::vector<int64_t> found(count);
  for (uint64_t i = 0; i < count; ++i) found[i] = static_cast<int64_t>(i % 97) + 100 * rank;
  return found;
}

void one_size(const End& end, int me, int n, uint64_t count, int way) {
  const auto all = static_cast<uint64_t>(n), rank = static_cast<uint64_t>(me);
  const auto root = static_cast<int32_t>(count % all);
  const std::vector<int64_t> wide = numbers(me, count * all);
  const std::vector<int64_t> mine(wide.begin(), wide.begin() + static_cast<ptrdiff_t>(count));
  std::vector<int64_t> got(count * all), own(count);
  const auto sum_at = [&](uint64_t i) { return static_cast<int64_t>(i % 97) * n + 100 * (n * (n - 1) / 2); };
  const auto at = [&](int r, uint64_t i) { return static_cast<int64_t>(i % 97) + 100 * r; };

  CHECK_EQ(end.call(way, call_of(SLIPSTREAM_ALL_REDUCE, mine, own, count)), SLIPSTREAM_OK);
  for (uint64_t i = 0; i < count; ++i) CHECK_EQ(own[i], sum_at(i));
  CHECK_EQ(end.call(way, call_of(SLIPSTREAM_REDUCE, mine, own, count, root)), SLIPSTREAM_OK);
  if (me == root)
    for (uint64_t i = 0; i < count; ++i) CHECK_EQ(own[i], sum_at(i));
  CHECK_EQ(end.call(way, call_of(SLIPSTREAM_REDUCE_SCATTER, wide, own, count)), SLIPSTREAM_OK);
  for (uint64_t i = 0; i < count; ++i) CHECK_EQ(own[i], sum_at(rank * count + i));
  CHECK_EQ(end.call(way, call_of(SLIPSTREAM_ALL_GATHER, mine, got, count)), SLIPSTREAM_OK);
  for (uint64_t i = 0; i < count * all; ++i) CHECK_EQ(got[i], at(static_cast<int>(i / count), i % count));
  std::fill(got.begin(), got.end(), 0);
  CHECK_EQ(end.call(way, call_of(SLIPSTREAM_GATHER, mine, got, count, root)), SLIPSTREAM_OK);
  if (me == root)
    for (uint64_t i = 0; i < count * all; ++i) CHECK_EQ(got[i], at(static_cast<int>(i / count), i % count));
  CHECK_EQ(end.call(way, call_of(SLIPSTREAM_SCATTER, wide, own, count, root)), SLIPSTREAM_OK);
  for (uint64_t i = 0; i < count; ++i) CHECK_EQ(own[i], at(root, rank * count + i));
  CHECK_EQ(end.call(way, call_of(SLIPSTREAM_ALL_TO_ALL, wide, got, count)), SLIPSTREAM_OK);
  for (uint64_t i = 0; i < count * all; ++i)
    CHECK_EQ(got[i], at(static_cast<int>(i / count), rank * count + i % count));
  own = mine;
  CHECK_EQ(end.call(way, call_of(SLIPSTREAM_BROADCAST, own, own, count, root)), SLIPSTREAM_OK);
  for (uint64_t i = 0; i < count; ++i) CHECK_EQ(own[i], at(root, i));
  CHECK_EQ(end.call(way, call_of(SLIPSTREAM_BARRIER, mine, own, 0)), SLIPSTREAM_OK);
}

void every_collective(Wire wire, int n) {
  Ranks ranks(wire, n);
  ranks.each([&](int me, RankUnderTest& rank) {
    const End end(rank, n);
    for (int way = 0; way < 3; ++way)
      for (const uint64_t count : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{1023}, uint64_t{20011}})
        one_size(end, me, n, count, way);
    // 8 collectives of 5 sizes, and the barrier: what was met once is kept.
    CHECK(end.maker->made.load() <= 41);
  });
}

TEST(every_collective_in_every_way_over_shm) {
  for (const int n : {1, 2, 3}) every_collective(Wire::shm, n);
}
TEST(every_collective_in_every_way_over_tcp) {
  for (const int n : {2, 3}) every_collective(Wire::tcp, n);
}

TEST(messages_meet_by_their_tags) {
  Ranks ranks(Wire::shm, 3);
  ranks.each([&](int me, RankUnderTest& rank) {
    const End end(rank, 3);
    std::vector<int64_t> nothing;
    std::array<slipstream_work*, 4> sent{};
    const std::vector<int64_t> mine = numbers(me, 3000);
    for (int tag = 0; tag < 4; ++tag) {
      slipstream_call call = call_of(SLIPSTREAM_SEND, mine, nothing, 1000 * static_cast<uint64_t>(tag), (me + 1) % 3);
      call.tag = tag;
      CHECK_EQ(api().begin(end.group.get(), &call, &sent[static_cast<size_t>(tag)]), SLIPSTREAM_OK);
    }
    for (int tag = 3; tag >= 0; --tag) {
      std::vector<int64_t> got(1000 * static_cast<size_t>(tag));
      slipstream_call call = call_of(SLIPSTREAM_RECV, nothing, got, got.size(), (me + 2) % 3);
      call.tag = tag;
      CHECK_EQ(end.call(tag % 3, call), SLIPSTREAM_OK);
      for (size_t i = 0; i < got.size(); ++i) CHECK_EQ(got[i], static_cast<int64_t>(i % 97) + 100 * ((me + 2) % 3));
    }
    for (slipstream_work* work : sent) {
      CHECK_EQ(api().work_wait(work, -1), SLIPSTREAM_OK);
      api().work_free(work);
    }
  });
}

TEST(threads_that_share_a_group_get_one_order_each) {
  constexpr int kThreads = 3, kCalls = 40;
  Ranks ranks(Wire::shm, 2);
  ranks.each([&](int, RankUnderTest& rank) {
    std::vector<std::unique_ptr<End>> ends;  // a group for each thread, and one for all
    for (int t = 0; t <= kThreads; ++t) ends.push_back(std::make_unique<End>(rank, 2, 70 + static_cast<uint64_t>(t)));
    const End& all = *ends.back();
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t)
      threads.emplace_back([&, t] {
        for (int i = 0; i < kCalls; ++i) {
          const std::vector<int64_t> mine(5, t + i);
          std::vector<int64_t> got(5);
          const End& own = *ends[static_cast<size_t>(t)];
          CHECK_EQ(own.call(i % 3, call_of(SLIPSTREAM_ALL_REDUCE, mine, got, 5)), SLIPSTREAM_OK);
          for (const int64_t value : got) CHECK_EQ(value, 2 * (t + i));
          // All of these are alike, so that it does not matter whose comes first.
          CHECK_EQ(all.call(i % 3, call_of(SLIPSTREAM_BARRIER, mine, got, 0)), SLIPSTREAM_OK);
        }
      });
    for (auto& thread : threads) thread.join();
  });
}

// A callback calls an operation, and waits for its callback: one deeper than there are threads at first.
TEST(callbacks_may_wait_for_callbacks) {
  Ranks ranks(Wire::shm, 2);
  ranks.each([&](int, RankUnderTest& rank) {
    const End end(rank, 2);
    struct Chain {
      const End& end;
      std::mutex mutex;
      std::condition_variable bell;
      int done = 0;
      void step(int depth) {
        struct Step {
          Chain& chain;
          int depth;
          std::vector<int64_t> x{1, 1, 1};
        } mine{*this, depth};
        const slipstream_call call = call_of(SLIPSTREAM_ALL_REDUCE, mine.x, mine.x, 3);
        const auto told = [](void* user, int32_t status, const char*) {
          auto& ours = *static_cast<Step*>(user);
          CHECK_EQ(status, SLIPSTREAM_OK);
          if (ours.depth > 0) ours.chain.step(ours.depth - 1);
          const std::lock_guard lock(ours.chain.mutex);
          ++ours.chain.done;
          ours.chain.bell.notify_all();
        };
        CHECK_EQ(api().submit(end.group.get(), &call, told, &mine), SLIPSTREAM_OK);
        std::unique_lock lock(mutex);
        bell.wait(lock, [&] { return done > depth; });
      }
    } chain{end, {}, {}};
    chain.step(4);
    CHECK_EQ(chain.done, 5);
  });
  CHECK(capi::Dispatcher::instance().threads() >= capi::Dispatcher::kLeast);
}

TEST(a_session_that_fails_tells_every_call_and_each_only_once) {
  Ranks ranks(Wire::shm, 2);
  std::array<std::atomic<int>, 2> told{};
  ranks.each([&](int me, RankUnderTest& rank) {
    const End end(rank, 2);
    std::vector<int64_t> x(3);
    const auto done = [](void* user, int32_t status, const char* message) {
      CHECK_EQ(status, SLIPSTREAM_ABORTED);
      CHECK(std::strstr(message, "enough") != nullptr);
      static_cast<std::atomic<int>*>(user)->fetch_add(1);
    };
    if (me == 0) {
      // What nobody sends: a collective might meet the other rank's barrier first, as a mismatch.
      slipstream_call call = call_of(SLIPSTREAM_RECV, x, x, 3, 1);
      CHECK_EQ(api().submit(end.group.get(), &call, done, &told[0]), SLIPSTREAM_OK);
      CHECK_EQ(api().abort(end.group.get(), "enough"), SLIPSTREAM_OK);
    }
    const slipstream_call call = call_of(SLIPSTREAM_BARRIER, x, x, 0);
    for (int way = 0; way < 3; ++way) CHECK_EQ(end.call(way, call), SLIPSTREAM_ABORTED);
    CHECK_EQ(api().run(end.group.get(), &call), SLIPSTREAM_ABORTED);
    CHECK(std::strstr(api().last_error(), "enough") != nullptr);
  });
  while (told[0].load() == 0) std::this_thread::yield();
  CHECK_EQ(told[0].load(), 1);
}

TEST(wrong_calls_begin_nothing) {
  Ranks ranks(Wire::shm, 1);
  const End end(ranks.at(0), 1);
  std::vector<int64_t> x(4), y(4);
  slipstream_call call = call_of(SLIPSTREAM_ALL_REDUCE, x, y, 4);
  call.struct_bytes -= 8;
  CHECK_EQ(end.call(0, call), SLIPSTREAM_INVALID);
  CHECK(std::strstr(api().last_error(), "struct_bytes") != nullptr);
  call = call_of(SLIPSTREAM_ALL_REDUCE, x, x, 4);
  call.dst = x.data() + 1;
  CHECK_EQ(end.call(1, call), SLIPSTREAM_INVALID);
  CHECK(std::strstr(api().last_error(), "overlap") != nullptr);
  CHECK_EQ(api().run(nullptr, &call), SLIPSTREAM_INVALID);
  CHECK_EQ(api().submit(end.group.get(), &call, nullptr, nullptr), SLIPSTREAM_INVALID);
  CHECK_EQ(api().group_by_id(12345, nullptr), SLIPSTREAM_INVALID);
  slipstream_group* none = nullptr;
  CHECK_EQ(api().group_world(&none), SLIPSTREAM_INVALID);
  CHECK(std::strstr(api().last_error(), "slipstream.init()") != nullptr);
  CHECK_EQ(end.maker->made.load(), 0);
}

TEST(open_copies_are_settled_before_a_call) {
  Ranks ranks(Wire::shm, 1);
  const End end(ranks.at(0), 1);
  std::vector<int64_t> x(4), y(4);
  const slipstream_call call = call_of(SLIPSTREAM_ALL_REDUCE, x, y, 4);
  CHECK_EQ(end.call(0, call), SLIPSTREAM_OK);
  CHECK_EQ(end.maker->settled.load(), 0U);
  capi::note_copies(1);
  CHECK_EQ(end.call(0, call), SLIPSTREAM_OK);
  capi::note_copies(-1);
  CHECK_EQ(end.call(0, call), SLIPSTREAM_OK);
  CHECK_EQ(end.maker->settled.load(), 64U);
}

}  // namespace
}  // namespace slipstream::testing
