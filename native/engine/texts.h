// Pieces of what people read.
#pragma once

#include <cstdio>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "engine/work.h"

namespace slipstream {

inline std::string seconds_text(Clock::duration d) {
  const double s = Seconds(d).count();
  char text[32];
  std::snprintf(text, sizeof(text), s >= 9.95 ? "%.0f s" : "%.2g s", s < 0.001 ? 0.0 : s);
  return text;
}

// "all_reduce(float32, 10 elements, op=sum) #17"
inline std::string numbered(const Signature& signature, uint32_t seq) {
  return signature.describe().substr(0, 400) + " #" + std::to_string(seq);
}

// What `rank`, which waits in such a work, says of a rank that is gone.
inline Error gone_error(const Error& error, int rank, const Signature& signature, uint32_t seq) {
  Error e = error;
  e.text += "; rank " + std::to_string(rank) + " still waits in " + numbered(signature, seq);
  return e;
}

}  // namespace slipstream
