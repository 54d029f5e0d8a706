#include "engine/held_pieces.h"

#include <algorithm>
#include <utility>

namespace slipstream {

void HeldPieces::keep(uint32_t step, Link& link, const WorkHeader& frame, const Payload& payload) {
  Held held(link, frame, payload);
  if (payload.transient) held.copy_.assign(payload.data, payload.data + payload.size);
  held_[key(step, frame.chunk)].push_back(std::move(held));
}

std::vector<HeldPieces::Held> HeldPieces::take(uint32_t step, uint64_t chunk) {
  if (held_.empty()) return {};
  const auto it = held_.find(key(step, chunk));
  if (it == held_.end()) return {};
  std::vector<Held> taken = std::move(it->second);
  held_.erase(it);
  return taken;
}

bool HeldPieces::has(uint32_t step, const WorkHeader& frame) const {
  const auto it = held_.find(key(step, frame.chunk));
  return it != held_.end() && std::any_of(it->second.begin(), it->second.end(),
                                          [&](const Held& held) { return held.frame_.piece == frame.piece; });
}

void HeldPieces::outlive(const Link& link) {
  for (auto& [key, pieces] : held_) {
    for (Held& held : pieces)
      if (held.link_ == &link && !held.payload_.transient && held.payload_.remote == 0) {
        held.copy_.assign(held.payload_.data, held.payload_.data + held.payload_.size);
        held.payload_.transient = true;
      }
    std::erase_if(pieces, [&](const Held& held) {
      return held.link_ == &link && (held.payload_.remote != 0 || !link.intact(held.payload_));
    });
    for (Held& held : pieces)
      if (held.link_ == &link) held.link_ = nullptr;
  }
}

}  // namespace slipstream
