#include "engine/short_messages.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace slipstream {

namespace {

uint64_t cost_of(const Relay& relay) { return relay.bytes + EagerCredit::kFrameCost; }

// An eager message that is one piece.
bool is_whole(const WorkHeader& frame, uint32_t hash, uint64_t bytes) {
  return frame.type == MessageType::data && frame.flags == kEagerFlag && frame.signature == hash &&
         frame.length == bytes && frame.chunk == 0 && frame.piece == 0 && frame.stream == 0;
}

}  // namespace

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
  const bool bulk = message.bytes > kEagerBytes;
  if (bulk && !link->takes_at_once(message.bytes)) return false;
  if (!(bulk ? credit.spend_on_bulk(cost) : credit.spend(cost))) return false;
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
  link->send(frame, message.data, 0);
  remember(message.channel, *seq, message.signature, message.hash).assign(1, message.peer);
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
  if (!is_whole(frame, message.hash, message.bytes) || link.peer() != message.peer || payload.data == nullptr ||
      payload.size != message.bytes || payload.hold != 0)
    return false;
  if (!parts_.ledger.take(message.channel, seq_)) return false;  // another thread's receive has it
  std::memcpy(message.data, payload.data, payload.size);
  state_ = State::taken;
  parts_.fabric.consumed(message.peer, message.bytes + EagerCredit::kFrameCost);
  remember(message.channel, seq_, message.signature, message.hash).assign(1, message.peer);
  return true;
}

// ---- relays

bool ShortMessages::begin(const Relay& relay) {
  if (!std::ranges::all_of(relay.from, [this](int peer) { return reaches(peer); })) return false;
  for (size_t i = 0; i < relay.to.size(); ++i) {
    const int peer = relay.to[i];
    if (reaches(peer) && parts_.fabric.credit(peer).spend(cost_of(relay))) continue;
    for (const int before : relay.to.first(i)) parts_.fabric.credit(before).repaid(cost_of(relay));
    return false;
  }
  return true;
}

// What is not just these messages, whole, is for a work: that knows what to say.
ShortMessages::State ShortMessages::state_of(const Relay& relay) const {
  const std::vector<EarlyFrame>* const come = parts_.early.all({relay.channel, relay.seq});
  if (come == nullptr) return relay.from.empty() ? State::taken : State::waits;
  for (const EarlyFrame& one : *come)
    if (one.is_lent() || !is_whole(one.frame, relay.hash, relay.bytes) ||
        std::ranges::find(relay.from, one.peer) == relay.from.end())
      return State::needs_work;
  const auto has_come = [&](int peer) { return std::ranges::count(*come, peer, &EarlyFrame::peer) == 1; };
  if (come->size() >= relay.from.size())
    return std::ranges::all_of(relay.from, has_come) ? State::taken : State::needs_work;
  return State::waits;
}

std::vector<int> ShortMessages::missing(const Relay& relay) const {
  std::vector<int> ranks;
  for (const int peer : relay.from)
    if (!parts_.early.any_from(peer, {relay.channel, relay.seq})) ranks.push_back(peer);
  return ranks;
}

void ShortMessages::finish(const Relay& relay) {
  const std::vector<EarlyFrame> come = parts_.early.take({relay.channel, relay.seq});
  std::array<const std::byte*, Relay::kMost> data{};
  for (size_t i = 0; i < relay.from.size(); ++i)
    data[i] = std::ranges::find(come, relay.from[i], &EarlyFrame::peer)->payload.data();
  const std::byte* const result = relay.pass_on(std::span(data).first(relay.from.size()));
  for (const int peer : relay.from) parts_.fabric.consumed(peer, cost_of(relay));
  WorkHeader frame;
  frame.channel = relay.channel;
  frame.seq = relay.seq;
  frame.flags = kEagerFlag;
  frame.length = static_cast<uint32_t>(relay.bytes);
  frame.signature = relay.hash;
  for (const int peer : relay.to)
    if (Link* const link = parts_.fabric.up(peer); link != nullptr)  // else the session is failing
      link->send(frame, result, 0);
  std::vector<int>& peers = remember(relay.channel, relay.seq, relay.signature, relay.hash);
  peers.assign(relay.from.begin(), relay.from.end());
  peers.insert(peers.end(), relay.to.begin(), relay.to.end());
}

void ShortMessages::give_up(const Relay& relay) {
  for (const int peer : relay.to) parts_.fabric.credit(peer).repaid(cost_of(relay));
}

// ---- what they were

std::vector<int>& ShortMessages::remember(uint64_t channel, uint32_t seq, const Signature& signature, uint32_t hash) {
  parts_.channels.passed(channel, seq, signature, hash);
  parts_.channels.forget_idle();
  Past& past = latest_[count_++ % kRemembered];
  past.key = {channel, seq};
  return past.peers;
}

std::vector<ShortMessages::Past> ShortMessages::latest() const {
  std::vector<Past> found;
  for (size_t i = count_ - std::min(count_, kRemembered); i < count_; ++i) found.push_back(latest_[i % kRemembered]);
  return found;
}

}  // namespace slipstream
