// The inbox under any sequence of segments, beside a plain model of what it must do.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "engine/work_header.h"
#include "tests/fuzz_input.h"
#include "transport/tcp/inbox.h"

namespace slipstream::fuzz {

// Headers that mostly belong together: few messages, few sizes, and now and then anything.
inline SegmentHeader segment_header(Input& input) {
  constexpr uint32_t kLengths[] = {kEagerBytes + 1, 32 << 10, 48 << 10, kMaxPayload};
  constexpr uint32_t kEdges[] = {0, 1, 8 << 10, 16 << 10, 24 << 10, 32 << 10};
  constexpr uint64_t kMessages[] = {1, 2, 3, 4, Inbox::kMostAhead, Inbox::kMostAhead + 1};
  SegmentHeader header{};
  const uint32_t length = input.one_of(kLengths);
  header.frame = WorkHeader{.length = length, .seq = static_cast<uint32_t>(input.below(2))};
  header.message = input.one_of(kMessages);
  header.offset = input.one_of(kEdges);
  const uint32_t end = input.one_of(kEdges);
  header.size = end > header.offset ? end - header.offset : header.frame.length - header.offset;
  if (input.chance(16)) header.frame.type = static_cast<FrameType>(input.byte());
  if (input.chance(16)) header.frame.reserved = input.value<uint16_t>();
  if (input.chance(16)) header.size = input.value<uint32_t>();
  if (input.chance(4)) header.taken = input.chance(8) ? input.value<uint64_t>() : input.below(8);
  return header;
}

class InboxModel {
 public:
  // A segment whose header has been believed, and whose bytes are on their way.
  struct Flight {
    SegmentHeader header;
  };

  void begin(const SegmentHeader& header) {
    if (objection_to_segment(header) != nullptr) return;
    require(header.size > 0 && header.frame.length <= kMaxPayload, "segments are bounded");
    require(uint64_t{header.offset} + header.size <= header.frame.length, "segments lie inside their messages");
    const auto state = inbox_.begin(header);
    if (state == Inbox::SegmentState::nonsense) {
      dead_ = true;  // the link ends
      return;
    }
    if (done_.contains(header.message))
      return require(state == Inbox::SegmentState::repeated, "what is done is repeated");
    const bool known = parts_.contains(header.message);
    require((state == Inbox::SegmentState::fresh) == !known,
            "the first segment of a message is fresh, no other one is");
    auto& parts = parts_[header.message];
    const uint64_t end = uint64_t{header.offset} + header.size;
    auto overlapping = parts.end();
    size_t overlaps = 0;
    for (auto at = parts.begin(); at != parts.end(); ++at) {
      if (at->first >= end || at->first + at->second.size <= header.offset) continue;
      overlapping = at;
      ++overlaps;
    }
    bool wanted = overlaps == 0;
    if (wanted) {
      parts[header.offset] = {header.size, false};
    } else if (overlaps == 1 && !overlapping->second.done && overlapping->first <= header.offset &&
               end <= overlapping->first + overlapping->second.size) {
      wanted = true;
      const uint32_t begin = overlapping->first;
      const auto last = begin + overlapping->second.size;
      parts.erase(overlapping);
      if (begin < header.offset) parts[begin] = {header.offset - begin, false};
      parts[header.offset] = {header.size, false};
      if (end < last) parts[static_cast<uint32_t>(end)] = {static_cast<uint32_t>(last - end), false};
    }
    require(wanted == (state != Inbox::SegmentState::repeated), "what has not come, and no other way, is wanted");
    require(inbox_.find(header.message) != nullptr, "a message that has begun is found");
    if (state != Inbox::SegmentState::repeated) flights_.push_back({header});
  }

  void land(size_t index, bool lost) {
    if (flights_.empty()) return;
    index %= flights_.size();
    const SegmentHeader header = flights_[index].header;
    flights_.erase(flights_.begin() + static_cast<ptrdiff_t>(index));
    if (lost) return;
    auto& parts = parts_[header.message];
    uint64_t sum = 0;
    for (auto& [offset, part] : parts) {
      if (header.offset <= offset && offset + part.size <= header.offset + header.size) part.done = true;
      sum += part.done ? part.size : 0;
    }
    const uint32_t length = inbox_.find(header.message)->frame.length;
    const bool complete = inbox_.complete(header);
    require(complete == (sum == length), "a message is complete when all its bytes are here, and not before");
    if (!complete) return;
    inbox_.finish(header.message);
    require(inbox_.find(header.message) == nullptr, "a finished message is gone");
    parts_.erase(header.message);
    done_.insert(header.message);
    std::erase_if(flights_, [&](const Flight& f) { return f.header.message == header.message; });
  }

  bool dead() const { return dead_; }

 private:
  struct Part {
    uint32_t size = 0;
    bool done = false;
  };
  Inbox inbox_;
  std::map<uint64_t, std::map<uint64_t, Part>> parts_;
  std::set<uint64_t> done_;
  std::vector<Flight> flights_;
  bool dead_ = false;
};

inline void fuzz_inbox(Input input) {
  InboxModel model;
  while (!input.empty() && !model.dead()) {
    const size_t what = input.below(4);
    if (what < 2)
      model.begin(segment_header(input));
    else
      model.land(input.byte(), what == 3 && input.chance(4));
  }
}

}  // namespace slipstream::fuzz
