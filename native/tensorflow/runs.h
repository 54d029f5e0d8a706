// How often this process has run functions that have operations. Each run begins with a node that depends on nothing,
// so it is counted also if it fails before any operation: ranks that call the same functions have the same numbers.
#pragma once

#include <cstdint>
#include <string>

#include "tensorflow/abi.h"

namespace slipstream::tensorflow {

// The number of the run of a function that has this step of TensorFlow's: a new one at the first call.
uint64_t run_of(const std::string& function, int64_t step);
// All ranks begin to count anew: the process has left the job, or all ranks have joined.
void forget_runs();

void add_begin(const Api& tf, const Outcome& outcome);

}  // namespace slipstream::tensorflow
