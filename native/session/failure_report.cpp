#include "session/failure_report.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>

#include "base/cut.h"

namespace slipstream {

namespace {

constexpr size_t kMostText = 3000;    // bytes, before what JSON makes of them
constexpr size_t kMostRecord = 4000;  // PIPE_BUF is 4096

std::atomic<bool> reported{false};  // of the process: its pipe knows of a failure that nothing has followed

// As the inside of a JSON string. What is no UTF-8 stays: the launcher replaces it.
std::string escaped(const std::string& text) {
  constexpr char kHex[] = "0123456789abcdef";
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      (out += '\\') += c;
    else if (byte < 0x20)
      ((out += "\\u00") += kHex[byte >> 4]) += kHex[byte & 15];
    else
      out += c;
  }
  return out;
}

// While it lives, writing to a pipe that nobody reads does not end this process, whatever it does with SIGPIPE.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;
  ~NoPipeSignal() {
    const timespec at_once{};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &at_once);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false;
};

bool write_whole(const ReportPipe& pipe, const std::string& record) {
  struct stat found{};
  // The program may have closed it, and opened another file in its place.
  if (fstat(pipe.fd, &found) != 0 || !S_ISFIFO(found.st_mode) || found.st_ino != pipe.inode) return false;
  const NoPipeSignal guard;
  ssize_t n = -1;
  do n = write(pipe.fd, record.data(), record.size());
  while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(record.size());
}

}  // namespace

std::string failure_record(const Error& error) {
  for (size_t most = kMostText;; most /= 2) {
    std::string record = R"({"session": {"code": )" + std::to_string(static_cast<int>(error.code)) + R"(, "rank": )" +
                         std::to_string(error.rank) + R"(, "told_by": )" + std::to_string(error.told_by) +
                         R"(, "text": ")" + escaped(cut(error.text, most)) + "\"}}\n";
    if (record.size() <= kMostRecord) return record;
  }
}

void report_failure(const ReportPipe& pipe, const Error& error) {
  if (pipe.fd >= 0 && write_whole(pipe, failure_record(error))) reported = true;
}

void report_start(const ReportPipe& pipe) {
  if (pipe.fd >= 0 && reported && write_whole(pipe, "{\"session\": null}\n")) reported = false;
}

}  // namespace slipstream
