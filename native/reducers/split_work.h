// A large all-reduce of which reducers take a part, on one worker.
//
// Its bytes are cut into slices: one that the workers reduce among themselves, and one for each reducer, in a session
// with that reducer alone; so a reducer's failure ends that session and nothing else. When all slices are done or lost,
// the workers agree with a tiny all-reduce, the *verdict*, on what has been lost by anybody. If nothing was, the work
// is done. Else they agree on the chunks that nobody has the result of, and reduce those among themselves; of the
// others, those who have them give them to the rest. So every rank ends with the same bits, and no rank believes itself
// done while another one still needs its memory.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "reducers/parts.h"
#include "reducers/pool.h"
#include "reducers/verdict.h"

namespace slipstream {

// The context's mutex is held by whoever calls.
class SplitWork : public std::enable_shared_from_this<SplitWork> {
 public:
  // `parent`: what is split; it has no number, and no engine knows it.
  SplitWork(const ReducerContext& context, ReducerPool& pool, uint64_t number, WorkPtr parent);

  // Begins the parts. `asks`: the workers end the work with a verdict; without reducers only some works do, to learn
  // whether there are reducers again. `judged` is called once all is known that this rank needs for the next works.
  void begin(bool asks, std::function<void()> judged);

  uint64_t number() const { return number_; }
  bool is_of(const Work& work) const { return parent_.get() == &work; }
  // Whom this rank waits for: "reducer a:29700 and rank 1 (host b)". The workers' driver.
  std::string awaited() const;
  bool is_judged() const { return judged_; }
  // Once it is judged: null if it failed, or had none.
  Verdict* verdict() { return error_ || !verdict_ ? nullptr : &*verdict_; }
  // Of the reducers that take part, 0 for others.
  const std::vector<uint64_t>& incarnations() const { return incarnations_; }
  // How long the parts took: the workers' own, then each reducer's; 0: it had none.
  const std::vector<double>& part_seconds() const { return seconds_; }

 private:
  struct Part {
    int reducer = -1;  // -1: the workers' own
    uint64_t begin = 0;
    uint64_t count = 0;
    uint64_t chunk = 1;  // elements
    Session* session = nullptr;
    WorkPtr work;                                    // null: this rank has no session with the reducer
    std::shared_ptr<std::vector<uint8_t>> received;  // which chunks of the result are here

    uint64_t chunks() const { return (count + chunk - 1) / chunk; }
    bool has(uint64_t c) const { return received && c < received->size() && (*received)[c] != 0; }
  };

  void add_part(int reducer, uint64_t begin, uint64_t count);
  void prepare_own(Part& part, Request request);
  void prepare_reducers(Part& part, Request request);
  void submit_parts();
  void part_done(const Part& part);
  void give_verdict();
  void judge(const Error& error);
  void ask_chunks();
  void repair();
  void add_repairs(const Part& part, const uint8_t* anybody_has);
  Request repair_request(const Part& part, uint64_t first, uint64_t last, bool somebody_has) const;
  bool is_lost(const Part& part) const {
    return part.reducer >= 0 && verdict_->is_lost(static_cast<size_t>(part.reducer));
  }
  uint64_t repair_channel() const;
  Request status_request(std::byte* data, uint64_t bytes, DType dtype) const;
  // Once `work` is done, with the mutex.
  template <class F>
  void then(const WorkPtr& work, F f);

  const ReducerContext& context_;
  ReducerPool& pool_;
  const uint64_t number_;
  const WorkPtr parent_;
  const Time begun_;
  const std::vector<uint64_t> incarnations_;
  std::function<void()> tell_judged_;
  std::vector<Part> parts_;
  std::vector<double> seconds_;
  size_t left_ = 0;  // parts, or repairs, that are not done
  std::optional<Verdict> verdict_;
  WorkPtr verdict_work_;
  uint32_t lost_ = 0;  // by this rank
  bool judged_ = false;
  std::vector<uint8_t> chunks_;  // of the lost parts, one after another: does anybody have the result
  std::vector<WorkPtr> repairs_;
  Error error_;
};

}  // namespace slipstream
