#include "transport/tcp/bulk_lane.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transport/tcp/lane_control.h"
#include "transport/tcp/link.h"

namespace slipstream {
namespace {

constexpr double kRttSeconds = 0.1;  // between two looks at a lane's shortest round trip

}  // namespace

// ---- outwards

void BulkLane::open(Connection connection) {
  take_back();
  take_socket(std::move(connection));
  writer_.begin(checks());
  reader_.begin();
  stalled_ = sent_last_ = received_last_ = false;
  promoted_ = 0;
  pause_ = {};
  rtt_at_ = {};
  pace_.forget();
  backlog_ = 0;
  limit_backlog();
  begin_zero_copy();
}

void BulkLane::begin_zero_copy() {
  const Lending lending = at_.core->options.lending;
  // What is encrypted is a copy already.
  const bool wanted = !records_ && (lending == Lending::always || (lending == Lending::automatic && !near()));
  if (lending == Lending::always) zero_copy_.insist();
  zero_copy_.fix(at_.core->options.lend_from);
  zero_copy_.begin(wanted && allow_zero_copy(fd_.get()));
}

void BulkLane::take_back() {
  if (is_open() && zero_copy_.lent() > 0) read_completions(fd_.get(), zero_copy_);
  if (is_open() && zero_copy_.lent() > 0) reset_tcp(fd_.get());
}

void BulkLane::shut() {
  take_back();
  zero_copy_.begin(false);
  sent_last_ = received_last_ = false;
  promoted_ = 0;
  Lane::shut();
}

void BulkLane::limit_backlog() {
  const int most = at_.core->options.notsent_lowat;
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
  size_t wrote = 0;
  while (write_segment(wrote, start)) {
  }
  end_turn(wrote, start);
}

bool BulkLane::write_segment(size_t& wrote, Time start) {
  IoCall call;
  if (!prepare_write(call, start)) return false;
  perform(call);
  return finish_write(call, wrote) && wrote < kTurn;
}

void BulkLane::start(const Outbox::Out& segment) {
  writer_.push(segment);
  lend_ = zero_copy_.lends(segment.header.size);
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
    if (sent_last_ || zero_copy_.lent() > 0) return false;
    writer_.push({promotion(promoted_), nullptr});
    lend_ = false;
    return sent_last_ = true;
  }
  const uint64_t waiting = link_.sender().outbox().waiting();
  const auto first = link_.sender().pull(*this, now);
  if (!first) return false;
  writer_.push(*first);
  lend_ = zero_copy_.lends(first->header.size);
  if (lend_) return true;
  // Within a machine there are no paths to spread over, but there may be threads.
  const bool all = near() && !at_.core->batch.shares();
  const uint32_t most = all ? kTogether : std::min(kTogether, pace_.segment(waiting, link_.bulk().open()));
  for (uint32_t bytes = first->header.size; bytes < most && writer_.count() < SegmentWriter::kMost;) {
    const auto more = link_.sender().outbox().pull_rest(number_, zero_copy_.copied_most(most - bytes), now);
    if (!more) break;
    writer_.push(*more);
    bytes += more->header.size;
  }
  return true;
}

bool BulkLane::prepare_write(IoCall& call, Time now) {
  if (!writable() || at_.closing) return false;
  call.fd = fd_.get();
  call.records = records_.get();
  call.out = true;
  if (sealed() > 0 && writer_.empty()) {  // that first: who pulls shall be able to send
    call.first = nullptr;
    call.checks = false;
    call.count = 0;
    return true;
  }
  if (writer_.empty() && !take(now)) return false;
  call.timed = zero_copy_.measures();
  writer_.prepare(call, lend_ && zero_copy_.lends_rest(writer_.rest(), writer_.begun()));
  return true;
}

bool BulkLane::finish_write(const IoCall& call, size_t& wrote) {
  if (!records_) account(call);
  if (call.result < 0) {
    if (would_block(call.error)) return false;
    write_broke(call.error);
    if (received_last_) read_ended(call.error);  // nobody reads here any more
    return false;
  }
  const auto n = static_cast<size_t>(call.result);
  writer_.went(n);
  sent_bytes_ += n;
  wrote += n;
  if (!received_last_ || !sent_last()) return true;
  hand_over();
  return false;
}

// For zero copy.
void BulkLane::account(const IoCall& call) {
  const Sent sent{call.result, call.lent, call.refused};
  const size_t segments = (call.count + 1) / 2;  // headers and payloads take turns
  if ((call.flags & MSG_MORE) != 0)
    zero_copy_.before(call.seconds);
  else
    zero_copy_.record(sent, call.bytes() / segments, call.seconds);
}

void BulkLane::end_turn(size_t wrote, Time start) {
  pace_.took(wrote, sending() || link_.sender().outbox().waiting() > 0, start);
  if (writable()) limit_backlog();
  update();
}

// ---- inwards

void BulkLane::ready(uint32_t events) {
  if ((events & EPOLLERR) != 0 && zero_copy_.lent() > 0 && read_completions(fd_.get(), zero_copy_)) events &= ~EPOLLERR;
  if (received_last_ && !discards() && (events & (EPOLLERR | EPOLLHUP)) != 0)
    return read_ended(connect_outcome(fd_.get()));
  const bool out = (events & EPOLLOUT) != 0 && writable() && !at_.closing;
  if (opened()) events |= EPOLLIN;
  const bool in = !ended_ && (!stalled_ || at_.closing) && (events & ~EPOLLOUT) != 0;
  if (at_.core->batch.shares() && !at_.closing) return at_.core->batch.add(*this, out, in);
  if (out) pump();
  if (is_open() && in) read();
  update();
}

void BulkLane::update() {
  const bool work = promoted_ != 0 ? !sent_last_ && zero_copy_.lent() == 0
                                   : !pause_.active() && link_.sender().outbox().has_work(number_);
  const bool in = discards() || (!stalled_ && !received_last_);
  interest(!ended_ && in, writable() && !at_.closing && (sending() || work || sealed() > 0), received_last_);
}

// The side that dialled sends its last header first. When it has the other side's too, both have read all that was sent
// here.
bool BulkLane::receive_last() {
  const uint32_t generation = LaneControl::of(reader_.segment().frame).detail;
  if (!at_.accepted) {
    if (!sent_last() || generation != promoted_)
      link_.protocol_error("an unexpected last header of a lane");
    else
      hand_over();
    return false;
  }
  promoted_ = generation;
  received_last_ = true;
  return false;
}

void BulkLane::hand_over() {
  const uint32_t generation = std::exchange(promoted_, 0);
  sent_last_ = received_last_ = false;
  pace_.forget();
  limit_unsent(fd_.get(), at_.core->options.notsent_lowat);
  link_.promotion().emptied(*this, release(), generation);
}

void BulkLane::promote(uint32_t generation) {
  promoted_ = generation;
  update();
}

bool BulkLane::discards() const { return at_.closing && !sent_last(); }

void BulkLane::drop_input() {
  reader_.drop();
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
  if (!is_open() || ended_ || stalled_ || received_last_ || discards()) return false;
  call.fd = fd_.get();
  call.records = records_.get();
  const bool alone = !reader_.in_payload() || reader_.dropped() || !link_.receiver().inbox().shared(reader_.segment());
  reader_.prepare(call, alone);
  return true;
}

bool BulkLane::finish_read(const IoCall& call, size_t& got) {
  if (call.result < 0 && would_block(call.error)) return false;
  if (call.result <= 0) {
    read_broke(call.error, static_cast<uint32_t>(number_) + 1);
    return false;
  }
  if (discards()) return false;  // another lane's upcall did that
  const size_t rest = reader_.rest();
  const bool dropped = reader_.dropped();
  const auto n = static_cast<size_t>(call.result);
  link_.heard();
  got += n;
  received_bytes_ += reader_.came(n, call.crc);
  if (reader_.has_payload() && !deliver()) return false;
  if (reader_.has_header() && !begin()) return false;
  return n >= rest || dropped;  // else the socket is empty
}

bool BulkLane::begin() {
  const uint64_t place_on_connection = reader_.take_header();
  const SegmentHeader& segment = reader_.segment();
  if (!intact(segment, place_on_connection)) {
    read_damaged(static_cast<uint32_t>(number_) + 1);
    return false;
  }
  if (is_promotion(segment)) return receive_last();
  const char* what = objection_to_segment(segment);
  const auto state = what != nullptr ? Inbox::SegmentState::nonsense : link_.receiver().inbox().begin(segment);
  if (state == Inbox::SegmentState::nonsense) {
    link_.protocol_error(what != nullptr ? what : "a segment that contradicts another one");
    return false;
  }
  reader_.begin_payload();
  if (segment.taken > 1 && !link_.sender().acknowledged(1, segment.taken - 1)) return false;
  return state == Inbox::SegmentState::repeated || place();
}

bool BulkLane::place() {
  stalled_ = false;
  std::byte* into = nullptr;
  switch (link_.receiver().destination(reader_.segment(), into)) {
    case Receiver::Destination::found:
      reader_.put(into);
      return true;
    case Receiver::Destination::full:
      stalled_ = true;
      return false;
    case Receiver::Destination::none:
      break;
  }
  return false;
}

void BulkLane::resume() {
  if (!stalled_) return;
  place();
  update();
}

// Nobody has any use for what is dropped, and the peer may send anything in its place.
bool BulkLane::deliver() {
  reader_.end_payload();
  if (reader_.into() == nullptr) return !at_.finished && !discards();
  if (undamaged())
    link_.receiver().complete(reader_.segment());
  else
    read_damaged(static_cast<uint32_t>(number_) + 1);
  return is_open() && !at_.finished && !discards();
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

// Where two lanes write the same bytes, what came here is not what lies there.
bool BulkLane::undamaged() const {
  const SegmentHeader& segment = reader_.segment();
  if (segment.check.payload == 0) return true;
  const bool shared = link_.receiver().inbox().shared(segment);
  const uint32_t check = shared ? payload_check({reader_.into(), segment.size}) : as_payload_check(reader_.crc());
  return check == segment.check.payload;
}

}  // namespace slipstream
