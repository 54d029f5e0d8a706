// Operations that MXNet's engine runs.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "bindings/begun.h"
#include "bindings/gil.h"
#include "bindings/module.h"
#include "mxnet/pushes.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

using mxnet::JobLine;

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

}  // namespace

void bind_mxnet(nb::module_& m) {
  m.def(
      "mxnet_prepare", [](const std::string& library) { return mxnet::prepare(library.c_str()); }, nb::arg("library"),
      "Looks MXNet up in the library of this file, which is loaded; once in a process. Returns what is wrong, or an "
      "empty text: until then nothing can be pushed.");
  nb::class_<JobLine>(m, "MxnetLine", "Operations of MXNet's engine that all ranks start in one order.")
      .def(
          "__init__",
          [](JobLine* self, uintptr_t group) { new (self) JobLine(reinterpret_cast<slipstream_group*>(group)); },
          nb::arg("group"), "`group`: what `c_group` has given, of a group of the line's own.")
      .def("push", &push, nb::arg("inputs"), nb::arg("results"), nb::arg("collective"), nb::arg("op"), nb::arg("root"),
           nb::arg("prescale"), nb::arg("postscale"), nb::arg("what"), nb::arg("asks"),
           "Has MXNet's engine run an operation on arrays, given by the addresses of their handles. False: one of them "
           "cannot be pushed, and nothing was done. Raises the job's error if it has failed.")
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
}

}  // namespace slipstream
