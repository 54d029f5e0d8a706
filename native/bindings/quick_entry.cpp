#include "bindings/quick_entry.h"

#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "bindings/begun.h"
#include "bindings/errors.h"
#include "bindings/gil.h"
#include "bindings/told.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

constexpr int kMostDimensions = 64;  // of NumPy's arrays
constexpr size_t kFields = 4;        // of a head: rows, elements of a row, dtype, and 0 for one dimension

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

// A borrowed value of a dict, null if there is none.
PyObject* value_of(const nb::object& dict, PyObject* name) {
  PyObject* const found = PyDict_GetItemWithError(dict.ptr(), name);
  if (found == nullptr) PyErr_Clear();
  return found == Py_None ? nullptr : found;
}

// An attribute, which somebody else keeps alive; null if there is none.
PyObject* attribute_of(PyObject* object, PyObject* name) {
  if (object == nullptr) return nullptr;
  PyObject* const found = PyObject_GetAttr(object, name);
  if (found == nullptr) {
    PyErr_Clear();
    return nullptr;
  }
  Py_DECREF(found);
  return found == Py_None ? nullptr : found;
}

// 0, which is the default, for null; nothing unless it is a small number of this very type.
std::optional<int> code_of(PyObject* one, PyObject* type) {
  if (one == nullptr) return 0;
  if (reinterpret_cast<PyObject*>(Py_TYPE(one)) != type) return std::nullopt;
  const long value = PyLong_AsLong(one);
  if (value == -1 && PyErr_Occurred() != nullptr) PyErr_Clear();
  if (value < 0 || value > 0xffff) return std::nullopt;
  return static_cast<int>(value);
}

// Of the operations of one call: they count as begun by it when all have begun.
class OneCall {
 public:
  OneCall() : outer_(enter_call().outer) {}
  ~OneCall() { close_block(outer_, complete_); }
  OneCall(const OneCall&) = delete;
  void complete() { complete_ = true; }

 private:
  uint64_t outer_;
  bool complete_ = false;
};

}  // namespace

QuickEntry::QuickEntry(Kind kind, nb::object jobs, nb::object copies, nb::object op, nb::object rest)
    : kind_(kind), jobs_(std::move(jobs)), copies_(std::move(copies)), op_(std::move(op)), rest_(std::move(rest)) {
  if (!PyDict_Check(jobs_.ptr()) || !PyDict_Check(copies_.ptr()))
    throw Failure(Code::invalid, "a quick entry needs dicts of jobs and copies");
  ArrayView::learn();
}

bool QuickEntry::take(PyObject* name, PyObject* value, Given& given) const {
  static PyObject* const kOut = interned("out");
  static PyObject* const kGroup = interned("group");
  static PyObject* const kOp = interned("op");
  static PyObject* const kRoot = interned("root");
  static PyObject* const kTag = interned("tag");
  static PyObject* const kAsync = interned("async_op");
  static PyObject* const kSource = interned("src");
  static PyObject* const kTarget = interned("dst");
  PyObject* const root = kind_ == Kind::send ? kTarget : kind_ == Kind::recv ? kSource : kRoot;
  if (name == kGroup)
    given.group = value == Py_None ? nullptr : value;
  else if (name == kOut && kind_ != Kind::barrier && !is_message())
    given.out = value == Py_None ? nullptr : value;
  else if (name == kOp && reduces() && given.op == nullptr)
    given.op = value;
  else if (name == root && has_root() && given.root == nullptr)
    given.root = value;
  else if (name == kTag && is_message())
    given.tag = value;
  else if (name == kAsync && is_message())
    given.async = value;
  else
    return false;
  return true;
}

// False if some argument is one that quick calls do not have.
bool QuickEntry::read(PyObject* const* args, Py_ssize_t count, PyObject* names, Given& given) const {
  const Py_ssize_t most = kind_ == Kind::barrier ? 0 : 1 + (has_root() ? 1 : 0) + (reduces() ? 1 : 0);
  if (count > most) return false;
  if (count > 0) given.x = args[0];
  if (count > 1) (has_root() ? given.root : given.op) = args[1];
  if (count > 2) given.op = args[2];
  const Py_ssize_t more = names == nullptr ? 0 : PyTuple_Size(names);
  for (Py_ssize_t i = 0; i < more; ++i)  // names are interned, where a program has written them
    if (!take(PyTuple_GetItem(names, i), args[count + i], given)) return false;
  return given.x != nullptr || kind_ == Kind::barrier;
}

// Invalid if there is none.
nb::object QuickEntry::calls_of(PyObject* group) const {
  static PyObject* const kJob = interned("_job");
  static PyObject* const kWorld = interned("world");
  static PyObject* const kQuick = interned("quick");
  if (group == nullptr) group = attribute_of(value_of(jobs_, kJob), kWorld);
  if (group == nullptr) return {};
  nb::object calls = nb::steal(PyObject_GetAttr(group, kQuick));
  if (!calls.is_valid()) PyErr_Clear();
  return calls.is_valid() && nb::isinstance<QuickCalls>(calls) ? calls : nb::object();
}

std::optional<int> QuickEntry::which_of(const Given& given) const {
  const auto root = code_of(given.root, reinterpret_cast<PyObject*>(&PyLong_Type));
  const auto op = code_of(given.op, op_.ptr());
  if (!root || !op) return std::nullopt;
  return kind_ == Kind::reduce ? QuickCalls::which_reduce(*op, *root) : has_root() ? *root : *op;
}

PyObject* QuickEntry::call(PyObject* const* args, Py_ssize_t count, PyObject* names) const noexcept {
  Given given;
  if (PyDict_Size(copies_.ptr()) != 0 || !read(args, count, names, given)) return nullptr;
  try {
    return run(given);
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const Failure& failure) {
    raise(failure.error());
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

PyObject* QuickEntry::run(const Given& given) const {
  const nb::object owner = calls_of(given.group);  // its group may go meanwhile
  if (!owner.is_valid()) return nullptr;
  const QuickCalls* const calls = nb::inst_ptr<QuickCalls>(owner);
  if (kind_ == Kind::barrier) {
    const auto request = calls->find(kind_, 0, 0, 0);
    if (!request) return nullptr;
    calls->run(*request, calls->token(), calls->token(), 1, {owner});
    return Py_NewRef(Py_None);
  }
  if (is_message()) return message(*calls, given);
  if (kind_ == Kind::gather) return gathered(*calls, given);
  if (kind_ == Kind::scatter) return scattered(*calls, given);
  const auto x = ArrayView::of(given.x);
  if (!x || (given.out != nullptr && !ArrayView::of(given.out))) return nullptr;
  if (kind_ == Kind::all_gather || kind_ == Kind::all_to_all) return told_first(*calls, given, *x);
  const auto which = which_of(given);
  if (!which) return nullptr;
  const bool scatters = kind_ == Kind::reduce_scatter;
  if (scatters && x->dimensions() != 1) return nullptr;
  const uint64_t size = scatters ? x->elements() : static_cast<uint64_t>(std::bit_width(x->bytes()));
  const auto request = calls->find(kind_, size, static_cast<int>(x->dtype()), *which);
  if (!request) return nullptr;
  const uint64_t elements = scatters ? request->spaces[1].offsets.back() : x->elements();
  // Of a reduce, others than the root need memory of their own as well.
  const bool mine = kind_ != Kind::reduce || request->group->rank == request->signature.root;
  const nb::object result =
      given.out != nullptr && mine ? nb::borrow(given.out) : nb::steal(x->empty(elements, x->dimensions()));
  if (!result.is_valid()) return nullptr;  // with an error
  const auto out = ArrayView::of(result.ptr());
  if (!out || !out->writable() || out->dtype() != x->dtype() || out->dimensions() != x->dimensions() ||
      out->elements() != elements)
    return nullptr;
  if (x->overlaps(*out) && (scatters || x->begin() != out->begin())) return nullptr;
  calls->run(*request, x->begin(), out->begin(), x->elements(), {nb::handle(given.x), result});
  return Py_NewRef(mine ? result.ptr() : Py_None);
}

PyObject* QuickEntry::told_first(const QuickCalls& calls, const Given& given, const ArrayView& x) const {
  const auto request = calls.find(kind_, 0, 0, 0);
  if (!request || x.dimensions() != 1) return nullptr;
  const size_t messages = kind_ == Kind::all_gather ? 1 : request->group->ranks.size();
  if (x.elements() % messages != 0) return nullptr;
  const uint64_t rows = x.elements() / messages, bytes = x.bytes() / messages;
  const size_t room = request->spaces[1].offsets[1];
  const bool follows = bytes + (kFields + 1) * sizeof(int64_t) <= room;
  if (follows && !calls.session()->quiet()) return nullptr;
  if (given.out != nullptr) {
    const auto out = ArrayView::of(given.out);
    if (!out->writable() || out->dtype() != x.dtype() || out->dimensions() != 1 || x.overlaps(*out)) return nullptr;
  }
  OneCall whole;
  std::vector<int64_t> heads;
  for (size_t i = 0; i < messages; ++i)
    heads.insert(heads.end(), {static_cast<int64_t>(rows), 1, static_cast<int64_t>(x.dtype()), 0});
  const nb::object told = tell(calls.session(), *request, heads, reinterpret_cast<uintptr_t>(x.begin()),
                               std::vector<uint64_t>(messages, bytes), follows, {});
  PyObject* result = follows ? joined(told, given, x) : moved(calls, told, given, x);
  if (result == nullptr && PyErr_Occurred() == nullptr) result = go_on(given, told);
  if (result != nullptr) whole.complete();
  return result;
}

PyObject* QuickEntry::go_on(const Given& given, const nb::object& told) const {
  static PyObject* const kZero = PyLong_FromLong(0);
  const auto or_none = [](PyObject* one) { return one != nullptr ? one : Py_None; };
  PyObject* const args[] = {or_none(given.group), given.x, or_none(given.out), told.ptr(),
                            given.root != nullptr ? given.root : kZero};
  return or_stop([&] { return PyObject_Vectorcall(rest_.ptr(), args, has_root() ? 5 : 4, nullptr); });
}

// `out`, or without one a new array like x, for so many elements. Invalid if `out` has another number of them.
nb::object QuickEntry::target(PyObject* out, const ArrayView& x, uint64_t elements) {
  if (out == nullptr) return nb::steal(x.empty(elements, 1));
  const auto view = ArrayView::of(out);
  return view && view->elements() == elements ? nb::borrow(out) : nb::object();
}

// Null without an error if the ranks' blocks do not fit, or have not all come.
PyObject* QuickEntry::joined(const nb::object& told, const Given& given, const ArrayView& x) const {
  const Told& all = nb::cast<const Told&>(told);
  std::vector<uint64_t> sizes;
  if (!all.whole() || !all.agree(sizes, kFields)) return nullptr;
  uint64_t rows = 0;
  for (uint64_t& size : sizes) {
    rows += size;
    size *= size_of(x.dtype());
  }
  const nb::object result = target(given.out, x, rows);
  if (!result.is_valid()) return nullptr;
  all.join(reinterpret_cast<uintptr_t>(ArrayView::of(result.ptr())->begin()), sizes);
  return Py_NewRef(result.ptr());
}

// Null without an error if the ranks' blocks are not all alike, or nobody has asked for such ones before.
PyObject* QuickEntry::moved(const QuickCalls& calls, const nb::object& told, const Given& given,
                            const ArrayView& x) const {
  std::vector<uint64_t> sizes;
  if (!nb::cast<const Told&>(told).agree(sizes, kFields)) return nullptr;
  const bool gathers = kind_ == Kind::all_gather;
  const uint64_t rows = gathers ? x.elements() : x.elements() / sizes.size();
  if (std::ranges::any_of(sizes, [rows](uint64_t size) { return size != rows; })) return nullptr;
  const Kind kind = gathers ? Kind::long_gather : Kind::long_exchange;
  const auto request = calls.find(kind, x.elements(), static_cast<int>(x.dtype()), 0);
  if (!request) return nullptr;
  const uint64_t elements = rows * sizes.size();
  const nb::object result = target(given.out, x, elements);
  if (!result.is_valid()) return nullptr;
  const auto out = ArrayView::of(result.ptr());
  // Ranks may hold different amounts in an all_to_all: as in Python, they do not compare them.
  calls.run(*request, x.begin(), out->begin(), gathers ? elements : 0, {nb::handle(given.x), result});
  return Py_NewRef(result.ptr());
}

PyObject* QuickEntry::gathered(const QuickCalls& calls, const Given& given) const {
  const auto x = ArrayView::of(given.x);
  const auto root = which_of(given);
  const auto request = root ? calls.find(kind_, 0, 0, *root) : nullptr;
  if (!request || !x || x->dimensions() != 1) return nullptr;
  const bool mine = request->group->rank == *root;
  if (given.out != nullptr) {
    const auto out = ArrayView::of(given.out);
    if (!out) return nullptr;
    if (mine && (!out->writable() || out->dtype() != x->dtype() || out->dimensions() != 1 || x->overlaps(*out)))
      return nullptr;
  }
  const bool follows = x->bytes() + (kFields + 1) * sizeof(int64_t) <= request->spaces[1].offsets[1];
  if (follows && !calls.session()->quiet()) return nullptr;
  OneCall whole;
  const size_t ranks = request->group->ranks.size();
  std::vector<int64_t> heads;
  for (size_t i = 0; i < ranks; ++i)
    heads.insert(heads.end(), {static_cast<int64_t>(x->elements()), 1, static_cast<int64_t>(x->dtype()), 0});
  std::vector<uint64_t> sizes(ranks, 0);
  sizes[static_cast<size_t>(*root)] = x->bytes();
  const nb::object told =
      tell(calls.session(), *request, heads, reinterpret_cast<uintptr_t>(x->begin()), sizes, follows, {});
  PyObject* result = mine ? joined(told, given, *x) : nullptr;
  if (result == nullptr && PyErr_Occurred() == nullptr) result = collected(calls, told, given, *x, *root, mine);
  if (result == nullptr && PyErr_Occurred() == nullptr) result = go_on(given, told);
  if (result != nullptr) whole.complete();
  return result;
}

// Null without an error if there is nothing to collect, or as `moved`.
PyObject* QuickEntry::collected(const QuickCalls& calls, const nb::object& told, const Given& given, const ArrayView& x,
                                int root, bool mine) const {
  const Told& all = nb::cast<const Told&>(told);
  std::vector<uint64_t> rows;
  if (!all.agree(rows, kFields)) return nullptr;
  if (all.whole()) return mine ? nullptr : Py_NewRef(Py_None);
  if (std::ranges::any_of(rows, [&x](uint64_t one) { return one != x.elements(); })) return nullptr;
  const auto request = calls.find(Kind::long_collect, x.elements(), static_cast<int>(x.dtype()), root);
  if (!request) return nullptr;
  const uint64_t elements = x.elements() * rows.size();
  const nb::object result = target(mine ? given.out : nullptr, x, mine ? elements : 0);
  if (!result.is_valid()) return nullptr;
  const auto out = ArrayView::of(result.ptr());
  calls.run(*request, x.begin(), out->begin(), elements, {nb::handle(given.x), result});
  return Py_NewRef(mine ? result.ptr() : Py_None);
}

PyObject* QuickEntry::scattered(const QuickCalls& calls, const Given& given) const {
  const auto out = given.out != nullptr ? ArrayView::of(given.out) : std::nullopt;
  const auto root = which_of(given);
  const auto request = root ? calls.find(kind_, 0, 0, *root) : nullptr;
  if (!request || !out || !out->writable() || out->dimensions() != 1) return nullptr;
  const bool mine = request->group->rank == *root;
  const auto x = mine ? ArrayView::of(given.x) : out;  // others do not look at what they are given
  if (!x || x->dimensions() != 1 || (mine && x->overlaps(*out))) return nullptr;
  const uint64_t bytes = mine ? x->bytes() : 0;
  const bool follows = bytes + (2 * kFields + 1) * sizeof(int64_t) <= request->spaces[1].offsets[1];
  if (follows && !calls.session()->quiet()) return nullptr;
  OneCall whole;
  std::vector<int64_t> head{static_cast<int64_t>(out->elements()), 1, static_cast<int64_t>(out->dtype()), 0};
  head.resize(2 * kFields);
  if (mine) {
    head[kFields] = static_cast<int64_t>(x->elements());
    head[kFields + 1] = 1;
    head[kFields + 2] = static_cast<int64_t>(x->dtype());
  }
  const nb::object told =
      tell(calls.session(), *request, head, reinterpret_cast<uintptr_t>(x->begin()), {bytes}, follows, {});
  PyObject* result =
      divided(calls, told, given, *x, *out, request->group->rank, *root) ? Py_NewRef(given.out) : go_on(given, told);
  if (result != nullptr) whole.complete();
  return result;
}

// False, and nothing has happened, if the rows do not fit, or are not all alike, or nobody has asked for such before.
bool QuickEntry::divided(const QuickCalls& calls, const nb::object& told, const Given& given, const ArrayView& x,
                         const ArrayView& out, int rank, int root) const {
  const Told& all = nb::cast<const Told&>(told);
  const auto from = static_cast<size_t>(root);
  std::vector<uint64_t> rows;
  if (!all.agree(rows, kFields)) return false;
  const uint64_t total = std::accumulate(rows.begin(), rows.end(), uint64_t{0});
  if (static_cast<uint64_t>(all.field(from, kFields)) != total) return false;
  for (size_t i = 1; i < kFields; ++i)
    if (all.field(from, kFields + i) != all.field(from, i)) return false;
  if (all.whole()) {
    const uint64_t before = std::accumulate(rows.begin(), rows.begin() + rank, uint64_t{0});
    all.part(from, before * size_of(out.dtype()), out.bytes(), reinterpret_cast<uintptr_t>(out.begin()));
    return true;
  }
  if (std::ranges::any_of(rows, [&out](uint64_t one) { return one != out.elements(); })) return false;
  const auto request = calls.find(Kind::long_divide, out.elements(), static_cast<int>(out.dtype()), root);
  if (!request) return false;
  calls.run(*request, x.begin(), out.begin(), total, {nb::handle(given.x), nb::borrow(given.out)});
  return true;
}

PyObject* QuickEntry::message(const QuickCalls& calls, const Given& given) const {
  const bool receives = kind_ == Kind::recv;
  const auto x = ArrayView::of(given.x, kMostDimensions);
  const auto peer = given.root != nullptr ? which_of(given) : std::nullopt;
  const auto tag = code_of(given.tag, reinterpret_cast<PyObject*>(&PyLong_Type));
  const bool is_async = given.async == Py_True;
  if (!x || !peer || !tag || (receives && !x->writable())) return nullptr;
  if (given.async != nullptr && !is_async && given.async != Py_False) return nullptr;
  const auto request = calls.find(kind_, static_cast<uint64_t>(*tag), static_cast<int>(x->dtype()), *peer);
  if (!request) return nullptr;
  PyObject* const result = receives ? given.x : Py_None;
  if (!receives && calls.send_at_once(*request, x->begin(), x->elements()))
    return is_async ? handle_of(Py_None, result) : Py_NewRef(result);
  if (!is_async && receives && calls.receive_at_once(*request, x->begin(), x->elements())) return Py_NewRef(result);
  if (!is_async) {
    calls.run(*request, x->begin(), x->begin(), x->elements(), {nb::handle(given.x)});
    return Py_NewRef(result);
  }
  return handle_of(calls.submit(*request, x->begin(), x->elements(), given.x).ptr(), result);
}

PyObject* QuickEntry::handle_of(PyObject* work, PyObject* result) const {
  PyObject* const args[] = {work, result};
  return or_stop([&] { return PyObject_Vectorcall(rest_.ptr(), args, 2, nullptr); });
}

void bind_quick_entries(nb::module_& m) {
  nb::class_<QuickEntry>(m, "QuickEntry", "The way of a collective into the engine that needs no Python.")
      .def(
          "__init__",
          [](QuickEntry* self, std::string_view collective, nb::object jobs, nb::object copies, nb::object op,
             nb::object rest) {
            new (self) QuickEntry(QuickCalls::kind_of(collective), std::move(jobs), std::move(copies), std::move(op),
                                  std::move(rest));
          },
          nb::arg("collective"), nb::arg("jobs"), nb::arg("copies"), nb::arg("op"), nb::arg("rest") = nb::none())
      .def(
          "__call__",
          [](const QuickEntry& self, nb::args args, nb::kwargs named) -> nb::object {
            std::vector<PyObject*> given;
            for (const nb::handle one : args) given.push_back(one.ptr());
            nb::list names;
            for (const auto& [name, value] : named) {
              names.append(name);
              given.push_back(value.ptr());
            }
            PyObject* const found =
                self.call(given.data(), static_cast<Py_ssize_t>(args.size()), nb::tuple(names).ptr());
            if (found == nullptr && PyErr_Occurred() != nullptr) nb::raise_python_error();
            return found == nullptr ? nb::borrow(Py_NotImplemented) : nb::steal(found);
          },
          "What the collective returns; NotImplemented, and nothing has happened, if it is no quick call.");
}

}  // namespace slipstream
