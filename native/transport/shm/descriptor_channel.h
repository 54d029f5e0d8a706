// Messages that carry file descriptors over a unix socket, in order. Those for which the kernel has no room wait here.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "base/fd.h"

namespace slipstream {

class DescriptorChannel {
 public:
  struct Message {
    uint32_t kind;
    uint32_t id;
    uint64_t size;
  };
  static constexpr size_t kMaxFds = 4;

  // `owner` lives until the message has been sent, and keeps the descriptors open. Throws Failure(internal).
  void send(const Fd& socket, const Message& message, std::vector<int> fds,
            std::shared_ptr<const void> owner = nullptr);
  // Sends what waits, as far as there is room.
  void flush(const Fd& socket);
  bool empty() const { return waiting_.empty(); }
  void clear() { waiting_.clear(); }

  enum class Read {
    nothing,
    message,
    malformed,
    no_descriptors,  // this process has run out of them
    end,             // of the stream
  };
  static Read read(const Fd& socket, Message& message, std::vector<Fd>& fds);

 private:
  struct Waiting {
    Message message;
    std::vector<int> fds;
    std::shared_ptr<const void> owner;
  };
  std::deque<Waiting> waiting_;
};

}  // namespace slipstream
