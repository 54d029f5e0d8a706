// The table of slipstream.h.
#pragma once

#include <cstdint>

#include "capi/slipstream.h"

namespace slipstream::capi {

// Null if this version is not served.
const slipstream_api* table(uint32_t version);

}  // namespace slipstream::capi
