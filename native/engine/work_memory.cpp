#include "engine/work_memory.h"

#include <algorithm>
#include <cstdint>
#include <new>

namespace slipstream {

WorkMemory::WorkMemory(const Request& request, const Geometry& geometry, uint64_t window)
    : element_(geometry.element_bytes()) {
  if (is_windowed(request)) {
    ring_elements_ = std::clamp<uint64_t>(geometry.largest_block(), 1, window * geometry.chunk_elements());
    own_.reset(new std::byte[ring_elements_ * element_]);
    spaces_.fill(own_.get());
    return;
  }
  for (size_t space = 0; space < spaces_.size(); ++space) spaces_[space] = request.spaces[space].data;
  if (!request.plan->uses_tmp()) return;
  const uint64_t bytes = geometry.elements(Space::tmp) * element_;
  if (bytes > PTRDIFF_MAX) throw std::bad_alloc();  // sanitizers would end the process where it asks for so much
  own_ = std::make_unique<std::byte[]>(bytes);
  spaces_[static_cast<size_t>(Space::tmp)] = own_.get();
}

}  // namespace slipstream
