#include "bindings/begun.h"

#include <algorithm>
#include <array>

#include "bindings/module.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

thread_local uint64_t begun = 0;    // operations
thread_local uint64_t entered = 0;  // calls that may begin one
// Of `entered`; 0: none. A number, not a place on the stack, which a library that switches stacks may have moved.
thread_local uint64_t current = 0;

// The calls that this thread's latest operations were begun in, by their numbers.
constexpr size_t kRemembered = 16;
thread_local std::array<uint64_t, kRemembered> begun_in{};
thread_local size_t newest = 0;

void note_begun() {
  if (begun_in[newest] != current) begun_in[newest = (newest + 1) % kRemembered] = current;
}

uint64_t open_block() { return enter_call().outer; }

}  // namespace

void close_block(uint64_t outer, bool complete) {
  current = outer;
  if (complete) note_begun();
}

CurrentCall enter_call() {
  const CurrentCall call{current, ++entered};
  current = call.number;
  return call;
}

void leave_call(const CurrentCall& call) { current = call.outer; }

void count_begun() {
  ++begun;
  note_begun();
}

void bind_begun(nb::module_& m) {
  m.def("begun", [] { return begun; }, "How many operations this thread has begun.");
  m.def(
      "begun_by", [](uint64_t call) { return std::ranges::find(begun_in, call) != begun_in.end(); }, nb::arg("call"),
      "Whether this thread has begun an operation in this call, and not in one inside it: of its latest 16 calls that "
      "have begun one.");
  m.def("open_block", &open_block,
        "Operations that belong together begin. They count for this block until `close_block`, which gets the result.");
  m.def("close_block", &close_block, nb::arg("outer"), nb::arg("complete"),
        "The block is over. If all of its operations have begun (`complete`), it counts as one of the call around it.");
}

}  // namespace slipstream
