#include "transport/shm/private_reads.h"

#include <poll.h>
#include <sched.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "transport/process_memory.h"

namespace slipstream {

namespace {

constexpr double kPause = 0.002;  // after a mark that told nothing, times their number ...
constexpr int kLateMarks = 30;    // ... up to this
constexpr uint64_t kMost24 = 0xffffff;

uint64_t in_24_bits(Clock::duration time) {
  const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(time).count();
  return std::min(static_cast<uint64_t>(ns), kMost24);
}

Clock::duration median(std::vector<Clock::duration>& times) {
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::ranges::nth_element(times, middle);
  return *middle;
}

uint64_t this_core() { return static_cast<uint64_t>(::sched_getcpu()); }

}  // namespace

PrivateReads::PrivateReads(SingleCopy choice) : choice_(choice) {
  if (choice_ == SingleCopy::off) return;
  if (::getrandom(&number_, sizeof(number_), 0) != static_cast<ssize_t>(sizeof(number_))) choice_ = SingleCopy::off;
  let_siblings_read();
}

std::optional<PrivateReads::Mark> PrivateReads::mark(bool room) {
  due_ = Time::max();
  if (choice_ == SingleCopy::off || (choice_ == SingleCopy::automatic && !room)) return std::nullopt;
  probe_.resize(kProbe);
  std::ranges::fill(probe_, std::byte{1});
  return Mark{reinterpret_cast<uintptr_t>(&number_), number_, reinterpret_cast<uintptr_t>(probe_.data()), this_core()};
}

uint64_t PrivateReads::meet(const Fd& socket, const Mark& mark, std::span<const std::byte> shared) {
  if (choice_ == SingleCopy::off) return kOff;
  met_ = std::min(met_ + 1, kMost);
  if (!process_)
    if (const int error = identify(socket, mark)) return static_cast<uint64_t>(error);
  if (choice_ == SingleCopy::always) return 0;
  const bool counts = this_core() != mark.core && from_shared_.size() < kCounting;  // the first times stand
  if (counts)
    if (const int error = measure(mark, shared)) return static_cast<uint64_t>(error);
  if (from_shared_.size() >= kCounting) return judge(from_private_, median(from_shared_));
  if (met_ >= kMost) return kAlone;
  return counts ? kAgain : kLater;
}

std::optional<uint64_t> PrivateReads::meet(const Fd& socket, std::span<const std::byte> message) {
  Mark mark{};
  if (message.size() != sizeof(mark) + kProbe) return std::nullopt;
  std::memcpy(&mark, message.data(), sizeof(mark));
  return meet(socket, mark, message.subspan(sizeof(mark)));
}

int PrivateReads::identify(const Fd& socket, const Mark& mark) {
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

int PrivateReads::measure(const Mark& mark, std::span<const std::byte> shared) {
  constexpr size_t kPage = 4096;
  std::vector<std::byte> into(shared.size());  // written, so that no page of it is missing
  std::byte touched{};
  for (size_t at = 0; at < shared.size(); at += kPage) touched |= shared[at];
  const Time begun = now();
  std::memcpy(into.data(), shared.data(), shared.size());
  const Clock::duration from_shared = now() - begun;
  if (const int error = read_process(pid_, mark.probe, into.data(), into.size())) return error;
  const Time again = now();
  if (const int error = read_process(pid_, mark.probe, into.data(), into.size())) return error;
  from_private_ = std::min(from_private_, now() - again);
  from_shared_.push_back(from_shared);
  into[0] |= touched;
  return 0;
}

// The second read of private memory has its lines near, and so tells what the kernel needs for calls and pages. Where
// lines cross a large socket, that is less than to read what the other end has just written to shared memory (0.7 times
// on a Xeon): two copies are dearer than one. Where cores share a small cache it is more (2 to 3 times on an EPYC).
uint64_t PrivateReads::judge(Clock::duration from_private, Clock::duration from_shared) {
  if (from_private <= from_shared * 7 / 4) return 0;
  return kDear | in_24_bits(from_private) << 16 | in_24_bits(from_shared) << 40;
}

std::string PrivateReads::answered(uint64_t answer) {
  if (answer == kAgain) due_ = now();
  if (answer == kLater) due_ = now() + seconds(kPause * std::min(++late_, kLateMarks));
  if (answer == kAgain || answer == kLater) return "";
  probe_ = {};
  const bool is_dear = (answer & 0xffff) == kDear;
  if (answer == 0) allowed_ = choice_;
  if (is_dear) allowed_ = std::min(choice_, SingleCopy::uncached);
  if (answer == kOff) return "its SLIPSTREAM_SINGLE_COPY is off";
  if (is_dear)
    return "that takes longer here for what caches hold: the kernel needs " + std::to_string(answer >> 16 & kMost24) +
           " ns for " + std::to_string(kProbe >> 10) + " KiB, of shared memory they take " +
           std::to_string(answer >> 40) + " ns";
  if (answer == kAlone) return "both have been on one core all the time";
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
