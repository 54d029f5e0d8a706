#include "transport/tcp/lane.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "transport/tcp/link.h"

namespace slipstream {

Lane::Lane(TcpLink& link) : link_(link), at_(link.context()) {}

void Lane::take_socket(Connection connection) {
  shut();
  if ((connection.records != nullptr) != at_.core->identity.encrypt)
    throw Failure(Code::internal, "a connection is not encrypted as SLIPSTREAM_ENCRYPT says");
  fd_ = std::move(connection.fd);
  records_ = std::move(connection.records);
  near_ = same_machine(fd_.get());
  opened_at_ = now();
  acknowledged_ = 0;
  answered_since_ = Time::max();
  previous_ = std::exchange(local_, local_endpoint(fd_.get()));
  far_port_ = peer_port(fd_.get());
  far_address_ = peer_address(fd_.get());
  ended_ = false;
  write_failed_ = false;
  write_error_ = 0;
}

void Lane::shut() {
  if (is_open()) at_.core->batch.forget(*this);
  interest(false, false);
  fd_.reset();
  records_.reset();
}

Connection Lane::release() {
  if (is_open()) at_.core->batch.forget(*this);
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
    at_.core->poller.again(this);
  else if (records_)
    at_.core->poller.not_again(this);
  const uint32_t want = (in ? EPOLLIN : 0u) | (out ? EPOLLOUT : 0u) | (errors ? EPOLLERR : 0u);
  if (want == registered_) return;
  // epoll reports EPOLLHUP and EPOLLERR unasked: a lane that wants nothing has to be out of it.
  if (want == 0)
    at_.core->poller.remove(fd_.get(), this);
  else if (registered_ == 0)
    at_.core->poller.add(fd_.get(), want, this);
  else
    at_.core->poller.modify(fd_.get(), want, this);
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
  return is_open() && other.is_open() && local_.address == other.local_.address && far_address_ == other.far_address_;
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

bool Lane::checks() const {
  if (records_) return false;  // these find more
  const Checksums wanted = at_.core->options.checksums;
  return wanted == Checksums::always || (wanted == Checksums::automatic && !near());
}

void Lane::read_damaged(uint32_t number) {
  ended_ = true;
  link_.damaged(*this, number);
}

}  // namespace slipstream
