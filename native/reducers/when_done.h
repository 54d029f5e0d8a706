// A function as the listener of a work.
#pragma once

#include <memory>
#include <utility>

#include "engine/work.h"

namespace slipstream {

// Calls `f` once the work is done, on the thread that ends it (Listener). The work stays until then.
template <class F>
void when_done(const WorkPtr& work, F f) {
  class Call final : public Listener {
   public:
    Call(WorkPtr done, F call) : done_(std::move(done)), call_(std::move(call)) {}
    void work_done() override { call_(); }

   private:
    WorkPtr done_;
    F call_;
  };
  work->listen(std::make_unique<Call>(work, std::move(f)));
}

}  // namespace slipstream
