// What a ticket says of an operation on some tensors, and what the engine is asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "mxnet/ticket.h"

namespace slipstream::mxnet {

// All of an operation but its tensors, as slipstream.h has it: an all-reduce or a broadcast of each tensor.
struct Asked {
  int32_t collective = SLIPSTREAM_ALL_REDUCE;
  int32_t op = 0;
  int32_t root = 0;
  int32_t wire = 0;  // of all-reduces that are large enough
  double prescale = 1.0;
  double postscale = 1.0;
};

struct Operand {
  int32_t dtype = -1;
  std::vector<int64_t> dims;
  size_t bytes = 0;
  uint64_t elements = 0;
  const void* from = nullptr;
  void* to = nullptr;
};

// Writes the ticket's kind, form, title and label. `what`, what errors call the operation, is there already.
void describe(const Asked& asked, const std::vector<Operand>& operands, Ticket& ticket);
// Writes its calls and packs. Which tensors travel together depends on what all ranks have in common.
void plan(const Asked& asked, const std::vector<Operand>& operands, Ticket& ticket);

}  // namespace slipstream::mxnet
