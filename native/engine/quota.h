// Limits how often something may happen in a span of time.
#pragma once

#include "base/clock.h"

namespace slipstream {

struct Quota {
  Time since{};
  int used = 0;

  // True for the first `most` calls of a span, which begins with the first call after the last span.
  bool take(Time now, double span_seconds, int most) {
    if (now - since >= seconds(span_seconds)) *this = {now, 0};
    return ++used <= most;
  }
};

}  // namespace slipstream
