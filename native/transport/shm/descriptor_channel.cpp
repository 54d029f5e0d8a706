#include "transport/shm/descriptor_channel.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace slipstream {
namespace {

// False if there is no room: in the socket, or for descriptors that are on their way.
bool write(int socket, DescriptorChannel::Message message, const std::vector<int>& fds) {
  iovec iov{&message, sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(DescriptorChannel::kMaxFds * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
  cmsghdr* c = CMSG_FIRSTHDR(&header);
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
  std::memcpy(CMSG_DATA(c), fds.data(), fds.size() * sizeof(int));
  if (::sendmsg(socket, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof(message))) return true;
  if (errno == EPIPE || errno == ECONNRESET) return true;  // the peer is gone; its EOF is on the way
  if (errno == EAGAIN || errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM) return false;
  throw Failure(Code::internal, errno_text("sendmsg to a rank of this host"));
}

}  // namespace

void DescriptorChannel::send(const Fd& socket, const Message& message, std::vector<int> fds,
                             std::shared_ptr<const void> owner) {
  if (waiting_.empty() && write(socket.get(), message, fds)) return;
  waiting_.push_back({message, std::move(fds), std::move(owner)});
}

void DescriptorChannel::flush(const Fd& socket) {
  while (!waiting_.empty() && write(socket.get(), waiting_.front().message, waiting_.front().fds)) waiting_.pop_front();
}

DescriptorChannel::Read DescriptorChannel::read(const Fd& socket, Message& message, std::vector<Fd>& fds) {
  iovec iov{&message, sizeof(message)};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  msghdr header{};
  header.msg_iov = &iov;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  const ssize_t n = ::recvmsg(socket.get(), &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return Read::nothing;
  if (n <= 0) return Read::end;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      fds.emplace_back(fd);
    }
  }
  if ((header.msg_flags & MSG_CTRUNC) != 0 && fds.size() < kMaxFds) return Read::no_descriptors;
  return n == static_cast<ssize_t>(sizeof(message)) ? Read::message : Read::malformed;
}

}  // namespace slipstream
