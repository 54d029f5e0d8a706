// A large all-reduce of which reducers take a part, or a stretch of one, on one worker.
//
// Its bytes are cut into slices: one that the workers reduce among themselves, and one for each reducer, in a session
// with that reducer alone; so a reducer's failure ends that session and nothing else. When all slices are done or lost,
// the workers agree with a tiny all-reduce, the *verdict*, on what has been lost by anybody. If nothing was, the work
// is done. Else they agree on the chunks that nobody has the result of, and reduce those among themselves; of the
// others, those who have them give them to the rest. So every rank ends with the same bits, and no rank believes itself
// done while another one still needs its memory.
//
// If workers share hosts (shards.h), what the reducers get is first summed within the hosts; each worker then gives the
// reducers the shards that it carries, and all of the above is among the carriers of a shard. When nothing is lost any
// more, the workers of a host give each other what they carry. The workers' own slice is a plan that does all of that.
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
  // What is split: elements of `parent`, which has no number, and which no engine knows.
  struct Range {
    WorkPtr parent;
    uint64_t begin = 0;
    uint64_t count = 0;
  };
  SplitWork(const ReducerContext& context, ReducerPool& pool, uint64_t number, Range range);

  // Begins the parts. `asks`: the workers end the work with a verdict; without reducers only some works do, to learn
  // whether there are reducers again. `judged` is called once all is known that this rank needs for the next works, and
  // `done` at the end.
  void begin(bool asks, std::function<void()> judged, std::function<void(const Error&)> done);
  // True once the sums of this host are there; send() then gives the reducers their parts, before those of later works.
  bool may_send() const { return reducing_ == 0; }
  void send();
  // True once nothing is lost any more, and no sum is under way within the host; gather() then distributes the result
  // within the host, before those of later works.
  bool may_gather() const { return whole_ && reducing_ == 0; }
  void gather();

  uint64_t number() const { return number_; }
  bool is_of(const Work& work) const { return range_.parent.get() == &work; }
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
  // What one reducer has of the range: a part of each shard.
  struct Portion {
    uint64_t begin = 0;
    uint64_t count = 0;
    WorkPtr reduce;  // within the host; null: there is nobody else
    WorkPtr gather;
  };
  struct Part {
    int reducer = -1;  // -1: the workers' own
    size_t shard = 0;
    uint64_t begin = 0;
    uint64_t count = 0;
    uint64_t chunk = 1;                              // elements
    bool carried = true;                             // by this rank
    std::shared_ptr<Session> session;                // it may be left before the part is submitted
    WorkPtr work;                                    // null: this rank has no session with the reducer
    std::shared_ptr<std::vector<uint8_t>> received;  // which chunks of the result are here

    uint64_t chunks() const { return (count + chunk - 1) / chunk; }
    bool has(uint64_t c) const { return received && c < received->size() && (*received)[c] != 0; }
  };

  const Request& whole() const { return range_.parent->request; }
  void add_own(uint64_t begin, uint64_t count);
  void add_portion(int reducer, uint64_t begin, uint64_t count);
  // What this rank gives reducers, or the other carriers of its shard.
  Request carried_slice(uint64_t begin, uint64_t count) const;
  void prepare_carried(Part& part);
  uint64_t chunk_bytes(const Part& part, size_t window) const;
  void submit(const Part& part);
  void part_done(const Part& part);
  void record(const Part& part, bool begun);
  void give_verdict();
  void judge(const Error& error);
  void settle();
  void finish();
  void ask_chunks();
  void repair();
  void add_repairs(const Part& part, const uint8_t* anybody_has);
  Request repair_request(const Part& part, uint64_t first, uint64_t last, bool somebody_has) const;
  bool is_lost(const Part& part) const {
    return part.reducer >= 0 && verdict_->is_lost(static_cast<size_t>(part.reducer));
  }
  Request status_request(std::byte* data, uint64_t bytes, DType dtype) const;
  // Once `work` is done, with the mutex.
  template <class F>
  void then(const WorkPtr& work, F f);

  const ReducerContext& context_;
  ReducerPool& pool_;
  const uint64_t number_;
  const Range range_;
  const Time begun_;
  const std::vector<uint64_t> incarnations_;
  std::function<void()> tell_judged_;
  std::function<void(const Error&)> tell_done_;  // null once it has been told
  std::vector<Portion> portions_;
  std::vector<Part> parts_;
  std::vector<double> seconds_;
  size_t reducing_ = 0;  // sums within the host that are not there
  size_t left_ = 0;      // of this rank: parts, then repairs, then results of portions that are not there
  std::optional<Verdict> verdict_;
  WorkPtr verdict_work_;
  uint32_t lost_ = 0;  // by this rank
  bool judged_ = false;
  bool whole_ = false;
  std::vector<uint8_t> chunks_;  // of the lost parts, one after another: does anybody have the result
  std::vector<WorkPtr> repairs_;
  Error error_;
};

}  // namespace slipstream
