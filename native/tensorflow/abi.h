// TensorFlow's C interface for operations and kernels, as far as it is needed. TensorFlow keeps it compatible, and all
// its types are opaque, so that nothing of it is needed to compile, and nothing is linked: the functions are looked up
// in the library that the process has loaded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace slipstream::tensorflow {

struct Status;
struct Tensor;
struct OpBuilder;
struct KernelBuilder;
struct Construction;
struct Context;
struct ShapeContext;
struct ShapeHandle;

// What an asynchronous kernel gets is the address of a std::function in a frame that ends when the kernel returns, so
// it has to be copied. The class has kept its layout in all releases of the C++ library that TensorFlow is built with.
using Done = std::function<void()>;

// Codes of errors.
inline constexpr int kOk = 0, kCancelled = 1, kUnknown = 2, kInvalidArgument = 3, kFailedPrecondition = 9;
inline constexpr int kInt64 = 9;  // a dtype

// Statuses and tensors.
struct Values {
  Status* (*new_status)();
  void (*delete_status)(Status*);
  void (*set_status)(Status*, int code, const char* text);
  int (*code_of)(const Status*);
  const char* (*text_of)(const Status*);

  Tensor* (*new_tensor)(int dtype, const int64_t* dims, int rank, void* data, size_t bytes,
                        void (*free)(void* data, size_t bytes, void* user), void* user);
  void (*delete_tensor)(Tensor*);
  int (*dtype)(const Tensor*);
  int (*rank)(const Tensor*);
  int64_t (*dim)(const Tensor*, int index);
  size_t (*bytes)(const Tensor*);
  void* (*data)(const Tensor*);
  int64_t (*elements)(const Tensor*);
};

// Declaring operations.
struct Declarations {
  OpBuilder* (*new_op)(const char* name);
  void (*register_op)(OpBuilder*, Status*);  // which takes it
  void (*add_attribute)(OpBuilder*, const char* text);
  void (*add_input)(OpBuilder*, const char* text);
  void (*add_output)(OpBuilder*, const char* text);
  void (*set_stateful)(OpBuilder*, bool);
  void (*set_shapes)(OpBuilder*, void (*infer)(ShapeContext*, Status*));
  int64_t (*shape_inputs)(ShapeContext*);
  ShapeHandle* (*new_shape)();
  void (*delete_shape)(ShapeHandle*);
  void (*input_shape)(ShapeContext*, int index, ShapeHandle*, Status*);
  void (*output_shape)(ShapeContext*, int index, ShapeHandle*, Status*);
  ShapeHandle* (*scalar_shape)(ShapeContext*);
};

// Making kernels.
struct Kernels {
  KernelBuilder* (*new_kernel)(const char* op, const char* device, void* (*create)(Construction*),
                               void (*compute)(void* kernel, Context*), void (*destroy)(void* kernel));
  KernelBuilder* (*new_async_kernel)(const char* op, const char* device, void* (*create)(Construction*),
                                     void (*compute)(void* kernel, Context*, Done*), void (*destroy)(void* kernel));
  void (*register_kernel)(const char* name, KernelBuilder*, Status*);  // which takes it
  void (*attribute_size)(Construction*, const char* name, int32_t* count, int32_t* bytes, Status*);
  void (*attribute_text)(Construction*, const char* name, char* text, size_t most, Status*);
  void (*attribute_numbers)(Construction*, const char* name, int64_t* numbers, int most, Status*);
  void (*construction_failed)(Construction*, Status*);
};

// What a kernel that runs may ask for.
struct Running {
  int (*inputs)(Context*);
  void (*input)(Context*, int index, Tensor**, Status*);  // a new reference
  void (*set_output)(Context*, int index, const Tensor*, Status*);
  // The memory of an input that nobody else uses, or new memory; a new reference.
  Tensor* (*forward_or_allocate)(Context*, const int* candidates, int count, int output, const int64_t* dims, int rank,
                                 int* forwarded, Status*);
  void (*failed)(Context*, Status*);
  int64_t (*step)(Context*);  // another number for each run of a function or a session
};

struct Api : Values, Declarations, Kernels, Running {};

// Looks all of them up in the library of this file, which the process has loaded. Returns what is wrong, or "".
std::string look_up(const char* library, Api& found);

// A status that is freed at its end.
class Outcome {
 public:
  explicit Outcome(const Api& tf) : tf_(tf), status_(tf.new_status()) {}
  ~Outcome() { tf_.delete_status(status_); }
  Outcome(const Outcome&) = delete;
  Status* get() const { return status_; }
  bool ok() const { return tf_.code_of(status_) == 0; }
  const char* text() const { return tf_.text_of(status_); }
  Status* as(int code, const char* text) const {
    tf_.set_status(status_, code, text);
    return status_;
  }

 private:
  const Api& tf_;
  Status* const status_;
};

}  // namespace slipstream::tensorflow
