#include "session/session.h"

#include <algorithm>

#include "base/cut.h"
#include "base/float_state.h"
#include "base/log.h"
#include "engine/texts.h"
#include "transport/crypto.h"
#include "transport/handshake.h"

namespace slipstream {

namespace {

constexpr double kReportSeconds = 0.5;
constexpr double kTellSeconds = 2;
constexpr double kLeaveSeconds = 2;          // that a rank stays until the others have read its last words
constexpr double kBreakSeconds = 0.3;        // the same of one that fails and goes on
constexpr size_t kMostEarlyBytes = 4 << 20;  // of one worker, for works that have not begun; it may send about 1 MiB
// After an outage: the kernel asks only once a second where a host is (ARP), then come a request and a handshake.
constexpr double kRecoverySeconds = 2;
constexpr double kAcknowledgeSeconds = 0.05;  // in a star: most messages have one in the other direction

// What may come back within a heartbeat is waited for, from the start on; but nobody has to wait for a reducer.
double connect_seconds(const SessionOptions& options) {
  return std::max(options.connect_seconds, options.star ? 0 : options.heartbeat_seconds + kRecoverySeconds);
}

double recovery_seconds(const SessionOptions& options) { return options.star ? 0 : kRecoverySeconds; }

TcpOptions tcp_options(const SessionOptions& options) {
  TcpOptions tcp{options.link};
  tcp.busy_poll_us = options.busy_poll_us;
  tcp.patience_seconds = options.heartbeat_seconds;
  tcp.recovery_seconds = recovery_seconds(options);
  tcp.patience_setting = options.heartbeat_setting;
  tcp.connect_seconds = connect_seconds(options);
  if (options.star) {
    tcp.only_answers = options.star->offers != nullptr;
    tcp.acknowledge_seconds = kAcknowledgeSeconds;
  }
  return tcp;
}

BoardOptions board_options(const SessionOptions& options) {
  return {options.board_ranks,
          options.board_always,
          options.relays,
          options.timeout_seconds,
          std::chrono::microseconds(options.board_spin_us),
          std::chrono::nanoseconds(options.held_ns)};
}

Runner::Patience patience_of(const SessionOptions& options) {
  return {std::chrono::microseconds(options.spin_us), std::chrono::nanoseconds(options.held_ns)};
}

SessionOptions counted(SessionOptions options) {
  if (options.counters == nullptr) options.counters = std::make_shared<Counters>(options.size);
  return options;
}

Error forked_off(int rank) {
  const std::string parent = "this process was forked off rank " + std::to_string(rank);
  return Error{Code::aborted, rank, {}, parent + " and is no rank itself: only the parent can communicate"};
}

// What a rank leaves with that has sent what these ranks did not take.
std::string words_of_loss(const std::string& words, const std::vector<int>& ranks, double waited) {
  constexpr size_t kMostWords = 800;  // so that what follows is not cut
  const std::string others = ranks.size() == 1 ? "" : " and " + std::to_string(ranks.size() - 1) + " more";
  return (words.empty() ? "finished and left the job" : cut(words, kMostWords)) +
         "; some of what it had sent is lost: rank " + std::to_string(ranks.front()) + others +
         " did not take it for " + seconds_text(seconds(waited));
}

// Turns the engine while `owing()` holds, for so many seconds at most.
template <class Owing>
void turn_while(Runner& runner, Poller& poller, Engine& engine, double limit_seconds, Owing owing) {
  bool going = true;
  for (const Time limit = now() + seconds(limit_seconds); going && now() < limit;)
    runner.as_driver([&] {
      going = owing();
      if (!going) return;
      runner.guarded([&] {
        poller.wait(2);
        engine.turn();
        engine.tick(now());
      });
    });
}

}  // namespace

EngineOptions Session::engine_options() {
  EngineOptions engine;
  engine.boards = &boards_;
  engine.trace = &trace_;
  engine.heartbeat_seconds = options_.heartbeat_seconds;
  engine.heartbeat_setting = options_.heartbeat_setting;
  engine.failing = [this](const Error& error) {
    if (!forked()) report_failure(options_.report, error);
  };
  engine.recovery_seconds = recovery_seconds(options_);
  engine.elsewhere = [this](Time now) {
    if (options_.star && options_.star->elsewhere) return options_.star->elsewhere(now);
    return splitter_ ? splitter_->occupation(now) : std::string();
  };
  if (options_.star) {
    engine.intake = options_.star->intake;
    engine.offers = options_.star->offers;
    if (options_.star->offers != nullptr) engine.early_bytes = kMostEarlyBytes;
    engine.stalls.farewell_seconds = 0;  // the workers redo what a reducer left undone
    engine.spreads_failure = false;      // workers do not know each other there
  }
  return engine;
}

Identity Session::identity_of(const SessionOptions& options, bool encrypt) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size)
    throw Failure(Code::invalid,
                  "rank " + std::to_string(options.rank) + " is not in 0.." + std::to_string(options.size - 1));
  if (options.size > 1 && options.secret.size() < 16)
    throw Failure(Code::invalid, "the job's secret is shorter than 16 bytes");
  Identity identity;
  const auto digest = sha256(bytes_of(options.job));
  std::copy_n(digest.begin(), identity.job.size(), identity.job.begin());
  identity.secret = options.secret;
  identity.rank = options.rank;
  identity.size = options.size;
  identity.encrypt = encrypt;
  return identity;
}

Session::Session(SessionOptions options)
    : options_(counted(std::move(options))),
      engine_(options_.rank, options_.size, poller_, bell_, regions_, *this, engine_options()),
      shm_(poller_, engine_, *this, identity_of(options_, false), regions_, bell_, connect_seconds(options_)),
      tcp_(poller_, engine_, *this, identity_of(options_, options_.link.encrypt), tcp_options(options_)),
      runner_(engine_, poller_, bell_, patience_of(options_), options_.link.cpus),
      boards_({engine_, runner_, regions_, trace_, *options_.counters}, board_options(options_)) {
  engine_.set_pump(this);
  shm_.set_single_copy(options_.link.single_copy);
  tcp_.set_trace(&trace_);
  engine_.set_failed(options_.failed);
}

void Session::start(std::vector<PeerAddress> peers) {
  if (peers.size() != static_cast<size_t>(options_.size))
    throw Failure(Code::invalid, "there must be one address per rank");
  peers_ = std::move(peers);
  shm_.set_ranks_of_host(static_cast<size_t>(std::ranges::count_if(peers_, &PeerAddress::same_host)));
  tcp_.set_directory([this](int rank) {
    const PeerAddress& peer = peers_[static_cast<size_t>(rank)];
    return TcpTarget{rank, peer.addresses, peer.port};  // a reducer's workers have none
  });
  report_start(options_.report);
  runner_.start();
}

std::shared_ptr<const Group> Session::make_group(uint64_t id, std::vector<int> ranks) {
  auto group = group_of(id, std::move(ranks), options_.rank, options_.size);
  const auto here = [this](int r) { return r == options_.rank || shares_memory(r); };
  if (!options_.star && !peers_.empty() && std::ranges::all_of(group->ranks, here)) group->board = boards_.of(*group);
  return group;
}

void Session::check_process() const {
  if (forked()) throw Failure(forked_off(options_.rank));
}

std::shared_ptr<Region> Session::allocate(size_t bytes) {
  check_process();
  return regions_.create(bytes, Mapping::Fork::keep);
}

void Session::free(uint32_t region) {
  if (!forked()) regions_.destroy(region);  // a thread of the parent may have held the lock
}

WorkPtr Session::prepare(Request request, uint64_t tag_channel) {
  check_process();
  request.channel = tag_channel != 0 ? tag_channel : request.group->id;
  request.signature_hash = request.signature.hash();
  if (!request.timed) request.timed = request.timeout_seconds > 0 && !request.part;  // a part has its work's
  if (request.timeout_seconds <= 0) request.timeout_seconds = options_.timeout_seconds;
  auto work = std::make_shared<Work>(std::move(request));
  if (trace_.on()) work->traced = now();
  if (trace_.has_steps()) work->steps = &trace_;
  const Plan* const plan = work->request.plan.get();
  work->split = splitter_ != nullptr && plan != nullptr && plan->split() && !work->request.part;
  if (work->split) {  // its slices are numbered
    work->submitted = coarse_now();
    if (work->request.timed) work->request.called = work->submitted;
  } else if (Board* board = board_of(work->request); board != nullptr && !work->request.only_waits) {
    board->number(work);
  } else {
    engine_.ledger().enter(work);
  }
  const Request& call = work->request;
  if (call.collective != CollectiveKind::none && !call.part && !call.only_waits) options_.counters->begin(*work);
  return work;
}

void Session::submit(const WorkPtr& work) {
  if (!give_splitter(work) && !hold_back(work)) runner_.submit(work);
}

bool Session::give_splitter(const WorkPtr& work) {
  if (!splitter_ || engine_.failure()) return false;
  if (!work->split) return splitter_->holds(work);
  const DefaultFloatState state;  // all ranks must split it alike
  splitter_->split(work);
  return true;
}

// Who moves such a message; null: it has to be a work, as far as this thread knows.
Runner* without_work(Session& session, const Request& request, uint64_t count) {
  session.check_process();
  const uint64_t bytes = count * size_of(request.signature.dtype);
  const bool is_short = bytes != 0 && bytes <= kAtOnceBytes && request.signature.side != Side::none;
  return is_short && !session.trace_.on() && session.quiet() ? &session.runner_ : nullptr;
}

bool send_at_once(Session& session, const Request& request, std::byte* data, uint64_t count) {
  Runner* const runner = without_work(session, request, count);
  return runner != nullptr && runner->send_at_once(ShortMessage(request, data, count));
}

ShortMessages::State receive_at_once(Session& session, const Request& request, std::byte* data, uint64_t count,
                                     bool patient) {
  Runner* const runner = without_work(session, request, count);
  if (runner == nullptr) return ShortMessages::State::needs_work;
  ShortMessage message(request, data, count);
  return runner->receive_at_once(message, patient);
}

bool Session::run(const WorkPtr& work, Time deadline, std::unique_lock<std::mutex> order) {
  const bool split = give_splitter(work);
  if (!split && !hold_back(work)) return runner_.run(work, deadline, std::move(order));
  order = {};
  return split ? work->sleep_until_done(deadline) : runner_.wait(*work, deadline);
}

bool Session::wait(Work& work, Time deadline) {
  check_process();
  return work.split ? work.sleep_until_done(deadline) : runner_.wait(work, deadline);
}

void Session::set_splitter(std::shared_ptr<Splitter> splitter) {
  boards_.stop();
  runner_.as_driver([&] {
    splitter_ = std::move(splitter);  // who drives looks at it: tick()
    engine_.set_failed([this](const Error&) { splitter_->session_failed(); });
    if (engine_.failure()) splitter_->session_failed();
  });
}

void Session::reach(int rank, Time deadline) {
  for (;;) {
    bool up = false;
    Error gone;
    const bool late = now() >= deadline;
    runner_.as_driver([&] {
      engine_.fabric().want(rank);
      up = engine_.fabric().up(rank) != nullptr;
      if (!up) look();
      gone = engine_.fabric().gone(rank, late);
    });
    if (up) return;
    if (const Error error = failure()) throw Failure(error);
    if (gone) throw Failure(gone);
    if (late) throw Failure(Error{Code::timeout, rank, {}, engine_.fabric().who(rank) + " does not answer"});
  }
}

std::string Session::report(const Work* work) {
  check_process();
  std::string text;
  runner_.as_driver([&] {
    if (work == nullptr) return (void)(text = engine_.reports().named(engine_.failure()));
    runner_.guarded([&] { engine_.turn(); });  // it may have been submitted, or end, just now
    text = work->split ? splitter_->wait_of(*work, now()) : engine_.reports().wait_of(*work, now());
  });
  return work != nullptr && work->done() ? std::string() : text;  // other sessions' drivers end split works
}

bool has_ended(const Session& session) {
  return session.closed_.load(std::memory_order_relaxed) || session.engine_.failure();
}

void set_link_lanes(Session& session, int lanes) {
  session.check_process();
  session.runner_.as_driver([&] { session.tcp_.set_lanes(lanes); });
}

void Session::abort(const std::string& why) {
  check_process();
  runner_.as_driver([&] { engine_.fail(Error{Code::aborted, options_.rank, {}, why}); });
}

void Session::abandon(const std::string& what) {
  runner_.as_driver([&] {
    engine_.fail(Error{Code::peer_lost, options_.rank, host_of(options_.rank),
                       engine_.fabric().who(options_.rank) + " " + what});
  });
}

void Session::look() {
  runner_.guarded([&] {
    poller_.wait(5);
    engine_.turn();
    tick(now());
  });
}

void Session::ask(const std::vector<int>& ranks) {
  check_process();
  runner_.as_driver([&] {
    for (const int rank : ranks) {
      probes_[rank] = Probe::asked;
      knock(rank);
    }
  });
}

bool Session::hear(const std::vector<int>& ranks, Time deadline, std::vector<int>& alive) {
  for (bool waits = true; waits; waits = waits && now() < deadline) {
    runner_.as_driver([&] {
      look();
      alive.clear();
      waits = false;
      for (const int rank : ranks) {
        if (probes_[rank] == Probe::lives) alive.push_back(rank);
        waits |= probes_[rank] == Probe::asked;
      }
    });
    if (!waits) return true;
  }
  return false;
}

void Session::close(const std::string& words, bool tell) {
  if (forked() || closed_.exchange(true)) return;
  // A rank that fails and exits at once still owes the reason to ranks that were to get a link to us and have none yet.
  turn_while(runner_, poller_, engine_, tell ? kTellSeconds : 0, [&] { return engine_.must_tell(); });
  boards_.send_owed(now() + seconds(tell ? kLeaveSeconds : 0));
  // What lies in the memory of a link outlives its sender; what has no room there would not. A peer that lives makes
  // room within milliseconds, whatever its program does. One that is stopped counts as alive for a heartbeat.
  const auto owed = [&] { return engine_.failure() || !tell ? std::vector<int>{} : shm_.owed(); };
  turn_while(runner_, poller_, engine_, options_.heartbeat_seconds, [&] { return !owed().empty(); });
  std::vector<int> losers;
  runner_.as_driver([&] {
    losers = owed();
    engine_.tell_latest();
  });
  const auto waits = [&] { return !engine_.failure() && tell && shm_.congested(); };
  if (losers.empty()) turn_while(runner_, poller_, engine_, kLeaveSeconds, waits);
  bool stays = true;
  runner_.as_driver([&] {
    report_strangers(now(), true);
    stays = tell || !engine_.failure();
    engine_.leave(losers.empty() ? words : words_of_loss(words, losers, options_.heartbeat_seconds));
  });
  if (splitter_) splitter_->close();
  runner_.stop();
  // What TCP links still hold goes out, again where connections break, until the peers have read it.
  const Time limit = now() + seconds(stays ? kLeaveSeconds : kBreakSeconds);
  for (bool closing = true; closing && now() < limit;)
    runner_.as_driver([&] {
      runner_.guarded([&] { poller_.wait(10); });
      closing = tcp_.closing();
    });
  tcp_.end_threads();
  // Whoever still comes is to see at once that nobody is here, however long this object lives.
  runner_.as_driver([&] {
    tcp_.stop_listening();
    shm_.stop_listening();
  });
}

std::pair<int, int> links_of(Session& session) {
  session.check_process();
  std::pair<int, int> count{0, 0};
  session.as_driver([&] {
    for (int r = 0; r < session.options().size; ++r)
      if (const Link* link = session.engine().fabric().up(r))
        ++(link->kind() == Link::Kind::tcp ? count.first : count.second);
  });
  return count;
}

std::vector<LinkStatistics> Session::link_statistics() {
  check_process();
  std::vector<LinkStatistics> found;
  runner_.as_driver([&] { found = engine_.fabric().statistics(); });
  return found;
}

std::unique_ptr<Link> Session::dial(int rank) {
  const PeerAddress& peer = peers_[static_cast<size_t>(rank)];
  return peer.same_host ? shm_.dial(rank, peer.shm_name) : tcp_.dial(rank, peer.addresses, peer.port);
}

void Session::knock(int rank) {
  if (takes_offers()) return;  // the others dial when they need us
  const PeerAddress& peer = peers_[static_cast<size_t>(rank)];
  if (peer.same_host) return shm_.knock(rank, peer.shm_name, *this);
  tcp_.knock(rank, peer.addresses, peer.port, *this);
}

std::string Session::host_of(int rank) const {
  const auto i = static_cast<size_t>(rank);
  return i < peers_.size() ? peers_[i].host : std::string();
}

std::string Session::name_of(int rank) const {
  return options_.star && rank == options_.size - 1 ? options_.star->reducer : Dialer::name_of(rank);
}

void Session::accepted(std::unique_ptr<Link> link) {
  const int peer = link->peer();
  if (engine_.fabric().adopt(std::move(link))) return;
  const std::string who = engine_.fabric().who(peer);
  if (takes_offers())  // no worker needs two: it breaks the rules, and could go on with that for ever
    return engine_.fail(Error{Code::internal, peer, {}, who + " opened a second link"});
  stranger(who, "opened a second link");
}

void Session::stranger(const std::string& who, const std::string& why) {
  refusals_.add(who, why, now());
  if (strangers_due_ == Time::max()) strangers_due_ = now() + seconds(kReportSeconds);
}

Time Session::tick(Time now) {
  Time next = std::min({shm_.tick(now), tcp_.tick(now), boards_.tick(now)});
  if (splitter_) next = std::min(next, splitter_->tick(now));
  return std::min(next, report_strangers(now));
}

// Late: connections that break off because the whole job is failing are no strangers.
Time Session::report_strangers(Time now, bool last) {
  const Time due = std::min(strangers_due_, refusals_.ends());
  if (now < due && !last) return due;
  strangers_due_ = Time::max();
  // A rank that leaves breaks off what it was dialling: it knows our secret, although it had not proved it yet.
  if (last || engine_.fabric().any_left()) refusals_.forget(broke_off);
  const auto lines = refusals_.take(now, last);
  if (!engine_.failure())
    for (const std::string& line : lines) log_warning(options_.rank, line);
  return refusals_.ends();
}

void Session::knock_done(int peer, bool alive, const Error& why) {
  if (const auto asked = probes_.find(peer); asked != probes_.end()) asked->second = alive ? Probe::lives : Probe::dead;
  engine_.knocked(peer, alive, why);
}

}  // namespace slipstream
