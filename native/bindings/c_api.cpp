// The C table as a capsule, and what it asks of Python (slipstream.comm.collectives.native_calls).
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "bindings/gil.h"
#include "bindings/handle.h"
#include "bindings/module.h"
#include "capi/handle.h"
#include "capi/table.h"
#include "tensorflow/operations.h"
#include "xla/handler.h"
#include "xla/messages.h"

namespace nb = nanobind;

extern "C" __attribute__((visibility("default"))) const slipstream_api* slipstream_get_api(uint32_t version) {
  return slipstream::capi::table(version);
}

namespace slipstream {

namespace {

using capi::Answer;
using capi::Ask;
using capi::Prepared;
using capi::Range;

// What native_calls tells of an error: (code, rank, host, text). Nothing else has four parts.
[[noreturn]] void throw_told(const nb::tuple& told) {
  Error error;
  const int code = nb::cast<int>(told[0]);
  error.code = code > 0 && code <= static_cast<int>(Code::internal) ? static_cast<Code>(code) : Code::internal;
  error.rank = nb::cast<int>(told[1]);
  error.host = nb::cast<std::string>(nb::str(told[2]));
  error.text = nb::cast<std::string>(nb::str(told[3]));
  throw Failure(std::move(error));
}

// Calls Python. Throws Failure for whatever goes wrong there. Python's lock is held.
nb::object called(nb::handle function, const nb::tuple& args) {
  PyObject* const result = or_stop([&] { return PyObject_CallObject(function.ptr(), args.ptr()); });
  if (result == nullptr) {
    const nb::python_error error;
    throw Failure(Code::internal, error.what());
  }
  nb::object owned = nb::steal(result);
  if (nb::isinstance<nb::tuple>(owned) && nb::len(owned) == 4) throw_told(nb::cast<nb::tuple>(owned));
  return owned;
}

nb::object table_of(const uint64_t* counts, size_t ranks) {
  if (counts == nullptr) return nb::none();
  nb::list found;
  for (size_t r = 0; r < ranks; ++r) found.append(counts[r]);
  return found;
}

// Gives a reference back, with the lock. In a process that ends, the object stays.
void drop(nb::object object) noexcept {
  PyObject* const owned = object.release().ptr();
  if (owned == nullptr) return;
  try {
    const WithGil lock;
    or_stop([&] { Py_DECREF(owned); });
  } catch (const Failure&) {
  }
}

class PythonWatcher final : public capi::Watcher {
 public:
  explicit PythonWatcher(nb::object ran) : ran_(std::move(ran)) {}
  ~PythonWatcher() override { drop(std::move(ran_)); }
  void ran(const std::shared_ptr<Session>& session, const WorkPtr& work) noexcept override {
    try {
      const WithGil lock;
      nb::object handle = work ? nb::cast(Handle(session, work, nb::none())) : nb::none();
      called(ran_, nb::make_tuple(std::move(handle)));
    } catch (const std::exception& error) {
      log_warning(session->options().rank, std::string("internal error after an operation had begun: ") + error.what());
    }
  }

 private:
  nb::object ran_;
};

class PythonMaker final : public capi::Maker {
 public:
  explicit PythonMaker(nb::object caller) : caller_(std::move(caller)) {}
  ~PythonMaker() override { drop(std::move(caller_)); }

  Answer make(const Ask& ask) override {
    const WithGil lock;
    const slipstream_call& call = ask.call;
    const nb::object answer =
        called(caller_.attr("prepare"), nb::make_tuple(call.collective, ask.count, table_of(call.counts, ask.ranks),
                                                       table_of(call.recv_counts, ask.ranks), call.dtype, call.op,
                                                       call.root, call.tag, call.prescale, call.postscale, call.wire));
    auto prepared = std::make_shared<Prepared>(nb::cast<const CallRequest&>(answer[0]));
    prepared->count = nb::cast<int64_t>(answer[1]);
    if (const nb::object scratch = answer[2]; !scratch.is_none()) {
      prepared->scratch = nb::cast<bool>(scratch[0]) ? Prepared::Scratch::in : Prepared::Scratch::out;
      prepared->scratch_bytes = nb::cast<uint64_t>(scratch[1]);
      prepared->copy_begin = nb::cast<uint64_t>(scratch[2]);
      prepared->copy_bytes = nb::cast<uint64_t>(scratch[3]);
    }
    prepared->saved_bytes = nb::cast<uint64_t>(answer[3]);
    Answer found;
    found.keep = nb::cast<bool>(answer[4]);
    if (nb::object ran = answer[5]; !ran.is_none()) found.watcher = std::make_unique<PythonWatcher>(std::move(ran));
    found.prepared = std::move(prepared);
    return found;
  }

  void settle(const Ask& ask, const Range& in, const Range& out) override {
    const WithGil lock;
    const auto range = [](const Range& one) {
      return nb::make_tuple(reinterpret_cast<uintptr_t>(one.data), one.bytes);
    };
    called(caller_.attr("settle"),
           nb::make_tuple(ask.call.collective, ask.call.root, ask.call.tag, range(in), range(out)));
  }

 private:
  nb::object caller_;
};

slipstream_group* handle_from(const char* function, const nb::tuple& args) {
  PyObject* const module = or_stop([] { return PyImport_ImportModule("slipstream.comm.collectives.native_calls"); });
  if (module == nullptr) {
    const nb::python_error error;
    throw Failure(Code::internal, error.what());
  }
  const nb::object owned = nb::steal(module);
  const nb::object address = called(owned.attr(function), args);
  return reinterpret_cast<slipstream_group*>(nb::cast<uintptr_t>(address));
}

slipstream_group* find(uint64_t id) {
  const WithGil lock;
  return handle_from("find", nb::make_tuple(id));
}

slipstream_group* make(const int32_t* ranks, uint32_t n) {
  const WithGil lock;
  nb::list members;
  for (uint32_t i = 0; i < n; ++i) members.append(ranks[i]);
  return handle_from("make", nb::make_tuple(std::move(members)));
}

// Never freed: TensorFlow's threads may ask until the process ends.
PyObject* the_line_opener = nullptr;

void open_line(const std::string& line) {
  const WithGil lock;
  called(the_line_opener, nb::make_tuple(nb::str(line.c_str(), line.size())));
}

std::string tensorflow_operations(const std::string& library, const nb::object& open) {
  the_line_opener = nb::object(open).release().ptr();
  return tensorflow::add_operations(library.c_str(), open_line);
}

// The lines of TensorFlow's operations. A thread that has one may wait for Python's lock.
void bind_lines(nb::module_& m) {
  using tensorflow::line_of;
  m.def(
      "tensorflow_opened",
      [](const std::string& line, uintptr_t operations, uintptr_t questions) {
        const WithoutGil unlocked;
        line_of(line).opened(reinterpret_cast<slipstream_group*>(operations),
                             reinterpret_cast<slipstream_group*>(questions));
      },
      nb::arg("line"), nb::arg("operations"), nb::arg("questions"),
      "All ranks have agreed to open the line. Takes the handles of two groups, as `c_group` gives them.");
  m.def(
      "tensorflow_refused",
      [](const std::string& line, int status, const std::string& text) {
        const WithoutGil unlocked;
        line_of(line).refused(status, text);
      },
      nb::arg("line"), nb::arg("status"), nb::arg("text"), "The line was not opened, as this error says.");
  m.def(
      "tensorflow_join",
      [](const std::string& line) {
        const WithoutGil unlocked;
        line_of(line).join();
      },
      nb::arg("line"), "This rank takes part in what the others start on the line, until all ranks have called this.");
  m.def(
      "tensorflow_forget",
      [](const std::string& line) {
        const WithoutGil unlocked;
        line_of(line).forget();
      },
      nb::arg("line"), "The process has left the job of this line.");
  m.def(
      "tensorflow_give_up",
      [](const std::string& line, uint64_t since, bool certain, bool later) {
        const WithoutGil unlocked;
        line_of(line).give_up(since, certain, later);
      },
      nb::arg("line"), nb::arg("since"), nb::arg("certain"), nb::arg("later"),
      "A run of a function that has operations on the line has failed; it began when `tensorflow_starts` was `since`, "
      "and no other such function ran at the same time. `certain`: it would have come to such an operation. `later`: "
      "the other ranks need not hear of it before this one starts something else.");
  m.def(
      "tensorflow_starts", [] { return reinterpret_cast<uintptr_t>(&tensorflow::starts()); },
      "The address of a uint64: how many operations the process has started on all lines.");
  m.def("tensorflow_joining", &tensorflow::set_joining, nb::arg("joining"),
        "Whether this rank is in join: meanwhile, operations on lines that have joined fail.");
  m.def("tensorflow_helped", &tensorflow::helped,
        "In how many operations of other ranks this process has taken part, as it had joined.");
}

void bind_tensorflow(nb::module_& m) {
  m.def(
      "tensorflow_operations", &tensorflow_operations, nb::arg("library"), nb::arg("open"),
      "Adds SlipstreamStart, SlipstreamOpen and SlipstreamWait to the TensorFlow whose library is this file; once in a "
      "process. `open` has the ranks agree that there is a line, and returns what is wrong, or None; later it calls "
      "`tensorflow_opened` or `tensorflow_refused`. Returns what is wrong, or an empty text.");
  m.def(
      "tensorflow_cancellation",
      [](const std::string& library, const nb::bytes& config, int rank) {
        return tensorflow::watch_steps(library.c_str(), std::string(config.c_str(), config.size()), rank);
      },
      nb::arg("library"), nb::arg("config"), nb::arg("rank"),
      "Has SlipstreamWait look whether its step is cancelled; once, after `tensorflow_operations`. `library`: that of "
      "the eager C interface; `config`: a serialised ConfigProto; `rank`: of messages. Makes no context of TensorFlow "
      "before a graph runs. Returns what is wrong, or an empty text.");
  m.def(
      "tensorflow_end",
      [](int64_t ticket, int code, std::string text) {
        const WithoutGil unlocked;  // what waits for it goes on in this thread
        return tensorflow::end_ticket(ticket, {code, std::move(text)});
      },
      nb::arg("ticket"), nb::arg("code") = 0, nb::arg("text") = "",
      "The ticket that SlipstreamOpen has made is over: well, or with an error of TensorFlow's. Returns whether its "
      "graph "
      "still has it.");
  m.def("tensorflow_has", &tensorflow::is_open, nb::arg("ticket"), "Whether the graph of this ticket still has it.");
}

// The session for C, whose threads may give it back last. A pointer that nanobind has made takes Python's lock in a
// function that is noexcept (gil.h), so whoever has it takes the lock before. In a process that ends, it stays.
std::shared_ptr<Session> for_c(const std::shared_ptr<Session>& session) {
  auto* const held = new std::shared_ptr<Session>(session);
  return {session.get(), [held](Session*) {
            try {
              const WithGil lock;
              delete held;
            } catch (const Failure&) {
            }
          }};
}

uintptr_t c_group(const std::shared_ptr<Session>& session, const std::shared_ptr<Group>& group, nb::object caller) {
  return reinterpret_cast<uintptr_t>(
      capi::handle_of(for_c(session), group, std::make_unique<PythonMaker>(std::move(caller))));
}

}  // namespace

void bind_c_api(nb::module_& m) {
  capi::set_finders(find, make);
  m.def(
      "c_api", [] { return nb::capsule(capi::table(SLIPSTREAM_API_VERSION), SLIPSTREAM_API_CAPSULE); },
      "The table of slipstream.h, as a capsule.");
  m.def(
      "xla_handler", [] { return nb::capsule(reinterpret_cast<void*>(&xla::call), "xla._CUSTOM_CALL_TARGET"); },
      "What XLA's FFI calls for the operations of slipstream.jax.");
  m.def("xla_forget_messages", &xla::forget_messages,
        "Drops the messages of slipstream.mpi4jax that have come and were not received.");
  bind_tensorflow(m);
  bind_lines(m);
  m.def("c_group", &c_group, nb::arg("session"), nb::arg("group"), nb::arg("caller"),
        "The address of C's handle of a group, a new reference. `caller` answers for the group.");
  m.def(
      "c_release", [](uintptr_t group) { capi::release(reinterpret_cast<slipstream_group*>(group)); }, nb::arg("group"),
      "Gives back what `c_group` has given; 0 is allowed.");
  m.def("c_forget_kept", &capi::forget_kept, nb::arg("id"), "The plans of the group have changed.");
  m.def("c_forget_world", &capi::forget_world, nb::arg("id"), "The process has left the job of this world.");
  m.def("c_saved_bytes", &capi::saved_bytes, "Bytes that wire types have saved in calls of C, so far.");
  m.def("note_copies", &capi::note_copies, nb::arg("more"), "So many more results are still to be copied.");
}

}  // namespace slipstream
