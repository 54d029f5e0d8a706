// The interpreter's lock (GIL), as native code gives it away and takes it back.
//
// Python before 3.14 ends a thread that asks for the lock while the interpreter finalizes: pthread_exit unwinds the
// thread's stack. nanobind's functions are noexcept, so that unwinding would end the process with SIGABRT, although
// the job went well. It happens to daemon threads that are in an operation when the main thread ends. Such a thread
// stops here instead, and is gone with the process a moment later. At that point it holds no lock of the engine and
// does not drive it.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <exception>
#include <type_traits>

#include "base/error.h"

namespace slipstream {

[[noreturn]] inline void stop_for_ever() {
  for (;;) ::pause();
}

inline bool finalizing() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing() != 0;
#elif !defined(Py_LIMITED_API)
  return _Py_IsFinalizing() != 0;
#else
  return false;
#endif
}

// Runs f(), which may take the lock or run Python code: Python code gives the lock away now and then and asks for it
// again. The interpreter may begin to finalize at any moment, so asking first whether it does is not enough.
//
// A destructor notices the unwinding, and not a handler: whoever catches what is no C++ exception inside the handler of
// one ends the process, and Python's exceptions are made in such a handler (errors.cpp). C's frames have no
// destructors, so f() must have none either while Python runs: one would change Python's objects without the lock.
//
// Never inlined: in a function that is noexcept the compiler leaves out what a destructor does before the process ends.
template <class F>
[[gnu::noinline]] decltype(auto) or_stop(F f) {
  struct Watch {
    const int thrown = std::uncaught_exceptions();
    bool returned = false;
    ~Watch() {
      // f() has not returned, and has not thrown: the thread's stack is unwound.
      if (!returned && std::uncaught_exceptions() == thrown) stop_for_ever();
    }
  } watch;
  if constexpr (std::is_void_v<decltype(f())>) {
    f();
    watch.returned = true;
  } else {
    decltype(auto) result = f();
    watch.returned = true;
    return result;
  }
}

// Without the lock while it lives. Instead of nanobind's gil_scoped_release, everywhere.
class WithoutGil {
 public:
  WithoutGil() : finalizer_(finalizing()), state_(PyEval_SaveThread()) {}
  ~WithoutGil() {
    if (finalizing() && !finalizer_) stop_for_ever();  // the thread's state may have been freed
    or_stop([this] { PyEval_RestoreThread(state_); });
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

 private:
  // Who has the lock while the interpreter finalizes is the thread that finalizes it, and goes on: it runs what the
  // program's __del__ methods call.
  const bool finalizer_;
  PyThreadState* state_;
};

// Python's lock, in whichever thread C has called. Refused where the interpreter is not there, or ends.
class WithGil {
 public:
  WithGil() {
    if (Py_IsInitialized() == 0 || finalizing())
      throw Failure(Code::aborted, "the Python interpreter of this process ends, and with it the job");
    or_stop([this] { state_ = PyGILState_Ensure(); });
  }
  ~WithGil() { PyGILState_Release(state_); }
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;

 private:
  PyGILState_STATE state_{};
};

}  // namespace slipstream
