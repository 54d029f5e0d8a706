// Bulk that a work sends from private memory without a copy of its own: the peer fetches it from there, where the
// kernel lets it (transport/shm/private_reads.h). The other way is a copy in shared memory (SharedCopies). Driver's
// thread only.
#pragma once

#include <vector>

#include "engine/fabric.h"
#include "engine/geometry.h"
#include "engine/plan.h"
#include "engine/work.h"
#include "transport/link.h"

namespace slipstream {

class PrivateSends {
 public:
  // `here`: ranks of this host that take part.
  PrivateSends(const Request& request, const Geometry& geometry, const Fabric& fabric, size_t here)
      : lends_(lends(request, geometry, fabric, here)) {}

  // Whether a bulk send over this link may lie in private memory.
  bool over(const Link& link) const { return lends_ && link.single_copy() != SingleCopy::off; }
  // The receiver's side: where the bytes of a payload are, which fetches them if need be: to `dst`, or, if that is
  // null, to memory of its own until the next call. Null if they cannot be had; the link is about to go down.
  // `past_cache`: `dst` is not read soon. The kernel's stores would read it before they overwrite it, so the bytes go
  // by way of memory that stays in the cache.
  const std::byte* bytes_of(Link* link, const Payload& payload, std::byte* dst, bool past_cache);

 private:
  static bool lends(const Request& request, const Geometry& geometry, const Fabric& fabric, size_t here);

  bool fetch_past_cache(Link& link, const Payload& payload, std::byte* dst);
  // Memory of its own, of so many bytes.
  std::byte* room(size_t bytes);

  bool lends_;
  std::vector<std::byte> fetched_;
};

}  // namespace slipstream
