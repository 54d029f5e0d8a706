#include "tensorflow/lines.h"

#include <memory>
#include <mutex>
#include <unordered_map>

namespace slipstream::tensorflow {

namespace {

struct Known {
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_ptr<lines::Line>> lines;
};

// Never freed: TensorFlow's threads may outlive static variables.
Known& known() {
  static auto* const all = new Known;
  return *all;
}

}  // namespace

lines::Line& line_of(const std::string& name, Finder find) {
  Known& all = known();
  const std::lock_guard lock(all.mutex);
  std::shared_ptr<lines::Line>& place = all.lines[name];
  if (place == nullptr)
    place = std::make_shared<lines::Line>("in a TensorFlow graph", [name, find] { return find(name); });
  return *place;
}

void forget_line(const std::string& name) {
  Known& all = known();
  std::shared_ptr<lines::Line> found;
  {
    const std::lock_guard lock(all.mutex);
    if (const auto at = all.lines.find(name); at != all.lines.end()) found = at->second;
  }
  if (found != nullptr) found->forget();
}

}  // namespace slipstream::tensorflow
