#include "engine/shared_copies.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace slipstream {

void SharedCopies::begin(uint64_t chunk) {
  const size_t each = batches_ * widest_;
  std::fill_n(staged_.begin() + static_cast<ptrdiff_t>(chunk % window_ * each), each, uint8_t{0});
}

const std::byte* SharedCopies::stage(const Step& step, uint64_t chunk, uint32_t piece, const std::byte* data,
                                     size_t bytes, bool far) {
  if (regions_.find(data, bytes)) return data;  // the peer can read it where it is
  const size_t index = (chunk % window_ * batches_ + step.batch) * widest_ + piece;
  if (buffer_.data == nullptr) buffer_ = arena_.take(staged_.size() * piece_bytes_);
  std::byte* place = buffer_.data + index * piece_bytes_;
  if (staged_[index] == 0) (far ? copy_past_cache : copy)(place, data, bytes);
  staged_[index] = 1;
  return place;
}

}  // namespace slipstream
