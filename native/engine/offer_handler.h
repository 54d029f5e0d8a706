// What an engine tells of works that other ranks offer.
#pragma once

#include <cstddef>
#include <span>

#include "base/error.h"
#include "engine/work_header.h"

namespace slipstream {

// An engine that has one takes part in works that only others call; `offer` frames tell it of them. It takes nothing of
// works that were not offered.
class OfferHandler {
 public:
  virtual ~OfferHandler() = default;
  // On the driver's thread. `payload`: SharedPart::offer. An error if the session has to fail.
  [[nodiscard]] virtual Error offered(int peer, const WorkHeader& frame, std::span<const std::byte> payload) = 0;
};

}  // namespace slipstream
