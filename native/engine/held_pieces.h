// Pieces that arrived before the step they are for. Driver's thread only.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "engine/work_header.h"
#include "transport/link.h"

namespace slipstream {

class HeldPieces {
 public:
  class Held {
   public:
    Link* link() const { return link_; }  // null once it is down
    const WorkHeader& frame() const { return frame_; }
    Payload payload() const {
      Payload found = payload_;
      if (found.transient) found.data = copy_.data();
      return found;
    }

   private:
    friend class HeldPieces;
    Held(Link& link, const WorkHeader& frame, const Payload& payload)
        : link_(&link), frame_(frame), payload_(payload) {}

    Link* link_;
    WorkHeader frame_;
    Payload payload_;
    std::vector<std::byte> copy_;  // of a transient payload
  };

  // Keeps a piece; copies what is transient.
  void keep(uint32_t step, Link& link, const WorkHeader& frame, const Payload& payload);
  // The pieces of a step that runs now, in order of arrival.
  std::vector<Held> take(uint32_t step, uint64_t chunk);
  // True if this very piece has come before.
  bool has(uint32_t step, const WorkHeader& frame) const;
  // The link is going down, with its memory: copies what has come through it, and drops what has not been fetched.
  void outlive(const Link& link);

 private:
  static uint64_t key(uint32_t step, uint64_t chunk) { return chunk << 24 | step; }

  std::unordered_map<uint64_t, std::vector<Held>> held_;
};

}  // namespace slipstream
