#include "transport/region.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>

#include "base/error.h"

namespace slipstream {

Mapping::Mapping(int fd, size_t bytes) : size_(bytes) {
  // A peer may say more than there is, and the first touch behind its end would end this process.
  struct stat file{};
  if (::fstat(fd, &file) != 0) throw Failure(Code::internal, errno_text("fstat of shared memory"));
  if (static_cast<uint64_t>(file.st_size) < bytes)
    throw Failure(Code::internal, "shared memory is smaller than it is said to be");
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) throw Failure(Code::internal, errno_text("mmap of shared memory"));
  data_ = static_cast<std::byte*>(p);
  ::madvise(p, bytes, MADV_HUGEPAGE);  // a hint; most kernels keep shmem in small pages
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

Fd make_memfd(const char* name, size_t bytes) {
  Fd fd(::memfd_create(name, MFD_CLOEXEC));
  if (!fd) throw Failure(Code::internal, errno_text("memfd_create (is the open-files limit, ulimit -n, reached?)"));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    throw Failure(Code::internal, errno_text("ftruncate of shared memory"));
  return fd;
}

std::shared_ptr<Region> Regions::create(size_t bytes) {
  constexpr size_t page = 4096;
  bytes = std::max(page, (bytes + page - 1) / page * page);
  auto region = std::make_shared<Region>();
  region->fd = make_memfd("slipstream-region", bytes);
  region->memory = Mapping(region->fd.get(), bytes);
  std::lock_guard lock(mutex_);
  region->id = next_id_++;
  by_address_[region->memory.data()] = region;
  return region;
}

void Regions::destroy(uint32_t id) {
  std::lock_guard lock(mutex_);
  const auto it =
      std::find_if(by_address_.begin(), by_address_.end(), [id](const auto& entry) { return entry.second->id == id; });
  if (it == by_address_.end()) return;
  by_address_.erase(it);
  destroyed_.push_back(id);
}

std::shared_ptr<const Region> Regions::find(const std::byte* data, size_t bytes) const {
  std::lock_guard lock(mutex_);
  auto it = by_address_.upper_bound(data);
  if (it == by_address_.begin()) return nullptr;
  const auto& region = std::prev(it)->second;
  const auto& memory = region->memory;
  if (data + bytes > memory.data() + memory.size()) return nullptr;
  return region;
}

std::vector<uint32_t> Regions::take_destroyed() {
  std::lock_guard lock(mutex_);
  return std::exchange(destroyed_, {});
}

Arena::Block Arena::take(size_t bytes) {
  const size_t size = std::bit_ceil(std::max(bytes, kSmallest));
  auto& kept = free_[size];
  if (!kept.empty()) {
    std::byte* data = kept.back();
    kept.pop_back();
    return {data, size};
  }
  if (fresh_left_ < size) {
    const size_t region = std::max(kRegion, size);
    fresh_ = regions_.create(region)->memory.data();
    fresh_left_ = region;
  }
  std::byte* data = fresh_;
  fresh_ += size;
  fresh_left_ -= size;
  return {data, size};
}

void Arena::give_back(Block block) {
  if (block.data != nullptr) free_[block.size].push_back(block.data);
}

}  // namespace slipstream
