// What a lane does about damage: it checks what came, and is left when that is not what was sent (tcp_checks.h).
#include "transport/tcp_lane.h"
#include "transport/tcp_link.h"

namespace slipstream {

bool Lane::checks() const {
  if (records_) return false;  // these find more
  const Checksums wanted = link_.core().options.checksums;
  return wanted == Checksums::always || (wanted == Checksums::automatic && !near());
}

void Lane::read_damaged(uint32_t number) {
  ended_ = true;
  link_.damaged(*this, number);
}

void BulkLane::forget_in(const SegmentHeader& segment) {
  if (in_payload_ && segment_.message == segment.message && segment_.offset < segment.offset + segment.size &&
      segment.offset < segment_.offset + segment_.size)
    into_ = nullptr;
}

// Where two lanes write the same bytes, what came here is not what lies there.
bool BulkLane::undamaged() const {
  if (segment_.check.payload == 0) return true;
  const bool shared = link_.inbox().shared(segment_);
  const uint32_t check = shared ? payload_check({into_, segment_.size}) : as_payload_check(in_crc_);
  return check == segment_.check.payload;
}

}  // namespace slipstream
