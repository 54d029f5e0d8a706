// What the links, dials and unauthenticated connections of one TcpTransport share. Links hold it, so the transport may
// go first; the poller and the events outlive both. Private to this folder.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/trace.h"
#include "transport/identity.h"
#include "transport/link.h"
#include "transport/poller.h"
#include "transport/sockets.h"
#include "transport/tcp/batch.h"
#include "transport/tcp/io_threads.h"
#include "transport/tcp/timers.h"
#include "transport/tcp/transport.h"

namespace slipstream {

class TcpLink;

// An upper bound, so that a bad option cannot exhaust the file descriptors.
inline constexpr int kMaxLanes = 64;

struct TcpCore {
  TcpCore(Poller& p, Events& e, Identity i, TcpOptions o)
      : poller(p),
        events(e),
        identity(std::move(i)),
        options(std::move(o)),
        timers(p),
        threads(options.threads, options.cpus),
        batch(p, threads) {}

  SocketOptions socket_options() const { return {options.congestion, options.notsent_lowat, options.dscp}; }

  Poller& poller;
  Events& events;
  Identity identity;
  TcpOptions options;
  Timers timers;
  IoThreads threads;
  Batch batch;
  // Where a rank's listener is, if that is known: then connections that break are repaired.
  std::function<TcpTarget(int rank)> directory;
  // The owner's timeline, if it records changes of lanes.
  Trace* trace = nullptr;
  // The links that were dialled by others, by (rank, token): where their bulk lanes belong.
  std::map<std::pair<int, uint64_t>, TcpLink*> accepted;
  // Those that we dialled: whose control lane a knock is about.
  std::map<std::pair<int, uint64_t>, TcpLink*> dialled;
  // Lanes beyond the first few that links may still ask for, each for what it sends.
  int spare_lanes = 512;
};

}  // namespace slipstream
