#include "bindings/orphans.h"

#include <atomic>
#include <utility>
#include <vector>

#include "bindings/gil.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

struct Orphan {
  WorkPtr work;
  nb::object keep;
};

std::atomic<bool> some_done{false};

class Note final : public Listener {
 public:
  void work_done() override { some_done.store(true, std::memory_order_release); }
};

// Never freed: works may run until the process ends.
std::vector<Orphan>& kept() {
  static auto* const orphans = new std::vector<Orphan>;
  return *orphans;
}

}  // namespace

void keep_until_done(const WorkPtr& work, nb::object keep) {
  kept().push_back({work, std::move(keep)});
  work->listen(std::make_unique<Note>());
}

void drop_orphans() {
  if (!some_done.load(std::memory_order_relaxed) || !some_done.exchange(false)) return;
  std::vector<Orphan> done;
  std::vector<Orphan> left;
  for (Orphan& orphan : kept()) (orphan.work->done() ? done : left).push_back(std::move(orphan));
  kept() = std::move(left);
  // That may run any Python code, and come here again. No destructor may be on the stack: it would end the process.
  or_stop([&done] {
    for (Orphan& orphan : done) Py_XDECREF(orphan.keep.release().ptr());
  });
}

size_t orphans() { return kept().size(); }

}  // namespace slipstream
