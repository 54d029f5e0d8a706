#include "transport/tcp_dial.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>

namespace slipstream {
namespace {

// A listener that is flooded by strangers drops the oldest connections, and that may be ours.
constexpr int kRounds = 4;
constexpr double kPause = 0.05;  // seconds between rounds

}  // namespace

Dial::Dial(std::shared_ptr<TcpCore> core, Target target, Purpose purpose, uint32_t lane, uint64_t token, Done done,
           double limit)
    : core_(std::move(core)),
      target_(std::move(target)),
      purpose_(purpose),
      lane_(lane),
      token_(token),
      done_(std::move(done)),
      deadline_(now() + seconds(limit > 0 ? limit : core_->options.connect_seconds)),
      rounds_left_(kRounds),
      handshake_(Handshake::client(core_->identity, purpose, target_.peer, lane, token)) {
  // The first attempt is made by the poller: nothing is reported from inside dial().
  core_->timers.set(*this, now());
}

Dial::~Dial() {
  let_go();
  core_->timers.cancel(*this);
}

void Dial::let_go() {
  if (fd_) core_->poller.remove(fd_.get(), this);
  fd_.reset();
}

// The first round: a silent address may not keep us from one that answers.
bool Dial::impatient() const { return rounds_left_ == kRounds && target_.addresses.size() > 1; }

Time Dial::attempt_deadline(Time now) const {
  // Nor may it eat the time of those after it.
  const auto left = static_cast<Clock::duration::rep>(target_.addresses.size() - index_);
  const Time share = now + (deadline_ - now) / left;
  return impatient() ? std::min(share, now + seconds(kImpatience)) : share;
}

std::string Dial::who() const {
  return "rank " + std::to_string(target_.peer) + " at " + address_name(target_.addresses[index_], target_.port);
}

void Dial::due(Time now) {
  if (phase_ == Phase::pause) return try_next();
  again_ = again_ || impatient();
  if (now >= deadline_) rounds_left_ = 0;
  attempt_failed(Code::peer_lost,
                 phase_ == Phase::connecting ? "does not answer" : "accepted the connection but is silent");
}

void Dial::try_next() {
  if (target_.addresses.empty())
    return finish(
        {{}, {}, {Code::peer_lost, target_.peer, {}, "rank " + std::to_string(target_.peer) + " has no address"}});
  int error = 0;
  fd_ = connect_tcp(target_.addresses[index_], target_.port, error, lane_);
  if (!fd_) return attempt_failed(Code::peer_lost, std::string("cannot be reached: ") + std::strerror(error));
  phase_ = Phase::connecting;
  core_->poller.add(fd_.get(), EPOLLOUT, this);
  core_->timers.set(*this, attempt_deadline(now()));
}

void Dial::ready(uint32_t) {
  if (phase_ == Phase::connecting) return connected();
  greet();
}

void Dial::connected() {
  if (const int error = connect_outcome(fd_.get()); error != 0)
    return attempt_failed(Code::peer_lost, std::string("cannot be reached: ") + std::strerror(error));
  tune_tcp(fd_.get(), core_->socket_options());
  handshake_ = Handshake::client(core_->identity, purpose_, target_.peer, lane_, token_);
  phase_ = Phase::greeting;
  greet();
}

void Dial::greet() {
  switch (handshake_.advance(fd_.get())) {
    case Handshake::State::going:
      core_->poller.modify(fd_.get(), handshake_.wants_write() ? EPOLLOUT : EPOLLIN, this);
      return;
    case Handshake::State::failed:
      again_ = again_ || handshake_.closed();
      return attempt_failed(handshake_.closed() ? Code::peer_lost : Code::refused, handshake_.why());
    case Handshake::State::done:
      core_->poller.remove(fd_.get(), this);
      return finish({std::move(fd_), target_.addresses[index_], {}});
  }
}

void Dial::attempt_failed(Code code, const std::string& how) {
  let_go();
  core_->timers.cancel(*this);
  // That somebody there is not who we want tells more than that somewhere else there is nobody.
  if (!error_ || error_.code != Code::refused) error_ = {code, target_.peer, {}, who() + " " + how};
  phase_ = Phase::pause;
  if (rounds_left_ > 0 && ++index_ < target_.addresses.size()) {
    core_->timers.set(*this, now());
    return;
  }
  if (again_ && --rounds_left_ > 0 && now() < deadline_) {
    again_ = false;
    index_ = 0;
    core_->timers.set(*this, now() + seconds(kPause));
    return;
  }
  finish({{}, {}, error_});
}

void Dial::finish(Result result) {
  core_->timers.cancel(*this);
  const Done done = std::move(done_);
  done(std::move(result));
}

}  // namespace slipstream
