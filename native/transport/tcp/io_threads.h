// System calls that copy much, spread over threads. Whoever decides what is sent and received prepares the calls, has
// them performed, and looks at the results: fork and join, so that nothing else needs a lock.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <thread>
#include <vector>

namespace slipstream {

struct Records;

// One sendmsg or recvmsg on a socket, which does not block.
struct IoCall {
  int fd = -1;
  Records* records = nullptr;  // of an encrypted connection: the call seals or opens on the way
  bool out = false;            // sendmsg
  int flags = 0;               // beside MSG_DONTWAIT and MSG_NOSIGNAL
  static constexpr size_t kMostParts = 16;
  size_t count = 0;         // of parts
  iovec parts[kMostParts];  // incoming bytes go nowhere where the first is null
  bool alone = false;       // nobody else writes where incoming bytes go
  ssize_t result = 0;
  int error = 0;      // errno, if result < 0
  bool lent = false;  // what send_message() says of a send without a copy
  bool refused = false;
  bool timed = false;  // it is to say how long it took
  double seconds = 0;
  // Work that goes with the call, and is done by who performs it: something to be done first, or the checksum of what
  // comes into the first part, after what came before.
  void (*first)(void* context) = nullptr;
  void* context = nullptr;
  bool checks = false;
  uint32_t crc = 0;

  static constexpr size_t kMostDropped = 64 << 10;  // in one call
  size_t bytes() const;                             // that it asks for
};

void perform(IoCall& call);

class IoThreads {
 public:
  static constexpr int kMost = 16;
  // With less to move it takes longer to wake somebody.
  static constexpr size_t kWorthWaking = 64 << 10;

  // `count` threads confined to `cpus` (none: wherever they like). Throws Failure if they cannot be had.
  explicit IoThreads(int count, const std::vector<int>& cpus = {});
  ~IoThreads() { stop(); }
  IoThreads(const IoThreads&) = delete;
  IoThreads& operator=(const IoThreads&) = delete;

  int count() const { return static_cast<int>(threads_.size()); }
  // Returns when all calls have been performed, some by the calling thread. One caller at a time.
  void perform(std::span<IoCall* const> calls);
  // Ends the threads. What is performed afterwards is performed by its caller.
  void stop();

 private:
  void loop();
  bool help();  // performs one of this round's calls; false: all are taken

  std::vector<std::thread> threads_;
  std::atomic<bool> stop_{false};
  IoCall* const* calls_ = nullptr;  // of this round; read by who has taken one of them
  // The round's number, the next call to take and how many there are: 32, 16 and 16 bits. One word, so that nobody who
  // comes late takes a call of another round.
  alignas(64) std::atomic<uint64_t> round_{0};
  alignas(64) std::atomic<uint32_t> bell_{0};  // rounds so far; threads without work sleep on it
  alignas(64) std::atomic<uint32_t> left_{0};  // calls that are not finished; the caller sleeps on it
};

}  // namespace slipstream
