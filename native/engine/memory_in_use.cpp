#include "engine/memory_in_use.h"

#include <bit>

namespace slipstream {

namespace {

bool receives_message(const Request& request) {
  return request.signature.operation.starts_with("send_recv") && !request.plan->reads(Space::in) &&
         !request.plan->reads(Space::out);
}

}  // namespace

bool MemoryInUse::may_share(const Work& one, const Work& other) {
  return one.request.channel != other.request.channel && receives_message(one.request) &&
         receives_message(other.request);
}

MemoryInUse::Ranges MemoryInUse::ranges_of(const Work& work) {
  const Request& request = work.request;
  Ranges found;
  if (request.plan == nullptr || is_windowed(request)) return found;
  const size_t element = size_of(dtype_of(request));
  for (const Space space : {Space::in, Space::out}) {
    const Layout& layout = request.spaces[static_cast<size_t>(space)];
    const uint64_t bytes = (layout.offsets.empty() ? layout.count : layout.offsets.back()) * element;
    const bool writes = request.plan->writes(space);
    if (layout.data != nullptr && (writes || request.plan->reads(space))) found.add(layout.data, bytes, writes);
  }
  Range& first = found.ranges[0];
  const Range& second = found.ranges[1];
  if (found.count == 2 && first.begin == second.begin && first.end == second.end) {  // in place
    found.count = 1;
    first.writes = first.writes || second.writes;
  }
  found.add(work.copy_in.from, work.copy_in.bytes, false);
  found.add(work.copy_out.to, work.copy_out.bytes, true);
  return found;
}

size_t MemoryInUse::class_of(const Range& range) {
  return static_cast<size_t>(std::bit_width(range.end - range.begin)) - 1;
}

void MemoryInUse::add(const Work& work) {
  const Ranges mine = ranges_of(work);
  for (size_t i = 0; i < mine.count; ++i) {
    const Range& range = mine.ranges[i];
    if (few_.size() < kFew) {
      few_.push_back({range, &work});
    } else {
      many_[range.writes ? 1 : 0][class_of(range)].insert({{range.begin, &work}, range});
      ++many_count_;
    }
  }
}

void MemoryInUse::remove(const Work& work) {
  std::erase_if(few_, [&](const Entry& entry) { return entry.work == &work; });
  if (many_count_ == 0) return;
  const Ranges mine = ranges_of(work);
  for (size_t i = 0; i < mine.count; ++i) {
    Map& map = many_[mine.ranges[i].writes ? 1 : 0][class_of(mine.ranges[i])];
    many_count_ -= map.erase({mine.ranges[i].begin, &work});
  }
}

void MemoryInUse::clear() {
  few_.clear();
  for (auto& classes : many_)
    for (Map& map : classes) map.clear();
  many_count_ = 0;
}

}  // namespace slipstream
