#include "kernels/kernels.h"

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "base/float_state.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "lines/neutral.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

void* address(uintptr_t a) { return reinterpret_cast<void*>(a); }

DType dtype_of(int code) {
  if (code < 0 || code >= kDTypes) throw Failure(Code::invalid, "unknown dtype code " + std::to_string(code));
  return static_cast<DType>(code);
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("cpu_level", &cpu_level, "The instruction set the kernels use: avx512, avx2, neon or baseline.");
  m.def(
      "reduces",
      [](int dtype, int op) {
        return op >= 0 && op < kOps && reduce_fn(dtype_of(dtype), static_cast<Op>(op)) != nullptr;
      },
      nb::arg("dtype"), nb::arg("op"), "Whether `op` is defined for `dtype`.");
  m.def(
      "reduce",
      [](int dtype, int op, uintptr_t dst, uintptr_t a, uintptr_t b, size_t count) {
        const ReduceFn fn = reduce_fn(dtype_of(dtype), static_cast<Op>(op));
        if (fn == nullptr) throw Failure(Code::invalid, "this op is not defined for this dtype");
        WithoutGil release;
        const DefaultFloatState state;
        fn(address(dst), address(a), address(b), count);
      },
      nb::arg("dtype"), nb::arg("op"), nb::arg("dst"), nb::arg("a"), nb::arg("b"), nb::arg("count"),
      "dst[i] = a[i] (op) b[i] on addresses of `count` elements.");
  m.def(
      "neutral",
      [](int dtype, int op) {
        std::vector<std::byte> found(size_of(dtype_of(dtype)));
        lines::fill_neutral(dtype, op, found);
        return nb::bytes(found.data(), found.size());
      },
      nb::arg("dtype"), nb::arg("op"), "An element that changes nothing in a reduction by `op`.");
  m.def(
      "cast",
      [](int from, int to, uintptr_t dst, uintptr_t src, size_t count) {
        WithoutGil release;
        const DefaultFloatState state;
        cast(dtype_of(from), dtype_of(to), address(dst), address(src), count);
      },
      nb::arg("source"), nb::arg("target"), nb::arg("dst"), nb::arg("src"), nb::arg("count"),
      "Converts `count` elements between floating dtypes, round to nearest even.");
  m.def(
      "round_to",
      [](int wire, uintptr_t data, size_t count) {
        if (wire <= 0 || wire >= kWireTypes) throw Failure(Code::invalid, "no wire type: " + std::to_string(wire));
        WithoutGil release;
        const DefaultFloatState state;
        round_to(static_cast<WireType>(wire), address(data), count);
      },
      nb::arg("wire"), nb::arg("data"), nb::arg("count"),
      "Makes `count` float32 numbers, in place, what another rank gets of them by this wire type.");
}

}  // namespace slipstream
