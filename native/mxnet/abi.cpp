#include "mxnet/abi.h"

#include <dlfcn.h>

#include <cstring>

namespace slipstream::mxnet {

namespace {

// Before a text: its length, its room and how many share it, of which -1 stands for "nobody may".
struct Head {
  size_t length, room;
  int32_t sharers;
};
static_assert(sizeof(Head) == 3 * sizeof(size_t));

}  // namespace

std::string look_up(const char* path, Api& found) {
  void* const library = ::dlopen(path, RTLD_LAZY | RTLD_NOLOAD);  // stays open
  if (library == nullptr) return std::string(path) + " is not loaded";
  std::string missing;
  const auto find = [&](auto& function, const char* name, bool needed = true) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr && needed && missing.empty()) missing = name;
  };
  find(found.version, "MXGetVersion");
  find(found.last_error, "MXGetLastError");
  find(found.push, "MXEnginePushAsyncND");
  find(found.shallow_copy, "MXShallowCopyNDArray");
  find(found.free, "MXNDArrayFree");
  find(found.shape, "MXNDArrayGetShapeEx");
  find(found.dtype, "MXNDArrayGetDType");
  find(found.device, "MXNDArrayGetContext");
  find(found.storage, "MXNDArrayGetStorageType");
  find(found.data, "MXNDArrayGetData");
  find(found.has_own_layout, "_ZNK5mxnet7NDArray5Chunk8IsMKLDNNEv", false);
  find(found.to_common_layout, "_ZN5mxnet7NDArray5Chunk15Reorder2DefaultEv", found.has_own_layout != nullptr);
  // Its name tells the types of its arguments.
  find(found.end, "_ZN5mxnet6engine14ThreadedEngine16OnCompleteStaticEPNS_6EngineEPvPKN4dmlc5ErrorE");
  if (!missing.empty()) return "MXNet has no " + missing;
  int release = 0;
  if (found.version(&release) != 0 || release != kRelease)
    return "they are for MXNet " + std::to_string(kRelease) + ", and this is " + std::to_string(release);
  return "";
}

LaidOut::LaidOut(const std::string& text) {
  const Head head{text.size(), text.size(), -1};
  memory_.resize(sizeof head + text.size() + 1);  // with a zero at the end
  std::memcpy(memory_.data(), &head, sizeof head);
  text.copy(memory_.data() + sizeof head, text.size());
  words_[1] = memory_.data() + sizeof head;
}

}  // namespace slipstream::mxnet
