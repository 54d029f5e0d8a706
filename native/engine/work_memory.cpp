#include "engine/work_memory.h"

#include <algorithm>
#include <cstdint>
#include <new>

#include "transport/frame.h"

namespace slipstream {

namespace {

// Of less than a message that lies in a frame, no peer reads from here. More than this is not kept.
constexpr uint64_t kLeastKept = kEagerBytes + 1;
constexpr uint64_t kMostKept = 16 << 20;

}  // namespace

WorkMemory::WorkMemory(Arena& arena, const Request& request, const Geometry& geometry, uint64_t window, bool shared)
    : arena_(arena), element_(geometry.element_bytes()) {
  if (is_windowed(request)) {
    ring_elements_ = std::clamp<uint64_t>(geometry.largest_block(), 1, window * geometry.chunk_elements());
    own_.reset(new std::byte[ring_elements_ * element_]);
    spaces_.fill(own_.get());
    return;
  }
  for (size_t space = 0; space < spaces_.size(); ++space) spaces_[space] = request.spaces[space].data;
  if (!request.plan->uses_tmp()) return;
  const uint64_t bytes = geometry.tmp_elements() * element_;
  if (bytes > PTRDIFF_MAX) throw std::bad_alloc();  // sanitizers would end the process where it asks for so much
  std::byte*& tmp = spaces_[static_cast<size_t>(Space::tmp)];
  if (shared && bytes >= kLeastKept && bytes <= kMostKept) try {
      kept_ = arena_.take(bytes);
      tmp = kept_.data;
      return;
    } catch (const Failure&) {  // no descriptor for a region: other memory is slower, and does
    }
  own_.reset(new std::byte[bytes]);
  tmp = own_.get();
}

}  // namespace slipstream
