#include "tensorflow/cancellation.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "base/log.h"

namespace slipstream::tensorflow {

namespace {

constexpr const char* kProbe = "SlipstreamProbe";
// Words (8 bytes) that are looked at: a kernel's context begins with a status and the address of its parameters.
constexpr size_t kContextWords = 4, kParameterWords = 64;

// TensorFlow's eager C interface. Its types are opaque.
struct Callback {
  void (*call)(void* context);
  void* context;
};
struct Eager {
  void* (*new_manager)();
  void (*delete_manager)(void*);
  int64_t (*new_token)(void* manager);
  bool (*register_callback)(void* manager, int64_t token, const Callback*, const char* name);
  bool (*deregister_callback)(void* manager, int64_t token);
  void* (*new_options)();
  void (*delete_options)(void*);
  void (*set_config)(void* options, const void* proto, size_t bytes, Status*);
  void* (*new_context)(const void* options, Status*);
  void (*delete_context)(void*);
  void* (*new_op)(void* context, const char* name, Status*);
  void (*delete_op)(void*);
  void (*set_device)(void* op, const char* device, Status*);
  void (*set_manager)(void* op, void* manager, Status*);
  void (*execute)(void* op, void** results, int* count, Status*);
};

struct Place {
  size_t parameters, manager;  // words
};

// What the search needs.
struct Search {
  const Api* tf = nullptr;  // none: it is not to be looked for
  std::string config;
  int rank = 0;
};

Eager eager;
Search search;
std::once_flag searched;
std::optional<Place> place;

// Of the probe that runs: what it looks for, and what it has found.
const void* looked_for = nullptr;
std::optional<Place> seen;

bool look_up(const char* path, std::string& missing) {
  void* const library = ::dlopen(path, RTLD_LAZY | RTLD_NOLOAD);  // stays open
  if (library == nullptr) {
    missing = std::string(path) + " is not loaded";
    return false;
  }
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    if (function == nullptr && missing.empty()) missing = std::string("TensorFlow has no ") + name;
  };
  find(eager.new_manager, "TFE_NewCancellationManager");
  find(eager.delete_manager, "TFE_DeleteCancellationManager");
  find(eager.new_token, "TFE_CancellationManagerGetToken");
  find(eager.register_callback, "TFE_CancellationManagerRegisterCallback");
  find(eager.deregister_callback, "TFE_CancellationManagerDeregisterCallback");
  find(eager.new_options, "TFE_NewContextOptions");
  find(eager.delete_options, "TFE_DeleteContextOptions");
  find(eager.set_config, "TFE_ContextOptionsSetConfig");
  find(eager.new_context, "TFE_NewContext");
  find(eager.delete_context, "TFE_DeleteContext");
  find(eager.new_op, "TFE_NewOp");
  find(eager.delete_op, "TFE_DeleteOp");
  find(eager.set_device, "TFE_OpSetDevice");
  find(eager.set_manager, "TFE_OpSetCancellationManager");
  find(eager.execute, "TFE_Execute");
  return missing.empty();
}

// Reads memory that may not be there: the kernel says so of what is written to a pipe.
template <size_t kWords>
size_t read_words(const void* from, std::array<const void*, kWords>& to) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return 0;
  const ssize_t written = ::write(ends[1], from, sizeof to);
  const ssize_t got = written <= 0 ? 0 : ::read(ends[0], to.data(), static_cast<size_t>(written));
  ::close(ends[0]);
  ::close(ends[1]);
  return got <= 0 ? 0 : static_cast<size_t>(got) / sizeof(void*);
}

void compute_probe(void*, Context* context) {
  std::array<const void*, kContextWords> own{};
  const size_t words = read_words(context, own);
  for (size_t i = 0; i < words; ++i) {
    if (reinterpret_cast<uintptr_t>(own[i]) % alignof(void*) != 0) continue;
    std::array<const void*, kParameterWords> parameters{};
    const size_t count = read_words(own[i], parameters);
    for (size_t j = 0; j < count; ++j) {
      if (parameters[j] != looked_for) continue;
      seen = Place{i, j};
      return;
    }
  }
}

void add_probe(const Api& tf, const Outcome& outcome) {
  OpBuilder* const op = tf.new_op(kProbe);
  tf.set_stateful(op, true);
  tf.set_shapes(op, [](ShapeContext*, Status*) {});
  tf.register_op(op, outcome.get());
  if (!outcome.ok()) return;
  KernelBuilder* const kernel =
      tf.new_kernel(kProbe, "CPU", [](Construction*) -> void* { return nullptr; }, compute_probe, [](void*) {});
  tf.register_kernel(kProbe, kernel, outcome.get());
}

void run_probe(void* context, void* manager, const Outcome& outcome) {
  looked_for = manager;
  seen.reset();
  void* const op = eager.new_op(context, kProbe, outcome.get());
  if (outcome.ok()) eager.set_device(op, "/device:CPU:0", outcome.get());
  if (outcome.ok()) eager.set_manager(op, manager, outcome.get());
  int results = 0;
  if (outcome.ok()) eager.execute(op, nullptr, &results, outcome.get());
  if (op != nullptr) eager.delete_op(op);
}

// With two managers that live at the same time: a word that holds the first one's address by chance, and is left from
// before, does not hold the second one's.
void run_probes(void* context, const Outcome& outcome) {
  void* const managers[2] = {eager.new_manager(), eager.new_manager()};
  run_probe(context, managers[0], outcome);
  const std::optional<Place> first = seen;
  if (outcome.ok() && first) {
    run_probe(context, managers[1], outcome);
    const bool again = seen && seen->parameters == first->parameters && seen->manager == first->manager;
    if (outcome.ok() && again) place = seen;
  }
  for (void* const manager : managers) eager.delete_manager(manager);
}

void find_place() {
  if (search.tf == nullptr) return;
  const Outcome outcome(*search.tf);
  void* const options = eager.new_options();
  eager.set_config(options, search.config.data(), search.config.size(), outcome.get());
  void* const context = outcome.ok() ? eager.new_context(options, outcome.get()) : nullptr;
  eager.delete_options(options);
  if (outcome.ok()) run_probes(context, outcome);
  if (context != nullptr) eager.delete_context(context);
  if (place) return;
  const std::string why = outcome.ok() ? "this TensorFlow keeps it elsewhere" : outcome.text();
  log_info(search.rank, "operations in TensorFlow's graphs do not end when their step is cancelled: " + why);
}

void* manager_of(Context* context) {
  std::call_once(searched, find_place);
  if (!place) return nullptr;
  return reinterpret_cast<void***>(context)[place->parameters][place->manager];
}

void call_and_free(void* kept) {
  const std::unique_ptr<std::function<void()>> own(static_cast<std::function<void()>*>(kept));
  (*own)();
}

}  // namespace

std::string prepare_cancellation(const Api& tf, const char* library, std::string config, int rank) {
  std::string missing;
  if (!look_up(library, missing)) return missing;
  const Outcome outcome(tf);
  add_probe(tf, outcome);
  if (!outcome.ok()) return outcome.text();
  search = {&tf, std::move(config), rank};
  return "";
}

bool StepWatch::begin(Context* context, std::function<void()> cancelled) {
  void* const manager = manager_of(context);
  if (manager == nullptr) return true;
  token_ = eager.new_token(manager);
  auto kept = std::make_unique<std::function<void()>>(std::move(cancelled));
  const Callback callback{call_and_free, kept.get()};
  manager_ = manager;
  kept_ = kept.release();  // before it may be called
  if (eager.register_callback(manager, token_, &callback, "SlipstreamWait")) return true;
  manager_ = nullptr;
  delete std::exchange(kept_, nullptr);
  return false;
}

void StepWatch::end() {
  if (manager_ == nullptr) return;
  if (eager.deregister_callback(manager_, token_)) delete kept_;
}

}  // namespace slipstream::tensorflow
