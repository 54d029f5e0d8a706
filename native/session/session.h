// A rank's membership in a job: its transports, its engine and the thread that runs it.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/refusal_log.h"
#include "base/trace.h"
#include "boards/boards.h"
#include "engine/engine.h"
#include "engine/runner.h"
#include "session/failure_report.h"
#include "session/splitter.h"
#include "transport/shm/transport.h"
#include "transport/tcp/transport.h"

namespace slipstream {

// The shape of a session between the workers of a job and a reducer. The reducer is the last rank. Each worker has a
// link to it, and none to another worker.
struct StarOptions {
  std::string reducer = "the reducer";  // what people call it
  // A worker's, EngineOptions::elsewhere.
  std::function<std::string(Time now)> elsewhere = nullptr;
  // The reducer's, which never dials:
  OfferHandler* offers = nullptr;  // told of the works that the workers offer; null at a worker
  double intake = 0;               // bytes a second that it takes in, of all workers; 0: no bound
};

struct SessionOptions {
  int rank = 0;
  int size = 1;
  std::string job;     // its name
  std::string secret;  // raw bytes
  double heartbeat_seconds = 10;
  std::string heartbeat_setting = "SLIPSTREAM_HEARTBEAT";  // what sets it, for people
  double timeout_seconds = 1800;
  double connect_seconds = 10;  // until a link is up; in a job as long as the heartbeat, if that is longer
  // How long a caller looks again and again, and yields its core in between, before it sleeps; and in a small call that
  // goes over a board.
  int spin_us = 0, board_spin_us = 50;
  int held_ns = 1000;         // how long it keeps its core before it yields
  int busy_poll_us = 0;       // of sockets
  bool board_always = false;  // small operations are tried on boards whatever that costs: for tests
  bool relays = false;        // small broadcasts and reductions go along trees without a work where they can
  int board_ranks = 16;       // small operations of at most so many ranks of this host go over a board where they can
  std::shared_ptr<Counters> counters = nullptr;  // where operations are counted, by any thread; the session makes it
  LinkOptions link{};                            // its `cpus` are the engine thread's too
  std::optional<StarOptions> star = std::nullopt;
  ReportPipe report{};  // to this process's launcher, if one waits for word
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

class Session;

// Whether it has failed, or was closed. Any thread.
bool has_ended(const Session& session);

// Its links that are up, by kind: {tcp, shm}. Not on a driver's thread.
std::pair<int, int> links_of(Session& session);

// Of its TCP links, as TcpTransport::set_lanes(). Not on a driver's thread.
void set_link_lanes(Session& session, int lanes);

// Short messages without a work: `request` of a send, or a receive from one rank, without memory. As the functions of
// Runner. Any thread.
bool send_at_once(Session& session, const Request& request, std::byte* data, uint64_t count);
ShortMessages::State receive_at_once(Session& session, const Request& request, std::byte* data, uint64_t count,
                                     bool patient);

class Session final : private Dialer, private Arrivals, private Pump, private KnockDone {
 public:
  explicit Session(SessionOptions options);
  ~Session() override { close(); }

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
  bool quiet() const { return splitter_ == nullptr && engine_.quiet(); }
  // True when done; never longer than until `deadline`. run() gives `order` back once the engine has the work.
  bool run(const WorkPtr& work, Time deadline, std::unique_lock<std::mutex> order = {});
  bool wait(Work& work, Time deadline);

  // For the program, whose forked children may read it.
  std::shared_ptr<Region> allocate(size_t bytes);
  void free(uint32_t region);

  // From now on `splitter` takes works first. Once, after start().
  void set_splitter(std::shared_ptr<Splitter> splitter);
  // For the splitter: past it, to the engine. The call for which it does has been made before.
  void submit_unsplit(const WorkPtr& work) { runner_.submit_deferred(work); }
  void wake() { bell_.ring_always(); }
  // Makes a link to `rank`; throws Failure if there is none by `deadline`. Not on a driver's thread.
  void reach(int rank, Time deadline);
  // Runs `f` as the driver. Not on a driver's thread.
  template <class F>
  void as_driver(F f) {
    runner_.as_driver(f);
  }
  // For the driver.
  Engine& engine() { return engine_; }
  const SessionOptions& options() const { return options_; }

  // What this rank waits for, and its last operations, for people. Any thread.
  std::string report(const Work* work = nullptr);  // with `work`, for what it waits; empty if it is done

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
  // Leaves in good order; pending works fail. Waits up to 2 s until the peers have read what was sent; after a failure
  // up to 2 s for ranks that do not know yet why, if they are to be told (`tell`). Idempotent. `words`: Engine::leave.
  void close(const std::string& words = {}, bool tell = true);
  // What the links have done, those of tcp lane by lane, also those that are closed. Any thread.
  std::vector<LinkStatistics> link_statistics();

 private:
  // Dialer
  std::unique_ptr<Link> dial(int rank) override;
  void knock(int rank) override;
  std::string host_of(int rank) const override;
  std::string name_of(int rank) const override;
  bool shares_memory(int rank) const override { return peers_[static_cast<size_t>(rank)].same_host; }
  // Arrivals
  void accepted(std::unique_ptr<Link> link) override;
  void knocked(int rank) override { engine_.dial_back(rank); }
  void stranger(const std::string& who, const std::string& why) override;
  void knock_done(int peer, bool alive, const Error& why) override;
  // Pump
  bool poll() override { return shm_.poll(); }
  bool pending() const override { return shm_.pending(); }
  bool congested() const override { return shm_.congested(); }
  Time tick(Time now) override;
  void look();  // as the driver: handles what comes within a few milliseconds

  // True: the splitter has it.
  bool give_splitter(const WorkPtr& work);
  // The middle of a star: others dial, and offer works.
  bool takes_offers() const { return options_.star && options_.star->offers != nullptr; }
  bool forked() const { return forks_ != forks(); }
  // Throws in a forked child: what the engine works with is its parent's, and is not there.
  void check_process() const;
  // Logs the strangers of the last while. Returns when to call again; not any more after the `last` call.
  Time report_strangers(Time now, bool last = false);

  friend void set_link_lanes(Session& session, int lanes);
  friend bool has_ended(const Session& session);
  friend std::pair<int, int> links_of(Session& session);
  friend Runner* without_work(Session& session, const Request& request, uint64_t count);

  enum class Probe : uint8_t { asked, lives, dead };

  EngineOptions engine_options();
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
  Boards boards_;
  std::shared_ptr<Splitter> splitter_;
  std::map<int, Probe> probes_;  // by rank
  std::atomic<bool> closed_{false};
  RefusalLog refusals_;
  Time strangers_due_ = Time::max();
};

}  // namespace slipstream
