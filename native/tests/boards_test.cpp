// Boards: the rules of their rows, with ranks as threads on the same memory; and whole sessions that use them.
#include "boards/boards.h"

#include <barrier>
#include <cmath>
#include <cstring>
#include <deque>
#include <numeric>
#include <random>
#include <thread>

#include "kernels/kernels.h"
#include "session/session.h"
#include "tests/boards_rig.h"
#include "tests/check.h"

namespace slipstream::testing {

TEST(every_operation_gives_the_bits_of_messages) {
  for (const int n : {2, 3, 4, 5, 6, 7, 8, 11}) {
    Host host(n);
    host.warm_up();
    int calls = 0, on_board = 0;
    const auto try_one = [&](Rank::Kind kind, DType dtype, Op op, uint64_t count) {
      ++calls;
      on_board += compare(host, kind, dtype, op, count, calls % 2 == 0,
                          calls % 7 == 0 && kind != Rank::Kind::all_gather && kind != Rank::Kind::broadcast ? 0.5 : 1)
                      ? 1
                      : 0;
    };
    for (const DType dtype : kAll)
      for (int op = 0; op < kOps; ++op) {
        if (reduce_fn(dtype, static_cast<Op>(op)) == nullptr) continue;
        const uint64_t count = dtype == DType::q8 ? 3 : 7 + static_cast<uint64_t>(calls % 5) * 41;
        try_one(Rank::Kind::all_reduce, dtype, static_cast<Op>(op), count);
        try_one(Rank::Kind::tree_all_reduce, dtype, static_cast<Op>(op), count);
        try_one(Rank::Kind::reduce, dtype, static_cast<Op>(op), count);
        try_one(Rank::Kind::reduce_scatter, dtype, static_cast<Op>(op), count / 7);
      }
    for (const DType dtype : kAll) try_one(Rank::Kind::all_gather, dtype, Op::sum, 5);
    for (const uint64_t count : {0, 1, 12, 13, 1001, 2047}) try_one(Rank::Kind::broadcast, DType::f32, Op::sum, count);
    for (const uint64_t count : {0, 1, 11, 12, 13, 1000, 2048}) {
      try_one(Rank::Kind::all_reduce, DType::f32, Op::sum, count);
      try_one(Rank::Kind::tree_all_reduce, DType::f32, Op::sum, count);
      try_one(Rank::Kind::reduce, DType::f32, Op::sum, count);
    }
    CHECK(on_board > 0);
  }
}

TEST(groups_of_many_ranks) {
  for (const int n : {33, 64}) {
    Host host(n, 300);
    host.each([&](int r, Rank& rank) {
      for (int i = 0; i < 3000; ++i) {
        std::array<float, 16> x{};
        x.fill(static_cast<float>(r + i));
        x[0] = rank.group->board->latest() ? 1 : 0;  // all stop when one has had an operation on the board
        auto* at = reinterpret_cast<std::byte*>(x.data());
        rank.well(rank.call(Rank::Kind::all_reduce, DType::f32, Op::sum, at, at, x.size()));
        CHECK_EQ(x[15], static_cast<float>(n * (n - 1) / 2 + n * i));
        if (x[0] > 0) break;
      }
      CHECK(rank.group->board->latest().has_value());
    });
  }
}

namespace {

// One operation of many, which all ranks call in one order, each in its own way.
struct Step {
  Rank::Kind kind;
  uint64_t count;
};

std::vector<Step> steps(uint32_t seed, int number) {
  std::mt19937 random(seed);
  std::vector<Step> found;
  for (int i = 0; i < number; ++i) {
    const uint64_t count = random() % 20 == 0   ? 5000 + random() % 60'000
                           : random() % 10 == 0 ? 1000
                                                : 1 + random() % 20;
    found.push_back({static_cast<Rank::Kind>(random() % 7), count});
  }
  return found;
}

class Operation {
 public:
  Operation(const std::shared_ptr<const Group>& group, const Step& step, int number)
      : step_(step), me_(group->rank), n_(static_cast<int>(group->ranks.size())), number_(number) {
    const size_t most = (step.count + 2) * static_cast<size_t>(n_);
    in_.resize(most);
    out_.resize(most, -1);
    for (size_t i = 0; i < most; ++i) in_[i] = value(me_, i);
    call = Rank::call_in(group, step.kind, DType::i64, Op::sum, reinterpret_cast<std::byte*>(in_.data()),
                         reinterpret_cast<std::byte*>(out_.data()), step.count);
  }
  void check() const {
    const auto& in = call.request.spaces[0].offsets;
    const auto& out = call.request.spaces[1].offsets;
    size_t wrong = 0;
    if (step_.kind == Rank::Kind::told) {
      for (int r = 0; r < n_; ++r)
        for (size_t i = 0; i < Rank::told_by(r, step_.count); ++i)
          wrong += out_[static_cast<size_t>(r) * Rank::room_of_told(step_.count) + i] != value(r, i);
    } else if (step_.kind == Rank::Kind::all_gather) {
      for (int r = 0; r < n_; ++r)
        for (size_t i = out[static_cast<size_t>(r)]; i < out[static_cast<size_t>(r) + 1]; ++i)
          wrong += out_[i] != value(r, i - out[static_cast<size_t>(r)]);
    } else if (step_.kind == Rank::Kind::broadcast) {
      for (size_t i = 0; i < step_.count; ++i) wrong += out_[i] != value(Rank::root_of(step_.count, n_), i);
    } else if (step_.kind == Rank::Kind::reduce && Rank::root_of(step_.count, n_) != me_) {
      return;  // scratch
    } else if (step_.kind != Rank::Kind::barrier) {
      const bool scatters = step_.kind == Rank::Kind::reduce_scatter;
      const size_t begin = scatters ? in[static_cast<size_t>(me_)] : 0;
      const size_t size = scatters ? in[static_cast<size_t>(me_) + 1] - begin : call.count;
      for (size_t i = 0; i < size; ++i) wrong += out_[i] != sum(begin + i);
    }
    CHECK_EQ(wrong, size_t{0});
  }
  Rank::Call call;

 private:
  int64_t value(int rank, size_t i) const { return (rank + 1) * (number_ % 1000 + 1) + static_cast<int64_t>(i); }
  int64_t sum(size_t i) const {
    int64_t total = 0;
    for (int r = 0; r < n_; ++r) total += value(r, i);
    return total;
  }
  Step step_;
  int me_, n_, number_;
  std::vector<int64_t> in_, out_;
};

// All of `number` operations; some are left under way for a while, as after an interrupted call or of an asynchronous
// one.
void run_steps(Rank& rank, const std::shared_ptr<const Group>& group, uint32_t seed, int number, uint32_t own) {
  std::mt19937 random(own);
  std::deque<std::pair<std::unique_ptr<Operation>, WorkPtr>> under_way;
  const auto finish = [&] {
    rank.session.wait(*under_way.front().second, Time::max());
    CHECK_EQ(under_way.front().second->error().text, std::string());
    under_way.front().first->check();
    under_way.pop_front();
  };
  const std::vector<Step> all = steps(seed, number);
  for (int i = 0; i < number; ++i) {
    auto operation = std::make_unique<Operation>(group, all[static_cast<size_t>(i)], i);
    const uint32_t how = random() % 20;
    if (how < 2) work_for(std::chrono::microseconds(random() % 200));
    if (how < 17) {
      rank.well(operation->call);
      operation->check();
      continue;
    }
    WorkPtr work = how == 17 ? rank.begin(operation->call) : rank.submit(operation->call);
    if (work)
      under_way.emplace_back(std::move(operation), std::move(work));
    else
      operation->check();
    while (under_way.size() > 3) finish();
    if (random() % 3 == 0)
      while (!under_way.empty()) finish();
  }
  while (!under_way.empty()) finish();
}

}  // namespace

TEST(each_rank_calls_in_its_own_way) {
  for (const int n : {2, 3, 4, 6})
    for (const unsigned relays : {0U, ~0U, 5U}) {
      Host host(n, 60, -1, relays);
      host.each([&](int r, Rank& rank) {
        run_steps(rank, rank.group, static_cast<uint32_t>(n), 1000, static_cast<uint32_t>(100 * n + r));
        CHECK(rank.group->board->latest().has_value());
        CHECK_EQ(rank.relayed > 0, (relays >> r & 1) != 0);
      });
    }
}

TEST(threads_of_a_rank_call_on_groups_of_their_own) {
  constexpr int kRanks = 4, kThreads = 3;
  Host host(kRanks, 60, -1, 0b1101);
  host.each([&](int r, Rank& rank) {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      std::vector<int> ranks;
      for (int k = 0; k < kRanks; ++k)
        if (t == 0 || k % 2 == r % 2) ranks.push_back(k);
      const uint64_t id = 100 + static_cast<uint64_t>(10 * t + (t == 0 ? 0 : r % 2));
      threads.emplace_back([&rank, t, r, group = rank.session.make_group(id, ranks)] {
        run_steps(rank, group, static_cast<uint32_t>(t), 500, static_cast<uint32_t>(10 * t + r));
      });
    }
  });
}

TEST(threads_of_a_rank_call_on_one_group) {
  constexpr int kCalls = 1000;
  for (const auto& [kind, relays] : {std::pair(Rank::Kind::all_reduce, 0U), std::pair(Rank::Kind::broadcast, 0U),
                                     std::pair(Rank::Kind::broadcast, 7U)}) {
    Host host(3, 60, -1, relays);
    host.each([&](int r, Rank& rank) {
      std::vector<std::jthread> threads;
      for (int t = 0; t < 2; ++t)
        threads.emplace_back([&rank, t, r, kind = kind] {
          for (int i = 0; i < kCalls; ++i) {  // all alike: their order is undefined
            std::array<int64_t, 3> x{1, 2, kind == Rank::Kind::all_reduce ? 3 : r == 0 ? 9 : 0};
            auto* at = reinterpret_cast<std::byte*>(x.data());
            const auto call = rank.call(kind, DType::i64, Op::sum, at, at, x.size());
            if (t == 0 || i % 2 == 0) {
              rank.well(call);
            } else {
              const WorkPtr work = rank.submit(call);
              rank.session.wait(*work, Time::max());
              CHECK_EQ(work->error().text, std::string());
            }
            CHECK_EQ(x[2], int64_t{9});
          }
        });
    });
  }
}

TEST(a_root_waits_for_nobody) {
  Host host(3);
  host.warm_up();
  for (int round = 0; round < 30; ++round) {
    std::atomic<bool> given{false};
    host.each([&](int r, Rank& rank) {
      std::array<int64_t, 5> x{};
      x.fill(r == 1 ? round + 1 : 0);
      auto* at = reinterpret_cast<std::byte*>(x.data());
      const auto call = rank.call(Rank::Kind::broadcast, DType::i64, Op::sum, at, at, 4);  // root 1
      if (r == 2) given.wait(false);                                                       // until the root is done
      rank.well(call);
      if (r == 1) {
        given = true;
        given.notify_all();
      }
      CHECK_EQ(x[3], static_cast<int64_t>(round + 1));
      CHECK_EQ(x[4], static_cast<int64_t>(r == 1 ? round + 1 : 0));
    });
  }
}

TEST(broadcasts_of_ranks_that_come_together_go_over_the_board) {
  Host host(3);
  host.warm_up();
  std::atomic<int> on_board{0};
  for (int round = 0; round < 300; ++round)
    host.each([&](int r, Rank& rank) {
      std::array<int64_t, 9> x{};
      x.fill(r == round % 3 ? round + 1 : 0);
      auto* at = reinterpret_cast<std::byte*>(x.data());
      const auto count = static_cast<uint64_t>(6 + round % 3);
      rank.barrier();
      on_board += rank.well(rank.call(Rank::Kind::broadcast, DType::i64, Op::sum, at, at, count)) ? 1 : 0;
      CHECK_EQ(x[count - 1], static_cast<int64_t>(round + 1));
    });
  CHECK(on_board > 0);
}

TEST(an_abandoned_call_goes_on_and_its_memory_is_used_in_order) {
  Host host(3);
  host.warm_up();
  std::barrier meet(3);
  for (int round = 0; round < 50; ++round)
    host.each([&](int r, Rank& rank) {
      std::array<int64_t, 5> x{};
      x.fill(r + 1);
      auto* at = reinterpret_cast<std::byte*>(x.data());
      const auto call = rank.call(Rank::Kind::all_reduce, DType::i64, Op::sum, at, at, x.size());
      WorkPtr first;
      if (r == 0) first = rank.begin(call);  // it is left
      meet.arrive_and_wait();                // the others have not come before
      if (r == 1 && round % 2 == 0) {
        first = rank.submit(call);
      } else if (r != 0) {
        rank.well(call);
      }
      rank.well(call);
      if (first) CHECK(rank.session.wait(*first, Time::max()));
      CHECK_EQ(x[4], int64_t{18});
    });
}

// ---- faults

TEST(ranks_that_differ_learn_of_both_sides) {
  using Kind = Rank::Kind;
  for (int what = 0; what < 5; ++what)
    for (const int late : {-1, 0, 1}) {
      Host host(2);
      host.warm_up();
      std::atomic<int> mismatches{0};
      host.each([&](int r, Rank& rank) {
        std::array<double, 8> x{};
        auto* at = reinterpret_cast<std::byte*>(x.data());
        auto call = rank.call(Kind::all_reduce, DType::f32, Op::sum, at, at, 2);
        if (r == 1 && what == 0) call = rank.call(Kind::all_reduce, DType::f32, Op::max, at, at, 2);
        if (r == 1 && what == 1) call = rank.call(Kind::all_reduce, DType::i32, Op::sum, at, at, 2);
        if (r == 1 && what == 2) call = rank.call(Kind::all_reduce, DType::f32, Op::sum, at, at, 3);
        if (r == 1 && what == 3) call = rank.call(Kind::barrier, DType::u8, Op::bor, at, at, 1);
        if (r == 1 && what == 4) call.name = "another";
        if (r == late) work_for(std::chrono::milliseconds(2));
        Error error;
        rank.run(call, error);
        mismatches += error.code == Code::mismatch ? 1 : 0;
        CHECK(error.text.find("all_reduce(float32, 2 elements, op=sum)") != std::string::npos);
        const char* const theirs[] = {"op=max", "int32", "3 elements", "barrier(", "another"};
        CHECK(error.text.find(theirs[what]) != std::string::npos);
      });
      CHECK_EQ(mismatches.load(), 2);
    }
}

TEST(ranks_that_differ_in_a_broadcast_learn_of_both_sides) {
  using Kind = Rank::Kind;
  for (int what = 0; what < 8; ++what)
    for (const int late : {-1, 0, 1}) {
      Host host(2, 60, -1, what < 4 ? 0U : 3U);
      host.warm_up();
      std::atomic<int> mismatches{0};
      host.each([&](int r, Rank& rank) {
        std::array<double, 8> x{};
        auto* at = reinterpret_cast<std::byte*>(x.data());
        // 2 elements come from rank 0, and 3 from rank 1
        auto call = rank.call(Kind::broadcast, DType::f32, Op::sum, at, at, what % 4 == 1 ? 3 : 2);
        if (r == 1 && what % 4 == 0)
          call = rank.call(Kind::broadcast, DType::f32, Op::sum, at, at, 3);  // both are roots
        if (r == 1 && what % 4 == 1) call = rank.call(Kind::broadcast, DType::f32, Op::sum, at, at, 2);  // none is
        if (r == 1 && what % 4 == 2) call = rank.call(Kind::all_reduce, DType::f32, Op::sum, at, at, 2);
        if (r == 0 && what % 4 == 3) call = rank.call(Kind::broadcast, DType::i32, Op::sum, at, at, 2);
        if (r == late) work_for(std::chrono::milliseconds(2));
        Error error;
        rank.run(call, error);
        // a root is done when it has sent: it learns of the others later, and may pass barriers on the board before
        for (const Time limit = now() + std::chrono::seconds(20); !error && now() < limit;)
          rank.run(rank.call(Kind::barrier, DType::u8, Op::bor, &rank.token, &rank.token, 1), error);
        CHECK(static_cast<bool>(error));
        mismatches += error.code == Code::mismatch ? 1 : 0;
      });
      CHECK(mismatches.load() >= 1);
    }
}

TEST(a_rank_that_never_calls_is_named_at_the_time_out) {
  Host host(3);
  host.warm_up();
  std::barrier meet(3);
  host.each([&](int r, Rank& rank) {
    meet.arrive_and_wait();
    if (r != 2) {
      std::array<float, 3> x{};
      auto* at = reinterpret_cast<std::byte*>(x.data());
      auto call = rank.call(Rank::Kind::all_reduce, DType::f32, Op::sum, at, at, x.size());
      call.timeout = 0.5;
      Error error;
      rank.run(call, error);
      CHECK_EQ(static_cast<int>(error.code), static_cast<int>(Code::timeout));
      CHECK(error.text.find("all_reduce(float32, 3 elements, op=sum) #") != std::string::npos);
      CHECK(error.text.find("rank 2") != std::string::npos);
    }
    meet.arrive_and_wait();
  });
}

TEST(a_rank_that_leaves_is_lost_to_calls_that_wait) {
  for (int round = 0; round < 20; ++round) {
    Host host(3);
    host.warm_up();
    host.each([&](int r, Rank& rank) {
      if (r == 2) {
        work_for(std::chrono::microseconds(37 * round));
        return rank.session.close();
      }
      Error error;
      rank.run(rank.call(Rank::Kind::barrier, DType::u8, Op::bor, &rank.token, &rank.token, 1), error);
      CHECK_EQ(static_cast<int>(error.code), static_cast<int>(Code::peer_lost));
      CHECK(error.text.find("rank 2") != std::string::npos);
      if (error.text.find("still waits in barrier() #") == std::string::npos)
        CHECK_EQ(error.text, std::string("still waits in ..."));
    });
  }
}

TEST(a_rank_that_leaves_after_the_last_operation_wakes_those_who_sleep) {
  for (int round = 0; round < 100; ++round) {
    Host host(3);
    host.warm_up();
    host.each([&](int r, Rank& rank) {
      if (r == round % 3) work_for(std::chrono::microseconds(20 * round));
      rank.barrier();
      rank.session.close();
    });
  }
}

TEST(a_session_that_ends_beside_its_calls_ends_them) {
  for (const bool aborts : {true, false})
    for (int round = 0; round < 20; ++round) {
      Host host(2);
      host.warm_up();
      Rank& rank = host.at(0);
      std::jthread caller([&] {
        Error error;
        while (!error) rank.run(rank.call(Rank::Kind::barrier, DType::u8, Op::bor, &rank.token, &rank.token, 1), error);
        CHECK(error.code == Code::aborted);
      });
      for (int i = 0; i < 5; ++i) host.at(1).barrier();
      work_for(std::chrono::microseconds(10 * round));
      if (aborts)
        rank.session.abort("enough");
      else
        rank.session.close();
    }
}

TEST(a_rank_without_boards_keeps_its_group_off_them) {
  Host host(3, 60, 1);
  host.each([&](int r, Rank& rank) {
    run_steps(rank, rank.group, 5, 300, static_cast<uint32_t>(r));
    CHECK_EQ(rank.group->board == nullptr, r == 1);
    CHECK(!rank.group->board || !rank.group->board->latest());
  });
}

TEST(an_offer_that_cannot_be_right_fails_the_session) {
  struct Damage {
    uint64_t words[3];
    uint32_t bytes;
    int from;
  };
  const Damage damages[] = {{{1, 0, 0}, 8, 0},   {{1, 0, 0}, 24, 0},       {{1, 32, 0}, 16, 0},
                            {{77, 0, 0}, 16, 0}, {{1, 1 << 20, 0}, 16, 0}, {{1, ~uint64_t{63}, 0}, 16, 0},
                            {{1, 0, 0}, 16, 0},  // a second one
                            {{1, 0, 0}, 16, 1}};
  for (const Damage& damage : damages) {
    Host host(3);
    host.warm_up();
    Rank& from = host.at(damage.from);
    from.session.as_driver([&] {
      WorkHeader frame;
      frame.type = MessageType::board;
      frame.channel = 7;
      frame.length = damage.bytes;
      from.session.engine().fabric().send(2, frame, std::as_bytes(std::span(damage.words)).first(damage.bytes));
    });
    Error error;
    while (!error)
      host.at(2).run(host.at(2).call(Rank::Kind::barrier, DType::u8, Op::bor, &host.at(2).token, &host.at(2).token, 1),
                     error);
    CHECK(error.text.find("offered a board that cannot be right") != std::string::npos);
  }
  Host host(2);
  host.warm_up();
  host.at(0).session.as_driver([&] {  // of a group that is not there
    WorkHeader frame;
    frame.type = MessageType::board;
    frame.channel = 8;
    host.at(0).session.engine().fabric().send(1, frame);
  });
  host.warm_up();
}

// ---- the rows alone

TEST(a_claim_is_taken_once_and_nobody_sleeps_for_ever) {
  constexpr int kOperations = 20'000;
  std::vector<std::byte> memory(BoardRows::bytes(2) + 64);
  auto* at = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});
  std::array<std::atomic<uint64_t>, 2> woken{};  // the latest number for which a rank was woken
  std::array<std::jthread, 2> ranks;
  for (int r = 0; r < 2; ++r)
    ranks[static_cast<size_t>(r)] = std::jthread([&, r] {
      BoardRows rows(at, r, 2);
      rows.join(1);
      std::atomic<uint64_t>& mine = woken[static_cast<size_t>(r)];
      for (uint64_t k = 1; k <= kOperations; ++k) {
        while (!rows.may_post(k)) std::this_thread::yield();
        std::memcpy(rows.place(k, 8), &k, 8);
        rows.post(k, 42);
        rows.look_for(k, 42);
        if (rows.any_sleeps())
          for (const auto& wake : rows.take_claims(k)) {
            CHECK_EQ(wake.rank, 1 - r);
            CHECK_EQ(wake.tag, 77u);
            woken[static_cast<size_t>(wake.rank)].store(wake.number);
            woken[static_cast<size_t>(wake.rank)].notify_all();
          }
        if (rows.look() == BoardRows::Look::waits && rows.claim(1 - r, k, 77)) {
          for (uint64_t seen = mine.load(); seen != k; seen = mine.load()) mine.wait(seen);
          rows.woken();
        }
        CHECK(rows.look() == BoardRows::Look::all);
        uint64_t theirs = 0;
        std::memcpy(&theirs, rows.posted(1 - r, k, 8), 8);
        CHECK_EQ(theirs, k);
        rows.let_go();
      }
    });
}

TEST(a_post_is_kept_for_a_rank_that_still_looks) {
  std::vector<std::byte> memory(BoardRows::bytes(2) + 64);
  auto* at = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(memory.data()) + 63) & ~uintptr_t{63});
  BoardRows one(at, 0, 2), other(at, 1, 2);
  CHECK(!one.may_post(1));  // nobody has joined
  one.join(1);
  CHECK(!one.may_post(1));
  other.join(3);
  CHECK(!one.may_post(2));
  one.pass(1, 0);
  one.pass(2, 0);
  CHECK(one.may_post(3));
  one.post(3, 5);
  CHECK(other.may_post(3));
  other.post(3, 5);
  one.look_for(3, 5);
  CHECK(one.look() == BoardRows::Look::all);
  CHECK(one.may_post(4));  // the other place
  one.pass(4, 0);
  CHECK(!one.may_post(5));  // the other rank may look at 3
  other.pass(4, 3);         // and says so
  CHECK(!one.may_post(5));
  other.let_go();
  CHECK(one.may_post(5));
  one.post(5, 5);
  one.look_for(5, 5);
  CHECK(one.look() == BoardRows::Look::waits);
  other.pass(5, 0);
  CHECK(one.look() == BoardRows::Look::messages);
  one.let_go();
  CHECK(one.may_post(6));
  one.post(6, 5);
  CHECK(other.may_post(6));
  other.post(6, 6);
  one.look_for(6, 5);
  other.look_for(6, 6);
  CHECK(one.look() == BoardRows::Look::messages);
  CHECK(other.look() == BoardRows::Look::messages);
}

}  // namespace slipstream::testing
