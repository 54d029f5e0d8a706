// An operation of a framework, as the engine is asked for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "capi/slipstream.h"
#include "lines/pack.h"

namespace slipstream::lines {

// All of an operation but its tensors, as slipstream.h has it: an all-reduce or a broadcast of each tensor.
struct Asked {
  int32_t collective = SLIPSTREAM_ALL_REDUCE;
  int32_t op = 0;
  int32_t root = 0;
  int32_t wire = 0;  // of all-reduces that are large enough
  double prescale = 1.0;
  double postscale = 1.0;
};

// One tensor of an operation.
struct Operand {
  int32_t dtype = -1;
  std::vector<int64_t> dims;
  size_t bytes = 0;
  uint64_t elements = 0;
  const void* from = nullptr;
  void* to = nullptr;
};

class Planned {
 public:
  Planned() = default;
  virtual ~Planned() = default;
  Planned(const Planned&) = delete;

  // The calls of the engine, and a pack for each: empty for those that work on tensors.
  std::vector<slipstream_call> calls;
  std::vector<Pack> packs;
  // `kind`: "allreduce" or "broadcast"; `what`: what errors call this one, may be empty. `form`: what all ranks have to
  // agree about; `title`: the same for people.
  std::string kind, what, form, title;
  // What the engine knows it as, so that it compares that as well.
  std::string label;

  // A call has come to its end. Any thread.
  virtual void ended(size_t call, int32_t status, const char* text) = 0;
};

}  // namespace slipstream::lines
