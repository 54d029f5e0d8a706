// What XLA's FFI calls a handler with: the C structs of its version 0.1, as far as they are needed. XLA keeps them
// compatible, so that nothing of it is needed to compile, and nothing is linked.
#pragma once

#include <cstddef>
#include <cstdint>

namespace slipstream::xla {

struct Error;
struct Future;
struct Context;

struct Extension {
  size_t struct_size;
  int type;
  Extension* next;
};
inline constexpr int kMetadata = 1;

struct Version {
  size_t struct_size;
  Extension* extension;
  int major;
  int minor;
};

// Asked for before any call.
struct Metadata {
  size_t struct_size;
  Version version;
  uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

struct Buffer {
  size_t struct_size;
  Extension* extension;
  int dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

struct Buffers {  // arguments and results have the same form
  size_t struct_size;
  Extension* extension;
  int64_t size;
  int* types;
  void** values;
};

struct Array {
  int dtype;
  size_t size;
  void* data;
};
inline constexpr int kArray = 1;  // a type of attribute

struct Attributes {
  size_t struct_size;
  Extension* extension;
  int64_t size;
  int* types;
  void** names;
  void** values;
};

struct ErrorCreate {
  size_t struct_size;
  Extension* extension;
  const char* message;
  int code;
};
struct FutureCreate {
  size_t struct_size;
  Extension* extension;
  Future* future;
};
struct FutureAvailable {
  size_t struct_size;
  Extension* extension;
  Future* future;
};
struct FutureError {
  size_t struct_size;
  Extension* extension;
  Future* future;
  Error* error;
};

struct Api {
  size_t struct_size;
  Extension* extension;
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorCreate*);
  void* others[12];  // of errors, handlers, streams, types, state, device memory and the thread pool
  Error* (*future_create)(FutureCreate*);
  Error* (*future_available)(FutureAvailable*);
  Error* (*future_error)(FutureError*);
};

struct CallFrame {
  size_t struct_size;
  Extension* extension;
  const Api* api;
  Context* context;
  int stage;
  Buffers args;
  Buffers results;
  Attributes attributes;
  Future* future;  // out
};
inline constexpr int kExecute = 3;  // a stage

inline constexpr int kInvalidArgument = 3, kDeadlineExceeded = 4, kAborted = 10, kInternal = 13;  // codes of errors

}  // namespace slipstream::xla
