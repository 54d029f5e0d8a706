#include "transport/tcp_inbox.h"

#include <algorithm>
#include <cstring>

namespace slipstream {

Inbox::Message* Inbox::find(uint64_t number) {
  const auto it = open_.find(number);
  return it == open_.end() ? nullptr : &it->second;
}

Inbox::Verdict Inbox::begin(const SegmentHeader& header) {
  if (done_.has(header.message)) {
    repeated_ += header.size;
    return Verdict::repeated;
  }
  if (header.message >= done_.below() + kMostAhead) return Verdict::nonsense;
  const auto [it, fresh] = open_.try_emplace(header.message);
  Message& message = it->second;
  if (fresh) {
    message.frame = header.frame;
    message.left = header.frame.length;
  } else if (std::memcmp(&message.frame, &header.frame, sizeof(Frame)) != 0) {
    return Verdict::nonsense;
  }
  for (Message::Part& part : message.parts) {
    if (part.offset == header.offset && part.size == header.size) {
      part.shared = true;
      if (!part.done) return Verdict::wanted;
      repeated_ += header.size;
      return Verdict::repeated;
    }
    if (part.offset < header.offset + header.size && header.offset < part.offset + part.size) return Verdict::nonsense;
  }
  message.parts.push_back({header.offset, header.size, false, false});
  return fresh ? Verdict::fresh : Verdict::wanted;
}

Inbox::Message::Part* Inbox::find_part(const SegmentHeader& header) {
  Message* message = find(header.message);
  if (message == nullptr) return nullptr;
  const auto same = [&](const Message::Part& part) { return part.offset == header.offset; };
  const auto at = std::find_if(message->parts.begin(), message->parts.end(), same);
  return at == message->parts.end() ? nullptr : &*at;
}

bool Inbox::wants(const SegmentHeader& header) {
  const Message::Part* part = find_part(header);
  return part != nullptr && !part->done;
}

bool Inbox::shared(const SegmentHeader& header) {
  const Message::Part* part = find_part(header);
  return part != nullptr && part->shared;
}

bool Inbox::complete(const SegmentHeader& header) {
  Message::Part* part = find_part(header);
  if (part == nullptr || part->done) return false;
  part->done = true;
  Message* message = find(header.message);
  message->left -= part->size;
  return message->left == 0;
}

void Inbox::finish(uint64_t number) {
  open_.erase(number);
  done_.add(number);
}

}  // namespace slipstream
