// The part of a rank that has no data in what the others start: what it brings changes nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "lines/planned.h"

namespace slipstream::lines {

// Elements of this dtype that change nothing in a reduction by `op`: fills all of `memory`.
void fill_neutral(int32_t dtype, int32_t op, std::vector<std::byte>& memory);

// Writes the calls and packs of an operation of this form: zeros for sums, averages and broadcasts, what changes
// nothing for other reductions. What is received is dropped. The label is there already, as on the other ranks.
void plan_neutral(std::string_view form, Planned& operation);

}  // namespace slipstream::lines
