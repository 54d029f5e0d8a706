#include "transport/tcp/io_threads.h"

#include <pthread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <string>
#include <system_error>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "base/thread.h"
#include "transport/records.h"
#include "transport/tcp/zero_copy.h"

namespace slipstream {
namespace {

constexpr uint64_t kField = 0xffff;
constexpr int kNextShift = 16;
constexpr int kNumberShift = 32;

thread_local std::array<std::byte, IoCall::kMostDropped> nowhere;

// No signal is handled on threads that are made while this lives.
class NoSignals {
 public:
  NoSignals() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~NoSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

size_t IoCall::bytes() const {
  size_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum += parts[i].iov_len;
  return sum;
}

namespace {

void check_first_part(IoCall& call) {
  const size_t size = std::min(static_cast<size_t>(call.result), call.parts[0].iov_len);
  call.crc = crc32c({static_cast<const std::byte*>(call.parts[0].iov_base), size}, call.crc);
}

// What is sealed already goes first. errno, or 0 when all has gone.
int send_waiting(int fd, Sealer& sealer) {
  while (!sealer.waiting().empty()) {
    const auto bytes = sealer.waiting();
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno;
    sealer.went(static_cast<size_t>(n));
  }
  return 0;
}

bool is_of_no_weight(int error) { return error == 0 || error == EAGAIN || error == EWOULDBLOCK || error == ENOBUFS; }

// The result is the text that has been sealed: the sealer keeps what the socket does not take.
void send_sealed(IoCall& call) {
  Sealer& sealer = call.records->out;
  call.result = -1;
  call.error = send_waiting(call.fd, sealer);
  if (call.error != 0) return;
  const size_t sealed = sealer.seal({call.parts, call.count});
  if (const int error = send_waiting(call.fd, sealer); !is_of_no_weight(error))
    call.error = error;
  else
    call.result = static_cast<ssize_t>(sealed);
}

// As recvmsg does it with text: as much as there is.
void receive_sealed(IoCall& call) {
  Opener& opener = call.records->in;
  const size_t asked = call.bytes();
  size_t got = 0;
  bool drained = false;
  call.result = -1;
  call.error = 0;
  while ((got += opener.take({call.parts, call.count}, got, call.alone)) < asked) {
    if (opener.damaged()) {
      call.error = EBADMSG;
      break;
    }
    if (drained) {
      call.error = EAGAIN;
      break;
    }
    const auto space = opener.space();
    const ssize_t n = ::recv(call.fd, space.data(), space.size(), MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      call.error = n < 0 ? errno : 0;
      call.result = n;
      break;
    }
    opener.filled(static_cast<size_t>(n));
    drained = static_cast<size_t>(n) < space.size();
  }
  if (got == 0) return;
  call.result = static_cast<ssize_t>(got);  // what ended it shows again
  call.error = 0;
}

}  // namespace

void perform(IoCall& call) {
  if (call.first != nullptr) call.first(call.context);
  if (call.records != nullptr) {
    call.lent = call.refused = false;
    try {
      call.out ? send_sealed(call) : receive_sealed(call);
    } catch (const std::exception&) {  // no memory: this may be a thread that nobody could tell
      call.result = -1;
      call.error = ENOMEM;
    }
    if (call.checks && call.result > 0) check_first_part(call);
    return;
  }
  if (call.parts[0].iov_base == nullptr) call.parts[0].iov_base = nowhere.data();
  msghdr message{};
  message.msg_iov = call.parts;
  message.msg_iovlen = call.count;
  const int flags = call.flags | MSG_DONTWAIT | MSG_NOSIGNAL;
  const Time start = call.timed ? now() : Time{};
  do {
    const Sent done = call.out ? send_message(call.fd, message, flags) : Sent{::recvmsg(call.fd, &message, flags)};
    call.result = done.bytes;
    call.error = call.result < 0 ? errno : 0;
    call.lent = done.lent;
    call.refused = done.refused;
  } while (call.error == EINTR);
  if (call.timed) call.seconds = Seconds(now() - start).count();
  if (call.checks && call.result > 0) check_first_part(call);
}

IoThreads::IoThreads(int count, const std::vector<int>& cpus) {
  if (count < 0 || count > kMost)
    throw Failure(Code::invalid, "there are 0 to 16 I/O threads, not " + std::to_string(count));
  const NoSignals no_signals;
  try {
    for (int i = 0; i < count; ++i) {
      threads_.emplace_back([this] { loop(); });
      present(threads_.back(), "slipstream-io" + std::to_string(i), cpus);
    }
  } catch (const std::system_error& e) {
    stop();
    throw Failure(Code::internal, std::string("cannot start an I/O thread (SLIPSTREAM_THREADS): ") + e.what());
  }
}

void IoThreads::stop() {
  stop_.store(true);
  bell_.fetch_add(1);
  bell_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void IoThreads::perform(std::span<IoCall* const> calls) {
  size_t bytes = 0;
  for (const IoCall* call : calls) bytes += call->bytes();
  if (threads_.empty() || calls.size() < 2 || calls.size() > kField || bytes < kWorthWaking) {
    for (IoCall* call : calls) slipstream::perform(*call);
    return;
  }
  calls_ = calls.data();
  left_.store(static_cast<uint32_t>(calls.size()), std::memory_order_relaxed);
  const uint32_t number = bell_.load(std::memory_order_relaxed) + 1;
  round_.store(uint64_t{number} << kNumberShift | calls.size(), std::memory_order_release);
  bell_.store(number, std::memory_order_release);
  if (calls.size() > threads_.size())
    bell_.notify_all();
  else
    for (size_t i = 1; i < calls.size(); ++i) bell_.notify_one();
  while (help()) {
  }
  for (uint32_t left = left_.load(std::memory_order_acquire); left > 0; left = left_.load(std::memory_order_acquire))
    left_.wait(left, std::memory_order_acquire);
}

bool IoThreads::help() {
  uint64_t round = round_.load(std::memory_order_acquire);
  for (;;) {
    const uint64_t next = round >> kNextShift & kField;
    if (next == (round & kField)) return false;
    const uint64_t taken = round + (uint64_t{1} << kNextShift);
    if (!round_.compare_exchange_weak(round, taken, std::memory_order_acquire)) continue;
    // The round cannot end before this call has: what the caller gave stays.
    slipstream::perform(*calls_[next]);
    if (left_.fetch_sub(1, std::memory_order_acq_rel) == 1) left_.notify_one();
    return true;
  }
}

void IoThreads::loop() {
  for (;;) {
    const uint32_t seen = bell_.load(std::memory_order_acquire);
    if (stop_.load()) return;
    while (help()) {
    }
    bell_.wait(seen, std::memory_order_acquire);
  }
}

}  // namespace slipstream
