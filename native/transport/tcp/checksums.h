// What tells damage that TCP has not noticed: each header and each payload between hosts carries a CRC-32C. A header's
// also covers where in its connection it stands, so that nothing that was left out, repeated or moved is believed. This
// is made for accidents; who changes bytes on purpose can change a checksum, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/crc32c.h"

namespace slipstream {

// The last member of what begins a frame or a segment on the wire.
struct Check {
  uint32_t payload = 0;  // as in UDP, 0 means that there is none, and a checksum of 0 is said as 1
  uint32_t header = 0;   // of the place and all of the header that is before this
};

inline uint32_t as_payload_check(uint32_t crc) { return crc != 0 ? crc : 1; }
inline uint32_t payload_check(std::span<const std::byte> payload) { return as_payload_check(crc32c(payload)); }

// `place`: how many bytes of the control stream, or segments of the lane's connection, are before it.
template <class Header>
uint32_t header_check(const Header& header, uint64_t place) {
  static_assert(offsetof(Header, check) + sizeof(Check) == sizeof(Header));
  const uint32_t before = crc32c(std::as_bytes(std::span(&place, 1)));
  return crc32c(std::as_bytes(std::span(&header, 1)).first(sizeof(Header) - sizeof(uint32_t)), before);
}

template <class Header>
void seal(Header& header, uint64_t place) {
  header.check.header = header_check(header, place);
}

template <class Header>
bool intact(const Header& header, uint64_t place) {
  return header.check.header == header_check(header, place);
}

}  // namespace slipstream
