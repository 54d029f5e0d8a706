#include "engine/completions.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include "bindings/gil.h"
#include "bindings/handle.h"
#include "bindings/module.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

// Called by threads that serve callbacks, never by the main thread: no signal has to get through.
std::optional<int64_t> next(Completions& self, std::optional<double> timeout) {
  if (const auto token = self.wait(now())) return token;  // without giving the GIL away and getting it back
  WithoutGil release;
  return self.wait(deadline_of(timeout));
}

}  // namespace

void bind_completions(nb::module_& m) {
  nb::class_<Completions>(m, "Completions", "Tells which works are done, to threads that wait for many.")
      .def(nb::init<>())
      .def(
          "add", [](Completions& self, const Handle& work, int64_t token) { self.add(work.work(), token); },
          nb::arg("work"), nb::arg("token"), "Queues `token`, once, when the work is done or has failed.")
      .def("post", &Completions::post, nb::arg("token"), "Queues `token` now.")
      .def("wait", &next, nb::arg("timeout") = nb::none(),
           "The next token; None if `timeout` seconds pass first, -1 once closed. Signals do not interrupt it.")
      .def("close", &Completions::close, "Ends every wait, now and later.");
}

}  // namespace slipstream
