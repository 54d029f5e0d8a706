// A NumPy array as NumPy's own C headers describe it, of which these are the first fields: they are the same in NumPy 1
// and 2, as every module that is compiled against NumPy relies on them. The buffer protocol takes 200 ns for the same.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/dtype.h"

namespace slipstream {

class ArrayView {
 public:
  // Asks NumPy once what its arrays look like; before the first `of`. It runs Python.
  static void learn();

  // Nothing unless it is a C-contiguous np.ndarray (no subclass) of a dtype in this machine's byte order that the
  // engine knows, with at most `most` dimensions. To be called with Python's lock; the array outlives what is returned.
  static std::optional<ArrayView> of(PyObject* array, int most = 1);

  std::byte* begin() const { return reinterpret_cast<std::byte*>(fields_->data); }
  uint64_t elements() const {
    uint64_t all = 1;
    for (int i = 0; i < fields_->nd; ++i) all *= static_cast<uint64_t>(fields_->dimensions[i]);
    return all;
  }
  uint64_t bytes() const { return elements() * size_of(dtype_); }
  int dimensions() const { return fields_->nd; }
  DType dtype() const { return dtype_; }
  bool writable() const { return (fields_->flags & 0x400) != 0; }
  bool overlaps(const ArrayView& other) const {
    return begin() < other.begin() + other.bytes() && other.begin() < begin() + bytes();
  }
  // A new array of this dtype with one dimension, or none like this one; nothing is written to it. Null if there is an
  // error, which Python raises.
  PyObject* empty(uint64_t elements, int dimensions) const;

 private:
  struct Fields {
    PyObject_HEAD  //
        char* data;
    int nd;
    Py_ssize_t* dimensions;
    Py_ssize_t* strides;
    PyObject* base;
    PyObject* descr;
    int flags;
  };
  struct Descr {
    PyObject_HEAD  //
        PyTypeObject* type;
    char kind;
    char code;
    char byteorder;
    char flags;
    int number;
  };
  ArrayView(const Fields* fields, DType dtype) : fields_(fields), dtype_(dtype) {}
  static bool is_as_described();

  const Fields* fields_;
  DType dtype_;
};

}  // namespace slipstream
