#include "bindings/array_view.h"

#include <nanobind/stl/string.h>

#include <iterator>
#include <string>

#include "bindings/gil.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

constexpr int kContiguous = 0x1;  // NPY_ARRAY_C_CONTIGUOUS

// By NumPy's numbers of types, in which those of C have one each.
std::optional<DType> dtype_of(int number) {
  constexpr DType kLong = sizeof(long) == 8 ? DType::i64 : DType::i32;
  constexpr DType kUnsignedLong = sizeof(long) == 8 ? DType::u64 : DType::u32;
  constexpr DType kKnown[] = {DType::boolean, DType::i8,     DType::u8,  DType::i16, DType::u16, DType::i32, DType::u32,
                              kLong,          kUnsignedLong, DType::i64, DType::u64, DType::f32, DType::f64};
  if (number >= 0 && number < static_cast<int>(std::size(kKnown))) return kKnown[number];
  if (number == 23) return DType::f16;
  return std::nullopt;
}

// What is known of NumPy. No function's static variables: while one is made, Python may switch threads, and another
// thread would wait for it with Python's lock. Never freed: they outlive every module.
PyObject* array_type = nullptr;
PyObject* empty_function = nullptr;

PyObject* of_numpy(const char* name) { return nb::object(nb::module_::import_("numpy").attr(name)).release().ptr(); }

}  // namespace

// Whether the fields of an array say what its attributes do: else NumPy is another one than is known here.
bool ArrayView::is_as_described() {
  const nb::object numpy = nb::module_::import_("numpy");
  const nb::object array = numpy.attr("arange")(5, nb::arg("dtype") = "int16")[nb::slice(1, 4, 2)];
  const auto& found = *reinterpret_cast<const Fields*>(array.ptr());
  const nb::object dtype = array.attr("dtype");
  return found.nd == 1 && found.dimensions[0] == 2 && found.strides[0] == 4 && found.descr == dtype.ptr() &&
         reinterpret_cast<uintptr_t>(found.data) == nb::cast<uintptr_t>(array.attr("ctypes").attr("data")) &&
         found.flags == nb::cast<int>(array.attr("flags").attr("num")) &&
         reinterpret_cast<const Descr*>(found.descr)->number == nb::cast<int>(dtype.attr("num")) &&
         reinterpret_cast<const Descr*>(found.descr)->byteorder == nb::cast<std::string>(dtype.attr("byteorder"))[0];
}

void ArrayView::learn() {
  if (array_type != nullptr) return;
  PyObject* const empty = of_numpy("empty");
  PyObject* const type = is_as_described() ? of_numpy("ndarray") : Py_NewRef(Py_None);  // which no type is
  // From here on nothing runs Python, so another thread that has come here meanwhile does no harm.
  empty_function = empty;
  array_type = type;
}

std::optional<ArrayView> ArrayView::of(PyObject* array, int most) {
  if (reinterpret_cast<PyObject*>(Py_TYPE(array)) != array_type) return std::nullopt;
  const auto* fields = reinterpret_cast<const Fields*>(array);
  const auto* descr = reinterpret_cast<const Descr*>(fields->descr);
  if (fields->nd > most || (fields->flags & kContiguous) == 0) return std::nullopt;
  if (descr->byteorder != '=' && descr->byteorder != '|') return std::nullopt;
  const auto dtype = dtype_of(descr->number);
  if (!dtype) return std::nullopt;
  return ArrayView(fields, *dtype);
}

PyObject* ArrayView::empty(uint64_t elements, int dimensions) const {
  return or_stop([&] {
    PyObject* const shape = dimensions == 0 ? PyTuple_New(0) : PyLong_FromUnsignedLongLong(elements);
    if (shape == nullptr) return static_cast<PyObject*>(nullptr);
    PyObject* const args[] = {shape, fields_->descr};
    PyObject* const made = PyObject_Vectorcall(empty_function, args, 2, nullptr);
    Py_DECREF(shape);
    return made;
  });
}

}  // namespace slipstream
