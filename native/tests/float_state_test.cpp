// Callers that have changed how their threads compute: all ranks get the same bits all the same.
#include "base/float_state.h"

#include <cstring>

#include "tests/check.h"
#include "tests/plans.h"
#include "tests/ranks.h"

namespace slipstream::testing {

namespace {

#if defined(__x86_64__)
constexpr DefaultFloatState::Word kStates[] = {
    DefaultFloatState::kDefault,
    DefaultFloatState::kDefault | 0x8040,  // subnormal operands and results count as zero
    DefaultFloatState::kDefault | 0x6000,  // rounds toward zero
};
#elif defined(__aarch64__)
constexpr DefaultFloatState::Word kStates[] = {0, DefaultFloatState::Word{1} << 24, DefaultFloatState::Word{3} << 22};
#else
constexpr DefaultFloatState::Word kStates[] = {0, 0, 0};
#endif

constexpr size_t kCount = 1023;
constexpr float kLeast = 0x1p-149f;  // the smallest subnormal number

float value(int rank, size_t i) {
  const auto step = static_cast<float>(i % 100 + 1);
  return i % 2 == 0 ? kLeast * step : (rank == 0 ? 1.0f : 0x1.8p-24f) * step;
}

Request all_reduce(int rank, std::vector<float>& data) {
  auto group = std::make_shared<Group>();
  group->id = 7;
  group->rank = rank;
  group->ranks = {0, 1, 2};
  Request request;
  request.plan = direct_all_reduce(rank, 3);
  request.group = group;
  request.signature.operation = "all_reduce/test";
  request.signature.reduces = true;
  request.signature.count = kCount;
  request.signature.chunk_bytes = request.chunk_bytes;
  request.timeout_seconds = 60;
  for (Layout& space : request.spaces) space = {reinterpret_cast<std::byte*>(data.data()), kCount, {}};
  request.spaces[2].data = nullptr;
  return request;
}

}  // namespace

// The engines' threads are made by a thread in that state, too, and inherit it.
void check_ranks(bool synchronous) {
  DefaultFloatState::write(kStates[1]);
  Ranks ranks(Wire::memory, 3);
  DefaultFloatState::write(kStates[0]);
  std::vector<float> results[3];
  ranks.each([&](int r, RankUnderTest& rank) {
    const auto state = kStates[static_cast<size_t>(r)];
    std::vector<float> data(kCount);
    for (size_t i = 0; i < kCount; ++i) data[i] = value(r, i);
    const auto work = rank.prepare(all_reduce(r, data));
    DefaultFloatState::write(state);
    if (synchronous) {
      rank.run(work, now() + seconds(60));
    } else {
      rank.submit(work);
      rank.wait(*work, now() + seconds(60));
    }
    const auto after = DefaultFloatState::read() & ~DefaultFloatState::kStatus;
    DefaultFloatState::write(kStates[0]);
    CHECK_EQ(after, state);  // the caller's own arithmetic goes on as it was
    CHECK_EQ(work->error().text, std::string());
    results[r] = data;
  });
  for (size_t i = 0; i < kCount; i += 2) CHECK_EQ(results[0][i], value(0, i) + value(1, i) + value(2, i));  // exact
  for (const auto& result : results) CHECK_EQ(std::memcmp(result.data(), results[0].data(), kCount * sizeof(float)), 0);
}

TEST(the_state_of_callers_changes_no_bit) {
  for (int turn = 0; turn < 5; ++turn) {  // who drives is up to chance
    check_ranks(true);
    check_ranks(false);
  }
}

}  // namespace slipstream::testing
