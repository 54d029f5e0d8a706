// Ranks as threads, for a Python test that makes the plans and checks the values: tests/plan/many_ranks.py loads this.
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "tests/ranks.h"

namespace slipstream::testing {

namespace {

// One rank's part of a collective. The layout is that of `Part` in tests/plan/many_ranks.py.
struct Part {
  const int32_t* rows;  // of the plan, as Plan::compile() takes them
  uint64_t steps;
  const int32_t* deps;
  uint64_t dep_count;
  std::byte* in;
  const uint64_t* in_offsets;  // blocks + 1 of them, null for an equal cut
  std::byte* out;
  const uint64_t* out_offsets;
};

// What is the same on all ranks. The layout is that of `Collective` in tests/plan/many_ranks.py.
struct Collective {
  const char* operation;
  int32_t blocks;
  int32_t dtype;
  int32_t op;
  uint32_t chunk_bytes;
  uint64_t count;  // elements of the buffers that are cut equally
};

constexpr double kLimitSeconds = 240;  // a machine may be busy with other tests

struct ManyRanks {
  explicit ManyRanks(std::vector<int> hosts) : ranks(std::move(hosts)) {}
  Ranks ranks;
  std::string error;
};

Layout layout(std::byte* data, const uint64_t* offsets, const Collective& all) {
  Layout made{data, all.count, {}};
  if (offsets != nullptr) made.offsets.assign(offsets, offsets + all.blocks + 1);
  return made;
}

Request request_of(int rank, int size, const Collective& all, const Part& part) {
  Request request;
  request.plan =
      Plan::compile(rank, size, all.blocks, {part.rows, part.steps * Plan::kColumns}, {part.deps, part.dep_count});
  auto group = std::make_shared<Group>();
  group->id = 7;
  group->rank = rank;
  for (int r = 0; r < size; ++r) group->ranks.push_back(r);
  request.group = group;
  request.signature.operation = all.operation;
  request.signature.dtype = static_cast<DType>(all.dtype);
  request.signature.op = static_cast<Op>(all.op);
  request.signature.reduces = true;
  request.signature.count = all.count;
  request.signature.chunk_bytes = request.chunk_bytes = all.chunk_bytes;
  request.timeout_seconds = kLimitSeconds;
  request.spaces[0] = layout(part.in, part.in_offsets, all);
  request.spaces[1] = layout(part.out, part.out_offsets, all);
  request.spaces[2] = layout(nullptr, part.in_offsets, all);
  return request;
}

}  // namespace

extern "C" {

// Ranks 0 to size - 1, of which rank r is on host `hosts[r]`.
[[gnu::visibility("default")]] void* many_ranks_open(int32_t size, const int32_t* hosts) {
  return new ManyRanks({hosts, hosts + size});
}

[[gnu::visibility("default")]] void many_ranks_close(void* opened) { delete static_cast<ManyRanks*>(opened); }

// Runs a collective on all ranks at once; `parts` by rank. Returns what went wrong on the first rank that failed, or
// an empty text. It is valid until the next call.
[[gnu::visibility("default")]] const char* many_ranks_run(void* opened, const Collective* all, const Part* parts) {
  auto& many = *static_cast<ManyRanks*>(opened);
  many.error.clear();
  std::mutex mutex;
  const auto failed = [&](int rank, const std::string& why) {
    std::lock_guard lock(mutex);
    if (many.error.empty()) many.error = "rank " + std::to_string(rank) + ": " + why;
  };
  many.ranks.each([&](int r, RankUnderTest& rank) {
    try {
      const auto work = rank.prepare(request_of(r, many.ranks.size(), *all, parts[r]), 0);
      if (!rank.run(work, now() + seconds(kLimitSeconds)))
        failed(r, "not done in time\n" + rank.report());
      else if (work->error())
        failed(r, work->error().text);
    } catch (const std::exception& error) {
      failed(r, error.what());
    }
  });
  return many.error.c_str();
}

}  // extern "C"

}  // namespace slipstream::testing
