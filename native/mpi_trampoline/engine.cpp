#include "mpi_trampoline/engine.h"

#include <dlfcn.h>

#include <atomic>
#include <cstring>
#include <mutex>

#include "mpi_trampoline/abi.h"
#include "mpi_trampoline/error.h"
#include "mpi_trampoline/local_waits.h"

namespace slipstream::mpi {
namespace {

std::atomic<const slipstream_api*> table{nullptr};
std::atomic<double> seconds_to_gather{300.0};
std::atomic<double> seconds_of_operations{1800.0};
std::mutex mutex;
std::string reason = "MPI_Init has not been called";  // under the mutex

// The functions of Python's stable interface that are needed. The process has them: jaxlib is a module of Python.
struct Python {
  using Object = void*;
  int (*is_initialized)();
  int (*has_lock)();
  void* (*save)();
  void (*restore)(void*);
  int (*ensure)();
  void (*release)(int);
  Object (*import)(const char*);
  Object (*call)(Object, const char*, const char*, ...);
  void* (*pointer)(Object, const char*);
  double (*as_double)(Object);
  const char* (*text)(Object, void*);
  void (*decref)(Object);
  void (*print_error)();
  void (*clear_error)();

  bool load() {
    return find(is_initialized, "Py_IsInitialized") && find(has_lock, "PyGILState_Check") &&
           find(save, "PyEval_SaveThread") && find(restore, "PyEval_RestoreThread") &&
           find(ensure, "PyGILState_Ensure") && find(release, "PyGILState_Release") &&
           find(import, "PyImport_ImportModule") && find(call, "PyObject_CallMethod") &&
           find(pointer, "PyCapsule_GetPointer") && find(as_double, "PyFloat_AsDouble") &&
           find(text, "PyUnicode_AsUTF8AndSize") && find(decref, "Py_DecRef") && find(print_error, "PyErr_Print") &&
           find(clear_error, "PyErr_Clear");
  }

 private:
  template <class F>
  static bool find(F& function, const char* name) {
    function = reinterpret_cast<F>(::dlsym(RTLD_DEFAULT, name));
    return function != nullptr;
  }
};

class WithGil {
 public:
  explicit WithGil(const Python& python) : python_(python), state_(python.ensure()) {}
  ~WithGil() { python_.release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  const Python& python_;
  const int state_;
};

constexpr const char* kModule = "slipstream.faces.mpi_trampoline";

// Seconds that a function of the module gives; false, and a traceback, if it fails.
bool seconds_of(const Python& py, Python::Object module, const char* function, double* seconds) {
  Python::Object said = module ? py.call(module, function, nullptr) : nullptr;
  if (!said) {
    py.print_error();
    return false;
  }
  *seconds = py.as_double(said);
  py.decref(said);
  return true;
}

struct Found {
  const slipstream_api* table = nullptr;
  double to_gather = seconds_to_gather;
  double of_operations = seconds_of_operations;
};

// Why the table cannot be had; empty if it can. `found` is what the module says.
std::string ask(const Python& py, Found* found) {
  const WithGil gil(py);
  Python::Object module = py.import(kModule);
  if (!module) {
    py.print_error();
    return std::string("this process's Python cannot import ") + kModule + ": install slipstream there";
  }
  std::string why;
  bool told = true;
  // It gives the capsule, or says in words what is wrong.
  Python::Object given = py.call(module, "start", nullptr);
  if (const char* said = given ? py.text(given, nullptr) : nullptr) {
    why = said;
  } else if (given) {
    py.clear_error();  // it is no text
    found->table = static_cast<const slipstream_api*>(py.pointer(given, SLIPSTREAM_API_CAPSULE));
    if (!found->table) py.clear_error();
    if (const char* problem = slipstream_api_problem(found->table)) why = problem;
    told = seconds_of(py, module, "gathering_seconds", &found->to_gather) &&
           seconds_of(py, module, "operation_seconds", &found->of_operations);
  } else {
    py.print_error();
    told = false;
  }
  if (why.empty() && !told) why = std::string(kModule) + " has failed; standard error has its traceback";
  if (given) py.decref(given);
  py.decref(module);
  return why;
}

// The text that a function of the module gives; empty if it fails.
template <class... Arguments>
std::string said_by(const char* function, const char* format, Arguments... arguments) {
  Python py;
  if (!engine() || !py.load() || !py.is_initialized()) return {};
  const WithGil gil(py);
  Python::Object module = py.import(kModule);
  Python::Object given = module ? py.call(module, function, format, arguments...) : nullptr;
  const char* said = given ? py.text(given, nullptr) : nullptr;
  std::string found = said ? said : "";
  if (!said) py.print_error();
  if (given) py.decref(given);
  if (module) py.decref(module);
  return found;
}

std::string named(int32_t status, const char* text) {
  static constexpr const char* kNames[] = {nullptr,   "PeerLost", "Mismatch", "Timeout",
                                           "Refused", "Aborted",  "Invalid",  "Internal"};
  const char* name = status > 0 && status < 8 ? kNames[status] : "Error";
  if (std::strncmp(text, name, std::strlen(name)) == 0) return text;
  return std::string(name) + ": " + text;
}

}  // namespace

int start_engine() noexcept {
  Python python;
  std::string why;
  Found found;
  if (!python.load() || !python.is_initialized()) {
    why = "slipstream's MPI library works in a process of Python, and this is none";
  } else {
    why = ask(python, &found);
  }
  const std::lock_guard lock(mutex);
  if (!why.empty()) {
    reason = why;
    return fail(MPI_ERR_OTHER, why);
  }
  seconds_to_gather = found.to_gather;
  seconds_of_operations = found.of_operations;
  table.store(found.table, std::memory_order_release);
  return MPI_SUCCESS;
}

double parting_seconds() noexcept {
  Python py;
  if (!engine() || !py.load() || !py.is_initialized()) return 0.0;
  const WithGil gil(py);
  Python::Object module = py.import(kModule);
  double seconds = 0.0;
  seconds_of(py, module, "parting_seconds", &seconds);
  if (module) py.decref(module);
  return seconds;
}

std::string process_number() noexcept { return said_by("process_number", nullptr); }

void watch_jax(const std::string& numbers) noexcept { said_by("watch_jax", "s", numbers.c_str()); }

std::string group_made_now(int first, int place) noexcept { return said_by("group_made_now", "ii", first, place); }

std::string group_sizes(int first, int place, const std::string& made) noexcept {
  return said_by("group_sizes", "iis", first, place, made.c_str());
}

WithoutGil::WithoutGil() noexcept {
  Python py;
  if (py.load() && py.is_initialized() && py.has_lock()) state_ = py.save();
}

WithoutGil::~WithoutGil() {
  Python py;
  if (state_ && py.load()) py.restore(state_);
}

void stop_engine() noexcept {
  table.store(nullptr, std::memory_order_release);
  const std::lock_guard lock(mutex);
  reason = "MPI_Finalize has been called";
}

const slipstream_api* engine() noexcept { return table.load(std::memory_order_acquire); }

double gathering_seconds() noexcept { return seconds_to_gather; }

double operation_seconds() noexcept { return seconds_of_operations; }

std::string why_no_engine() {
  const std::lock_guard lock(mutex);
  return reason;
}

int code_of(int32_t status, const char* function, const std::string& missing) noexcept {
  if (status == SLIPSTREAM_OK) return MPI_SUCCESS;
  const slipstream_api* api = engine();
  if (!api) return fail(MPI_ERR_OTHER, std::string(function) + ": " + why_no_engine());
  const char* said = api->last_error();
  std::string text = named(status, said ? said : "");
  if ((status == SLIPSTREAM_TIMEOUT_ERROR || status == SLIPSTREAM_MISMATCH) && !missing.empty()) {
    const size_t name = text.find(':');
    text = text.substr(0, name) + ": " + missing + text.substr(name);
  }
  text.append(" (").append(function).append(")");
  // All other errors are the job's.
  if (status != SLIPSTREAM_INVALID) fail_local_waits(text);
  return fail(status == SLIPSTREAM_INVALID ? MPI_ERR_ARG : MPI_ERR_OTHER, std::move(text));
}

}  // namespace slipstream::mpi
