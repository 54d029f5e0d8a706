#include "tensorflow/abi.h"

#include <dlfcn.h>

namespace slipstream::tensorflow {

namespace {

class Library {
 public:
  explicit Library(const char* path) : handle_(::dlopen(path, RTLD_LAZY | RTLD_NOLOAD)) {}
  bool loaded() const { return handle_ != nullptr; }
  const std::string& missing() const { return missing_; }

  template <class F>
  void find(F& function, const char* name) {
    function = reinterpret_cast<F>(::dlsym(handle_, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }

 private:
  void* const handle_;  // stays open: kernels are called as long as the process lives
  std::string missing_;
};

void find_operations(Library& library, Api& to) {
  library.find(to.new_op, "TF_NewOpDefinitionBuilder");
  library.find(to.register_op, "TF_RegisterOpDefinition");
  library.find(to.add_attribute, "TF_OpDefinitionBuilderAddAttr");
  library.find(to.add_input, "TF_OpDefinitionBuilderAddInput");
  library.find(to.add_output, "TF_OpDefinitionBuilderAddOutput");
  library.find(to.set_stateful, "TF_OpDefinitionBuilderSetIsStateful");
  library.find(to.set_shapes, "TF_OpDefinitionBuilderSetShapeInferenceFunction");
  library.find(to.shape_inputs, "TF_ShapeInferenceContextNumInputs");
  library.find(to.new_shape, "TF_NewShapeHandle");
  library.find(to.delete_shape, "TF_DeleteShapeHandle");
  library.find(to.input_shape, "TF_ShapeInferenceContextGetInput");
  library.find(to.output_shape, "TF_ShapeInferenceContextSetOutput");
  library.find(to.scalar_shape, "TF_ShapeInferenceContextScalar");
}

void find_kernels(Library& library, Api& to) {
  library.find(to.new_kernel, "TF_NewKernelBuilder");
  library.find(to.new_async_kernel, "TF_NewAsyncKernelBuilder");
  library.find(to.register_kernel, "TF_RegisterKernelBuilder");
  library.find(to.attribute_size, "TF_OpKernelConstruction_GetAttrSize");
  library.find(to.attribute_text, "TF_OpKernelConstruction_GetAttrString");
  library.find(to.attribute_numbers, "TF_OpKernelConstruction_GetAttrInt64List");
  library.find(to.construction_failed, "TF_OpKernelConstruction_Failure");
  library.find(to.inputs, "TF_NumInputs");
  library.find(to.input, "TF_GetInput");
  library.find(to.set_output, "TF_SetOutput");
  library.find(to.forward_or_allocate, "TF_ForwardInputOrAllocateOutput");
  library.find(to.failed, "TF_OpKernelContext_Failure");
  library.find(to.step, "TF_StepId");
}

}  // namespace

std::string look_up(const char* path, Api& found) {
  Library library(path);
  if (!library.loaded()) return std::string(path) + " is not loaded";
  library.find(found.new_status, "TF_NewStatus");
  library.find(found.delete_status, "TF_DeleteStatus");
  library.find(found.set_status, "TF_SetStatus");
  library.find(found.code_of, "TF_GetCode");
  library.find(found.text_of, "TF_Message");
  library.find(found.new_tensor, "TF_NewTensor");
  library.find(found.delete_tensor, "TF_DeleteTensor");
  library.find(found.dtype, "TF_TensorType");
  library.find(found.rank, "TF_NumDims");
  library.find(found.dim, "TF_Dim");
  library.find(found.bytes, "TF_TensorByteSize");
  library.find(found.data, "TF_TensorData");
  library.find(found.elements, "TF_TensorElementCount");
  find_operations(library, found);
  find_kernels(library, found);
  return library.missing().empty() ? "" : "TensorFlow has no " + library.missing();
}

}  // namespace slipstream::tensorflow
