#include "transport/tcp/transport.h"

#include <algorithm>
#include <list>
#include <span>

#include "transport/tcp/acceptor.h"
#include "transport/tcp/core.h"
#include "transport/tcp/dial.h"
#include "transport/tcp/link.h"

namespace slipstream {

namespace {

void check_lanes(int lanes) {
  if (lanes < 1 || lanes > kMaxLanes)
    throw Failure(Code::invalid, "a link has 1 to 64 lanes, not " + std::to_string(lanes));
}

}  // namespace

struct TcpTransport::Impl {
  Impl(std::shared_ptr<TcpCore> c, Arrivals& arrivals)
      : core(std::move(c)), first(core->options), acceptor(core, arrivals) {}

  std::shared_ptr<TcpCore> core;
  const LinkOptions first;  // what users chose
  Acceptor acceptor;
  std::list<std::unique_ptr<Dial>> knocks;
};

TcpTransport::TcpTransport(Poller& poller, Events& events, Arrivals& arrivals, Identity identity, TcpOptions options) {
  check_lanes(options.lanes);
  check_congestion(options.congestion);
  if (identity.encrypt) poller.expect_again();
  impl_ = std::make_unique<Impl>(std::make_shared<TcpCore>(poller, events, std::move(identity), std::move(options)),
                                 arrivals);
}

TcpTransport::~TcpTransport() = default;

uint16_t TcpTransport::listen(const std::string& address) { return impl_->acceptor.listen({address}); }
uint16_t TcpTransport::listen(const std::vector<std::string>& addresses) { return impl_->acceptor.listen(addresses); }

std::unique_ptr<Link> TcpTransport::dial(int peer, const std::vector<std::string>& addresses, uint16_t port) {
  uint64_t token = 0;
  random_bytes(std::as_writable_bytes(std::span(&token, 1)));
  return std::make_unique<TcpLink>(impl_->core, Dial::Target{peer, addresses, port}, token);
}

void TcpTransport::knock(int peer, const std::vector<std::string>& addresses, uint16_t port, KnockDone& done) {
  auto& knocks = impl_->knocks;
  const auto at = knocks.insert(knocks.end(), nullptr);
  *at = std::make_unique<Dial>(impl_->core, Dial::Target{peer, addresses, port}, Purpose::knock, 0, 0,
                               [&knocks, at, peer, &done](const Dial::Result& result) {
                                 knocks.erase(at);
                                 done.knock_done(peer, !result.error, result.error);
                               });
}

void TcpTransport::set_directory(std::function<TcpTarget(int)> directory) {
  impl_->core->directory = std::move(directory);
}

void TcpTransport::set_lanes(int lanes) {
  check_lanes(lanes == 0 ? 1 : lanes);
  TcpCore& core = *impl_->core;
  core.options.lanes = lanes == 0 ? impl_->first.lanes : lanes;
  core.options.more_lanes = lanes == 0 && impl_->first.more_lanes;
  for (const auto* links : {&core.accepted, &core.dialled})
    for (const auto& [key, link] : *links)
      if (link->up() && !link->context().ends() && !link->context().goodbye) link->bulk().recount(now());
}

void TcpTransport::stop_listening() { impl_->acceptor.close(); }
void TcpTransport::end_threads() { impl_->core->threads.stop(); }
bool TcpTransport::closing() const {
  const auto closes = [](const auto& known) { return known.second->context().closing; };
  return std::any_of(impl_->core->accepted.begin(), impl_->core->accepted.end(), closes) ||
         std::any_of(impl_->core->dialled.begin(), impl_->core->dialled.end(), closes);
}

void TcpTransport::set_trace(Trace* trace) { impl_->core->trace = trace; }

Time TcpTransport::tick(Time now) { return impl_->core->timers.tick(now); }

}  // namespace slipstream
