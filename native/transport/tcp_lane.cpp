#include "transport/tcp_lane.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "transport/tcp_link.h"

namespace slipstream {

// ---- any lane

void Lane::open(Fd fd) { fd_ = std::move(fd); }

void Lane::shut() {
  interest(false, false);
  fd_.reset();
}

void Lane::finish_writing() {
  if (is_open()) ::shutdown(fd_.get(), SHUT_WR);
}

void Lane::interest(bool in, bool out) {
  if (!is_open()) return;
  const uint32_t want = (in ? EPOLLIN : 0u) | (out ? EPOLLOUT : 0u);
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

void Lane::discard() {
  std::array<std::byte, 16384> sink;
  for (size_t total = 0; total < kTurn;) {
    const ssize_t n = ::recv(fd_.get(), sink.data(), sink.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) return read_ended(n < 0 ? errno : 0);
    total += static_cast<size_t>(n);
  }
}

// ---- the control lane

void ControlLane::send(const Frame& frame, const std::byte* data) {
  size_t done = 0;
  if (is_open() && flushed()) {
    if (!writable()) return;
    iovec parts[2] = {{const_cast<Frame*>(&frame), sizeof(Frame)}, {const_cast<std::byte*>(data), frame.length}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = frame.length > 0 ? 2 : 1;
    ssize_t n = 0;
    do n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) {
      write_broke(errno);
      return update();
    }
    done = n > 0 ? static_cast<size_t>(n) : 0;
    if (done == sizeof(Frame) + frame.length) return;
  }
  const auto* header = reinterpret_cast<const std::byte*>(&frame);
  if (done < sizeof(Frame)) out_.insert(out_.end(), header + done, header + sizeof(Frame));
  const size_t skip = done > sizeof(Frame) ? done - sizeof(Frame) : 0;
  if (frame.length > 0) out_.insert(out_.end(), data + skip, data + frame.length);
  update();
}

void ControlLane::flush() {
  while (out_at_ < out_.size()) {
    const ssize_t n = ::send(fd_.get(), out_.data() + out_at_, out_.size() - out_at_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) write_broke(errno);
    if (n < 0) break;
    out_at_ += static_cast<size_t>(n);
  }
  if (out_at_ == out_.size() || write_failed_) {
    out_.clear();
    out_at_ = 0;
  } else if (out_at_ > out_.size() / 2) {  // keeps the cost of moving linear
    out_.erase(out_.begin(), out_.begin() + static_cast<ptrdiff_t>(out_at_));
    out_at_ = 0;
  }
  update();
  link_.wrote();
}

void ControlLane::ready(uint32_t events) {
  if ((events & EPOLLOUT) != 0 && !flushed()) flush();
  if (is_open() && !ended_ && (events & ~EPOLLOUT) != 0) read();
  if (is_open()) update();
}

void ControlLane::read() {
  for (size_t total = 0; total < kTurn;) {
    if (link_.closing()) return discard();
    const auto space = reader_.space();
    const ssize_t n = ::recv(fd_.get(), space.data(), space.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (n <= 0) return read_ended(n < 0 ? errno : 0);
    link_.heard();
    reader_.filled(static_cast<size_t>(n));
    total += static_cast<size_t>(n);
    if (!parse() || static_cast<size_t>(n) < space.size()) return;
  }
}

bool ControlLane::parse() {
  Frame frame;
  const std::byte* payload = nullptr;
  for (;;) {
    switch (reader_.next(frame, payload)) {
      case FrameReader::Next::more:
        return true;
      case FrameReader::Next::bad:
        link_.nonsense(reader_.why());
        return false;
      case FrameReader::Next::frame:
        link_.control_frame(frame, payload);
        if (link_.finished()) return false;
        if (link_.closing()) {
          reader_.clear();
          return false;
        }
    }
  }
}

// ---- a bulk lane, outwards

bool BulkLane::start(const Piece& piece) {
  piece_ = piece;
  out_at_ = 0;
  sending_ = true;
  size_t budget = kTurn;
  const bool written = write(budget);
  if (written) sending_ = false;
  update();
  return written;
}

bool BulkLane::write(size_t& budget) {
  const size_t size = sizeof(Frame) + piece_.frame.length;
  while (budget > 0) {
    iovec parts[2];
    size_t count = 0;
    if (out_at_ < sizeof(Frame))
      parts[count++] = {reinterpret_cast<std::byte*>(&piece_.frame) + out_at_, sizeof(Frame) - out_at_};
    const size_t sent = out_at_ > sizeof(Frame) ? out_at_ - sizeof(Frame) : 0;
    parts[count++] = {const_cast<std::byte*>(piece_.data) + sent, piece_.frame.length - sent};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS) write_broke(errno);
    if (n < 0) return false;
    out_at_ += static_cast<size_t>(n);
    budget -= std::min(budget, static_cast<size_t>(n));
    if (out_at_ == size) return true;
  }
  return false;
}

void BulkLane::pump() {
  pumping_ = true;
  for (size_t budget = kTurn; budget > 0 && writable();) {
    if (!sending_) {
      auto next = link_.queue().pull();
      if (!next) break;
      piece_ = std::move(*next);
      out_at_ = 0;
      sending_ = true;
    }
    if (!write(budget)) break;
    sending_ = false;
    piece_.copy.reset();
    if (!link_.closing()) link_.sent(piece_.cookie);
    if (link_.finished()) break;
  }
  pumping_ = false;
  link_.wrote();
}

// ---- a bulk lane, inwards

void BulkLane::ready(uint32_t events) {
  if ((events & EPOLLOUT) != 0 && writable()) pump();
  if (is_open() && !ended_ && (!stalled_ || link_.closing()) && (events & ~EPOLLOUT) != 0) read();
  update();
}

void BulkLane::update() {
  interest(!ended_ && (!stalled_ || link_.closing()), writable() && (sending_ || !link_.queue().empty()));
}

void BulkLane::read() {
  for (size_t total = 0; total < kTurn;) {
    if (link_.closing()) return discard();
    if (stalled_) return;
    // The next header comes with the rest of a payload: one system call a piece.
    const size_t rest = in_payload_ ? frame_.length - in_at_ : 0;
    iovec parts[2] = {{into_ + (in_payload_ ? in_at_ : 0), rest},
                      {header_.data() + header_at_, header_.size() - header_at_}};
    msghdr message{};
    message.msg_iov = in_payload_ ? parts : parts + 1;
    message.msg_iovlen = in_payload_ ? 2 : 1;
    const ssize_t got = ::recvmsg(fd_.get(), &message, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return;
    if (got <= 0) return read_ended(got < 0 ? errno : 0);
    const auto n = static_cast<size_t>(got);
    link_.heard();
    total += n;
    in_at_ += std::min(n, rest);
    header_at_ += n - std::min(n, rest);
    if (in_payload_ && in_at_ == frame_.length && !deliver()) return;
    if (header_at_ == header_.size() && !begin()) return;
    if (n < rest) return;  // the socket is empty
  }
}

bool BulkLane::begin() {
  std::memcpy(&frame_, header_.data(), sizeof(Frame));
  if (const char* what = objection_to_bulk(frame_); what != nullptr) {
    link_.nonsense(what);
    return false;
  }
  const Events::Landing landing = link_.land(frame_);
  if (link_.finished()) return false;
  if (link_.closing()) return true;
  if (!landing.ok) {
    link_.nonsense("a piece that fits no operation");
    return false;
  }
  header_at_ = 0;
  in_at_ = 0;
  hold_ = 0;
  into_ = landing.into;
  in_payload_ = true;
  if (into_ == nullptr) take_block();
  return !stalled_;
}

void BulkLane::take_block() {
  const Blocks::Taken block = link_.blocks().take(frame_.length);
  stalled_ = block.id == 0;
  hold_ = block.id;
  into_ = block.data;
}

void BulkLane::resume() {
  take_block();
  update();
}

bool BulkLane::deliver() {
  in_payload_ = false;
  link_.deliver(frame_, Payload{into_, frame_.length, false, hold_});
  return !link_.finished();
}

}  // namespace slipstream
