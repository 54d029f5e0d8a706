// A note that an operation has begun, made before any Python code runs: a signal's handler, too, finds it.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

namespace slipstream {

// What a call is to note as its operation begins: notes[key] = its Work. Lives with what the call keeps.
class BeginNote {
 public:
  BeginNote(nanobind::dict notes, nanobind::object key) : notes_(std::move(notes)), key_(std::move(key)) {}

  // The note that is first in the tuple that a call keeps, or in a tuple that is first there. Null if there is none.
  static BeginNote* in(nanobind::handle keep) {
    if (!PyTuple_CheckExact(keep.ptr())) return nullptr;
    while (PyTuple_CheckExact(keep.ptr()) && PyTuple_Size(keep.ptr()) > 0) keep = PyTuple_GetItem(keep.ptr(), 0);
    return nanobind::isinstance<BeginNote>(keep) ? nanobind::inst_ptr<BeginNote>(keep) : nullptr;
  }

  // The operation has begun. No code of Python runs in here: the key is known by its identity.
  void make(nanobind::handle work) {
    const nanobind::object notes = std::move(notes_), key = std::move(key_);
    if (key.is_valid() && PyDict_SetItem(notes.ptr(), key.ptr(), work.ptr()) != 0) throw nanobind::python_error();
  }

 private:
  nanobind::object notes_, key_;
};

}  // namespace slipstream
