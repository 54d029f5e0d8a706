// What SlipstreamStart asks for, and the part of a rank that has joined.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "lines/planned.h"
#include "tensorflow/ticket.h"

namespace slipstream::tensorflow {

// An attribute of so many 64-bit integers, in this order. slipstream.faces.tensorflow.native writes them.
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

lines::Asked asked_by(const Fields& fields);

// The part of a rank that has joined in an operation of this form. `label`: as on the other ranks.
std::shared_ptr<Ticket> neutral_ticket(std::string_view form, std::string label);

}  // namespace slipstream::tensorflow
