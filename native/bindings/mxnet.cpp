// Operations that MXNet's engine runs.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>
#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "bindings/begun.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "mxnet/pushes.h"
#include "mxnet/waited.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

using mxnet::JobLine;
using mxnet::Waited;

bool push(JobLine& line, std::vector<uintptr_t> inputs, std::vector<uintptr_t> results, int32_t collective, int32_t op,
          int32_t root, double prescale, double postscale, std::string what, bool asks) {
  if (inputs.size() != results.size()) throw nb::value_error("as many results as inputs are needed");
  const mxnet::Pushed pushed{
      {collective, op, root, 0, prescale, postscale}, std::move(what), asks, std::move(inputs), std::move(results)};
  bool done = false;
  {
    const WithoutGil unlocked;  // a thread that pushes may wait for one that is in Python
    done = mxnet::push(line, pushed);
  }
  if (done) count_begun();
  return done;
}

// An array in plain memory: dtype, shape, and where it is read and written.
using Plain = std::tuple<int32_t, std::vector<int64_t>, uintptr_t, uintptr_t>;

lines::Operand operand_of(const Plain& plain) {
  const auto& [dtype, dims, from, to] = plain;
  lines::Operand one;
  one.dtype = dtype;
  one.dims = dims;
  one.elements = 1;
  for (const int64_t size : dims) one.elements *= static_cast<uint64_t>(size);
  one.bytes = one.elements * size_of(static_cast<DType>(dtype));
  one.from = reinterpret_cast<const void*>(from);
  one.to = reinterpret_cast<void*>(to);
  return one;
}

std::shared_ptr<Waited> started(JobLine& line, std::shared_ptr<Waited> operation) {
  const WithoutGil unlocked;
  mxnet::start(line, operation);
  return operation;
}

// What Python holds for operations that are under way, whether their caller still waits or not: an exception of a
// signal's handler may have taken it away. Never freed; with Python's lock.
struct Kept {
  std::shared_ptr<Waited> operation;
  nb::object memory;
};
std::vector<Kept>& kept() {
  static auto* const all = new std::vector<Kept>;
  return *all;
}

void let_go() {
  std::vector<Kept> over, left;
  for (Kept& one : kept()) (one.operation->is_over() ? over : left).push_back(std::move(one));
  kept() = std::move(left);
  // That may run any Python code, and come here again. No destructor may be on the stack: it would end the process.
  or_stop([&over] {
    for (Kept& one : over) Py_XDECREF(one.memory.release().ptr());
  });
}

std::shared_ptr<Waited> start(JobLine& line, const std::vector<Plain>& arrays, nb::object memory, int32_t collective,
                              int32_t op, int32_t root, double prescale, double postscale, std::string what,
                              bool asks) {
  std::vector<lines::Operand> operands;
  for (const Plain& one : arrays) operands.push_back(operand_of(one));
  const lines::Asked asked{collective, op, root, 0, prescale, postscale};
  auto operation = std::make_shared<Waited>(asked, operands, std::move(what), asks);
  kept().push_back({operation, std::move(memory)});
  try {
    started(line, operation);
  } catch (const Failure& failure) {
    operation->close({static_cast<int32_t>(failure.error().code), failure.what()});
    throw;
  }
  count_begun();
  return operation;
}

void bind_waited(nb::module_& m) {
  nb::class_<Waited>(m, "MxnetWaited", "An operation of a line that its caller waits for.")
      .def(
          "wait",
          [](Waited& self, double seconds) {
            {
              const WithoutGil unlocked;
              if (!self.wait(seconds)) return false;
            }
            let_go();
            return true;
          },
          nb::arg("seconds"), "Whether it is over, now or within so long.")
      .def_prop_ro(
          "outcome", [](const Waited& self) { return std::pair(self.outcome().status, self.outcome().text); },
          "Of one that is over: a status of slipstream.h, and its text.");
}

}  // namespace

void bind_mxnet(nb::module_& m) {
  m.def(
      "mxnet_prepare", [](const std::string& library) { return mxnet::prepare(library.c_str()); }, nb::arg("library"),
      "Looks MXNet up in the library of this file, which is loaded; once in a process. Returns what is wrong, or an "
      "empty text: until then nothing can be pushed.");
  bind_waited(m);
  nb::class_<JobLine>(m, "MxnetLine", "Operations of MXNet's engine that all ranks start in one order.")
      .def(
          "__init__",
          [](JobLine* self, uintptr_t group) { new (self) JobLine(reinterpret_cast<slipstream_group*>(group)); },
          nb::arg("group"), "`group`: what `c_group` has given, of a group of the line's own.")
      .def("push", &push, nb::arg("inputs"), nb::arg("results"), nb::arg("collective"), nb::arg("op"), nb::arg("root"),
           nb::arg("prescale"), nb::arg("postscale"), nb::arg("what"), nb::arg("asks"),
           "Has MXNet's engine run an operation on arrays, given by the addresses of their handles. False: one of them "
           "cannot be pushed, and nothing was done. Raises the job's error if it has failed.")
      .def("start", &start, nb::arg("arrays"), nb::arg("memory"), nb::arg("collective"), nb::arg("op"), nb::arg("root"),
           nb::arg("prescale"), nb::arg("postscale"), nb::arg("what"), nb::arg("asks"),
           "Starts what `push` does on plain memory: dtype, shape, address of the input and of the result of each "
           "array. `memory` is what has that memory, and is kept until the operation is over. Returns what is waited "
           "for.")
      .def(
          "turn",
          [](JobLine& self, std::string kind, std::string what, std::string title) {
            return started(self, std::make_shared<Waited>(std::move(kind), std::move(what), std::move(title)));
          },
          nb::arg("kind"), nb::arg("what"), nb::arg("title"),
          "A place in the line for an operation that is none of the line's: it is over when all ranks have come to it. "
          "Returns what is waited for.")
      .def(
          "leave",
          [](JobLine& self) {
            const WithoutGil unlocked;
            self.leave();
          },
          "The process has left the job.");
  m.def(
      "mxnet_drained",
      [](double seconds) {
        const WithoutGil unlocked;
        return mxnet::drained(seconds);
      },
      nb::arg("seconds"), "Whether nothing that was pushed is under way, now or within so long.");
  m.def(
      "mxnet_failures",
      [] {
        const mxnet::Failures found = mxnet::failures();
        return std::pair(found.count, found.latest);
      },
      "How many operations that this process has pushed have failed, and the error of the latest one.");
}

}  // namespace slipstream
