// The form of an operation: what all ranks have to agree about. It has the fields of Asked, then of each tensor the
// dtype, the number of dimensions and these.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lines/planned.h"

namespace slipstream::lines {

// "sum".
const char* name_of_op(int32_t op);

// Writes the kind, form, title and label. `what` is there already.
void describe(const Asked& asked, const std::vector<Operand>& operands, Planned& operation);
// A label that begins like the title, and differs wherever the form does.
std::string label_of(const Planned& operation);
uint64_t digest_of(std::string_view form);

// What a form was written from. They throw Failure, if it is none: it may be another rank's.
Asked asked_in(std::string_view form);
std::vector<Operand> operands_in(std::string_view form);  // without memory
// The rank of the group that a broadcast cannot do without; -1 for other operations.
int64_t root_of(std::string_view form);

}  // namespace slipstream::lines
