// Failures become Python exceptions made by a factory that slipstream.base.errors registers, so that the classes are
// plain Python.
#define PY_SSIZE_T_CLEAN  // sizes of texts: they may have a NUL in them
#include "bindings/errors.h"

#include <nanobind/nanobind.h>

#include "bindings/gil.h"
#include "bindings/module.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

nb::object* factory = nullptr;  // never freed: it must outlive every module

// What peers say may be cut amid a character.
PyObject* text_of(const std::string& text) {
  return PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
}

}  // namespace

void raise(const Error& error) {
  if (error.code == Code::invalid || factory == nullptr) {
    PyObject* const text = text_of(error.text);
    if (text != nullptr) PyErr_SetObject(PyExc_ValueError, text);
    Py_XDECREF(text);
    return;
  }
  or_stop([&] {
    PyObject* const made = PyObject_CallFunction(factory->ptr(), "iiNN", static_cast<int>(error.code), error.rank,
                                                 text_of(error.host), text_of(error.text));
    if (made == nullptr) return;  // what the factory has raised
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(made)), made);
    Py_DECREF(made);
  });
}

void bind_errors(nb::module_& m) {
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const Failure& failure) {
      raise(failure.error());
    }
  });
  m.def(
      "set_error_factory",
      [](nb::object f) {
        delete factory;
        factory = new nb::object(std::move(f));
      },
      nb::arg("factory"), "Registers factory(code, rank, host, text) -> exception.");
}

}  // namespace slipstream
