// A rank's membership in a job: its transports, its engine and the thread that runs it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/trace.h"
#include "engine/engine.h"
#include "engine/runner.h"
#include "session/reduction.h"
#include "transport/shm/transport.h"
#include "transport/tcp/transport.h"

namespace slipstream {

struct SessionOptions {
  int rank = 0;
  int size = 1;
  std::string job;     // its name
  std::string secret;  // raw bytes
  double heartbeat_seconds = 10;
  double timeout_seconds = 1800;
  int lanes = 2;
  int spin_us = 0;
  bool round_robin = false;  // TcpOptions::round_robin
  bool zero_copy = true;     // large sends to other machines without a copy, where the kernel can
  size_t lend_from = 0;      // TcpOptions::lend_from
  Checksums checksums = Checksums::automatic;
  bool encrypt = false;    // what goes over tcp
  int threads = 0;         // TcpOptions::threads
  std::vector<int> cpus;   // that the engine thread and the I/O threads are confined to; none: all
  std::string congestion;  // TcpOptions::congestion
  double connect_seconds = 10;
  bool to_reducer = false;  // its peer is a reducer: what is sent comes back as sums
  // Not null: this is a reducer, the last rank; it never dials. Its part in every work that the others offer.
  std::shared_ptr<const Plan> serve = nullptr;
  size_t window_bytes = 8 << 20;  // of one work, in a reducer's memory
  double intake = 0;              // bytes a second that a reducer takes in, of all workers; 0: no bound
  // Told once if the session fails; by the driver.
  std::function<void(const Error&)> failed = nullptr;
};

struct PeerAddress {
  std::string host;  // for people
  bool same_host = false;
  std::string shm_name;
  std::vector<std::string> addresses;
  uint16_t port = 0;
};

class Session final : private Dialer, private Arrivals, private Pump, private KnockDone, private Host {
 public:
  explicit Session(SessionOptions options);
  ~Session() override;

  std::string listen_shm() { return shm_.listen(); }
  uint16_t listen_tcp(const std::vector<std::string>& addresses) { return tcp_.listen(addresses); }
  // Once every rank's addresses are known: starts the engine thread.
  void start(std::vector<PeerAddress> peers);

  // `id` must be the same on all members and differ from other groups' ids.
  std::shared_ptr<const Group> make_group(uint64_t id, std::vector<int> ranks);

  // Fills in channel, number, hash and time-out. Point-to-point: `tag_channel` != 0 names the channel; a receive from
  // any source names its candidates in the request.
  WorkPtr prepare(Request request, uint64_t tag_channel);
  void submit(const WorkPtr& work);
  // Any thread. True if no work uses memory, of those that this thread knows of.
  bool quiet() const { return reduction_ == nullptr && engine_.quiet(); }
  void submit_unsplit(const WorkPtr& work) { runner_.submit(work); }
  // True when done; never longer than until `deadline`.
  bool run(const WorkPtr& work, Time deadline);
  bool wait(Work& work, Time deadline);

  // For the program, whose forked children may read it.
  std::shared_ptr<Region> allocate(size_t bytes);
  void free(uint32_t region);

  // From now on reducers take part in works whose plan is split(). Once, after start().
  void use_reducers(ReductionOptions options);
  Reduction* reduction() { return reduction_.get(); }
  // A work has waited for too long, as `wait` says; as the driver.
  void expire(const std::string& wait) { engine_.expire(wait); }
  void wake() { bell_.ring_always(); }
  // Makes a link to `rank`; throws Failure if there is none by `deadline`. Not on a driver's thread.
  void reach(int rank, Time deadline);
  // What a reducer has done.
  struct Served {
    uint64_t works = 0;     // that were offered
    uint64_t finished = 0;  // of these, before the session failed
    uint64_t bytes = 0;     // that came in, of all workers
    int links = 0;          // workers that are connected
    Error failure;
    bool own = false;  // it is this reducer's, not a worker's
  };
  Served served();

  // What this rank waits for, and its last operations, for people. Any thread.
  std::string report();

  // What the timeline is made of. Any thread.
  Trace& trace() { return trace_; }

  Error failure() const { return engine_.failure(); }
  // Fails the session on all linked ranks.
  void abort(const std::string& why);
  // The same, where this rank is the one that the others lose: "rank 1 (host a) <what>".
  void abandon(const std::string& what);
  // Asks whether `ranks` live, also if the session has failed.
  void ask(const std::vector<int>& ranks);
  // Those of them that have said so by `deadline`. True if it is known of all.
  bool hear(const std::vector<int>& ranks, Time deadline, std::vector<int>& alive);
  // Leaves in good order; pending works fail. Waits up to 2 s until the peers have read what was sent; a failed session
  // also up to 2 s for ranks that do not know yet why, unless they need not be told (`tell`). Idempotent. `words`:
  // Engine::leave.
  void close(const std::string& words = {}, bool tell = true);
  // Links that are up, by kind: {tcp, shm}.
  std::pair<int, int> links();
  // What the links have done, those of tcp lane by lane, also those that are closed. Any thread.
  std::vector<LinkStatistics> link_statistics();

 private:
  // Dialer
  std::unique_ptr<Link> dial(int rank) override;
  void knock(int rank) override;
  std::string host_of(int rank) const override;
  bool shares_memory(int rank) const override { return peers_[static_cast<size_t>(rank)].same_host; }
  // Arrivals
  void accepted(std::unique_ptr<Link> link) override;
  void knocked(int rank) override;
  void stranger(const std::string& who, const std::string& why) override;
  // KnockDone
  void knock_done(int peer, bool alive, const Error& why) override;
  // Host
  void offered(int peer, const WorkHeader& frame, std::span<const std::byte> payload) override;
  // Pump
  bool poll() override { return shm_.poll(); }
  bool pending() const override { return shm_.pending(); }
  bool congested() const override { return shm_.congested(); }
  Time tick(Time now) override;
  void look();  // as the driver: handles what comes within a few milliseconds

  bool is_split(const Request& request) const;
  void split_up(const WorkPtr& work);
  bool forked() const { return forks_ != forks(); }
  // Throws in a forked child: what the engine works with is its parent's, and is not there.
  void check_process() const;
  // Logs the strangers of the last while.
  Time report_strangers(Time now);
  void forget_broken_off();

  enum class Probe : uint8_t { asked, lives, dead };

  static Identity identity_of(const SessionOptions& options, bool encrypt);

  SessionOptions options_;
  const uint32_t forks_ = forks();
  std::vector<PeerAddress> peers_;
  Trace trace_;
  Regions regions_;
  Bell bell_;
  Poller poller_;
  Engine engine_;
  ShmTransport shm_;
  TcpTransport tcp_;
  Runner runner_;
  std::unique_ptr<Reduction> reduction_;
  struct Offered {
    std::shared_ptr<const Group> group;
    uint32_t next = 0;  // number of the work that has not been offered yet
  };
  std::map<uint64_t, Offered> offered_;  // by channel
  std::map<int, uint64_t> offers_;       // how many, by worker
  Served served_;
  std::map<int, Probe> probes_;  // by rank
  std::atomic<bool> closed_{false};
  std::vector<std::string> strangers_;  // not logged yet
  Time strangers_due_ = Time::max();
};

}  // namespace slipstream
