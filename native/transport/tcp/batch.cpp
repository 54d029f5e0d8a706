#include "transport/tcp/batch.h"

#include <algorithm>

#include "transport/tcp/bulk_lane.h"

namespace slipstream {

void Batch::add(BulkLane& lane, bool write, bool read) {
  forget(lane);  // only one that an exception has left behind
  if (entries_.empty()) poller_.later(this);
  entries_.push_back({&lane, write, write, read, 0, 0, {}, {}});
}

void Batch::forget(const Lane& lane) {
  for (Entry& entry : entries_)
    if (entry.lane == &lane) entry.lane = nullptr;
}

void Batch::ready(uint32_t) {
  const struct Clear {
    std::vector<Entry>& entries;
    ~Clear() { entries.clear(); }
  } clear{entries_};
  const Time start = now();
  while (prepare(start)) {
    threads_.perform(calls_);
    finish();
  }
  for (const Entry& entry : entries_) {
    if (entry.lane == nullptr) continue;
    if (entry.writes)
      entry.lane->end_turn(entry.wrote, start);
    else
      entry.lane->update();
  }
}

// No upcalls here, and nothing that shuts a lane: what is prepared stays right until it has been performed.
bool Batch::prepare(Time start) {
  calls_.clear();
  for (Entry& entry : entries_) {
    if (entry.lane == nullptr) continue;
    entry.write = entry.write && entry.lane->prepare_write(entry.out, start);
    entry.read = entry.read && entry.lane->prepare_read(entry.in);
    // The same segment over two lanes: one after the other, for both write the same memory.
    for (const Entry* other = entries_.data(); other != &entry && entry.read; ++other)
      entry.read = other->lane == nullptr || !other->read || !entry.lane->reads_with(*other->lane);
    if (entry.write) calls_.push_back(&entry.out);
    if (entry.read) calls_.push_back(&entry.in);
  }
  return !calls_.empty();
}

// Each upcall may shut this lane or any other.
void Batch::finish() {
  for (Entry& entry : entries_) {
    if (entry.lane != nullptr && entry.write)
      entry.write = entry.lane->finish_write(entry.out, entry.wrote) && entry.wrote < BulkLane::kTurn;
    if (entry.lane != nullptr && entry.read)
      entry.read = entry.lane->finish_read(entry.in, entry.got) && entry.got < BulkLane::kTurn;
  }
}

}  // namespace slipstream
