#include "transport/tcp_lane.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>
#include <utility>

#include "transport/tcp_link.h"

namespace slipstream {
namespace {

constexpr double kRttSeconds = 0.1;  // between two looks at a lane's shortest round trip

}  // namespace

// ---- any lane

void Lane::take_socket(Connection connection) {
  shut();
  if ((connection.records != nullptr) != link_.core().identity.encrypt)
    throw Failure(Code::internal, "a connection is not encrypted as SLIPSTREAM_ENCRYPT says");
  fd_ = std::move(connection.fd);
  records_ = std::move(connection.records);
  near_ = same_machine(fd_.get());
  opened_at_ = now();
  acknowledged_ = 0;
  answered_since_ = Time::max();
  previous_ = std::exchange(local_, local_endpoint(fd_.get()));
  ended_ = false;
  write_failed_ = false;
  write_error_ = 0;
}

void Lane::shut() {
  if (is_open()) link_.core().batch.forget(*this);
  interest(false, false);
  fd_.reset();
  records_.reset();
}

Connection Lane::release() {
  if (is_open()) link_.core().batch.forget(*this);
  interest(false, false);
  return {std::move(fd_), std::move(records_)};
}

void Lane::finish_writing() {
  if (is_open()) ::shutdown(fd_.get(), SHUT_WR);
}

void Lane::interest(bool in, bool out, bool errors) {
  if (!is_open()) return;
  // The kernel knows nothing of what has left the socket.
  if (in && opened())
    link_.core().poller.again(this);
  else if (records_)
    link_.core().poller.not_again(this);
  const uint32_t want = (in ? EPOLLIN : 0u) | (out ? EPOLLOUT : 0u) | (errors ? EPOLLERR : 0u);
  if (want == registered_) return;
  // epoll reports EPOLLHUP and EPOLLERR unasked: a lane that wants nothing has to be out of it.
  if (want == 0)
    link_.core().poller.remove(fd_.get(), this);
  else if (registered_ == 0)
    link_.core().poller.add(fd_.get(), want, this);
  else
    link_.core().poller.modify(fd_.get(), want, this);
  registered_ = want;
}

void Lane::write_broke(int error) {
  write_failed_ = true;
  write_error_ = error;
  ::shutdown(fd_.get(), SHUT_RDWR);
}

void Lane::read_ended(int error) {
  ended_ = true;
  link_.lane_ended(*this, error != 0 ? error : write_error_);
}

void Lane::read_broke(int error, uint32_t number) {
  if (error == EBADMSG && records_) return read_damaged(number);
  read_ended(error);
}

void Lane::look_at_answers(std::optional<Time> before) {
  const uint64_t last = std::exchange(acknowledged_, passed().acknowledged);
  if (acknowledged_ <= last)
    answered_since_ = Time::max();
  else if (!before)
    answered_since_ = now();
  else
    answered_since_ = std::min(answered_since_, *before);
}

bool Lane::same_way(const Lane& other) const {
  return is_open() && other.is_open() && local_.address == other.local_.address &&
         peer_address(fd_.get()) == peer_address(other.fd_.get());
}

void Lane::discard() {
  for (size_t total = 0; total < kTurn;) {
    IoCall call{.fd = fd_.get(), .records = records_.get(), .count = 1, .parts = {{nullptr, IoCall::kMostDropped}}};
    perform(call);
    if (call.result < 0 && would_block(call.error)) return;
    if (call.result <= 0) return read_ended(call.error);
    total += static_cast<size_t>(call.result);
  }
}

void Lane::describe(LaneStatistics& statistics) const {
  statistics.up = writable() && !ended_;
  if (!is_open()) return;
  const TcpState state = tcp_state(fd_.get());
  statistics.local = state.local;
  statistics.remote = state.remote;
  statistics.delivery = state.delivery;
  statistics.rtt_us = state.rtt_us;
  statistics.retransmits = state.retransmits;
}

// ---- a bulk lane, outwards

void BulkLane::open(Connection connection) {
  take_back();
  take_socket(std::move(connection));
  pieces_.begin(checks());
  in_place_ = 0;
  in_payload_ = stalled_ = said_last_ = heard_last_ = false;
  promoted_ = 0;
  rest_ = Rest::none;
  rtt_at_ = {};
  header_at_ = 0;
  pace_.forget();
  backlog_ = 0;
  limit_backlog();
  begin_zero_copy();
}

void BulkLane::begin_zero_copy() {
  const Lending lending = link_.core().options.lending;
  // What is encrypted is a copy already.
  const bool wanted = !records_ && (lending == Lending::always || (lending == Lending::automatic && !near()));
  if (lending == Lending::always) zero_copy_.insist();
  zero_copy_.fix(link_.core().options.lend_from);
  zero_copy_.begin(wanted && allow_zero_copy(fd_.get()));
}

void BulkLane::take_back() {
  if (is_open() && zero_copy_.lent() > 0) read_completions(fd_.get(), zero_copy_);
  if (is_open() && zero_copy_.lent() > 0) reset_tcp(fd_.get());
}

void BulkLane::shut() {
  take_back();
  zero_copy_.begin(false);
  said_last_ = heard_last_ = false;
  promoted_ = 0;
  Lane::shut();
}

void BulkLane::limit_backlog() {
  const int most = link_.core().options.notsent_lowat;
  const int wanted = near() ? most : pace_.backlog(most);
  if (wanted > backlog_ * 3 / 4 && wanted < backlog_ * 4 / 3) return;
  backlog_ = wanted;
  limit_unsent(fd_.get(), wanted);
}

bool BulkLane::has_enough(int lanes, Time now) {
  if (pace_.rate() == 0) return false;
  if (now - rtt_at_ > seconds(kRttSeconds)) {
    rtt_ = least_rtt();
    rtt_at_ = now;
  }
  return static_cast<double>(unsent()) > pace_.enough(rtt_, lanes);
}

double BulkLane::seen_rate() const {
  const double delivered = is_open() && pace_.rate() > 0 ? delivery_rate(fd_.get()) : 0;
  return delivered > 0 ? std::min(delivered, pace_.rate()) : pace_.rate();
}

void BulkLane::pump() {
  const Time start = now();
  IoCall call;
  size_t wrote = 0;
  while (wrote < kTurn && prepare_write(call, start)) {
    perform(call);
    if (!finish_write(call, wrote)) break;
  }
  end_turn(wrote, start);
}

void BulkLane::start(const Outbox::Out& piece) {
  pieces_.push(piece);
  lend_ = zero_copy_.lends(piece.header.size);
  IoCall call;
  size_t wrote = 0;
  while (sending() && wrote < kTurn && prepare_write(call, {})) {
    perform(call);
    if (!finish_write(call, wrote)) break;
  }
  update();
}

// One segment; or several that are whole messages, or the ends of some, and together no more than one would be.
bool BulkLane::take(Time now) {
  if (promoted_ != 0) {
    // What the kernel says of lent memory comes with this connection, so nothing is lent when that goes.
    if (said_last_ || zero_copy_.lent() > 0) return false;
    pieces_.push({promotion(promoted_), nullptr});
    lend_ = false;
    return said_last_ = true;
  }
  const uint64_t waiting = link_.outbox().waiting();
  const auto first = link_.pull(*this, now);
  if (!first) return false;
  pieces_.push(*first);
  lend_ = zero_copy_.lends(first->header.size);
  if (lend_) return true;
  // Within a machine there are no paths to spread over, but there may be threads.
  const bool all = near() && !link_.core().batch.shares();
  const uint32_t most = all ? kTogether : std::min(kTogether, pace_.segment(waiting, link_.lanes()));
  for (uint32_t bytes = first->header.size; bytes < most && pieces_.count() < Pieces::kMost;) {
    const auto more = link_.outbox().pull_rest(number_, zero_copy_.copied_most(most - bytes), now);
    if (!more) break;
    pieces_.push(*more);
    bytes += more->header.size;
  }
  return true;
}

bool BulkLane::prepare_write(IoCall& call, Time now) {
  if (!writable() || link_.closing()) return false;
  call.fd = fd_.get();
  call.records = records_.get();
  call.out = true;
  if (sealed() > 0 && pieces_.empty()) {  // that first: who pulls shall be able to send
    call.first = nullptr;
    call.checks = false;
    call.count = 0;
    return true;
  }
  if (pieces_.empty() && !take(now)) return false;
  call.timed = zero_copy_.measures();
  pieces_.prepare(call, lend_ && zero_copy_.lends_rest(pieces_.rest(), pieces_.begun()));
  return true;
}

bool BulkLane::finish_write(const IoCall& call, size_t& wrote) {
  if (!records_) account(call);
  if (call.result < 0) {
    if (would_block(call.error)) return false;
    write_broke(call.error);
    if (heard_last_) read_ended(call.error);  // nobody reads here any more
    return false;
  }
  const auto n = static_cast<size_t>(call.result);
  pieces_.went(n);
  sent_bytes_ += n;
  wrote += n;
  if (!heard_last_ || !said_last()) return true;
  hand_over();
  return false;
}

// For zero copy.
void BulkLane::account(const IoCall& call) {
  const Sent sent{call.result, call.lent, call.refused};
  const size_t pieces = (call.count + 1) / 2;  // headers and payloads take turns
  if ((call.flags & MSG_MORE) != 0)
    zero_copy_.before(call.seconds);
  else
    zero_copy_.record(sent, call.bytes() / pieces, call.seconds);
}

void BulkLane::end_turn(size_t wrote, Time start) {
  pace_.took(wrote, sending() || link_.outbox().waiting() > 0, start);
  if (writable()) limit_backlog();
  update();
}

// ---- a bulk lane, inwards

void BulkLane::ready(uint32_t events) {
  if ((events & EPOLLERR) != 0 && zero_copy_.lent() > 0 && read_completions(fd_.get(), zero_copy_)) events &= ~EPOLLERR;
  if (heard_last_ && !discards() && (events & (EPOLLERR | EPOLLHUP)) != 0)
    return read_ended(connect_outcome(fd_.get()));
  const bool out = (events & EPOLLOUT) != 0 && writable() && !link_.closing();
  if (opened()) events |= EPOLLIN;
  const bool in = !ended_ && (!stalled_ || link_.closing()) && (events & ~EPOLLOUT) != 0;
  if (link_.core().batch.shares() && !link_.closing()) return link_.core().batch.add(*this, out, in);
  if (out) pump();
  if (is_open() && in) read();
  update();
}

void BulkLane::update() {
  const bool work =
      promoted_ != 0 ? !said_last_ && zero_copy_.lent() == 0 : rest_ == Rest::none && link_.outbox().has_work(number_);
  const bool in = discards() || (!stalled_ && !heard_last_);
  interest(!ended_ && in, writable() && !link_.closing() && (sending() || work || sealed() > 0), heard_last_);
}

// The last word of the side that dialled is the first; when it has the other side's too, it has read all that was sent
// here, and so has the peer.
bool BulkLane::hear_last() {
  header_at_ = 0;
  const uint32_t generation = segment_.frame.seq;
  if (link_.dialled()) {
    if (!said_last() || generation != promoted_)
      link_.nonsense("its last word on a lane, unasked");
    else
      hand_over();
    return false;
  }
  promoted_ = generation;
  heard_last_ = true;
  return false;
}

void BulkLane::hand_over() {
  const uint32_t generation = std::exchange(promoted_, 0);
  said_last_ = heard_last_ = false;
  limit_unsent(fd_.get(), link_.core().options.notsent_lowat);
  link_.lane_promoted(*this, release(), generation);
}

void BulkLane::promote(uint32_t generation) {
  promoted_ = generation;
  update();
}

bool BulkLane::discards() const { return link_.closing() && !said_last(); }

void BulkLane::drop_input() {
  into_ = nullptr;
  stalled_ = false;
}

void BulkLane::read() {
  IoCall call;
  for (size_t got = 0; got < kTurn;) {
    if (discards()) return discard();
    if (!prepare_read(call)) return;
    perform(call);
    if (!finish_read(call, got)) return;
  }
}

bool BulkLane::prepare_read(IoCall& call) {
  if (!is_open() || ended_ || stalled_ || heard_last_ || discards()) return false;
  call.fd = fd_.get();
  call.records = records_.get();
  call.out = false;
  call.timed = false;
  call.flags = 0;
  call.count = 0;
  const size_t rest = in_payload_ ? segment_.size - in_at_ : 0;
  const bool dropped = in_payload_ && into_ == nullptr;
  if (dropped)
    call.parts[call.count++] = {nullptr, std::min(rest, IoCall::kMostDropped)};
  else if (in_payload_)
    call.parts[call.count++] = {into_ + in_at_, rest};
  // The next header comes with the rest of a payload: one system call a segment.
  if (!dropped) call.parts[call.count++] = {header_.data() + header_at_, header_.size() - header_at_};
  call.alone = dropped || !in_payload_ || !link_.inbox().shared(segment_);
  call.first = nullptr;
  call.checks = in_payload_ && !dropped && segment_.check.payload != 0;
  call.crc = in_crc_;
  return true;
}

bool BulkLane::reads_with(const BulkLane& other) const {
  return in_payload_ && other.in_payload_ && into_ != nullptr && other.into_ != nullptr &&
         into_ < other.into_ + other.segment_.size && other.into_ < into_ + segment_.size;
}

bool BulkLane::finish_read(const IoCall& call, size_t& got) {
  if (call.result < 0 && would_block(call.error)) return false;
  if (call.result <= 0) {
    read_broke(call.error, static_cast<uint32_t>(number_) + 1);
    return false;
  }
  if (discards()) return false;  // another lane's upcall did that
  const size_t rest = in_payload_ ? segment_.size - in_at_ : 0;
  const bool dropped = in_payload_ && into_ == nullptr;
  const auto n = static_cast<size_t>(call.result);
  link_.heard();
  got += n;
  in_crc_ = call.crc;
  received_bytes_ += std::min(n, rest);
  in_at_ += std::min(n, rest);
  header_at_ += n - std::min(n, rest);
  if (in_payload_ && in_at_ == segment_.size && !deliver()) return false;
  if (header_at_ == header_.size() && !begin()) return false;
  return n >= rest || dropped;  // else the socket is empty
}

bool BulkLane::begin() {
  std::memcpy(&segment_, header_.data(), sizeof(SegmentHeader));
  if (!intact(segment_, in_place_++)) {
    read_damaged(static_cast<uint32_t>(number_) + 1);
    return false;
  }
  if (is_promotion(segment_)) return hear_last();
  const char* what = objection_to_segment(segment_);
  const auto verdict = what != nullptr ? Inbox::Verdict::nonsense : link_.inbox().begin(segment_);
  if (verdict == Inbox::Verdict::nonsense) {
    link_.nonsense(what != nullptr ? what : "a segment that contradicts another one");
    return false;
  }
  header_at_ = 0;
  in_at_ = 0;
  in_crc_ = 0;
  in_payload_ = true;
  into_ = nullptr;
  if (segment_.taken > 1 && !link_.taken(1, segment_.taken - 1)) return false;
  return verdict == Inbox::Verdict::repeated || place();
}

bool BulkLane::place() {
  stalled_ = false;
  switch (link_.place(segment_, into_)) {
    case TcpLink::Place::found:
      return true;
    case TcpLink::Place::full:
      stalled_ = true;
      return false;
    case TcpLink::Place::none:
      break;
  }
  return false;
}

void BulkLane::resume() {
  place();
  update();
}

void BulkLane::forget_in(uint64_t message) {
  if (in_payload_ && segment_.message == message) into_ = nullptr;
}

// Nobody has any use for what is dropped, and the peer may send anything in its place.
bool BulkLane::deliver() {
  in_payload_ = false;
  if (into_ == nullptr) return !link_.finished() && !discards();
  if (undamaged())
    link_.complete(segment_);
  else
    read_damaged(static_cast<uint32_t>(number_) + 1);
  return is_open() && !link_.finished() && !discards();
}

void BulkLane::describe(LaneStatistics& statistics) const {
  Lane::describe(statistics);
  statistics.sent = sent_bytes_;
  statistics.received = received_bytes_;
  statistics.rate = pace_.rate();
  statistics.zero_copy = zero_copy_.on();
  statistics.zero_copied = zero_copy_.bytes();
  statistics.zero_copy_from = zero_copy_.from();
}

}  // namespace slipstream
