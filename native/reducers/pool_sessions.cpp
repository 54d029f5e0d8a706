// The sessions that a worker has with its job's reducers: opened when there is one, left when it is lost.
#include <algorithm>
#include <cstdio>
#include <future>
#include <numeric>
#include <system_error>
#include <utility>

#include "base/log.h"
#include "base/thread.h"
#include "reducers/pool.h"
#include "transport/crypto.h"
#include "transport/handshake.h"
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

std::shared_ptr<Session> ReducerPool::open(size_t index, uint64_t incarnation) {
  const ReducerSession name = reducer_session(options_.job, options_.secret, incarnation);
  const ReducerPoolOptions::Reducer& reducer = options_.reducers[index];
  SessionOptions options;
  options.rank = rank();
  options.size = workers() + 1;
  options.job = name.job;
  options.secret = name.secret;
  options.heartbeat_seconds = options_.heartbeat_seconds;
  options.connect_seconds = kConnectSeconds;
  options.heartbeat_setting = "SLIPSTREAM_REDUCER_HEARTBEAT";
  options.star.emplace();
  options.star->reducer = "reducer " + std::to_string(index) + " at " + reducer.name;
  options.star->elsewhere = context_.occupation;
  options.link = options_.link;
  options.failed = [this, index, incarnation](const Error& error) { session_ended(index, incarnation, error.text); };
  auto session = std::make_shared<Session>(options);
  std::vector<PeerAddress> peers(static_cast<size_t>(options.size));
  PeerAddress& peer = peers.back();
  peer.addresses = reducer.addresses;
  if (incarnation != reducer.incarnation) {  // it was lost: perhaps it has moved since
    auto now_at = resolve(host_of(reducer.name));
    peer.addresses.insert(peer.addresses.begin(), now_at.begin(), now_at.end());
  }
  peer.port = static_cast<uint16_t>(incarnation >> 48);
  session->start(std::move(peers));
  try {
    session->reach(workers(), now() + seconds(kConnectSeconds));
  } catch (const Failure& failure) {
    if (failure.error().code == Code::refused) warn_of_refusal(index, failure.error().text);
    throw;
  }
  return session;
}

void ReducerPool::warn_of_refusal(size_t index, std::string why) {
  const std::lock_guard lock(context_.mutex);
  if (std::exchange(reducers_[index].refused, true)) return;
  if (const auto cure = why.find(kOneSecret); cure != std::string::npos)
    why.replace(
        cure, std::string::npos,
        ": this rank needs the secret that the reducer was started with: SLIPSTREAM_REDUCER_SECRET, or its file");
  log_warning(rank(), why + "; the workers go on without it");
}

void ReducerPool::open_all() {
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

bool ReducerPool::take(size_t index, uint64_t incarnation, const std::shared_ptr<Session>& session) {
  Reducer& reducer = reducers_[index];
  std::vector<int> ranks(static_cast<size_t>(workers()) + 1);
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto small = session->make_group(kAllWorkers, std::move(ranks));  // they may overtake what is large
  reducer.groups.assign(context_.shards.count(), nullptr);
  for (size_t shard = 0; shard < context_.shards.count(); ++shard) {
    ranks = context_.shards.carriers[shard];
    if (std::ranges::find(ranks, rank()) == ranks.end()) continue;
    ranks.push_back(workers());
    reducer.groups[shard] = session->make_group(carriers_group(shard), std::move(ranks));
  }
  reducer.fresh =
      std::make_shared<Express>(context_, *session, small, incarnation,
                                [this, index, incarnation](const std::string& why) { lose(index, incarnation, why); });
  reducer.session = session;
  reducer.connected = incarnation;
  reducer.failed = reducer.refused = false;
  return true;
}

void ReducerPool::leave(Reducer& reducer) {
  reducer.state.used = false;
  if (reducer.fresh) reducer.fresh->end();
  if (reducer.session) keeper_.close(std::move(reducer.session));
  reducer.session.reset();
  reducer.connected = 0;
  reducer.failed = false;
  reducer.why.clear();
}

void ReducerPool::leave_all() {
  for (Reducer& reducer : reducers_) leave(reducer);
}

void ReducerPool::session_ended(size_t index, uint64_t incarnation, const std::string& why) {
  const std::lock_guard lock(context_.mutex);
  Reducer& reducer = reducers_[index];
  if (reducer.connected != incarnation || !reducer.session) return;
  lose(index, incarnation, why);
  reducer.fresh->end();
}

void ReducerPool::close() {
  if (!keeper_.stop()) return;
  std::vector<std::shared_ptr<Session>> sessions;
  {
    const std::lock_guard lock(context_.mutex);
    for (Reducer& reducer : reducers_)
      if (reducer.session) sessions.push_back(reducer.session);
  }
  SessionKeeper::close_all(sessions);
}

}  // namespace slipstream
