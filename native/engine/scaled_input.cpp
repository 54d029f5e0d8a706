#include "engine/scaled_input.h"

#include "kernels/kernels.h"

namespace slipstream {

ScaledInput::~ScaledInput() {
  for (const auto& [send, buffer] : sends_) arena_.give_back(buffer);
}

const std::byte* ScaledInput::for_send(const Step& step, uint64_t send, uint32_t piece, const std::byte* data,
                                       uint64_t count) {
  Arena::Buffer& buffer = sends_[send];
  const size_t room = geometry_.chunk_bytes();
  if (buffer.data == nullptr) buffer = arena_.take(room * static_cast<size_t>(step.count));
  std::byte* place = buffer.data + piece * room;
  scale(geometry_.dtype(), place, data, count, factor_);
  return place;
}

void ScaledInput::drop(uint64_t send) {
  if (sends_.empty()) return;
  const auto it = sends_.find(send);
  if (it == sends_.end()) return;
  arena_.give_back(it->second);
  sends_.erase(it);
}

const std::byte* ScaledInput::read(const Step& step, const std::byte* data, uint64_t count) {
  if (!applies(step)) return data;
  scratch_.resize(count * geometry_.element_bytes());
  scale(geometry_.dtype(), scratch_.data(), data, count, factor_);
  return scratch_.data();
}

}  // namespace slipstream
