#include "transport/tcp/inbox.h"

#include <algorithm>
#include <cstring>

namespace slipstream {

Inbox::Message* Inbox::find(uint64_t number) {
  const auto it = open_.find(number);
  return it == open_.end() ? nullptr : &it->second;
}

Inbox::SegmentState Inbox::begin(const SegmentHeader& header) {
  if (done_.has(header.message)) {
    repeated_ += header.size;
    return SegmentState::repeated;
  }
  if (header.message >= done_.below() + kMostAhead) return SegmentState::nonsense;
  const auto [it, fresh] = open_.try_emplace(header.message);
  Message& message = it->second;
  if (fresh) {
    message.frame = header.frame;
    message.left = header.frame.length;
  } else if (std::memcmp(&message.frame, &header.frame, sizeof(Frame)) != 0) {
    return SegmentState::nonsense;
  }
  const uint32_t end = header.offset + header.size;
  for (size_t i = 0; i < message.parts.size(); ++i) {
    Message::Part& part = message.parts[i];
    if (part.end() <= header.offset || end <= part.offset) continue;
    const bool inside = part.offset <= header.offset && end <= part.end();
    if (!inside || part.done) {
      repeated_ += header.size;
      return SegmentState::repeated;
    }
    part.shared = true;
    // A sender that cuts this part into smaller segments sends all of them.
    Message::Part before = part;
    Message::Part after = part;
    part.offset = header.offset;
    part.size = header.size;
    before.size = header.offset - before.offset;
    after.size = after.end() - end;
    after.offset = end;
    if (before.size > 0) message.parts.push_back(before);
    if (after.size > 0) message.parts.push_back(after);
    return SegmentState::wanted;
  }
  message.parts.push_back({header.offset, header.size, false, false});
  return fresh ? SegmentState::fresh : SegmentState::wanted;
}

bool Inbox::any_part(const SegmentHeader& header, bool (*is)(const Message::Part&)) {
  const Message* message = find(header.message);
  if (message == nullptr) return false;
  return std::any_of(message->parts.begin(), message->parts.end(), [&](const Message::Part& part) {
    return header.offset <= part.offset && part.end() <= header.offset + header.size && is(part);
  });
}

bool Inbox::wants(const SegmentHeader& header) {
  return any_part(header, [](const Message::Part& part) { return !part.done; }) &&
         !any_part(header, [](const Message::Part& part) { return part.done; });
}

bool Inbox::shared(const SegmentHeader& header) {
  return any_part(header, [](const Message::Part& part) { return part.shared; });
}

bool Inbox::complete(const SegmentHeader& header) {
  Message* message = find(header.message);
  if (message == nullptr) return false;
  for (Message::Part& part : message->parts) {
    if (part.done || part.offset < header.offset || header.offset + header.size < part.end()) continue;
    part.done = true;
    message->left -= part.size;
  }
  return message->left == 0;
}

void Inbox::finish(uint64_t number) {
  open_.erase(number);
  done_.add(number);
}

}  // namespace slipstream
