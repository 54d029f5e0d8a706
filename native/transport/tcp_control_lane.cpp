// The control lane: a stream of frames that outlives its connections.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <span>
#include <utility>

#include "transport/tcp_lane.h"
#include "transport/tcp_link.h"

namespace slipstream {
namespace {

constexpr uint64_t kSeenStep = 32 << 10;  // bytes of the stream between two words about it

Frame about_stream(FrameType type, uint64_t bytes) {
  Frame frame;
  frame.type = type;
  frame.channel = bytes;
  return frame;
}

}  // namespace

void ControlLane::open(Connection connection) {
  take_socket(std::move(connection));
  busy_poll();
  update();
}

// Words that ranks wait for come over this lane. Within a machine no device is to be polled.
void ControlLane::busy_poll() {
  const int us = link_.core().options.busy_poll_us;
  if (us > 0 && !near()) poll_device(fd_.get(), us);
}

void ControlLane::resume(Connection connection) {
  take_socket(std::move(connection));
  busy_poll();
  reader_.clear();
  resuming_ = true;
  told_ = read_;
  resume_ = {about_stream(FrameType::resume, read_), {}};
  seal(resume_, kResumePlace);
  resume_at_ = 0;
  write();  // what a bulk lane left in the socket may be in the way
  update();
}

ControlLane::~ControlLane() { link_.core().poller.not_later(this); }

void ControlLane::send_soon(const Frame& frame) {
  const bool alone = is_open() && !resuming_ && flushed();
  put(frame, nullptr);
  if (alone) {
    put_off_ = true;
    link_.core().poller.later(this);
  }
  update();
  link_.watch();
}

void ControlLane::send(const Frame& frame, const std::byte* data) {
  const bool at_once = is_open() && !resuming_ && (put_off_ || flushed());
  put(frame, data);
  if (at_once) {
    put_off_ = false;
    write();
  }
  update();
  link_.watch();
}

void ControlLane::put(const Frame& frame, const std::byte* data) {
  ControlHeader header{frame, {}};
  if (frame.length > 0 && checks()) header.check.payload = payload_check({data, frame.length});
  seal(header, said());
  const auto bytes = std::as_bytes(std::span(&header, 1));
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  if (frame.length > 0) out_.insert(out_.end(), data, data + frame.length);
  if (frame.type != FrameType::seen) spoke_ = said();
}

void ControlLane::probe() {
  if (writable() && !resuming_ && flushed()) say_seen();
}

ssize_t ControlLane::put_out(std::span<const std::byte> bytes) {
  if (!records_) return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  IoCall call{.fd = fd_.get(),
              .records = records_.get(),
              .out = true,
              .count = 1,
              .parts = {{const_cast<std::byte*>(bytes.data()), bytes.size()}}};
  perform(call);
  errno = call.error;
  return call.result;
}

ssize_t ControlLane::take_in(std::span<std::byte> space) {
  if (!records_) return ::recv(fd_.get(), space.data(), space.size(), MSG_DONTWAIT);
  IoCall call{
      .fd = fd_.get(), .records = records_.get(), .count = 1, .parts = {{space.data(), space.size()}}, .alone = true};
  perform(call);
  errno = call.error;
  return call.result;
}

void ControlLane::write() {
  while (wants_write()) {
    const bool first = resume_at_ < sizeof(resume_);
    auto bytes = first ? std::as_bytes(std::span(&resume_, 1)).subspan(resume_at_)
                       : std::span<const std::byte>(out_).subspan(written_);
    if (!first && resuming_) bytes = {};  // only what is sealed already
    const ssize_t n = put_out(bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && !would_block(errno)) write_broke(errno);
    if (n < 0) return;
    (first ? resume_at_ : written_) += static_cast<size_t>(n);
  }
}

bool ControlLane::seen(uint64_t bytes) {
  if (bytes <= start_) return true;  // old news, said again on a new connection
  if (bytes - start_ > written_) return false;
  const auto known = static_cast<ptrdiff_t>(bytes - start_);
  out_.erase(out_.begin(), out_.begin() + known);
  written_ -= static_cast<size_t>(known);
  start_ = bytes;
  return true;
}

void ControlLane::flush() {
  write();
  update();
  link_.wrote();
}

void ControlLane::ready(uint32_t events) {
  const bool called = std::exchange(put_off_, false);
  if ((called || (events & EPOLLOUT) != 0) && wants_write()) flush();
  if (is_open() && !ended_ && ((events & ~EPOLLOUT) != 0 || opened())) read();
  if (is_open()) update();
}

void ControlLane::read() {
  for (size_t total = 0; total < kTurn;) {
    const auto space = reader_.space();
    const ssize_t n = take_in(space);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && would_block(errno)) return;
    if (n <= 0) return read_broke(n < 0 ? errno : 0, 0);
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
    switch (reader_.next(resuming_ ? kResumePlace : read_, frame, payload)) {
      case FrameReader::Next::more:
        return true;
      case FrameReader::Next::damaged:
        read_damaged(0);
        return false;
      case FrameReader::Next::bad:
        link_.nonsense(reader_.why());
        return false;
      case FrameReader::Next::frame:
        if (resuming_) {
          if (!resumed(frame)) return false;
        } else {
          read_ += sizeof(ControlHeader) + frame.length;
          // Who leaves waits for word of it.
          const bool last = frame.type == FrameType::goodbye || frame.type == FrameType::abort;
          if ((last || read_ - told_ >= kSeenStep) && !link_.closing()) say_seen();
          if (frame.type != FrameType::seen)
            link_.control_frame(frame, payload);
          else if (seen(frame.channel))
            link_.wrote();
          else
            link_.nonsense("word of more than we have sent");
        }
        if (link_.finished()) return false;
    }
  }
}

void ControlLane::say_seen() {
  told_ = read_;
  send(about_stream(FrameType::seen, read_), nullptr);
}

bool ControlLane::resumed(const Frame& frame) {
  if (frame.type != FrameType::resume || frame.channel < start_ || !seen(frame.channel)) {
    link_.nonsense("no account of what it has read");
    return false;
  }
  resuming_ = false;
  written_ = 0;
  write();
  link_.control_resumed();
  return true;
}

}  // namespace slipstream
