#include "transport/tcp/outbox.h"

#include <algorithm>
#include <cmath>

#include "transport/tcp/receive_buffers.h"

namespace slipstream {

void Outbox::push(const Frame& frame, const std::byte* data, uint64_t cookie, int lanes, int urgency) {
  waiting_ += frame.length;
  pushed_ += frame.length;
  if (dealing_ == Dealing::pull) {
    const auto before = std::ranges::upper_bound(backlog_, urgency, std::ranges::greater{}, &Waiting::urgency);
    backlog_.insert(before, Waiting{frame, data, cookie, urgency, entries_++});
    return;
  }
  const uint64_t number = base_ + messages_.size();
  messages_.push_back({frame, data, cookie, frame.length, false, {}});
  dealt_.resize(std::max(dealt_.size(), static_cast<size_t>(std::max(lanes, 1))));
  for (uint32_t offset = 0; offset < frame.length; offset += kDealtSegment) {
    const uint32_t size = std::min(kDealtSegment, frame.length - offset);
    const size_t lane = next_lane_++ % static_cast<size_t>(std::max(lanes, 1));
    messages_.back().segments.push_back({offset, size, -1, false, Time::max()});
    dealt_[lane].push_back({number, offset});
  }
}

Outbox::Out Outbox::out(uint64_t number, const Segment& segment) {
  const Message& message = *find(number);
  acknowledged_ = acknowledge_;
  return {{message.frame, number, segment.offset, segment.size, acknowledge_}, message.data + segment.offset};
}

size_t Outbox::oldest() const {
  auto found = backlog_.begin();  // equals are in order, so it is the first of them
  for (auto it = found; it != backlog_.end();) {
    if (it->entry < found->entry) found = it;
    it = std::ranges::upper_bound(it, backlog_.end(), it->urgency, std::ranges::greater{}, &Waiting::urgency);
  }
  return static_cast<size_t>(found - backlog_.begin());
}

size_t Outbox::first() const { return overtakes_ < kOvertakes ? 0 : oldest(); }

bool Outbox::full() const {
  return !amid() && !backlog_.empty() &&
         under_way_ + ReceiveBuffers::capacity_of(backlog_[first()].frame.length) > ReceiveBuffers::kLimit;
}

uint32_t Outbox::next_bytes() const {
  if (amid()) return messages_.back().frame.length - messages_.back().cut;
  return backlog_.empty() || full() ? 0 : backlog_[first()].frame.length;
}

Outbox::Message* Outbox::next() {
  if (next_bytes() == 0) return nullptr;
  if (!amid()) {
    const size_t at = first();
    overtakes_ = at == oldest() ? 0 : overtakes_ + 1;
    const Waiting& one = backlog_[at];
    under_way_ += ReceiveBuffers::capacity_of(one.frame.length);
    messages_.push_back({one.frame, one.data, one.cookie, 0, false, {}});
    backlog_.erase(backlog_.begin() + static_cast<ptrdiff_t>(at));
  }
  return &messages_.back();
}

bool Outbox::dealt_to(int lane) const {
  const auto at = static_cast<size_t>(lane);
  return at < dealt_.size() && !dealt_[at].empty();
}

std::optional<Outbox::Out> Outbox::pull_again(int lane, Time now) {
  while (!again_.empty()) {
    const Ref ref = again_.front();
    again_.pop_front();
    Message* message = find(ref.number);
    if (message == nullptr || message->taken) continue;
    for (Segment& segment : message->segments) {
      if (segment.offset != ref.offset) continue;
      segment.lane = lane;
      segment.since = now;
      segment.copied = false;
      repeated_ += segment.size;
      return out(ref.number, segment);
    }
  }
  return std::nullopt;
}

std::optional<Outbox::Out> Outbox::pull_dealt(int lane, Time now) {
  while (dealt_to(lane)) {
    const Ref ref = dealt_[static_cast<size_t>(lane)].front();
    dealt_[static_cast<size_t>(lane)].pop_front();
    Message* message = find(ref.number);
    if (message == nullptr || message->taken) continue;
    Segment& segment = message->segments[ref.offset / kDealtSegment];
    segment.lane = lane;
    segment.since = now;
    waiting_ -= segment.size;
    return out(ref.number, segment);
  }
  return std::nullopt;
}

std::optional<Outbox::Out> Outbox::pull(int lane, uint32_t most, Time now) {
  if (auto found = pull_again(lane, now)) return found;
  if (dealing_ == Dealing::round_robin) return pull_dealt(lane, now);
  Message* message = next();
  if (message == nullptr) return std::nullopt;
  const uint32_t rest = message->frame.length - message->cut;
  uint32_t size = std::min(rest, std::max(most, kLeastSegment));
  if (rest - size < kLeastSegment) size = rest;  // no crumbs
  message->segments.push_back({message->cut, size, lane, false, now});
  message->cut += size;
  waiting_ -= size;
  return out(base_ + messages_.size() - 1, message->segments.back());
}

std::optional<Outbox::Out> Outbox::pull_rest(int lane, uint32_t most, Time now) {
  if (dealing_ != Dealing::pull || !again_.empty()) return std::nullopt;
  if (next_bytes() == 0 || next_bytes() > most) return std::nullopt;
  return pull(lane, most, now);
}

std::optional<Outbox::Out> Outbox::pull_late(int lane, const Late& late) {
  for (size_t i = 0; i < messages_.size(); ++i) {
    Message& message = messages_[i];
    if (message.taken) continue;
    for (Segment& segment : message.segments) {
      if (segment.copied || segment.lane == lane || segment.lane < 0) continue;
      if (!late(segment.lane, segment.size, segment.since)) continue;
      segment.copied = true;
      repeated_ += segment.size;
      return out(base_ + i, segment);
    }
  }
  return std::nullopt;
}

bool Outbox::has_left(uint64_t number) const {
  if (number < base_) return number > 0;
  const uint64_t at = number - base_;
  return at < messages_.size() && messages_[at].cut == messages_[at].frame.length;
}

std::optional<uint64_t> Outbox::taken(uint64_t number) {
  Message* message = find(number);
  if (message == nullptr || message->taken || message->cut != message->frame.length) return std::nullopt;
  message->taken = true;
  if (dealing_ == Dealing::pull) under_way_ -= ReceiveBuffers::capacity_of(message->frame.length);
  const uint64_t cookie = message->cookie;
  message->segments = {};
  while (!messages_.empty() && messages_.front().taken) {
    messages_.pop_front();
    ++base_;
  }
  return cookie;
}

void Outbox::cut_up(uint64_t number, size_t index, std::vector<Ref>& parts) {
  std::vector<Segment>& segments = find(number)->segments;
  Segment& whole = segments[index];
  whole.lane = -1;
  uint32_t offset = whole.offset;
  const uint32_t end = offset + whole.size;
  uint32_t size = whole.size;
  if (dealing_ == Dealing::pull) size = std::min(size, std::max(size / 4, kLeastSegment));
  const auto next = [&] { return end - offset < size + kLeastSegment ? end - offset : size; };  // no crumbs
  whole.size = next();
  parts.push_back({number, offset});
  for (offset += whole.size; offset < end; offset += segments.back().size) {
    segments.push_back({offset, next(), -1, false, Time::max()});
    parts.push_back({number, offset});
  }
}

void Outbox::lost(int lane) {
  std::vector<Ref> parts;
  for (size_t i = 0; i < messages_.size(); ++i) {
    if (messages_[i].taken) continue;
    const size_t count = messages_[i].segments.size();
    for (size_t index = 0; index < count; ++index)
      if (messages_[i].segments[index].lane == lane) cut_up(base_ + i, index, parts);
  }
  // Nobody knows which of them have arrived. The golden section makes the beginnings come everywhere soon.
  turn_ = std::fmod(turn_ + 0.618033988749895, 1.0);
  const auto first = static_cast<ptrdiff_t>(turn_ * static_cast<double>(parts.size()));
  if (dealing_ == Dealing::pull && parts.size() > 1) std::rotate(parts.begin(), parts.begin() + first, parts.end());
  again_.insert(again_.end(), parts.begin(), parts.end());
  if (!dealt_to(lane)) return;
  for (const Ref& ref : dealt_[static_cast<size_t>(lane)]) {
    waiting_ -= find(ref.number)->segments[ref.offset / kDealtSegment].size;
    again_.push_back(ref);
  }
  dealt_[static_cast<size_t>(lane)].clear();
}

void Outbox::clear() {
  base_ += messages_.size();
  messages_.clear();
  backlog_.clear();
  overtakes_ = 0;
  again_.clear();
  dealt_.clear();
  waiting_ = 0;
  under_way_ = 0;
}

}  // namespace slipstream
