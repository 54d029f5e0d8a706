// _core.GuardedCall: a Python function, and what to do when an exception leaves it.
//
// A signal handler of Python's runs between two instructions, and so also before the first one of a function: no `try`
// inside that function catches what it raises there. A native caller does. The same holds for broken_off().
#include <nanobind/nanobind.h>
#include <structmember.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "bindings/begun.h"
#include "bindings/module.h"
#include "bindings/quick_entry.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

struct GuardedCall {
  PyObject_HEAD  //
      vectorcallfunc call;
  PyObject* quick;  // null, or a QuickEntry, which is `entry`
  const QuickEntry* entry;
  PyObject* function;
  PyObject* broken_off;
  PyObject* dict;
  PyObject* weak;
};

GuardedCall& of(PyObject* self) { return *reinterpret_cast<GuardedCall*>(self); }

// The exception that is raised now, with its traceback; it is not raised any more. The caller owns it.
PyObject* take_exception() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return value;
}

// Takes over a reference to the exception.
void raise_again(PyObject* error) {
  PyObject* const type = Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(error)));
  PyObject* const trace = PyException_GetTraceback(error);
  PyErr_Restore(type, error, trace);
}

bool fill(PyObject* given, PyObject* named, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  for (Py_ssize_t i = 0; i < count; ++i) PyTuple_SetItem(given, i, Py_NewRef(args[i]));
  const Py_ssize_t extra = names == nullptr ? 0 : PyTuple_Size(names);
  for (Py_ssize_t i = 0; i < extra; ++i)
    if (PyDict_SetItem(named, PyTuple_GetItem(names, i), args[count + i]) < 0) return false;
  return true;
}

// Signals that come one after another must not keep a call for ever.
constexpr int kMostTries = 10'000;

// Whether `other` is `error`, or was handled when `error` was raised. No program has a thousand contexts.
bool is_context_of(PyObject* other, PyObject* error) {
  PyObject* context = Py_NewRef(error);
  for (int depth = 0; context != nullptr && context != other && depth < 1000; ++depth) {
    PyObject* const next = PyException_GetContext(context);
    Py_DECREF(context);
    context = next;
  }
  Py_XDECREF(context);
  return context != nullptr;
}

// `later` was raised while `earlier` was judged. Contexts must not make a ring: who walks them would not end.
void set_context(PyObject* later, PyObject* earlier) {
  if (is_context_of(later, earlier)) return;
  PyObject* const context = PyException_GetContext(later);
  if (context == nullptr) PyException_SetContext(later, Py_NewRef(earlier));
  Py_XDECREF(context);
}

// Calls broken_off() until it returns. It raises nothing itself: what leaves it comes from a signal handler, and goes
// on in the place of `error`, like an exception that broken_off() returns. The caller owns what is returned.
PyObject* judged(GuardedCall& self, PyObject* error, PyObject* number, PyObject* given, PyObject* named) {
  PyObject* raised = Py_NewRef(error);
  for (int tries = 0; tries < kMostTries; ++tries) {
    PyObject* returned = PyObject_CallFunctionObjArgs(self.broken_off, error, number, given, named, nullptr);
    if (returned != nullptr) {
      if (raised == error && PyExceptionInstance_Check(returned)) std::swap(raised, returned);
      Py_DECREF(returned);
      break;
    }
    PyObject* const later = take_exception();
    set_context(later, raised);
    Py_DECREF(raised);
    raised = later;
  }
  return raised;
}

// So that a call around this one knows: the number of this call, and the traceback by its address. Numbers, because the
// exception may be pickled, and must keep no frames when a program has cleared its traceback. The attribute is not set
// by a method of the user's, which could run code of theirs.
void mark_as_judged(PyObject* error, uint64_t entry) {
  static PyObject* const name = PyUnicode_InternFromString("_slipstream_judged");
  PyObject* const trace = PyException_GetTraceback(error);
  PyObject* const mark =
      Py_BuildValue("KK", static_cast<unsigned long long>(entry),
                    static_cast<unsigned long long>(reinterpret_cast<uintptr_t>(trace)));  // as id() says
  if (name == nullptr || mark == nullptr || PyObject_GenericSetAttr(error, name, mark) < 0) PyErr_Clear();
  Py_XDECREF(mark);
  Py_XDECREF(trace);
}

// The exception goes on, unless broken_off() returns another one.
//
// While the interpreter finalizes, it may end this thread in any of these calls, and unwinds the stack without its lock
// (gil.h). So nothing here has a destructor: one would change Python's objects without the lock.
void tell(GuardedCall& self, uint64_t entry, PyObject* const* args, Py_ssize_t count, PyObject* names) {
  PyObject* const error = take_exception();
  PyObject* const number = PyLong_FromUnsignedLongLong(entry);
  PyObject* const given = PyTuple_New(count);
  PyObject* const named = PyDict_New();
  if (number != nullptr && given != nullptr && named != nullptr && fill(given, named, args, count, names)) {
    PyObject* const raised = judged(self, error, number, given, named);
    mark_as_judged(raised, entry);
    raise_again(raised);
  }  // or there is no memory, which is what Python raises then
  // What is freed here may run Python code, but not replace the exception that is raised.
  Py_XDECREF(named);
  Py_XDECREF(given);
  Py_XDECREF(number);
  Py_DECREF(error);
}

PyObject* call(PyObject* self, PyObject* const* args, size_t flags, PyObject* names) {
  const CurrentCall entry = enter_call();
  PyObject* result = nullptr;
  if (of(self).entry != nullptr) result = of(self).entry->call(args, PyVectorcall_NARGS(flags), names);
  if (result == nullptr && PyErr_Occurred() == nullptr)
    result = PyObject_Vectorcall(of(self).function, args, flags, names);
  leave_call(entry);
  if (result == nullptr) tell(of(self), entry.number, args, PyVectorcall_NARGS(flags), names);
  return result;
}

PyObject* create(PyTypeObject* type, PyObject* args, PyObject* named) {
  PyObject *function = nullptr, *broken_off = nullptr, *quick = nullptr;
  static const char* names[] = {"function", "broken_off", "quick", nullptr};
  if (PyArg_ParseTupleAndKeywords(args, named, "OO|O", const_cast<char**>(names), &function, &broken_off, &quick) == 0)
    return nullptr;
  if (quick == Py_None) quick = nullptr;
  const QuickEntry* entry = nullptr;
  if (quick != nullptr && !nb::try_cast(nb::handle(quick), entry)) {
    PyErr_SetString(PyExc_TypeError, "quick must be a QuickEntry, or None");
    return nullptr;
  }
  const auto allocate = reinterpret_cast<allocfunc>(PyType_GetSlot(type, Py_tp_alloc));
  PyObject* self = allocate(type, 0);
  if (self == nullptr) return nullptr;
  of(self).call = call;
  of(self).quick = Py_XNewRef(quick);
  of(self).entry = entry;
  of(self).function = Py_NewRef(function);
  of(self).broken_off = Py_NewRef(broken_off);
  return self;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(of(self).quick);
  Py_VISIT(of(self).function);
  Py_VISIT(of(self).broken_off);
  Py_VISIT(of(self).dict);
  return 0;
}

int clear(PyObject* self) {
  of(self).entry = nullptr;
  Py_CLEAR(of(self).quick);
  Py_CLEAR(of(self).function);
  Py_CLEAR(of(self).broken_off);
  Py_CLEAR(of(self).dict);
  return 0;
}

void destroy(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_GC_UnTrack(self);
  if (of(self).weak != nullptr) PyObject_ClearWeakRefs(self);
  clear(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

#ifdef Py_LIMITED_API
// Never freed. Known from the start: what an import runs may switch threads, which must not be while a function's
// static variable is made (array_view.cpp).
PyObject* method_type = nullptr;
#endif

// As a method of an instance, like a function.
PyObject* bind(PyObject* self, PyObject* instance, PyObject*) {
  if (instance == nullptr || instance == Py_None) return Py_NewRef(self);
#ifdef Py_LIMITED_API
  return PyObject_CallFunctionObjArgs(method_type, self, instance, nullptr);
#else
  return PyMethod_New(self, instance);
#endif
}

// Pickled by its name, as functions are.
PyObject* reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }

PyObject* represent(PyObject* self) {
  const nb::object name = nb::steal(PyObject_GetAttrString(self, "__qualname__"));
  return name.is_valid() ? PyUnicode_FromFormat("<function %U>", name.ptr()) : nullptr;
}

PyMethodDef kMethods[] = {{"__reduce__", reduce, METH_NOARGS, nullptr}, {nullptr, nullptr, 0, nullptr}};
PyGetSetDef kAttributes[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
                             {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMemberDef kMembers[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(GuardedCall, call), READONLY, nullptr},
    {"__dictoffset__", T_PYSSIZET, offsetof(GuardedCall, dict), READONLY, nullptr},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(GuardedCall, weak), READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr},
};
PyType_Slot kSlots[] = {
    {Py_tp_new, reinterpret_cast<void*>(create)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(clear)},
    {Py_tp_dealloc, reinterpret_cast<void*>(destroy)},
    {Py_tp_descr_get, reinterpret_cast<void*>(bind)},
    {Py_tp_repr, reinterpret_cast<void*>(represent)},
    {Py_tp_methods, kMethods},
    {Py_tp_getset, kAttributes},
    {Py_tp_members, kMembers},
    {0, nullptr},
};
PyType_Spec kSpec = {
    "slipstream._core.GuardedCall",
    sizeof(GuardedCall),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR,
    kSlots,
};

}  // namespace

void bind_guarded_calls(nb::module_& m) {
  nb::object type = nb::steal(PyType_FromSpec(&kSpec));
  if (!type.is_valid()) nb::raise_python_error();
  m.attr("GuardedCall") = type;
#ifdef Py_LIMITED_API
  method_type = nb::object(nb::module_::import_("types").attr("MethodType")).release().ptr();
#endif
}

}  // namespace slipstream
