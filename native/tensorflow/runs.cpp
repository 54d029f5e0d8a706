#include "tensorflow/runs.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <mutex>
#include <sstream>
#include <unordered_map>
#include <utility>
#include <vector>

namespace slipstream::tensorflow {

namespace {

constexpr const char* kBegin = "SlipstreamBegin";
constexpr size_t kKept = 256;  // runs of a function that may be under way at the same time

struct Counted {
  std::deque<std::pair<int64_t, uint64_t>> latest;  // steps and their numbers, the latest first
  uint64_t count = 0;
};

struct Runs {
  std::mutex mutex;
  std::unordered_map<std::string, Counted> functions;
};

// Never freed: TensorFlow's threads may outlive static variables.
Runs& runs() {
  static auto* const all = new Runs;
  return *all;
}

const Api* the_api = nullptr;

// Of an attribute with the names of functions, one a line.
void* create_begin(Construction* construction) {
  auto functions = std::make_unique<std::vector<std::string>>();
  const Outcome outcome(*the_api);
  int32_t count = 0, bytes = 0;
  the_api->attribute_size(construction, "functions", &count, &bytes, outcome.get());
  std::string text(static_cast<size_t>(std::max(bytes, 0)), ' ');
  if (outcome.ok() && !text.empty())
    the_api->attribute_text(construction, "functions", text.data(), text.size(), outcome.get());
  if (!outcome.ok()) the_api->construction_failed(construction, outcome.get());
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) functions->push_back(line);
  return functions.release();
}

void compute_begin(void* functions, Context* context) {
  const int64_t step = the_api->step(context);
  for (const std::string& one : *static_cast<std::vector<std::string>*>(functions)) run_of(one, step);
}

void destroy_begin(void* functions) { delete static_cast<std::vector<std::string>*>(functions); }

}  // namespace

uint64_t run_of(const std::string& function, int64_t step) {
  Runs& all = runs();
  const std::lock_guard lock(all.mutex);
  Counted& own = all.functions[function];
  const auto found = std::find_if(own.latest.begin(), own.latest.end(), [&](auto& one) { return one.first == step; });
  if (found != own.latest.end()) return found->second;
  own.latest.emplace_front(step, ++own.count);
  if (own.latest.size() > kKept) own.latest.pop_back();
  return own.count;
}

void forget_runs() {
  Runs& all = runs();
  const std::lock_guard lock(all.mutex);
  all.functions.clear();
}

void add_begin(const Api& tf, const Outcome& outcome) {
  the_api = &tf;
  OpBuilder* const op = tf.new_op(kBegin);
  tf.add_attribute(op, "functions: string");
  tf.set_stateful(op, true);
  tf.set_shapes(op, [](ShapeContext*, Status*) {});
  tf.register_op(op, outcome.get());
  if (!outcome.ok()) return;
  tf.register_kernel(kBegin, tf.new_kernel(kBegin, "CPU", create_begin, compute_begin, destroy_begin), outcome.get());
}

}  // namespace slipstream::tensorflow
