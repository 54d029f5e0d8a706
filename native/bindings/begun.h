// Which operations this thread has begun, and in which call of the library's: so that an exception in a call can be
// told to have come before or after its operation.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

namespace slipstream {

// A call that may begin an operation: its number, from 1. It is the thread's current call while this lives. Nothing
// here has a destructor, as the interpreter may end the thread inside the call (gil.h).
struct CurrentCall {
  uint64_t outer;
  uint64_t number;
};
CurrentCall enter_call();
void leave_call(const CurrentCall& call);

// The call, or what stands for operations that belong together, is over; the one around it is the current one again.
// `complete`: that has begun an operation.
void close_block(uint64_t outer, bool complete);

// This thread begins an operation, in its current call.
void count_begun();

void bind_begun(nanobind::module_& m);

}  // namespace slipstream
