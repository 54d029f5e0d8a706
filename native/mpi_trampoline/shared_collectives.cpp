#include "mpi_trampoline/shared_collectives.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

#include "base/dtype.h"
#include "kernels/kernels.h"
#include "mpi_trampoline/abi.h"
#include "mpi_trampoline/engine.h"
#include "mpi_trampoline/error.h"

namespace slipstream::mpi {
namespace {

// One collective of all members of this process.
class Shared {
 public:
  Shared(const slipstream_api& api, slipstream_group* group, const Layout& layout,
         const std::vector<const slipstream_call*>& calls, const char* function, const std::string& missing)
      : api_(api),
        group_(group),
        layout_(layout),
        calls_(calls),
        function_(function),
        missing_(missing),
        between_(*calls.front()) {
    if (between_.collective != SLIPSTREAM_BARRIER)
      bytes_ = size_of(static_cast<DType>(between_.dtype)) * between_.count;
  }

  int all_reduce() {
    char* total = dst(0);
    reduce(total, 0, between_.count);
    between_.src = between_.dst = total;
    const int code = run();
    if (code != MPI_SUCCESS) return code;
    for (size_t i = 1; i < calls_.size(); ++i) put(dst(i), total, bytes_);
    return code;
  }

  int all_gather() {
    std::unique_ptr<char[]> scratch;
    char* all = dst(0);
    if (!layout_.in_order) {
      if (!make(&scratch, layout_.size() * bytes_)) return no_memory();
      all = scratch.get();
    }
    for (size_t i = 0; i < calls_.size(); ++i) put(at(all, block(i)), src(i), bytes_);
    between_.src = at(all, block(0));
    between_.dst = all;
    count_blocks();
    const int code = run();
    if (code != MPI_SUCCESS) return code;
    if (scratch)
      for (size_t place = 0; place < layout_.size(); ++place)
        put(at(dst(0), place), at(all, layout_.block[place]), bytes_);
    for (size_t i = 1; i < calls_.size(); ++i) put(dst(i), dst(0), layout_.size() * bytes_);
    return code;
  }

  int reduce_scatter() {
    std::unique_ptr<char[]> scratch;
    if (!make(&scratch, (layout_.size() + calls_.size()) * bytes_)) return no_memory();
    char* all = scratch.get();
    char* own = at(all, layout_.size());
    if (layout_.in_order) {
      reduce(all, 0, layout_.size() * between_.count);
    } else {
      for (size_t place = 0; place < layout_.size(); ++place)
        reduce(at(all, layout_.block[place]), place * bytes_, between_.count);
    }
    between_.src = all;
    between_.dst = own;
    count_blocks();
    const int code = run();
    if (code != MPI_SUCCESS) return code;
    for (size_t i = 0; i < calls_.size(); ++i) put(dst(i), at(own, i), bytes_);
    return code;
  }

  int run() { return code_of(api_.run(group_, &between_), function_, missing_); }

  int no_memory() const { return fail(MPI_ERR_NO_MEM, std::string(function_) + ": no memory for what devices share"); }

 private:
  const char* src(size_t member) const { return static_cast<const char*>(calls_[member]->src); }
  char* dst(size_t member) const { return static_cast<char*>(calls_[member]->dst); }
  char* at(char* blocks, size_t which) const { return blocks + which * bytes_; }
  size_t block(size_t member) const { return layout_.block[static_cast<size_t>(layout_.here[member])]; }

  static void put(char* to, const char* from, size_t bytes) {
    if (bytes && to != from) std::memcpy(to, from, bytes);
  }

  static bool make(std::unique_ptr<char[]>* scratch, size_t bytes) {
    scratch->reset(new (std::nothrow) char[bytes + 1]);
    return *scratch != nullptr;
  }

  // What all members of this process have, so many bytes behind their beginning.
  void reduce(char* to, size_t offset, uint64_t count) const {
    std::vector<const void*> all;
    for (size_t i = 0; i < calls_.size(); ++i) all.push_back(src(i) + offset);
    reduce_many(static_cast<DType>(between_.dtype), static_cast<Op>(between_.op), to, all.data(),
                static_cast<int>(all.size()), count);
  }

  // A process gives, or gets, the blocks of all its members.
  void count_blocks() {
    for (const uint64_t members : layout_.members) counts_.push_back(members * between_.count);
    if (layout_.even) {
      between_.count = counts_.front();
    } else {
      between_.counts = counts_.data();
    }
  }

  const slipstream_api& api_;
  slipstream_group* const group_;
  const Layout& layout_;
  const std::vector<const slipstream_call*>& calls_;
  const char* const function_;
  const std::string& missing_;
  slipstream_call between_;  // that of the engine's group
  size_t bytes_ = 0;         // of a member's block
  std::vector<uint64_t> counts_;
};

}  // namespace

std::string described(const slipstream_call& call) {
  static constexpr const char* kNames[] = {"nothing",    "all_reduce", "reduce_scatter", "all_gather",
                                           "broadcast",  "reduce",     "gather",         "scatter",
                                           "all_to_all", "send",       "recv",           "barrier"};
  const std::string name = kNames[call.collective];
  if (call.collective == SLIPSTREAM_BARRIER) return name;
  const bool reduces = call.collective <= SLIPSTREAM_REDUCE_SCATTER || call.collective == SLIPSTREAM_REDUCE;
  return name + "(" + name_of(static_cast<DType>(call.dtype)) + ", " + std::to_string(call.count) + " elements" +
         (reduces ? std::string(", op=") + name_of(static_cast<Op>(call.op)) : "") + ")";
}

bool agree(const slipstream_call& one, const slipstream_call& other) {
  return one.collective == other.collective && one.count == other.count && one.dtype == other.dtype &&
         one.op == other.op;
}

int run_for_all(const slipstream_api& api, slipstream_group* group, const Layout& layout,
                const std::vector<const slipstream_call*>& calls, const char* function,
                const std::string& missing) noexcept {
  Shared shared(api, group, layout, calls, function, missing);
  // Blocks of different lengths are no collective of JAX's.
  const bool known = std::ranges::none_of(calls, [](auto* call) { return call->counts; });
  switch (known ? calls.front()->collective : 0) {
    case SLIPSTREAM_ALL_REDUCE:
      return shared.all_reduce();
    case SLIPSTREAM_ALL_GATHER:
      return shared.all_gather();
    case SLIPSTREAM_REDUCE_SCATTER:
      return shared.reduce_scatter();
    case SLIPSTREAM_BARRIER:
      return shared.run();
    default:
      return fail(
          MPI_ERR_UNSUPPORTED_OPERATION,
          std::string(function) +
              " is not supported where a process has several devices: use JAX's own collectives there, or one device");
  }
}

}  // namespace slipstream::mpi
