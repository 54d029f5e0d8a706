#include "tensorflow/runs.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <utility>

namespace slipstream::tensorflow {

namespace {

constexpr const char* kBegin = "SlipstreamBegin";
constexpr size_t kKept = 256;  // runs that may be under way at the same time

struct Runs {
  std::mutex mutex;
  std::deque<std::pair<int64_t, uint64_t>> latest;  // steps and their numbers, the latest first
  uint64_t count = 0;
};

// Never freed: TensorFlow's threads may outlive static variables.
Runs& runs() {
  static auto* const all = new Runs;
  return *all;
}

const Api* the_api = nullptr;

}  // namespace

uint64_t run_of(int64_t step) {
  Runs& all = runs();
  const std::lock_guard lock(all.mutex);
  const auto found = std::find_if(all.latest.begin(), all.latest.end(), [&](auto& one) { return one.first == step; });
  if (found != all.latest.end()) return found->second;
  all.latest.emplace_front(step, ++all.count);
  if (all.latest.size() > kKept) all.latest.pop_back();
  return all.count;
}

void forget_runs() {
  Runs& all = runs();
  const std::lock_guard lock(all.mutex);
  all.count = 0;
}

void add_begin(const Api& tf, const Outcome& outcome) {
  the_api = &tf;
  OpBuilder* const op = tf.new_op(kBegin);
  tf.set_stateful(op, true);
  tf.set_shapes(op, [](ShapeContext*, Status*) {});
  tf.register_op(op, outcome.get());
  if (!outcome.ok()) return;
  KernelBuilder* const kernel = tf.new_kernel(
      kBegin, "CPU", [](Construction*) -> void* { return nullptr; },
      [](void*, Context* context) { run_of(the_api->step(context)); }, [](void*) {});
  tf.register_kernel(kBegin, kernel, outcome.get());
}

}  // namespace slipstream::tensorflow
