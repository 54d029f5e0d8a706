// LightGBM takes two functions in place of its sockets, which cannot return errors. What it does have is a handler of
// C++ exceptions around every call of its C API. So a failure leaves LightGBM's frames as an exception that no C++
// library takes for its own: ours may be another one than LightGBM's. Its handler makes it an error code.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <unwind.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

#include "bindings/gil.h"
#include "bindings/module.h"
#include "lightgbm/network.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

using lightgbm::Reducer;

// The network of a group, for Python, which is told of failures when LightGBM has returned. Made and destroyed with
// Python's lock.
class LightgbmNetwork {
 public:
  explicit LightgbmNetwork(uintptr_t group)
      : network_(reinterpret_cast<slipstream_group*>(group), [this] { look_for_signals(); }) {}
  ~LightgbmNetwork() {
    leave();
    or_stop([this] { Py_CLEAR(raised_); });
  }

  std::pair<uintptr_t, uintptr_t> enter();
  void leave() const;
  void check() {
    if (raised_ != nullptr) {
      PyObject* const type = Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(raised_)));
      PyObject* const trace = PyException_GetTraceback(raised_);
      PyErr_Restore(type, std::exchange(raised_, nullptr), trace);
      throw nb::python_error();
    }
    if (network_.failure()) throw Failure(network_.failure());
  }
  bool used() const { return network_.used(); }
  lightgbm::Network& network() { return network_; }

 private:
  // What a handler of a signal raises cannot pass through LightGBM: it ends the job here, and Python has it later.
  void look_for_signals() {
    if (raised_ != nullptr) return;
    std::string why;
    try {
      const WithGil lock;
      if (or_stop([] { return PyErr_CheckSignals(); }) == 0) return;
      PyObject *type = nullptr, *trace = nullptr;
      PyErr_Fetch(&type, &raised_, &trace);
      PyErr_NormalizeException(&type, &raised_, &trace);
      if (trace != nullptr) PyException_SetTraceback(raised_, trace);
      Py_XDECREF(type);
      Py_XDECREF(trace);
      why = nb::cast<std::string>(nb::inst_name(raised_));
    } catch (const Failure& failure) {  // the interpreter ends
      why = failure.what();
    }
    network_.end(why);
  }

  lightgbm::Network network_;
  PyObject* raised_ = nullptr;
};

// As LightGBM's own, it belongs to the thread that trains.
thread_local LightgbmNetwork* of_thread = nullptr;

constexpr uint64_t kForeign = 0x534c495053545200;  // "SLIPSTR": the class of exceptions that are no C++ objects

void drop(_Unwind_Reason_Code, _Unwind_Exception* exception) { delete exception; }

[[noreturn]] void leave_lightgbm() {
  auto* exception = new _Unwind_Exception{};
  exception->exception_class = kForeign;
  exception->exception_cleanup = drop;
  _Unwind_RaiseException(exception);  // returns only if nobody would catch it
  std::abort();
}

// LightGBM's types; a reference is passed as a pointer.
void reduce_scatter(char* input, int32_t, int type_size, const int32_t* starts, const int32_t* lengths, int blocks,
                    char* output, int32_t, const Reducer& reducer) {
  if (!of_thread->network().reduce_scatter(input, type_size, {starts, lengths, blocks}, output, reducer))
    leave_lightgbm();
}

void all_gather(char* input, int32_t, const int32_t* starts, const int32_t* lengths, int blocks, char* output,
                int32_t) {
  if (!of_thread->network().all_gather(input, {starts, lengths, blocks}, output)) leave_lightgbm();
}

std::pair<uintptr_t, uintptr_t> LightgbmNetwork::enter() {
  of_thread = this;
  return {reinterpret_cast<uintptr_t>(&reduce_scatter), reinterpret_cast<uintptr_t>(&all_gather)};
}

void LightgbmNetwork::leave() const {
  if (of_thread == this) of_thread = nullptr;
}

}  // namespace

void bind_lightgbm(nb::module_& m) {
  nb::class_<LightgbmNetwork>(m, "LightgbmNetwork", "The network that LightGBM trains over in one thread.")
      .def(nb::init<uintptr_t>(), nb::arg("group"), "`group`: what `c_group` has given; it is taken over.")
      .def("enter", &LightgbmNetwork::enter,
           "The addresses of the two functions for LGBM_NetworkInitWithFunctions, for training in this thread. They "
           "work until `leave`. LightGBM's call fails if one of them does.")
      .def("leave", &LightgbmNetwork::leave, "After LGBM_NetworkFree, in the thread of `enter`.")
      .def_prop_ro("used", &LightgbmNetwork::used, "Whether LightGBM has called an operation.")
      .def("check", &LightgbmNetwork::check, "Raises what has ended an operation, if anything has.");
}

}  // namespace slipstream
