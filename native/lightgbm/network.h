// The two operations that LightGBM asks its network for, on a group. Sizes and places are in bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "capi/calls.h"

namespace slipstream::lightgbm {

// Adds the bytes at `input` to those at `output`; what their elements are is between LightGBM and itself.
using Reducer = void (*)(const char* input, char* output, int type_size, int32_t bytes);

// Where the blocks of all ranks are, one after another, as LightGBM gives it.
struct Layout {
  const int32_t* starts;
  const int32_t* lengths;
  int count;
};

// For one thread at a time.
class Network {
 public:
  // Takes over a reference to the group.
  Network(slipstream_group* group, capi::Pause pause);
  ~Network();
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  // Both return whether they succeeded. If one did not, no later one does, and the job has ended on all ranks.
  //
  // `output` = this rank's block of the reduction of all ranks' `input`.
  bool reduce_scatter(const char* input, int type_size, const Layout& blocks, char* output, Reducer add);
  // `output` = the blocks of all ranks, each in its place; `input` is this rank's, and may overlap.
  bool all_gather(const char* input, const Layout& blocks, char* output);

  // Whether an operation has been called.
  bool used() const { return used_; }
  // What has ended an operation, if anything has.
  const Error& failure() const { return failure_; }
  // Ends the job's operations on all ranks: those wait for this one, which will not come.
  void end(const std::string& why);

 private:
  template <class F>
  bool guarded(F operation);
  void take(const Layout& blocks);
  size_t rank() const;

  slipstream_group* const group_;
  const capi::Pause pause_;
  Error failure_;
  bool used_ = false;
  std::vector<uint64_t> sizes_, same_;  // of the blocks; as many times this rank's
  std::vector<std::byte> room_;         // all ranks' versions of this rank's block
};

}  // namespace slipstream::lightgbm
