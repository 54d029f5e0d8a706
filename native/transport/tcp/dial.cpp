#include "transport/tcp/dial.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace slipstream {
namespace {

// A listener that is flooded by strangers drops the oldest connections, and that may be ours.
constexpr int kRounds = 4;
constexpr double kPause = 0.05;  // seconds between rounds; it doubles with each of a dial that lasts
constexpr double kMostPause = 0.25;
constexpr int kStrangeAnswers = 3;  // in a row, where the peer has been met: then somebody else is there
constexpr double kAnew = 2;         // seconds that the answer to one request is waited for
constexpr double kHurry = 0.25;     // seconds after which another request follows, where the peer has been met
constexpr size_t kMostEarlier = 8;  // requests
// Of a handshake with a peer that has been met: seconds without an acknowledgement from its machine, and seconds
// without a word; these double each time, for the peer may be stopped, or busy.
constexpr double kUnanswered = 0.5;
constexpr double kSilent = 4;

bool has_outcome(int fd) {
  pollfd one{fd, POLLOUT, 0};
  return ::poll(&one, 1, 0) != 0;
}

// This process's lack, which says nothing of the peer.
bool is_our_own(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

}  // namespace

Dial::Dial(std::shared_ptr<TcpCore> core, Target target, Purpose purpose, uint32_t lane, uint64_t token, Done done,
           DialTerms terms)
    : core_(std::move(core)),
      target_(std::move(target)),
      purpose_(purpose),
      lane_(lane),
      token_(token),
      done_(std::move(done)),
      deadline_(now() + seconds(terms.delay + (terms.limit > 0 ? terms.limit : core_->options.connect_seconds))),
      lasting_(purpose != Purpose::lane),
      proven_(std::move(terms.proven)),
      segment_(terms.segment),
      handshake_(Handshake::client(core_->identity, purpose, target_.peer, lane, token)) {
  // The first attempt is made by the poller: nothing is reported from inside dial().
  core_->timers.set(*this, now() + seconds(terms.delay));
}

Dial::~Dial() {
  let_go();
  forget_earlier();
  core_->timers.cancel(*this);
}

void Dial::let_go() {
  if (fd_) core_->poller.remove(fd_.get(), this);
  fd_.reset();
}

// The first round: a silent address may not keep us from one that answers.
bool Dial::impatient() const { return rounds_ == 0 && target_.addresses.size() > 1; }

Time Dial::attempt_deadline(Time now) const {
  // Nor may it eat the time of those after it.
  const auto left = static_cast<Clock::duration::rep>(target_.addresses.size() - index_);
  const Time share = now + (deadline_ - now) / left;
  const bool connecting = phase_ == Phase::connecting;
  if (connecting && hurries()) return std::min(deadline_, now + seconds(kHurry));
  if (impatient()) return std::min(share, now + seconds(kImpatience));
  return connecting ? std::min(share, now + seconds(kAnew)) : share;
}

bool Dial::proven(size_t index) const {
  return std::find(proven_.begin(), proven_.end(), target_.addresses[index]) != proven_.end();
}

std::string Dial::who() const {
  return "rank " + std::to_string(target_.peer) + " at " + address_name(target_.addresses[index_], target_.port);
}

void Dial::due(Time now) {
  if (phase_ == Phase::pause && now >= deadline_ && error_) return finish({{}, {}, error_, false});
  if (phase_ == Phase::pause) return try_next();
  if (phase_ == Phase::greeting && hurries()) {
    if (now < greet_until_ && !unanswered(fd_.get(), kUnanswered))
      return core_->timers.set(*this, std::min(greet_until_, now + seconds(kHurry)));
    if (now >= greet_until_) ++silences_;
  }
  if (phase_ == Phase::connecting && hurries()) keep_request(now);
  silent_ = true;
  again_ = again_ || impatient();
  attempt_failed(Why::silent,
                 phase_ == Phase::connecting ? "does not answer" : "accepted the connection but is silent");
}

void Dial::try_next() {
  if (target_.addresses.empty())
    return finish(
        {{}, {}, {Code::peer_lost, target_.peer, {}, "rank " + std::to_string(target_.peer) + " has no address"}});
  forget_earlier(now());
  silent_ = false;
  int error = 0;
  fd_ = connect_tcp(target_.addresses[index_], target_.port, error, lane_, segment_);
  if (!fd_) return unreachable(error);
  phase_ = Phase::connecting;
  core_->poller.add(fd_.get(), EPOLLOUT, this);
  core_->timers.set(*this, attempt_deadline(now()));
}

// The poller does not say which of the sockets it means.
void Dial::ready(uint32_t) {
  if (phase_ == Phase::greeting) return greet();
  if (phase_ == Phase::connecting && has_outcome(fd_.get())) return connected();
  look_at_earlier();
}

void Dial::keep_request(Time now) {
  if (earlier_.size() >= kMostEarlier) forget_earlier(earlier_.front().until);
  earlier_.push_back({std::move(fd_), index_, now + seconds(kAnew)});
}

void Dial::forget_earlier(Time before) {
  std::erase_if(earlier_, [&](const Request& request) {
    if (request.until > before) return false;
    core_->poller.remove(request.fd.get(), this);
    return true;
  });
}

// That nobody listens where the peer has been met ends the dial; all else the next request finds, too.
void Dial::look_at_earlier() {
  for (size_t i = 0; i < earlier_.size();) {
    const int fd = earlier_[i].fd.get();
    if (!has_outcome(fd)) {
      ++i;
      continue;
    }
    const int error = connect_outcome(fd);
    Request request = std::move(earlier_[i]);
    earlier_.erase(earlier_.begin() + static_cast<ptrdiff_t>(i));
    const bool counts = error == 0 || (error == ECONNREFUSED && proven(request.index));
    if (!counts) {
      core_->poller.remove(request.fd.get(), this);
      continue;
    }
    let_go();
    fd_ = std::move(request.fd);
    index_ = request.index;
    return error == 0 ? begin_greeting() : unreachable(error);
  }
}

void Dial::connected() {
  if (const int error = connect_outcome(fd_.get()); error != 0) return unreachable(error);
  begin_greeting();
}

void Dial::begin_greeting() {
  forget_earlier();
  tune_tcp(fd_.get(), core_->socket_options());
  handshake_ = Handshake::client(core_->identity, purpose_, target_.peer, lane_, token_);
  phase_ = Phase::greeting;
  const Time start = now();
  greet_until_ = std::min(deadline_, start + seconds(kSilent * (1 << std::min(silences_, 8))));
  core_->timers.set(*this, hurries() ? std::min(greet_until_, start + seconds(kHurry)) : attempt_deadline(start));
  greet();
}

void Dial::greet() {
  switch (handshake_.advance(fd_.get())) {
    case Handshake::State::going:
      core_->poller.modify(fd_.get(), handshake_.wants_write() ? EPOLLOUT : EPOLLIN, this);
      return;
    case Handshake::State::failed:
      if (handshake_.lacking()) return attempt_failed(Why::lacking, handshake_.why());
      return refused_by_handshake();
    case Handshake::State::done:
      core_->poller.remove(fd_.get(), this);
      return finish({{std::move(fd_), handshake_.records()}, target_.addresses[index_], {}});
  }
}

// What looks like a stranger where a connection is made again may be damage on the way, so it is asked again.
void Dial::refused_by_handshake() {
  const bool dropped = handshake_.closed() || (!proven_.empty() && ++strange_ < kStrangeAnswers);
  again_ = again_ || dropped;
  attempt_failed(dropped ? Why::dropped : Why::stranger, handshake_.why());
}

void Dial::unreachable(int error) {
  if (is_our_own(error)) {
    again_ = true;
    return attempt_failed(Why::ours, std::string("cannot be reached, because this process has no more resources: ") +
                                         std::strerror(error) + " (ulimit -n)");
  }
  if (error == ECONNREFUSED)
    return attempt_failed(Why::nobody, "finished, died or was killed: nothing listens there any more");
  attempt_failed(Why::transient, std::string("cannot be reached: ") + std::strerror(error));
}

void Dial::attempt_failed(Why why, const std::string& how) {
  let_go();
  core_->timers.cancel(*this);
  const bool stranger = why == Why::stranger;
  // That somebody there is not who we want tells more than that somewhere else there is nobody.
  if (!error_ || error_.code != Code::refused || stranger)
    error_ = {why == Why::ours ? Code::internal
              : stranger       ? Code::refused
                               : Code::peer_lost,
              target_.peer,
              {},
              who() + " " + how};
  const bool answered = why == Why::nobody || stranger;
  hope_ = hope_ || !answered;
  // Bridges of container hosts have the same address everywhere: only where the peer has been met its absence counts.
  gone_ = gone_ || (answered && proven(index_));
  phase_ = Phase::pause;
  if (why == Why::lacking) return finish({{}, {}, error_, true, true});
  const bool late = now() >= deadline_;
  if (!gone_ && !late && ++index_ < target_.addresses.size()) {
    core_->timers.set(*this, now());
    return;
  }
  if (!gone_ && !late && round_failed()) return start_round();
  // A lane tries one address of several, so that one's refusal says nothing of the peer.
  finish({{}, {}, error_, gone_ || (!hope_ && purpose_ != Purpose::lane)});
}

// Whether there is to be another round.
bool Dial::round_failed() {
  ++rounds_;
  // Who has never been met and refuses us as somebody else's is not waited for.
  if (lasting_) return hope_ && (again_ || !proven_.empty() || error_.code != Code::refused);
  return silent_ || (again_ && rounds_ < kRounds);
}

void Dial::start_round() {
  again_ = hope_ = false;
  index_ = 0;
  double pause = lasting_ ? std::min(kPause * (1 << std::min(rounds_ - 1, 8)), kMostPause) : kPause;
  if (silent_) pause = 0;  // that has taken its time
  core_->timers.set(*this, std::min(deadline_, now() + seconds(pause)));
}

void Dial::finish(Result result) {
  core_->timers.cancel(*this);
  const Done done = std::move(done_);
  done(std::move(result));
}

}  // namespace slipstream
