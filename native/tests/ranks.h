// Ranks as threads of one process, over the transport that is asked for.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/runner.h"
#include "session/session.h"
#include "transport/memory/transport.h"

namespace slipstream::testing {

enum class Wire { memory, shm, tcp, mixed };

inline const char* name_of(Wire w) {
  const char* const names[] = {"memory", "shm", "tcp", "mixed"};
  return names[static_cast<int>(w)];
}

// What a test does with a rank, whatever moves its bytes.
class RankUnderTest {
 public:
  virtual ~RankUnderTest() = default;
  virtual WorkPtr prepare(Request request, uint64_t channel = 0) = 0;
  virtual void submit(const WorkPtr& work) = 0;
  virtual bool run(const WorkPtr& work, Time deadline) = 0;
  virtual bool wait(Work& work, Time deadline) = 0;
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void leave() = 0;
  virtual std::string report() = 0;
};

class SessionRank final : public RankUnderTest {
 public:
  explicit SessionRank(SessionOptions options) : session(std::move(options)) {}
  WorkPtr prepare(Request request, uint64_t channel) override { return session.prepare(std::move(request), channel); }
  void submit(const WorkPtr& work) override { session.submit(work); }
  bool run(const WorkPtr& work, Time deadline) override { return session.run(work, deadline); }
  bool wait(Work& work, Time deadline) override { return session.wait(work, deadline); }
  std::byte* allocate(size_t bytes) override {
    regions.push_back(session.allocate(bytes));
    return regions.back()->memory.data();
  }
  void leave() override { session.close(); }
  std::string report() override { return session.report(); }

  Session session;
  std::vector<std::shared_ptr<Region>> regions;
};

class MemoryRank final : public RankUnderTest, Dialer, Pump {
 public:
  // `hosts`: of every rank; those of one host share memory. Empty: all do.
  MemoryRank(MemoryHub& hub, int rank, int size, std::vector<int> hosts = {}, EngineOptions options = {})
      : rank_(rank),
        hosts_(std::move(hosts)),
        engine_(rank, size, poller_, bell_, regions_, *this, options),
        transport_(hub, engine_, rank, bell_,
                   [this](std::unique_ptr<Link> l) { (void)engine_.fabric().adopt(std::move(l)); }),
        runner_(engine_, poller_, bell_, {}) {
    engine_.set_pump(this);
    runner_.start();
  }
  ~MemoryRank() override { leave(); }
  WorkPtr prepare(Request request, uint64_t channel) override {
    request.channel = channel != 0 ? channel : request.group->id;
    request.signature_hash = request.signature.hash();
    auto work = std::make_shared<Work>(std::move(request));
    engine_.ledger().enter(work);
    return work;
  }
  void submit(const WorkPtr& work) override { runner_.submit(work); }
  bool run(const WorkPtr& work, Time deadline) override { return runner_.run(work, deadline); }
  bool wait(Work& work, Time deadline) override { return runner_.wait(work, deadline); }
  std::byte* allocate(size_t bytes) override { return regions_.create(bytes)->memory.data(); }
  void leave() override {
    runner_.as_driver([this] {
      engine_.tell_latest();
      engine_.leave();
    });
    runner_.stop();
  }
  std::string report() override {
    std::string text;
    runner_.as_driver([&] { text = engine_.reports().full(engine_.failure()); });
    return text;
  }
  // Calls f(engine) while nothing else drives it.
  template <class F>
  void as_driver(F f) {
    runner_.as_driver([&] { f(engine_); });
  }
  // True once this rank has heard that `peer` left in good order.
  bool heard_goodbye(int peer) {
    bool heard = false;
    runner_.as_driver([&] { heard = engine_.fabric().left(peer) != Time::min(); });
    return heard;
  }
  // Runs the engine's timers as if it were `then`.
  void tick_at(Time then) {
    runner_.as_driver([&] { engine_.tick(then); });
  }

 private:
  std::unique_ptr<Link> dial(int rank) override { return transport_.dial(rank); }
  void knock(int) override {}
  std::string host_of(int) const override { return ""; }
  bool shares_memory(int peer) const override {
    return hosts_.empty() || hosts_[static_cast<size_t>(peer)] == hosts_[static_cast<size_t>(rank_)];
  }
  bool poll() override { return transport_.poll(); }
  bool pending() const override { return const_cast<MemoryTransport&>(transport_).pending(); }
  bool congested() const override { return false; }
  Time tick(Time) override { return Time::max(); }

  int rank_;
  std::vector<int> hosts_;
  Regions regions_;
  Bell bell_;
  Poller poller_;
  Engine engine_;
  MemoryTransport transport_;
  Runner runner_;
};

class Ranks {
 public:
  Ranks(Wire wire, int size, int lanes = 2, SingleCopy single_copy = SingleCopy::off) : hub_(size) {
    if (wire == Wire::memory) {
      for (int r = 0; r < size; ++r) ranks_.push_back(std::make_unique<MemoryRank>(hub_, r, size));
      return;
    }
    std::vector<PeerAddress> all;
    for (int r = 0; r < size; ++r) {
      SessionOptions options;
      options.rank = r;
      options.size = size;
      options.job = "native-test";
      options.secret = std::string(32, 's');
      options.link.lanes = lanes;
      options.link.single_copy = single_copy;
      options.timeout_seconds = 60;
      auto rank = std::make_unique<SessionRank>(options);
      const uint16_t port = rank->session.listen_tcp({"127.0.0.1"});
      all.push_back({"here", false, rank->session.listen_shm(), {"127.0.0.1"}, port});
      ranks_.push_back(std::move(rank));
    }
    for (int r = 0; r < size; ++r) {
      auto mine = all;
      for (int p = 0; p < size; ++p)  // mixed: two hosts, even and odd
        mine[static_cast<size_t>(p)].same_host = wire == Wire::shm || (wire == Wire::mixed && p % 2 == r % 2);
      static_cast<SessionRank&>(at(r)).session.start(mine);
    }
  }
  // Over memory; rank r believes itself on host `hosts[r]`.
  explicit Ranks(const std::vector<int>& hosts) : hub_(static_cast<int>(hosts.size())) {
    const int size = static_cast<int>(hosts.size());
    for (int r = 0; r < size; ++r) ranks_.push_back(std::make_unique<MemoryRank>(hub_, r, size, hosts));
  }
  ~Ranks() {  // all leave at once, as processes would
    each([](int, RankUnderTest& rank) { rank.leave(); });
  }

  int size() const { return static_cast<int>(ranks_.size()); }
  RankUnderTest& at(int r) { return *ranks_[static_cast<size_t>(r)]; }

  // Runs f(rank, RankUnderTest&) in a thread per rank; rethrows the first exception.
  void each(const std::function<void(int, RankUnderTest&)>& f) {
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::exception_ptr first;
    for (int r = 0; r < size(); ++r)
      threads.emplace_back([&, r] {
        try {
          f(r, at(r));
        } catch (...) {
          std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
        }
      });
    for (auto& t : threads) t.join();
    if (first) std::rethrow_exception(first);
  }

 private:
  MemoryHub hub_;
  std::vector<std::unique_ptr<RankUnderTest>> ranks_;
};

}  // namespace slipstream::testing
