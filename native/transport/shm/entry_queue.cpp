#include "transport/shm/entry_queue.h"

#include <algorithm>

namespace slipstream {

bool EntryQueue::push(uint32_t kind, uint64_t value, std::span<const std::byte> head, std::span<const std::byte> tail,
                      bool hold) {
  if (!hold && waiting_.empty() && write(kind, value, head, tail)) return true;
  Waiting& queued = waiting_.emplace_back(Waiting{kind, value, {}});
  queued.body.assign(head.begin(), head.end());
  queued.body.insert(queued.body.end(), tail.begin(), tail.end());
  return false;
}

bool EntryQueue::flush() {
  bool moved = false;
  while (!waiting_.empty()) {
    const Waiting& first = waiting_.front();
    if (!write(first.kind, first.value, first.body, {})) break;
    waiting_.pop_front();
    moved = true;
  }
  return moved;
}

bool EntryQueue::write(uint32_t kind, uint64_t value, std::span<const std::byte> head,
                       std::span<const std::byte> tail) {
  std::byte* body = ring_.reserve(kind, value, head.size() + tail.size(), spare_);
  if (body == nullptr) return false;
  std::copy(tail.begin(), tail.end(), std::copy(head.begin(), head.end(), body));
  ring_.commit();
  return true;
}

}  // namespace slipstream
