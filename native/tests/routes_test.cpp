// Small broadcasts and reductions along routes (boards/form.h), beside ranks that run them as works or over a board.
#include <array>
#include <atomic>
#include <barrier>
#include <deque>
#include <thread>
#include <vector>

#include "tests/boards_rig.h"
#include "tests/check.h"

namespace slipstream::testing {

// Each operation once without a work on the ranks whose bits are set in `relays`, and once by messages.
TEST(broadcasts_and_reductions_along_routes_give_the_bits_of_messages) {
  for (const int n : {2, 3, 4, 5, 7, 8, 11})
    for (const unsigned relays : {~0U, 0x55555555U}) {
      Host host(n, 60, -1, relays);
      host.warm_up();
      int calls = 0;
      for (const DType dtype : kAll)
        for (int op = 0; op < kOps; ++op) {
          if (reduce_fn(dtype, static_cast<Op>(op)) == nullptr) continue;
          const uint64_t count = dtype == DType::q8 ? 3 : 7 + static_cast<uint64_t>(++calls % 5) * 41;
          compare(host, Rank::Kind::reduce, dtype, static_cast<Op>(op), count, calls % 2 == 0,
                  calls % 7 == 0 ? 0.5 : 1);
          compare(host, Rank::Kind::broadcast, dtype, static_cast<Op>(op), count, calls % 2 == 0, 1);
        }
      for (const uint64_t count : {1, 12, 13, 1000, 4096, 4097, 5000}) {  // 4096 elements are all that goes so
        compare(host, Rank::Kind::reduce, DType::f32, Op::sum, count, false, 1);
        compare(host, Rank::Kind::broadcast, DType::f32, Op::sum, count, true, 1);
      }
      CHECK(host.at(0).relayed > 0);
      CHECK_EQ(host.at(1).relayed > 0, (relays & 2) != 0);
    }
}

TEST(ranks_that_differ_in_a_reduction_along_a_route_learn_of_both_sides) {
  using Kind = Rank::Kind;
  for (int what = 0; what < 4; ++what)
    for (const int late : {-1, 0, 2}) {
      Host host(3, 60, -1, 7);
      host.warm_up();
      std::atomic<int> mismatches{0};
      host.each([&](int r, Rank& rank) {
        std::array<double, 8> x{};
        auto* at = reinterpret_cast<std::byte*>(x.data());
        auto call = rank.call(Kind::reduce, DType::f32, Op::sum, at, at, 3);  // to rank 0
        if (r == 2 && what == 0) call = rank.call(Kind::reduce, DType::f32, Op::max, at, at, 3);
        if (r == 2 && what == 1) call = rank.call(Kind::reduce, DType::f32, Op::sum, at, at, 6);
        if (r == 2 && what == 2) call = rank.call(Kind::broadcast, DType::f32, Op::sum, at, at, 3);
        if (r == 0 && what == 3) call = rank.call(Kind::broadcast, DType::f32, Op::sum, at, at, 3);
        if (r == late) work_for(std::chrono::milliseconds(2));
        Error error;
        rank.run(call, error);
        // who only sends is done then, and learns of the others later
        for (const Time limit = now() + std::chrono::seconds(20); !error && now() < limit;)
          rank.run(rank.call(Kind::barrier, DType::u8, Op::bor, &rank.token, &rank.token, 1), error);
        CHECK(static_cast<bool>(error));
        mismatches += error.code == Code::mismatch ? 1 : 0;
      });
      CHECK(mismatches.load() >= 1);
    }
}

TEST(a_rank_that_a_route_waits_for_is_named) {
  Host host(3, 60, -1, 7);
  host.warm_up();
  std::barrier meet(3);
  host.each([&](int r, Rank& rank) {
    std::array<float, 3> x{};
    auto* at = reinterpret_cast<std::byte*>(x.data());
    Error error;
    if (r == 1) {
      auto call = rank.call(Rank::Kind::reduce, DType::f32, Op::sum, at, at, x.size());
      CHECK(rank.run(call, error));  // it has sent
    }
    meet.arrive_and_wait();
    if (r == 0) {
      auto call = rank.call(Rank::Kind::reduce, DType::f32, Op::sum, at, at, x.size());
      call.timeout = 0.5;
      rank.run(call, error);
      CHECK_EQ(static_cast<int>(error.code), static_cast<int>(Code::timeout));
      CHECK(error.text.find("reduce(float32, 3 elements") != std::string::npos);
      CHECK(error.text.find("rank 2") != std::string::npos);
    }
    meet.arrive_and_wait();
  });
}

TEST(a_root_is_not_ahead_of_others_without_end) {
  Host host(3, 60, -1, 7);
  std::vector<int64_t> x(2048);
  auto* const at = reinterpret_cast<std::byte*>(x.data());
  host.each([](int, Rank& rank) {  // so that there are links
    std::vector<int64_t> y(2048);
    auto* const to = reinterpret_cast<std::byte*>(y.data());
    rank.well(rank.call(Rank::Kind::broadcast, DType::i64, Op::sum, to, to, y.size()));
  });
  Rank& root = host.at(2);  // of 2048 elements
  std::deque<WorkPtr> behind;
  int calls = 0;
  for (; calls < 1000 && behind.empty(); ++calls) {
    x.assign(x.size(), calls);
    if (WorkPtr work = root.begin(root.call(Rank::Kind::broadcast, DType::i64, Op::sum, at, at, x.size())))
      behind.push_back(std::move(work));
  }
  CHECK(calls > 10);
  CHECK(static_cast<size_t>(calls) <= EagerCredit::kBytes / (x.size() * sizeof(int64_t)) + 1);
  std::vector<std::jthread> others;
  for (const int r : {0, 1})
    others.emplace_back([&host, r, calls] {
      Rank& rank = host.at(r);
      for (int i = 0; i < calls; ++i) {
        std::vector<int64_t> y(2048);
        auto* const to = reinterpret_cast<std::byte*>(y.data());
        rank.well(rank.call(Rank::Kind::broadcast, DType::i64, Op::sum, to, to, y.size()));
        CHECK_EQ(y.back(), int64_t{i});
      }
    });
  for (const WorkPtr& work : behind) CHECK(root.session.wait(*work, now() + seconds(30)));
}

}  // namespace slipstream::testing
