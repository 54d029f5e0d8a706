// Which calls of the engine an operation is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "capi/handle.h"
#include "lines/planned.h"

namespace slipstream::lines {

// Writes the calls and packs. Which tensors travel together depends on what all ranks have in common. The label is
// there already.
void plan(const Asked& asked, const std::vector<Operand>& operands, Planned& operation);

// Of a call that has ended before begin() has returned: operation.ended() is not called for it.
using Told = std::function<void(size_t call, int32_t status, const char* text)>;
// Fills the packs, and gives the engine the calls. operation.ended() is called for each of the others, by a thread of
// the engine.
void begin(slipstream_group& group, const std::shared_ptr<Planned>& operation, const Told& told);

}  // namespace slipstream::lines
