// What a worker tells a reducer of a work that it has begun: all that the reducer needs to take part.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "engine/work.h"

namespace slipstream {

struct Offer {
  Signature signature;
  uint64_t count = 0;  // elements
  double postscale = 1.0;
  uint64_t divisor = 1;
};

inline constexpr size_t kMostOfferBytes = 8 << 10;
inline constexpr size_t kMostOfferText = 4 << 10;

// Of a signature whose texts are no longer than kMostOfferText together.
std::vector<std::byte> encode_offer(const Offer& offer);
// Null if the bytes are no offer, or one of something that cannot be reduced.
std::optional<Offer> decode_offer(std::span<const std::byte> bytes);

}  // namespace slipstream
