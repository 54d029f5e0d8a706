// How a tcp link gets its connections back. The side that dialled dials again; the other one asks with a knock whether
// the peer lives, and waits. Only a listener that is gone ends a link at once: its process has ended. A route that is
// missing, an address that does not answer, a connection that breaks again are tried until the heartbeat time is over.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/log.h"
#include "transport/tcp_link.h"

namespace slipstream {
namespace {

constexpr double kStoryDelay = 0.5;   // seconds that a link without bulk lanes waits for word on the control lane
constexpr double kFirstPause = 0.05;  // seconds before a connection that broke at once is dialled again; it doubles
constexpr double kMostPause = 0.5;
constexpr double kStalledPart = 0.2;  // of the patience: a ping without an answer for so long means another connection
constexpr double kLanesPause = 0.25;  // seconds between attempts to get a lane while there is none

std::string within(double limit) {
  char text[64];
  std::snprintf(text, sizeof(text), "within %g s (SLIPSTREAM_HEARTBEAT sets the limit)", limit);
  return text;
}

}  // namespace

DialTerms TcpLink::again_terms() const {
  DialTerms terms;
  terms.limit = core_->options.patience_seconds;
  terms.segment = segment_;
  if (resumptions_ > 1) terms.delay = std::min(kFirstPause * (1 << std::min(resumptions_ - 2, 8)), kMostPause);
  if (!accepted_ && control_path_ != Paths::kNone) terms.proven = {paths_.address(control_path_)};
  if (accepted_) terms.proven = {met_at_};
  for (const size_t path : lane_paths_)
    if (path != Paths::kNone) terms.proven.push_back(paths_.address(path));
  return terms;
}

// The control lane broke.
void TcpLink::repair_control(int error) {
  std::string text = name() + " closed its connection";
  if (error != 0) text = "the connection to " + name() + " broke (" + std::strerror(error) + ")";
  if (!repairs()) return fail({Code::peer_lost, peer_, {}, text + ": the process died or was killed"});
  note(TraceEvent::Kind::lane_lost, control_, 0);
  ++lost_;
  ++resumptions_;
  control_.shut();
  former_control_.reset();
  promoted_from_ = 0;
  unanswered_since_.reset();
  if (!control_loss_)
    control_loss_ = {{Code::peer_lost, peer_, {}, text}, now() + seconds(core_->options.patience_seconds)};
  if (!control_dial_) dial_control();
  time_losses();
}

void TcpLink::dial_control() {
  auto done = [this](Dial::Result result) {
    if (!accepted_) return control_dialled(std::move(result));
    control_dial_.reset();
    if (result.error && !control_.is_open()) repair_failed(result);
  };
  if (!accepted_) ++generation_;
  const size_t doubtful = control_.is_open() ? control_path_ : Paths::kNone;
  const auto target = accepted_ ? core_->directory(peer_) : target_by(paths_.in_order(now(), doubtful));
  if (accepted_ && core_->options.only_answers) return;  // a peer that lives dials
  control_dial_ = std::make_unique<Dial>(core_, target, accepted_ ? Purpose::knock : Purpose::link, generation_, token_,
                                         std::move(done), again_terms());
}

void TcpLink::repair_failed(const Dial::Result& result) {
  if (closing_) return shut_down();
  if (!control_loss_) return;
  Error error = std::exchange(control_loss_, {}).error;
  if (result.lacking)
    error.text += ", and " + result.error.text;
  else if (result.gone)
    error.text += ", and nobody listens there any more: the process died or was killed";
  else
    error.text += " and could not be made again " + within(core_->options.patience_seconds) + ": " + result.error.text;
  fail(std::move(error));
}

// The peer's end of this link is gone if it opens another: what it may say there is why.
bool TcpLink::superseded() {
  const bool broken = !control_.is_open() || control_.ended();
  if (finished_ || !accepted_ || !broken) return finished_;
  fail({Code::peer_lost, peer_, {}, name() + " has given up the connection that broke, and opened another one"});
  return true;
}

// There is no bulk lane. `gone`: nor is there anybody to dial; else ways may come back.
void TcpLink::lanes_lost(Error error, bool gone) {
  const bool wait = !gone && repairs() && !accepted_;
  const double patience = core_->options.patience_seconds;
  if (!lanes_loss_) lanes_loss_.due = now() + seconds(patience);
  if (!wait) lanes_loss_.due = std::min(lanes_loss_.due, now() + seconds(kStoryDelay));
  if (wait) error.text += ", and no other way was found " + within(patience);
  lanes_loss_.error = std::move(error);
  if (wait) anew_at_ = now() + seconds(kLanesPause);
  time_losses();
}

void TcpLink::losses_due(Time now) {
  if (now >= control_loss_.due) {
    Error error = std::exchange(control_loss_, {}).error;
    error.text += " and could not be made again " + within(core_->options.patience_seconds);
    if (const std::string why = trouble(); !why.empty()) error.text += ": " + why;
    return fail(std::move(error));
  }
  if (now >= lanes_loss_.due) return fail(std::exchange(lanes_loss_, {}).error);
  if (now >= anew_at_) {
    anew_at_ = Time::max();
    for (size_t i = 0; i < lane_dials_.size(); ++i)
      if (!lane_dials_[i]) dial_lane(i);
  }
  time_losses();
}

void TcpLink::time_losses() {
  if (closing_ || finished_) return;
  const Time due = std::min({control_loss_.due, lanes_loss_.due, anew_at_});
  if (due == Time::max()) return core_->timers.cancel(*this);
  core_->timers.set(*this, due);
}

std::string TcpLink::trouble() const {
  if (control_dial_ && !control_dial_->trouble().empty()) return control_dial_->trouble();
  return lanes_loss_.error.text;
}

// The engine pings because nothing has been heard. A middle box may still acknowledge what it no longer forwards, and
// TCP then sees no fault: only another connection helps.
void TcpLink::watch_control() {
  if (!repairs() || !control_.is_open() || control_.resuming() || control_dial_) return;
  const Time at = now();
  const bool stalled = unanswered_since_ && control_.heard() == heard_then_;
  if (stalled && at - *unanswered_since_ < seconds(kStalledPart * core_->options.patience_seconds)) return;
  unanswered_since_ = at;
  heard_then_ = control_.heard();
  if (stalled) dial_control();
}

}  // namespace slipstream
