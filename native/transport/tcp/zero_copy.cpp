#include "transport/tcp/zero_copy.h"

#include <linux/errqueue.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"

namespace slipstream {

void ZeroCopy::begin(bool on) {
  on_ = on;
  in_vain_ = 0;
  sends_.clear();
  first_ = 0;
  done_ = 0;
  before_ = 0;
  threshold_.forget();
}

void ZeroCopy::record(const Sent& sent, size_t bytes, double seconds) {
  if (sent.refused) in_vain();
  if (sent.bytes <= 0) return;
  const auto n = static_cast<uint64_t>(sent.bytes);
  const double before = std::exchange(before_, 0);
  if (sent.lent)
    sends_.push_back({n, false, bytes, seconds > 0 ? seconds + before : 0});
  else if (!sent.refused && seconds > 0 && on_)
    threshold_.copied(bytes, seconds / static_cast<double>(n));
}

void ZeroCopy::done(uint32_t first, uint32_t last, bool copied) {
  const uint32_t from = first - first_;
  for (uint32_t i = 0; i <= last - first && from + i < sends_.size(); ++i) {
    Send& send = sends_[from + i];
    if (send.done) continue;
    send.done = true;
    ++done_;
    if (copied) continue;
    bytes_ += send.bytes;
    if (send.seconds > 0) heard_.push_back(send);
  }
  while (!sends_.empty() && sends_.front().done) {
    sends_.pop_front();
    --done_;
    ++first_;
  }
  if (copied)
    in_vain();
  else
    in_vain_ = 0;
}

// All that were heard of share it.
void ZeroCopy::read(double seconds) {
  const double each = heard_.empty() ? 0 : seconds / static_cast<double>(heard_.size());
  for (const Send& send : heard_)
    threshold_.lent(send.segment, (send.seconds + each) / static_cast<double>(send.bytes));
  heard_.clear();
  if (threshold_.never() && !insists_) on_ = false;
}

void ZeroCopy::in_vain() {
  if (++in_vain_ >= kMostInVain && !insists_) on_ = false;
}

bool allow_zero_copy(int fd) {
  const int yes = 1;
  return ::setsockopt(fd, SOL_SOCKET, SO_ZEROCOPY, &yes, sizeof(yes)) == 0;
}

Sent send_message(int fd, const msghdr& message, int flags) {
  if ((flags & MSG_ZEROCOPY) == 0) return {::sendmsg(fd, &message, flags), false, false};
  const ssize_t n = ::sendmsg(fd, &message, flags);
  if (n >= 0 || errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK) return {n, true, false};
  return {::sendmsg(fd, &message, flags & ~MSG_ZEROCOPY), false, true};  // a broken connection says so again
}

bool read_completions(int fd, ZeroCopy& zero_copy) {
  const Time start = now();
  bool any = false;
  for (;;) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(sock_extended_err) + sizeof(sockaddr_in6))];
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    const ssize_t n = ::recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 || (message.msg_flags & MSG_ERRQUEUE) == 0) break;
    for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
      const bool v4 = part->cmsg_level == SOL_IP && part->cmsg_type == IP_RECVERR;
      const bool v6 = part->cmsg_level == SOL_IPV6 && part->cmsg_type == IPV6_RECVERR;
      if (!v4 && !v6) continue;
      sock_extended_err error{};
      std::memcpy(&error, CMSG_DATA(part), sizeof(error));
      if (error.ee_origin != SO_EE_ORIGIN_ZEROCOPY || error.ee_errno != 0) continue;
      zero_copy.done(error.ee_info, error.ee_data, (error.ee_code & SO_EE_CODE_ZEROCOPY_COPIED) != 0);
      any = true;
    }
  }
  zero_copy.read(Seconds(now() - start).count());
  return any;
}

}  // namespace slipstream
