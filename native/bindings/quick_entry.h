// The way of a public collective into the engine if it is called as nearly always: on plain arrays, with little else,
// and as before. No Python runs then.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>

#include "bindings/array_view.h"
#include "bindings/quick_calls.h"

namespace slipstream {

class QuickEntry {
 public:
  using Kind = QuickCalls::Kind;

  // All outlive this. `jobs`: a dict that has the process's job, or None, as `_job`; its `world.quick` is a QuickCalls.
  // `copies`: a dict; as long as it has entries nothing is quick. `op`: the type of reductions. `rest`: of all_gather,
  // all_to_all, gather and scatter, goes on with (group or None, x, out or None, Told), and the root if there is one,
  // where what the ranks have told is unusual; of send and recv, makes what an asynchronous call returns of (a Work of
  // the engine or None, its result).
  QuickEntry(Kind kind, nanobind::object jobs, nanobind::object copies, nanobind::object op, nanobind::object rest);

  // The call with these arguments, as a function of Python is called. Null without an error: it is none that is quick,
  // and nothing has happened. Nothing here has a destructor that needs Python's lock where Python may end the thread.
  PyObject* call(PyObject* const* args, Py_ssize_t count, PyObject* names) const noexcept;

 private:
  struct Given {
    PyObject* x = nullptr;
    PyObject* root = nullptr;
    PyObject* op = nullptr;
    PyObject* out = nullptr;
    PyObject* group = nullptr;
    PyObject* tag = nullptr;
    PyObject* async = nullptr;
  };

  // Takes the value of the argument `name`. False if quick calls have none of that name.
  bool take(PyObject* name, PyObject* value, Given& given) const;
  bool read(PyObject* const* args, Py_ssize_t count, PyObject* names, Given& given) const;
  nanobind::object calls_of(PyObject* group) const;
  // The root, the reduction, or both, as `QuickCalls` keeps them; 0, which is the default of both, if none is given.
  std::optional<int> which_of(const Given& given) const;
  PyObject* run(const Given& given) const;
  // A root, or the other rank of a message.
  bool has_root() const {
    return kind_ == Kind::broadcast || kind_ == Kind::gather || kind_ == Kind::scatter || kind_ == Kind::reduce ||
           is_message();
  }
  bool is_message() const { return kind_ == Kind::send || kind_ == Kind::recv; }
  bool reduces() const { return kind_ == Kind::all_reduce || kind_ == Kind::reduce_scatter || kind_ == Kind::reduce; }
  // all_gather and all_to_all.
  PyObject* told_first(const QuickCalls& calls, const Given& given, const ArrayView& x) const;
  PyObject* joined(const nanobind::object& told, const Given& given, const ArrayView& x) const;
  PyObject* moved(const QuickCalls& calls, const nanobind::object& told, const Given& given, const ArrayView& x) const;
  static nanobind::object target(PyObject* out, const ArrayView& x, uint64_t elements);
  PyObject* gathered(const QuickCalls& calls, const Given& given) const;
  PyObject* collected(const QuickCalls& calls, const nanobind::object& told, const Given& given, const ArrayView& x,
                      int root, bool mine) const;
  PyObject* scattered(const QuickCalls& calls, const Given& given) const;
  PyObject* message(const QuickCalls& calls, const Given& given) const;
  // What an asynchronous message returns: of `work`, or None if that is done.
  PyObject* handle_of(PyObject* work, PyObject* result) const;
  bool divided(const QuickCalls& calls, const nanobind::object& told, const Given& given, const ArrayView& x,
               const ArrayView& out, int rank, int root) const;
  // Calls `rest`, once the ranks have told each other.
  PyObject* go_on(const Given& given, const nanobind::object& told) const;

  Kind kind_;
  nanobind::object jobs_, copies_, op_, rest_;
};

void bind_quick_entries(nanobind::module_& m);

}  // namespace slipstream
