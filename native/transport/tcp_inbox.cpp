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
  for (const Message::Part& part : message.parts) {
    if (part.offset == header.offset && part.size == header.size) {
      if (!part.done) return Verdict::wanted;
      repeated_ += header.size;
      return Verdict::repeated;
    }
    if (part.offset < header.offset + header.size && header.offset < part.offset + part.size) return Verdict::nonsense;
  }
  message.parts.push_back({header.offset, header.size, false});
  return fresh ? Verdict::fresh : Verdict::wanted;
}

bool Inbox::complete(const SegmentHeader& header) {
  Message* message = find(header.message);
  if (message == nullptr) return false;
  for (Message::Part& part : message->parts) {
    if (part.offset != header.offset || part.done) continue;
    part.done = true;
    message->left -= part.size;
    return message->left == 0;
  }
  return false;
}

void Inbox::finish(uint64_t number) {
  open_.erase(number);
  done_.add(number);
}

}  // namespace slipstream
