#include "reducers/offer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/kernels.h"
#include "transport/frame.h"

namespace slipstream {
namespace {

constexpr uint64_t kMostElements = uint64_t{1} << 42;

struct Fixed {  // as on the wire: little-endian
  uint64_t count;
  uint64_t signed_count;
  uint64_t extra;
  uint64_t divisor;
  double postscale;
  int32_t root;
  uint32_t chunk_bytes;
  uint16_t operation;  // length of the text
  uint16_t name;       // length of the text
  uint8_t dtype;
  uint8_t op;
  uint8_t wire;
  uint8_t reserved;
};
static_assert(sizeof(Fixed) == 56 && std::is_trivially_copyable_v<Fixed>);

}  // namespace

std::vector<std::byte> encode_offer(const Offer& offer) {
  const Signature& s = offer.signature;
  Fixed fixed{offer.count, s.count, s.extra, offer.divisor, offer.postscale, s.root, s.chunk_bytes, 0, 0, 0, 0, 0, 0};
  fixed.operation = static_cast<uint16_t>(s.operation.size());
  fixed.name = static_cast<uint16_t>(s.name.size());
  fixed.dtype = static_cast<uint8_t>(s.dtype);
  fixed.op = static_cast<uint8_t>(s.op);
  fixed.wire = static_cast<uint8_t>(s.wire);
  std::vector<std::byte> bytes(sizeof(Fixed) + s.operation.size() + s.name.size());
  std::memcpy(bytes.data(), &fixed, sizeof(Fixed));
  std::memcpy(bytes.data() + sizeof(Fixed), s.operation.data(), s.operation.size());
  std::memcpy(bytes.data() + sizeof(Fixed) + s.operation.size(), s.name.data(), s.name.size());
  return bytes;
}

std::optional<Offer> decode_offer(std::span<const std::byte> bytes) {
  Fixed fixed;
  if (bytes.size() < sizeof(Fixed) || bytes.size() > kMostOfferBytes) return std::nullopt;
  std::memcpy(&fixed, bytes.data(), sizeof(Fixed));
  if (bytes.size() != sizeof(Fixed) + fixed.operation + fixed.name) return std::nullopt;
  if (fixed.dtype >= kDTypes || fixed.op >= kOps || fixed.wire >= kWireTypes || fixed.reserved != 0)
    return std::nullopt;
  if (fixed.count == 0 || fixed.count > kMostElements || fixed.divisor == 0 || !std::isfinite(fixed.postscale))
    return std::nullopt;
  if (fixed.chunk_bytes < 64 || fixed.chunk_bytes > kMaxPayload) return std::nullopt;
  const auto* text = reinterpret_cast<const char*>(bytes.data() + sizeof(Fixed));
  Offer offer;
  offer.signature = {std::string(text, fixed.operation),
                     std::string(text + fixed.operation, fixed.name),
                     static_cast<DType>(fixed.dtype),
                     static_cast<Op>(fixed.op),
                     true,
                     fixed.signed_count,
                     fixed.root,
                     fixed.chunk_bytes,
                     fixed.extra,
                     static_cast<WireType>(fixed.wire)};
  if (reduce_fn(offer.signature.dtype, offer.signature.op) == nullptr) return std::nullopt;
  if (!fits(offer.signature.wire, offer.signature)) return std::nullopt;
  const uint64_t chunk = chunk_elements(fixed.chunk_bytes, offer.signature.dtype, offer.signature.wire);
  if (fixed.count / chunk >= UINT32_MAX) return std::nullopt;
  offer.count = fixed.count;
  offer.postscale = fixed.postscale;
  offer.divisor = fixed.divisor;
  return offer;
}

}  // namespace slipstream
