#include "transport/region.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>

#include "base/error.h"
#include "base/reserve.h"

namespace slipstream {

Mapping::Mapping(int fd, size_t bytes, Fork fork) : size_(bytes), fork_(fork), forks_(forks()) {
  // A peer may say more than there is, and the first touch behind its end would end this process.
  struct stat file{};
  if (::fstat(fd, &file) != 0) throw Failure(Code::internal, errno_text("fstat of shared memory"));
  if (static_cast<uint64_t>(file.st_size) < bytes)
    throw Failure(Code::internal, "shared memory is smaller than it is said to be");
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (p == MAP_FAILED) throw Failure(Code::internal, errno_text("mmap of shared memory"));
  data_ = static_cast<std::byte*>(p);
  if (fork == Fork::drop) ::madvise(p, bytes, MADV_DONTFORK);
  ::madvise(p, bytes, MADV_HUGEPAGE);  // a hint; most kernels keep shmem in small pages
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      fork_(other.fork_),
      forks_(other.forks_) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fork_, other.fork_);
  std::swap(forks_, other.forks_);
  return *this;
}

Mapping::~Mapping() {
  // In a child something else may lie there.
  if (data_ != nullptr && (fork_ == Fork::keep || forks_ == forks())) ::munmap(data_, size_);
}

namespace {

std::string out_of_files() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  return "this process has " + std::to_string(files.rlim_cur) +
         " files open, as many as it may (ulimit -n): each array of slipstream.empty takes one until it is freed, as "
         "each "
         "connection does. Free arrays, make one large array and cut it, or raise the limit";
}

}  // namespace

Fd make_memfd(const char* name, size_t bytes) {
  Fd fd(::memfd_create(name, MFD_CLOEXEC));
  if (!fd && errno == EMFILE) throw Failure(Code::internal, out_of_files());
  if (!fd) throw Failure(Code::internal, errno_text("memfd_create"));
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    throw Failure(Code::internal, errno_text("ftruncate of shared memory"));
  return fd;
}

std::shared_ptr<Region> Regions::create(size_t bytes, Mapping::Fork fork) {
  constexpr size_t page = 4096;
  bytes = std::max(page, (bytes + page - 1) / page * page);
  auto region = std::make_shared<Region>();
  region->fd = make_memfd("slipstream-region", bytes);
  region->memory = Mapping(region->fd.get(), bytes, fork);
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

void Regions::part(uint32_t id, uint64_t offset, uint64_t bytes) {
  std::shared_ptr<Region> region;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [address, one] : by_address_)
      if (one->id == id) region = one;
  }
  if (region == nullptr || offset >= region->memory.size()) return;  // it is gone already
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t end = offset + std::min<uint64_t>(bytes, region->memory.size() - offset);
  const size_t from = offset / page * page;
  std::byte* begin = region->memory.data() + from;
  // The same pages of the file, but a write to one makes it this process's own. Each is written to at once, with what
  // it holds; atomically, because other threads may write to what lies beside the range.
  void* at = ::mmap(begin, end - from, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, region->fd.get(),
                    static_cast<off_t>(from));
  if (at == MAP_FAILED) throw Failure(Code::internal, errno_text("mmap of memory that a lost rank may still write to"));
  for (size_t i = 0; i < end - from; i += page) {
    std::atomic_ref<std::byte> byte(begin[i]);
    std::byte held = byte.load(std::memory_order_relaxed);
    while (!byte.compare_exchange_weak(held, held, std::memory_order_relaxed)) {
    }
  }
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

Arena::Buffer Arena::take(size_t bytes) {
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
  reserve(reinterpret_cast<uintptr_t>(data), size);
  fresh_ += size;
  fresh_left_ -= size;
  return {data, size};
}

void Arena::give_back(Buffer buffer) {
  if (buffer.data != nullptr) free_[buffer.size].push_back(buffer.data);
}

}  // namespace slipstream
