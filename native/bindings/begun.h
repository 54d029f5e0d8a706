// Which operations this thread has begun, and in which call of the library's: so that an exception in a call can be
// told to have come before or after its operation.
#pragma once

#include <cstdint>

namespace slipstream {

// A call that may begin an operation begins: its number, from 1.
uint64_t enter_call();
// This thread begins an operation, in its latest call.
void count_begun();

}  // namespace slipstream
