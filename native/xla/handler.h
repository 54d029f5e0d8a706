// The one function that XLA calls for every operation of slipstream.jax.
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
  kTag,
  kWire,
  kPrescale,  // the bits of a double
  kPostscale,
  kArrays,  // how many of the arguments are its own
  kFields
};
inline constexpr int64_t kSendRecv = 100;

// Arguments and results: arrays that belong together one by one. `send` has no results, and `recv` no arguments. Behind
// them come arguments that are only waited for, and a byte as the last result, for what comes after.
Error* call(CallFrame* frame);

}  // namespace slipstream::xla
