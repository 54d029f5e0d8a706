// Operations for TensorFlow's graphs: SlipstreamStart begins a communication and returns, SlipstreamWait gives its
// results. SlipstreamOpen makes a ticket for what Python does, and ends by its number. Start is stateful: a function of
// TensorFlow runs all that is stateful in the order of the program. Wait is not, and keeps no thread busy: it is over
// when the communication is. So one thread for operations is enough.
#pragma once

#include <cstdint>
#include <string>

#include "tensorflow/line.h"

namespace slipstream::tensorflow {

// Registers them with the TensorFlow whose library is this file; once in a process. Returns what is wrong, or "".
std::string add_operations(const char* library, Opener open);

// Has SlipstreamWait end when its step is cancelled: see prepare_cancellation().
std::string watch_steps(const char* eager_library, std::string config, int rank);

// The ticket of this number, which SlipstreamOpen has made, is over. False, if its graph has given it up.
bool end_ticket(int64_t number, End end);
// Whether its graph has not.
bool is_open(int64_t number);

}  // namespace slipstream::tensorflow
