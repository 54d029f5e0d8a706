#include "transport/tcp/receiver.h"

#include "transport/tcp/lane_control.h"
#include "transport/tcp/link.h"

namespace slipstream {
namespace {

Frame acknowledgement(uint64_t message, uint8_t flags = 0) {
  return LaneControl{.type = FrameType::taken, .flags = flags, .number = message};
}

}  // namespace

Receiver::Destination Receiver::destination(const SegmentHeader& segment, std::byte*& into) {
  const LinkContext& at = link_.context();
  into = nullptr;
  if (at.closing || !inbox_.wants(segment)) return Destination::found;  // completed over other lanes; dropped
  Inbox::Message* message = inbox_.find(segment.message);
  if (!message->placed) {
    const Events::Landing landing = at.core->events.land(link_, segment.frame);
    if (at.ends()) return at.closing ? Destination::found : Destination::none;
    message = inbox_.find(segment.message);
    if (!landing.ok) {
      link_.protocol_error("data that fits no operation");
      return Destination::none;
    }
    if (landing.into == nullptr) {
      const ReceiveBuffers::Taken buffer = buffers_.take(segment.frame.length);
      if (buffer.id == 0) return Destination::full;
      message->hold = buffer.id;
      message->into = buffer.data;
    } else {
      message->into = landing.into;
    }
    message->placed = true;
  }
  into = message->into + segment.offset;
  return Destination::found;
}

void Receiver::complete(const SegmentHeader& segment) {
  link_.context().damaged_in_row[1] = 0;
  const bool whole = inbox_.complete(segment);
  for (const auto& lane : link_.bulk().all()) lane->forget_in(segment);
  if (whole) complete(segment.message);
}

void Receiver::complete(uint64_t number) {
  const Inbox::Message message = *inbox_.find(number);
  inbox_.finish(number);
  for (const auto& lane : link_.bulk().all()) lane->forget_in(number);
  // A buffer counts as under way until the owner has given it back.
  if (message.hold != 0)
    kept_[message.hold] = number;
  else
    took(number, true);
  link_.context().core->events.arrived(link_, message.frame,
                                       Payload{message.into, message.frame.length, false, message.hold});
}

void Receiver::release(const Payload& payload) {
  if (payload.hold == 0) return;
  buffers_.give(payload.hold);
  if (const auto kept = kept_.find(payload.hold); kept != kept_.end()) {
    if (!link_.context().ends()) took(kept->second, false);
    kept_.erase(kept);
  }
  link_.bulk().resume();
}

// It is acknowledged by a segment of ours, if there is one soon; at once where its turn has not come yet.
void Receiver::took(uint64_t number, bool soon) {
  taken_.add(number);
  link_.sender().outbox().acknowledge(taken_.below());
  if (link_.context().core->options.acknowledge_seconds == 0 || number >= taken_.below())
    return soon ? link_.control().send_soon(acknowledgement(number))
                : link_.control().send(acknowledgement(number), nullptr);
  acknowledge_later();
}

void Receiver::acknowledge_later() {
  TcpCore& core = *link_.context().core;
  if (waits_ || core.options.acknowledge_seconds == 0) return;
  waits_ = true;
  core.timers.set(*this, now() + seconds(core.options.acknowledge_seconds));
}

void Receiver::acknowledge() {
  waits_ = false;
  if (!link_.context().ends() && link_.sender().outbox().acknowledged() < taken_.below())
    link_.control().send(acknowledgement(taken_.below() - 1, kAllBefore), nullptr);
}

void Receiver::acknowledge_again() {
  link_.sender().outbox().forget_acknowledged();
  if (!link_.context().closing) acknowledge_later();
}

void Receiver::acknowledge_rest() {
  if (waits_) acknowledge();
}

void Receiver::stop() { link_.context().core->timers.cancel(*this); }

}  // namespace slipstream
