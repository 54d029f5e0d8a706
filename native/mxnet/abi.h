// MXNet's C interface, as far as it is needed to have operations run by MXNet's engine. Nothing of MXNet is needed to
// compile, and nothing is linked: the functions are looked up in the library that the process has loaded.
//
// Three things are no part of that interface, and may differ in another release: what the engine gives to a function to
// tell that it is done, the layout of an error, and that an array begins with the address of its memory's chunk. So one
// release alone is served (kRelease).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace slipstream::mxnet {

inline constexpr int kRelease = 10901;

struct NDArray;
struct Chunk;  // the memory that an array and its views share
struct Problem;
struct Device {
  int32_t type, number;  // MXNet's Context
};

inline constexpr int kPrioritized = 3;  // a property of functions: they run beside those that compute

struct Api {
  int (*version)(int* found);
  const char* (*last_error)();
  // `run(engine, done, param)` is called by a thread of the engine when all that was pushed before it and uses the
  // arrays is done; `done` is a Done, which is only there during the call. `forget(param)` is called at its end, or
  // where run() is left out because one of the arrays carries an error.
  int (*push)(void (*run)(void*, void*, void*), void* param, void (*forget)(void*), const Device*, NDArray** read,
              int reads, NDArray** written, int writes, const int* property, int priority, const char* name, bool wait);
  int (*shallow_copy)(NDArray*, NDArray** copy);
  int (*free)(NDArray*);
  int (*shape)(NDArray*, int* dims, const int** sizes);
  int (*dtype)(NDArray*, int*);
  int (*device)(NDArray*, int* type, int* number);
  int (*storage)(NDArray*, int*);
  int (*data)(NDArray*, void**);  // waits for the array, if oneDNN keeps it in a layout of its own

  // Of a chunk that nobody else uses now. Null where MXNet was built without oneDNN.
  bool (*has_own_layout)(const Chunk*);
  void (*to_common_layout)(Chunk*);
  // What a Done of this release begins with.
  void (*end)(void* engine, void* operation, const Problem*);
};

// How the engine is told that a function is done.
struct Done {
  void (*end)(void* engine, void* operation, const Problem*);
  void* engine;
  void* operation;
};

// Looks all of it up in the library of this file, which the process has loaded. Returns what is wrong, or "".
std::string look_up(const char* library, Api& found);

// An error with this text, laid out as the C++ library lays out a std::runtime_error, which MXNet's errors are: the
// address of a table, which nobody reads as MXNet copies the error by its own type, and that of a text. Copying takes
// a text of its own, as the count before it says that it cannot be shared.
class LaidOut {
 public:
  explicit LaidOut(const std::string& text);
  const Problem* error() const { return reinterpret_cast<const Problem*>(words_); }

 private:
  std::string memory_;
  const void* words_[2] = {nullptr, nullptr};
};

}  // namespace slipstream::mxnet
