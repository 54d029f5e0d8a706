#include "transport/shm/private_reads.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/error.h"
#include "transport/process_memory.h"

namespace slipstream {

PrivateReads::PrivateReads(SingleCopy choice) : choice_(choice) {
  if (choice_ == SingleCopy::off) return;
  if (::getrandom(&number_, sizeof(number_), 0) != static_cast<ssize_t>(sizeof(number_))) choice_ = SingleCopy::off;
  let_siblings_read();
}

std::optional<PrivateReads::Mark> PrivateReads::mark() const {
  if (choice_ == SingleCopy::off) return std::nullopt;
  return Mark{reinterpret_cast<uintptr_t>(&number_), number_};
}

int PrivateReads::meet(const Fd& socket, const Mark& mark) {
  if (choice_ == SingleCopy::off) return kOff;
  ucred other{};
  socklen_t size = sizeof(other);
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &other, &size) != 0) return errno;
  if (other.pid <= 0) return ESRCH;  // of a pid namespace that is not below ours
  Fd process(static_cast<int>(::syscall(SYS_pidfd_open, other.pid, 0)));
  if (!process) return errno;
  uint64_t number = 0;
  if (const int error = read_process(other.pid, mark.address, reinterpret_cast<std::byte*>(&number), sizeof(number)))
    return error;
  if (number != mark.number) return ESRCH;  // another process
  pid_ = other.pid;
  process_ = std::move(process);
  return 0;
}

std::string PrivateReads::answered(uint64_t answer) {
  other_reads_ = answer == 0 && choice_ != SingleCopy::off;
  if (answer == static_cast<uint64_t>(kOff)) return "its SLIPSTREAM_SINGLE_COPY is off";
  return answer == 0 ? "" : errno_text("process_vm_readv", static_cast<int>(answer & 0xfff));
}

int PrivateReads::read(const Fd& socket, uint64_t address, std::byte* to, size_t bytes) {
  if (!process_) return EPERM;
  if (const int error = read_process(pid_, address, to, bytes)) return error;
  if (ended(socket)) return ESRCH;
  bytes_ += bytes;
  return 0;
}

bool PrivateReads::ended(const Fd& socket) const {
  pollfd ends[2] = {{process_.get(), POLLIN, 0}, {socket.get(), 0, 0}};
  int found = 0;
  do found = ::poll(ends, 2, 0);
  while (found < 0 && errno == EINTR);
  return found != 0;
}

}  // namespace slipstream
