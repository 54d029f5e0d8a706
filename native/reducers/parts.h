// The requests of the parts that an all-reduce is split into.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "engine/work.h"
#include "reducers/shards.h"
#include "session/session.h"

namespace slipstream {

// What the objects have in common that split the all-reduces of one worker.
struct ReducerContext {
  Session& workers;
  std::recursive_mutex& mutex;         // of all of them: held by whoever calls, taken when a work is done
  std::shared_ptr<const Plan> star;    // of this rank, with the reducer as the rank after the workers
  std::shared_ptr<const Plan> small;   // an all-reduce of few bytes among the workers
  std::shared_ptr<const Group> group;  // of the workers
  Shards shards;
  std::function<void()> moved;                      // a work that waits may begin now
  std::function<std::string(Time now)> occupation;  // what the worker waits for; takes the mutex
};

// What channels of the workers' group are for. The repairs of a work have kRepairs + its number.
inline constexpr uint64_t kSlices = 1, kVerdicts = 2, kWithin = 3, kGathers = 4, kHosts = 5, kRepairs = 6;
// A reducer waits for workers, and does not say for which.
inline constexpr const char* kOrWorkers = ", or the workers that have not called it";

// A channel of the workers' group for one `use`. `incarnation`: of the session with a reducer whose slices it is for;
// 0: for large works.
uint64_t channel_of(const Group& group, uint64_t incarnation, uint64_t use);

// A part of `whole`: `count` elements from `begin` on.
Request slice_of(const Request& whole, uint64_t begin, uint64_t count);

// Has a slice reduced by the reducer of `group`, by this rank's plan `star`. It travels in chunks of `chunk_bytes`.
void send_to_reducer(Request& slice, std::shared_ptr<const Plan> star, std::shared_ptr<const Group> group,
                     uint32_t chunk_bytes);

// Has a slice reduced within the host: prescaled, and nothing else. The result is in its output.
void reduce_within(Request& slice, const Shards& shards);
// Has each worker of the host give the others what it carries of the output.
void gather_within(Request& slice, const Shards& shards);
// Goes on with what reduce_within() has left in the output.
void take_sums(Request& slice);

// Has `bytes` at `data` become the bitwise or of all workers', in place. The signature stays: it says what this is
// about.
void make_bitwise_or(Request& request, std::byte* data, uint64_t bytes, DType dtype);

}  // namespace slipstream
