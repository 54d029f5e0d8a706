// Bulk that a work sends from private memory without a copy of its own: the peer fetches it from there, where the
// kernel lets it (transport/shm/private_reads.h). The other way is a copy in shared memory (SharedCopies). Driver's
// thread only.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/fabric.h"
#include "engine/geometry.h"
#include "engine/plan.h"
#include "engine/work.h"
#include "transport/link.h"
#include "transport/region.h"

namespace slipstream {

// Bytes that this rank receives from its host by works that only receive. While it does, works that only send copy at
// both ends, too.
class Receiving {
 public:
  class Share {
   public:
    Share(Receiving& all, uint64_t bytes) : all_(all), bytes_(bytes) { all_.bytes_ += bytes_; }
    ~Share() { all_.bytes_ -= bytes_; }
    Share(const Share&) = delete;

   private:
    Receiving& all_;
    uint64_t bytes_;
  };
  uint64_t bytes() const { return bytes_; }

 private:
  uint64_t bytes_ = 0;
};

// A send of 64 KiB to 1 MiB whose receiver fetches it from this rank's memory. To be asked by the driver.
bool is_lent_message(const Request& request, const Fabric& fabric);

class PrivateSends {
 public:
  // `here`: ranks of this host that take part.
  PrivateSends(const Request& request, const Geometry& geometry, const Fabric& fabric, const Regions& regions,
               Receiving& receiving, size_t here);

  // Whether a bulk send over this link may lie in private memory.
  bool over(const Link& link) const {
    const bool pays = when_ == When::always || (when_ == When::receiving && receiving_.bytes() >= sent_ / 2);
    return pays && link.single_copy() >= least_;
  }
  // Whether bulk may leave before its receiver has said that it is ready: it lies here until it is fetched, and takes
  // no memory of the receiver's. `bytes`: that go to that peer in all; few are sent within its credit.
  bool at_once(const Link& link, uint64_t bytes) const {
    return lends_at_once_ && bytes > kEagerBytes && link.single_copy() >= least_;
  }
  // A message that leaves so.
  bool lends_message() const { return lends_at_once_ && sent_ != 0; }
  // The receiver's side: where the bytes of a payload are, which fetches them if need be: to `dst`, or, if that is
  // null, to memory of its own until the next call. Null if they cannot be had; the link is about to go down.
  // `past_cache`: `dst` is not read soon. The kernel's stores would read it before they overwrite it, so the bytes go
  // by way of memory that stays in the cache.
  const std::byte* bytes_of(Link* link, const Payload& payload, std::byte* dst, bool past_cache);

 private:
  enum class When { never, receiving, always };

  When lends(const Request& request, const Geometry& geometry, const Fabric& fabric, size_t here);

  bool fetch_past_cache(Link& link, const Payload& payload, std::byte* dst);
  // Memory of its own, of so many bytes.
  std::byte* room(size_t bytes);

  Receiving& receiving_;
  SingleCopy least_ = SingleCopy::automatic;  // of the links over which it pays, for so many bytes
  uint64_t sent_ = 0;                         // by a work that only sends, to one rank
  When when_;
  bool lends_at_once_;
  Receiving::Share share_;
  std::vector<std::byte> fetched_;
};

}  // namespace slipstream
