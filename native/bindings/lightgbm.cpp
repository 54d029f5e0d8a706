// LightGBM takes two functions in place of its sockets, which cannot return errors. What it does have is a handler of
// C++ exceptions around every call of its C API. So what Python reports as failed leaves LightGBM's frames as an
// exception that no C++ library takes for its own: ours may be another one than LightGBM's. Its handler makes it an
// error code.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <unwind.h>

#include <cstdint>
#include <cstdlib>

#include "bindings/module.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

// LightGBM's types; a reference is passed as a pointer. Python's functions return whether they have failed.
using Reducer = void (*)(const char* input, char* output, int type_size, int32_t bytes);
using ReduceScatter = int (*)(char* input, int32_t input_size, int type_size, const int32_t* block_start,
                              const int32_t* block_len, int blocks, char* output, int32_t output_size,
                              const Reducer* reducer);
using AllGather = int (*)(char* input, int32_t input_size, const int32_t* block_start, const int32_t* block_len,
                          int blocks, char* output, int32_t output_size);

// As LightGBM's own, these belong to the thread that trains.
thread_local ReduceScatter thread_reduce_scatter = nullptr;
thread_local AllGather thread_all_gather = nullptr;

constexpr uint64_t kForeign = 0x534c495053545200;  // "SLIPSTR": the class of exceptions that are no C++ objects

void drop(_Unwind_Reason_Code, _Unwind_Exception* exception) { delete exception; }

[[noreturn]] void leave() {
  auto* exception = new _Unwind_Exception{};
  exception->exception_class = kForeign;
  exception->exception_cleanup = drop;
  _Unwind_RaiseException(exception);  // returns only if nobody would catch it
  std::abort();
}

void reduce_scatter(char* input, int32_t input_size, int type_size, const int32_t* block_start,
                    const int32_t* block_len, int blocks, char* output, int32_t output_size, const Reducer& reducer) {
  if (thread_reduce_scatter(input, input_size, type_size, block_start, block_len, blocks, output, output_size,
                            &reducer) != 0)
    leave();
}

void all_gather(char* input, int32_t input_size, const int32_t* block_start, const int32_t* block_len, int blocks,
                char* output, int32_t output_size) {
  if (thread_all_gather(input, input_size, block_start, block_len, blocks, output, output_size) != 0) leave();
}

std::pair<uintptr_t, uintptr_t> functions(uintptr_t scatter, uintptr_t gather) {
  thread_reduce_scatter = reinterpret_cast<ReduceScatter>(scatter);
  thread_all_gather = reinterpret_cast<AllGather>(gather);
  return {reinterpret_cast<uintptr_t>(&reduce_scatter), reinterpret_cast<uintptr_t>(&all_gather)};
}

}  // namespace

void bind_lightgbm(nb::module_& m) {
  m.def("lightgbm_functions", &functions, nb::arg("reduce_scatter"), nb::arg("all_gather"),
        "The addresses of the two functions for LGBM_NetworkInitWithFunctions, for training in this thread. They call "
        "those at the given addresses, which return 0, or another number if LightGBM's call shall fail.");
}

}  // namespace slipstream
