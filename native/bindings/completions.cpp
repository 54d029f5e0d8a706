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

nb::object list_of(nb::type_object kind, nb::callable otherwise, nb::object value) {
  if (!PyList_CheckExact(value.ptr())) return otherwise(value);
  for (const nb::handle item : nb::borrow<nb::list>(value))
    if (!item.type().is(kind)) return otherwise(value);
  return value;
}

}  // namespace

void bind_completions(nb::module_& m) {
  m.def("list_of", &list_of, nb::arg("kind"), nb::arg("otherwise"), nb::arg("value"),
        "value, if it is a list of objects of exactly this type; else otherwise(value).");
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
