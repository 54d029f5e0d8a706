#include "transport/tcp/control_lane.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <span>
#include <utility>

#include "transport/tcp/lane_control.h"
#include "transport/tcp/link.h"

namespace slipstream {
namespace {

constexpr uint64_t kSeenStep = 32 << 10;  // bytes of the stream between two acknowledgements

Frame about_stream(FrameType type, uint64_t bytes) { return LaneControl{.type = type, .number = bytes}; }

}  // namespace

void ControlLane::open(Connection connection) {
  take_socket(std::move(connection));
  busy_poll();
  update();
}

// What ranks wait for comes over this lane. Within a machine no device is to be polled.
void ControlLane::busy_poll() {
  const int us = at_.core->options.busy_poll_us;
  if (us > 0 && !near()) poll_device(fd_.get(), us);
}

void ControlLane::resume(Connection connection) {
  take_socket(std::move(connection));
  busy_poll();
  reader_.clear();
  resuming_ = true;
  acknowledged_ = read_;
  resume_ = {about_stream(FrameType::resume, read_), {}};
  seal(resume_, kResumePlace);
  resume_at_ = 0;
  write();  // what a bulk lane left in the socket may be in the way
  update();
}

ControlLane::~ControlLane() { at_.core->poller.not_later(this); }

void ControlLane::send_soon(const Frame& frame) {
  const bool alone = is_open() && !resuming_ && flushed();
  put(frame, nullptr);
  if (alone) {
    deferred_ = true;
    at_.core->poller.later(this);
  }
  update();
  link_.cuts().watch();
}

void ControlLane::send(const Frame& frame, const std::byte* data) {
  const bool at_once = is_open() && !resuming_ && (deferred_ || flushed());
  put(frame, data);
  if (at_once) {
    deferred_ = false;
    write();
  }
  update();
  link_.cuts().watch();
}

void ControlLane::put(const Frame& frame, const std::byte* data) {
  ControlHeader header{frame, {}};
  if (frame.length > 0 && checks()) header.check.payload = payload_check({data, frame.length});
  seal(header, position());
  const auto bytes = std::as_bytes(std::span(&header, 1));
  out_.insert(out_.end(), bytes.begin(), bytes.end());
  if (frame.length > 0) out_.insert(out_.end(), data, data + frame.length);
  if (frame.type != FrameType::seen) last_own_ = position();
}

void ControlLane::probe() {
  if (writable() && !resuming_ && flushed()) acknowledge();
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

bool ControlLane::acknowledged(uint64_t bytes) {
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
  const bool called = std::exchange(deferred_, false);
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
        link_.protocol_error(reader_.why());
        return false;
      case FrameReader::Next::frame:
        if (resuming_) {
          if (!resumed(frame)) return false;
        } else {
          read_ += sizeof(ControlHeader) + frame.length;
          // Who leaves waits for this acknowledgement.
          const bool last = frame.type == FrameType::goodbye || frame.type == FrameType::abort;
          if ((last || read_ - acknowledged_ >= kSeenStep) && !at_.closing) acknowledge();
          if (frame.type != FrameType::seen)
            link_.control_frame(frame, payload);
          else if (acknowledged(LaneControl::of(frame).number))
            link_.wrote();
          else
            link_.protocol_error("an acknowledgement of more than this rank has sent");
        }
        if (at_.finished) return false;
    }
  }
}

void ControlLane::acknowledge() {
  acknowledged_ = read_;
  send(about_stream(FrameType::seen, read_), nullptr);
}

bool ControlLane::resumed(const Frame& frame) {
  const uint64_t bytes = LaneControl::of(frame).number;
  if (frame.type != FrameType::resume || bytes < start_ || !acknowledged(bytes)) {
    link_.protocol_error("no count of what it has read");
    return false;
  }
  resuming_ = false;
  written_ = 0;
  write();
  link_.control_connection().resumed();
  return true;
}

}  // namespace slipstream
