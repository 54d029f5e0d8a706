// Failures as Python's exceptions, for native code that Python calls without nanobind.
#pragma once

#include "base/error.h"

namespace slipstream {

// Python raises it next. Python's lock is held.
void raise(const Error& error);

}  // namespace slipstream
