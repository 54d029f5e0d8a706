// What the engine is asked for by an operation of a graph, and the form of that: what all ranks have to agree about.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensorflow/ticket.h"

namespace slipstream::tensorflow {

// Of SlipstreamStart: an attribute of so many 64-bit integers, in this order. slipstream.faces.tensorflow.native
// writes them.
enum Field : size_t {
  kCollective,  // as slipstream.h has it: all-reduce or broadcast
  kOp,
  kRoot,
  kWire,      // of all-reduces that are large enough
  kPrescale,  // the bits of a double
  kPostscale,
  kFields
};
using Fields = std::array<int64_t, kFields>;

// One tensor of an operation.
struct Operand {
  int32_t dtype = -1;
  size_t bytes = 0;
  uint64_t elements = 0;
  const void* from = nullptr;
  void* to = nullptr;
};

// "float32"; "sum".
const char* name_of_dtype(int32_t dtype);
const char* name_of_op(int64_t op);

// A form begins with the fields; then come the dtype, the number of dimensions and these, of each tensor.
void append(std::string& form, int64_t number);
// The rank of the group that a broadcast cannot do without; -1 for other operations.
int64_t root_of(std::string_view form);

// Fills in the ticket's calls and packs. Which tensors travel together depends on what all ranks have in common.
void plan(const Fields& fields, const std::vector<Operand>& operands, Ticket& ticket);

// The part of a rank that has joined in an operation of this form: it brings zeros to sums, averages and broadcasts,
// what changes nothing to other reductions, and drops what it receives. `label`: as on the other ranks.
std::shared_ptr<Ticket> neutral_ticket(std::string_view form, std::string label);
// Elements of this dtype that change nothing in a reduction by `op`: fills all of `memory`.
void fill_neutral(int32_t dtype, int64_t op, std::vector<std::byte>& memory);

}  // namespace slipstream::tensorflow
