// A note that an operation has begun, made before any Python code runs: a signal's handler, too, finds it.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace slipstream {

// What a call is to note as its operation begins: notes[key] = its Work. Lives with what the call keeps.
class BeginNote {
 public:
  BeginNote(nanobind::dict notes, nanobind::object key) : notes_(std::move(notes)), key_(std::move(key)) {}

  // The note among what a call keeps: that itself, or the first of a tuple of such. Null if there is none.
  static BeginNote* in(nanobind::handle keep) {
    while (keep.is_valid() && PyTuple_CheckExact(keep.ptr()) && PyTuple_GET_SIZE(keep.ptr()) > 0)
      keep = PyTuple_GET_ITEM(keep.ptr(), 0);
    return keep.is_valid() && nanobind::isinstance<BeginNote>(keep) ? nanobind::inst_ptr<BeginNote>(keep) : nullptr;
  }

  // The operation has begun. No code of Python runs in here: the key is known by its identity.
  void make(nanobind::handle work) {
    const nanobind::object key = std::move(key_);
    if (key.is_valid() && PyDict_SetItem(notes_.ptr(), key.ptr(), work.ptr()) != 0) throw nanobind::python_error();
  }

 private:
  nanobind::dict notes_;
  nanobind::object key_;
};

}  // namespace slipstream
