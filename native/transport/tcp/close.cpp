// How a tcp link ends in good order. What was sent over the control lane before close() reaches the peer although
// connections break: the lane is repaired until the peer has acknowledged all, or leaves too. Only then both ends shut
// their connections. The time for that is bounded, for the owner's process is about to end.
#include "transport/tcp/link.h"

namespace slipstream {
namespace {

constexpr double kLinger = 0.2;  // seconds that a closing link waits for the peer's end
constexpr double kPatience = 2;  // seconds without progress after which it gives up

}  // namespace

void TcpLink::close() {
  if (context_.ends()) return;
  context_.closing = true;
  context_.losses.clear();
  stop_timers();
  bulk_.stop_dialling();
  if (!control_.is_open() && !(up_ && context_.repairs_while_closing())) return shut_down();
  if (!sender_.outbox().empty())
    for (const auto& lane : bulk_.all()) lane->take_back();
  sender_.outbox().clear();  // and with it the owner's memory
  for (const auto& lane : bulk_.all()) lane->drop_input();
  core().timers.set(*this, now() + seconds(kPatience));
  bulk_.update();  // a stalled lane reads again, to discard
  step_close();
}

void TcpLink::wrote() {
  if (!context_.closing || context_.finished || context_.shut_write) return;
  core().timers.set(*this, now() + seconds(kPatience));
  step_close();
}

// A peer that leaves too has no use for what we send.
void TcpLink::while_closing(const Frame& frame) {
  if (frame.type != FrameType::goodbye && frame.type != FrameType::abort) return;
  context_.goodbye = true;
  step_close();
}

void TcpLink::step_close() {
  if (context_.finished) return;
  const bool repairs = context_.repairs_while_closing();
  // A peer that cannot be met again is given what the connection takes.
  const bool done =
      repairs ? context_.goodbye || control_.all_acknowledged() : control_.flushed() && !promotion_.under_way();
  if (!context_.shut_write && done) {
    context_.shut_write = true;
    control_connection_.stop_dialling();
    control_.finish_writing();
    for (const auto& lane : bulk_.all()) lane->finish_writing();
    core().timers.set(*this, now() + seconds(kLinger));
  }
  if (!context_.shut_write && repairs) return control_connection_.repair_while_closing();
  // Also ends a link whose peer went away before everything was sent: nobody is left to read it.
  if (all_ended()) shut_down();
}

}  // namespace slipstream
