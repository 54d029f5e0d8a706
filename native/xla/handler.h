// The one function that XLA calls for every operation of slipstream.jax and slipstream.mpi4jax.
#pragma once

#include "xla/ffi_abi.h"

namespace slipstream::xla {

// Of an operation: an array of so many 64-bit integers, in this order. slipstream.faces.jax.calls writes them.
enum Field : size_t {
  kCollective,  // as slipstream.h has it; kSendRecv
  kGroup,       // its id; 0: the world
  kOp,
  kRoot,    // or the rank that a message goes to, or comes from
  kSource,  // of kSendRecv: the rank that a message comes from
  kTag,     // of what is sent; of kSendRecv also of what is received
  kWire,
  kPrescale,  // the bits of a double
  kPostscale,
  kArrays,   // how many of the arguments are its own
  kRecvTag,  // of an exchange: of the message that is received
  kStatus,   // of an exchange: the address of what is told of that, or 0
  kShapes,   // 1: arrays must have the same shape on all ranks
  kFields
};
inline constexpr int64_t kSendRecv = 100;
// Messages as MPI has them (xla/messages.h). Of kRoot and kSource either may be kNobody.
inline constexpr int64_t kExchange = 101;

// Arguments and results: arrays that belong together one by one. `send` has no results, and `recv` no arguments; of
// `gather` only the root has results, of `scatter` only the root arguments. Behind them come arguments that are only
// waited for, and as the last result a byte, or XLA's token, for what comes after.
Error* call(CallFrame* frame);

}  // namespace slipstream::xla
