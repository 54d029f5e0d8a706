// The sessions that a job has with its reducers: opened when there is one, closed when it is lost.
#include <cstdio>
#include <future>
#include <numeric>
#include <system_error>

#include "base/thread.h"
#include "reducers/client.h"
#include "session/session.h"
#include "transport/crypto.h"
#include "transport/sockets.h"

namespace slipstream {
namespace {

constexpr double kConnectSeconds = 8;
constexpr uint64_t kRandomBits = (uint64_t{1} << 48) - 1;  // of an incarnation; the rest is the port

// Of a reducer's name, which is host:port or [host]:port.
std::string host_of(const std::string& name) {
  const std::string host = name.substr(0, name.rfind(':'));
  return host.starts_with('[') ? host.substr(1, host.size() - 2) : host;
}

}  // namespace

ReducerSession reducer_session(const std::string& job, const std::string& secret, uint64_t incarnation) {
  char number[24];
  std::snprintf(number, sizeof(number), "%012llx", static_cast<unsigned long long>(incarnation & kRandomBits));
  ReducerSession found;
  found.job = job + "/reducer/" + number;
  Digest digest = hmac_sha256(bytes_of(secret), {bytes_of("slipstream reducer"), bytes_of(found.job)});
  found.secret.assign(reinterpret_cast<const char*>(digest.data()), digest.size());
  wipe(digest);
  return found;
}

void ReducerClient::registered(size_t index, uint64_t incarnation) {
  const std::lock_guard lock(mutex_);
  if (index < reducers_.size()) reducers_[index].state.incarnation = incarnation;
}

std::vector<ReducerState> ReducerClient::states() {
  const std::lock_guard lock(mutex_);
  std::vector<ReducerState> found;
  for (const Reducer& reducer : reducers_) {
    found.push_back(reducer.state);
    found.back().ready = reducer.session && reducer.connected == reducer.wanted && !reducer.failed;
  }
  return found;
}

void ReducerClient::set_rates(const std::vector<double>& rates, double worker) {
  const std::lock_guard lock(mutex_);
  worker_rate_ = worker;
  for (size_t i = 0; i < std::min(rates.size(), reducers_.size()); ++i) {
    Reducer& reducer = reducers_[i];
    if (rates[i] < 0 && reducer.state.used) leave(reducer);
    if (reducer.state.used && reducer.express != reducer.fresh) {
      reducer.express = reducer.fresh;
      reducer.express->agree();
    }
    reducer.state.rate = reducer.most = reducer.agreed = rates[i] < 0 ? 1 : rates[i];  // when it comes
    reducer.lag = 1;
    for (const SplitPtr& split : judged_)
      split->words[kHeader + 2 * i + 1] = static_cast<uint64_t>(reducer.state.rate * kRateUnit);
  }
}

std::vector<double> ReducerClient::part_seconds() {
  const std::lock_guard lock(mutex_);
  return seconds_;
}

std::shared_ptr<Session> ReducerClient::open(size_t index, uint64_t incarnation) {
  const ReducerSession name = reducer_session(options_.job, options_.secret, incarnation);
  SessionOptions options;
  options.rank = options_.rank;
  options.size = options_.size + 1;
  options.job = name.job;
  options.secret = name.secret;
  options.heartbeat_seconds = options_.heartbeat_seconds;
  options.star.emplace();
  options.star->connect_seconds = kConnectSeconds;
  options.link = options_.link;
  options.failed = [this, index, incarnation](const Error& error) { session_ended(index, incarnation, error.text); };
  auto session = std::make_shared<Session>(options);
  std::vector<PeerAddress> peers(static_cast<size_t>(options_.size) + 1);
  PeerAddress& reducer = peers.back();
  reducer.host = "reducer " + options_.reducers[index].name;
  reducer.addresses = options_.reducers[index].addresses;
  if (incarnation != options_.reducers[index].incarnation) {  // it was lost: perhaps it has moved since
    auto now_at = resolve(host_of(options_.reducers[index].name));
    reducer.addresses.insert(reducer.addresses.begin(), now_at.begin(), now_at.end());
  }
  reducer.port = static_cast<uint16_t>(incarnation >> 48);
  session->start(std::move(peers));
  session->reach(options_.size, now() + seconds(kConnectSeconds));
  return session;
}

void ReducerClient::open_all() {
  std::vector<std::future<std::shared_ptr<Session>>> opening(reducers_.size());
  for (size_t i = 0; i < reducers_.size(); ++i) {
    if (reducers_[i].wanted == 0) continue;
    try {
      opening[i] = std::async(std::launch::async, [this, i] { return open(i, reducers_[i].wanted); });
    } catch (const std::system_error& e) {
      throw no_thread("a thread that opens the session with reducer " + reducers_[i].state.name, e);
    }
  }
  for (size_t i = 0; i < reducers_.size(); ++i) {
    if (!opening[i].valid()) continue;
    try {
      take(i, reducers_[i].wanted, opening[i].get());
    } catch (const std::exception& e) {  // the first verdict tells the others
      reducers_[i].why = e.what();
    }
  }
}

void ReducerClient::take(size_t index, uint64_t incarnation, std::shared_ptr<Session> session) {
  Reducer& reducer = reducers_[index];
  std::vector<int> ranks(static_cast<size_t>(options_.size) + 1);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto small = session->make_group(2, ranks);  // a channel of their own: they may overtake what is large
  reducer.group = session->make_group(1, std::move(ranks));
  Express::Context context{session_, mutex_, options_.star, options_.small, options_.group, {}, {}};
  context.moved = [this] { begin_ready(); };
  context.ended = [this, index](const std::string& why) { lose(reducers_[index], why); };
  reducer.fresh = std::make_shared<Express>(std::move(context), *session, small, incarnation);
  reducer.session = std::move(session);
  reducer.connected = incarnation;
  reducer.failed = false;
}

// At once: each may wait for a reducer that is silent.
void ReducerClient::close_all(const std::vector<std::shared_ptr<Session>>& sessions) {
  std::vector<std::future<void>> closing;
  for (const auto& session : sessions) {
    try {
      closing.push_back(std::async(std::launch::async, [&session] { session->close(); }));
    } catch (const std::system_error&) {  // no thread
      session->close();
    }
  }
}

void ReducerClient::keep() {
  std::unique_lock lock(keeper_mutex_);
  for (;;) {
    keeper_bell_.wait(lock, [this] { return stop_ || !to_open_.empty() || !to_close_.empty(); });
    auto closing = std::exchange(to_close_, {});
    auto opening = std::exchange(to_open_, {});
    if (stop_ && closing.empty()) return;
    if (stop_) opening.clear();
    lock.unlock();
    close_all(closing);
    closing.clear();
    for (const auto& [index, incarnation] : opening) {
      std::shared_ptr<Session> session;
      try {
        session = open(index, incarnation);
      } catch (const std::exception&) {  // it stays unused until there is another incarnation
        continue;
      }
      const std::lock_guard state(mutex_);
      Reducer& reducer = reducers_[index];
      if (incarnation != reducer.wanted || reducer.session) {
        const std::lock_guard again(keeper_mutex_);
        to_close_.push_back(std::move(session));
        continue;
      }
      take(index, incarnation, std::move(session));
    }
    lock.lock();
  }
}

// With the sessions the works in them end, once nothing writes to their memory any more.
void ReducerClient::session_failed() {
  const std::lock_guard lock(mutex_);
  for (Reducer& reducer : reducers_) leave(reducer);
}

void ReducerClient::close() {
  {
    const std::lock_guard lock(keeper_mutex_);
    if (stop_) return;
    stop_ = true;
    keeper_bell_.notify_one();
  }
  keeper_.join();
  std::vector<std::shared_ptr<Session>> sessions;
  {
    const std::lock_guard lock(mutex_);
    for (Reducer& reducer : reducers_)
      if (reducer.session) sessions.push_back(reducer.session);
  }
  close_all(sessions);
  const std::lock_guard lock(mutex_);
  for (const WorkPtr& parent : waiting_)
    parent->complete(Error{Code::aborted, options_.rank, {}, "slipstream was shut down while operations were pending"});
  waiting_.clear();
  in_line_.clear();
}

}  // namespace slipstream
