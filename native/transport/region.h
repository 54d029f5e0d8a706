// Memory that other processes of this host can map: anonymous files (memfd), so that a crash leaves nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/fd.h"

namespace slipstream {

// A mapping of a memfd, ours or a peer's.
class Mapping {
 public:
  // Whether a forked child has it, too: only what the program made, and may read there. The rest is the engine's, which
  // does not run in a child.
  enum class Fork { drop, keep };

  Mapping() = default;
  Mapping(int fd, size_t bytes, Fork fork = Fork::drop);  // throws Failure(internal)
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  Fork fork_ = Fork::drop;
  uint32_t forks_ = 0;
};

Fd make_memfd(const char* name, size_t bytes);  // throws Failure(internal), naming the limit that was hit

struct Region {
  uint32_t id = 0;
  Fd fd;
  Mapping memory;
};

// The regions of one session. Thread-safe: Python allocates while the driver looks up.
class Regions {
 public:
  std::shared_ptr<Region> create(size_t bytes, Mapping::Fork fork = Mapping::Fork::drop);
  // Peers are told to unmap at the driver's next turn.
  void destroy(uint32_t id);
  // From now on nobody else sees, or changes, what this process has there: whole pages, with what they hold. They stay
  // parts of the region for find(), which is of no use any more. For memory that a peer may write to for ever.
  void part(uint32_t id, uint64_t offset, uint64_t bytes);
  // The region that holds all of [data, data + bytes), or null.
  std::shared_ptr<const Region> find(const std::byte* data, size_t bytes) const;
  // Ids destroyed since the last call.
  std::vector<uint32_t> take_destroyed();

 private:
  mutable std::mutex mutex_;
  std::map<const std::byte*, std::shared_ptr<Region>> by_address_;
  std::vector<uint32_t> destroyed_;
  uint32_t next_id_ = 1;
};

// Temporary memory in regions, in power-of-two buffers that are kept for the next work. Driver's thread only.
class Arena {
 public:
  explicit Arena(Regions& regions) : regions_(regions) {}

  struct Buffer {
    std::byte* data = nullptr;
    size_t size = 0;
  };
  Buffer take(size_t bytes);
  void give_back(Buffer buffer);

 private:
  static constexpr size_t kSmallest = 64 << 10;
  static constexpr size_t kRegion = 16 << 20;
  Regions& regions_;
  std::map<size_t, std::vector<std::byte*>> free_;
  std::byte* fresh_ = nullptr;
  size_t fresh_left_ = 0;
};

}  // namespace slipstream
