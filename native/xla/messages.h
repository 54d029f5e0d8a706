// Messages as MPI has them, for slipstream.mpi4jax: a receive names a tag or takes any, and those of one rank keep
// their order. The engine's own messages are matched by tag before they travel, and a receive has to name it.
#pragma once

#include <cstdint>
#include <string>

#include "capi/slipstream.h"

namespace slipstream::xla {

inline constexpr int64_t kNobody = -2;  // MPI_PROC_NULL: nothing is sent, or zeros are received
inline constexpr int64_t kAnyTag = -1;

struct Outgoing {
  int64_t dest = kNobody;
  int64_t tag = 0;
  const void* data = nullptr;
  uint64_t bytes = 0;
  int32_t dtype = 0;
};

// What is known of a message that has come. slipstream.faces.mpi.status reads it.
struct Arrived {
  int64_t source;
  int64_t tag;
  int64_t bytes;
};

struct Incoming {
  int64_t source = kNobody;
  int64_t tag = kAnyTag;
  void* data = nullptr;
  uint64_t bytes = 0;
  int32_t dtype = 0;
  Arrived* status = nullptr;  // out, if not null
};

// Sends and receives at once, in this thread; either may be null. Returns a status of slipstream.h, and what it means
// in `text`. Any thread; one at a time sends to a rank of a group, and one receives from it. A message of another size
// or dtype than the receive's ends the job on all ranks.
int32_t exchange(slipstream_group* group, const Outgoing* out, const Incoming* in, std::string& text);

// Drops messages that have come and were not received: the job that they are of is over.
void forget_messages();

}  // namespace slipstream::xla
