// Two operations for TensorFlow's graphs: SlipstreamStart begins a communication and returns, SlipstreamWait gives its
// results. Start is stateful: a function of TensorFlow runs all that is stateful in the order of the program. Wait is
// not, and keeps no thread busy: it is over when the communication is. So one thread for operations is enough.
#pragma once

#include <cstdint>
#include <string>

#include "tensorflow/line.h"

namespace slipstream::tensorflow {

// Of SlipstreamStart: an attribute of so many 64-bit integers, in this order. slipstream.faces.tensorflow.native
// writes them.
enum Field : size_t {
  kCollective,  // as slipstream.h has it: all-reduce or broadcast
  kLine,
  kOp,
  kRoot,
  kWire,      // of all-reduces that are large enough
  kPrescale,  // the bits of a double
  kPostscale,
  kFields
};

// Registers both with the TensorFlow whose library is this file; once in a process. Returns what is wrong, or "".
std::string add_operations(const char* library, Finder find);

}  // namespace slipstream::tensorflow
