// The prescale of a work: its input is multiplied piece by piece, where a step reads it. So a work takes memory for
// what is under way alone, and its first chunk leaves at once.
#include "engine/engine.h"
#include "engine/execution.h"

namespace slipstream {

// What a send gives away, scaled. It stays where it is until the send is done; in a region, so that a peer may read it.
const std::byte* Execution::scaled(const Step& step, uint64_t send, uint32_t index, const std::byte* data,
                                   uint64_t count) {
  Arena::Block& block = scaled_[send];
  const size_t room = chunk_elements_ * element_;
  if (block.data == nullptr) block = engine_.arena().take(room * static_cast<size_t>(step.count));
  std::byte* place = block.data + index * room;
  scale(reduced().dtype, place, data, count, request_.prescale);
  return place;
}

void Execution::drop_scaled(uint64_t send) {
  const auto it = scaled_.find(send);
  if (it == scaled_.end()) return;
  engine_.arena().give_back(it->second);
  scaled_.erase(it);
}

// What a step reads: of the input, scaled, in memory that is good until the next call.
const std::byte* Execution::input(const Step& step, const std::byte* data, uint64_t count) {
  if (!scales(step)) return data;
  scratch_.resize(count * element_);
  scale(reduced().dtype, scratch_.data(), data, count, request_.prescale);
  return scratch_.data();
}

}  // namespace slipstream
