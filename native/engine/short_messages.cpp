#include "engine/short_messages.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace slipstream {

ShortMessage::ShortMessage(const Request& request, std::byte* at, uint64_t count)
    : channel(request.channel),
      peer(request.signature.other_side),
      data(at),
      bytes(count * size_of(request.signature.dtype)),
      signature(request.signature) {
  signature.count = count;
  hash = signature.hash();
}

bool ShortMessages::send(const ShortMessage& message) {
  Link* const link = parts_.fabric.up(message.peer);
  if (link == nullptr || !parts_.fabric.shares_memory(message.peer)) return false;
  EagerCredit& credit = parts_.fabric.credit(message.peer);
  const uint64_t cost = message.bytes + EagerCredit::kFrameCost;
  if (!credit.spend(cost)) return false;
  WorkHeader frame;
  frame.channel = message.channel;
  const std::optional<uint32_t> seq = parts_.ledger.take(message.channel);
  if (!seq) {
    credit.repaid(cost);
    return false;
  }
  frame.seq = *seq;
  frame.flags = kEagerFlag;
  frame.length = static_cast<uint32_t>(message.bytes);
  frame.signature = message.hash;
  link->send(frame, message.data, 0);  // so few bytes are taken at once
  remember(message, *seq);
  return true;
}

ShortMessages::State ShortMessages::expect(ShortMessage& message) {
  Link* const link = parts_.fabric.up(message.peer);
  if (link == nullptr || !parts_.fabric.shares_memory(message.peer)) return State::needs_work;
  seq_ = parts_.ledger.next(message.channel);
  state_ = State::waits;
  const WorkKey key{message.channel, seq_};
  if (const EarlyFrame* const first = parts_.early.first(key); first != nullptr) {
    if (first->is_lent() || first->peer != message.peer) return State::needs_work;
    expected_ = &message;
    const WorkHeader frame = first->frame;
    const Payload payload{first->payload.data(), frame.length, true, 0};
    if (take_expected(*link, frame, payload)) parts_.early.take(key);
    return state_;
  }
  expected_ = &message;
  return state_;
}

// What is not just this message, whole, is for a work: that knows what to say.
bool ShortMessages::take_expected(Link& link, const WorkHeader& frame, const Payload& payload) {
  const ShortMessage& message = *std::exchange(expected_, nullptr);
  state_ = State::needs_work;
  if (frame.type != MessageType::data || frame.flags != kEagerFlag || frame.signature != message.hash ||
      link.peer() != message.peer || payload.data == nullptr || payload.size != message.bytes || frame.chunk != 0 ||
      frame.piece != 0 || frame.stream != 0)
    return false;
  if (!parts_.ledger.take(message.channel, seq_)) return false;  // another thread's receive has it
  std::memcpy(message.data, payload.data, payload.size);
  if (!link.intact(payload)) return true;  // its sender has failed or left, and the link is about to go down
  state_ = State::taken;
  if (payload.hold != 0) link.release(payload);
  parts_.fabric.consumed(message.peer, message.bytes + EagerCredit::kFrameCost);
  remember(message, seq_);
  return true;
}

void ShortMessages::remember(const ShortMessage& message, uint32_t seq) {
  parts_.channels.passed(message.channel, seq, message.signature);
  parts_.channels.forget_idle();
  latest_[count_++ % kRemembered] = {message.channel, seq};
}

std::vector<WorkKey> ShortMessages::latest() const {
  std::vector<WorkKey> found;
  for (size_t i = count_ - std::min(count_, kRemembered); i < count_; ++i) found.push_back(latest_[i % kRemembered]);
  return found;
}

}  // namespace slipstream
