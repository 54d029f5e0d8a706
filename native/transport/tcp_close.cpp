// How a tcp link ends in good order. What was said before close() reaches the peer although connections break: the
// control lane is repaired as ever until the peer has said that it has read all, or that it leaves, too. Only then it
// is told that nothing more comes. All of that has its bounds, for the owner's process is about to end.
#include "transport/tcp_link.h"

namespace slipstream {
namespace {

constexpr double kLinger = 0.2;  // seconds that a closing link waits for the peer's end
constexpr double kPatience = 2;  // seconds without progress after which it gives up

}  // namespace

void TcpLink::close() {
  if (finished_ || closing_) return;
  closing_ = true;
  control_loss_ = lanes_loss_ = {};
  anew_at_ = Time::max();
  core_->timers.cancel(words_);
  core_->timers.cancel(tender_);
  core_->timers.cancel(watcher_);
  for (auto& dial : lane_dials_) dial.reset();
  if (!control_.is_open() && !(up_ && repairs_while_closing())) return shut_down();
  if (!outbox_.empty())
    for (const auto& lane : bulk_) lane->take_back();
  outbox_.clear();  // and with it the owner's memory
  for (const auto& lane : bulk_) lane->drop_input();
  core_->timers.set(*this, now() + seconds(kPatience));
  rearm_lanes();  // a stalled lane reads again, to discard
  step_close();
}

void TcpLink::wrote() {
  if (!closing_ || finished_ || shut_write_) return;
  core_->timers.set(*this, now() + seconds(kPatience));
  step_close();
}

// Who leaves, too, has no use for what we say.
void TcpLink::while_closing(const Frame& frame) {
  if (frame.type != FrameType::goodbye && frame.type != FrameType::abort) return;
  goodbye_ = true;
  step_close();
}

void TcpLink::step_close() {
  if (finished_) return;
  // A peer that cannot be met again is given what the connection takes.
  const bool done =
      repairs_while_closing() ? goodbye_ || control_.heard_out() : control_.flushed() && !changes_control();
  if (!shut_write_ && done) {
    shut_write_ = true;
    control_dial_.reset();
    control_.finish_writing();
    for (const auto& lane : bulk_) lane->finish_writing();
    core_->timers.set(*this, now() + seconds(kLinger));
  }
  if (!shut_write_ && repairs_while_closing()) {
    if (control_.is_open() && control_.ended()) {
      ++resumptions_;
      control_.shut();
      former_control_.reset();
      promoted_from_ = 0;
    }
    if (!control_.is_open() && !control_dial_) dial_control();
    return;
  }
  // Also ends a link whose peer went away before everything was sent: nobody is left to read it.
  if (all_ended()) shut_down();
}

}  // namespace slipstream
