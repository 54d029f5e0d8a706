// The engine's upcalls: what its links tell it, and what it makes of frames that disagree.
#include <algorithm>
#include <cstring>

#include "engine/abort_frame.h"
#include "engine/engine.h"

namespace slipstream {

int Engine::peer_index(const Execution& execution, int global_rank) const {
  const Request& request = execution.work()->request;
  const auto& ranks = request.group->ranks;
  const auto it = std::find(ranks.begin(), ranks.end(), global_rank);
  return it == ranks.end() ? -1 : request.plan->peer_index(static_cast<int>(it - ranks.begin()));
}

std::string Engine::twice(int peer, const Signature& signature) const {
  return fabric_.who(peer) + " sent a chunk of " + signature.describe() + " twice, or long before its turn";
}

Events::Landing Engine::land(Link& link, const Frame& frame) {
  if (failed_) return {};
  const auto it = executions_.find(Key{frame.channel, frame.seq});
  if (it == executions_.end()) return {};
  Execution& execution = *it->second;
  const int index = peer_index(execution, link.peer());
  if (index < 0 || frame.signature != execution.work()->request.signature_hash) return {};
  return execution.land(index, frame);
}

// A reducer's worker may say words that no work needs as often as none does in earnest: else it could for ever.
bool Engine::chatters(int peer, FrameType type) {
  switch (type) {
    case FrameType::ping:
    case FrameType::pong:
    case FrameType::describe:
    case FrameType::status:
    case FrameType::announce:
      break;
    default:
      return false;
  }
  auto& [since, count] = words_[peer];
  if (const Time t = coarse_now(); t - since >= seconds(1)) {
    since = t;
    count = 0;
  }
  return ++count > kWordsPerSecond;
}

void Engine::arrived(Link& link, const Frame& frame, const Payload& payload) {
  if (failed_) return link.release(payload);
  if (host_ != nullptr && chatters(link.peer(), frame.type)) {
    link.release(payload);
    return fail(Error{Code::internal,
                      link.peer(),
                      {},
                      fabric_.who(link.peer()) + " says more than " + std::to_string(kWordsPerSecond) +
                          " words a second that no work needs"});
  }
  switch (frame.type) {
    case FrameType::ping: {
      Frame pong;
      pong.type = FrameType::pong;
      link.send(pong, nullptr, 0);
      return;
    }
    case FrameType::credit:
      return fabric_.repaid(link.peer(), frame.chunk);
    case FrameType::abort:
      if (const auto error = decode_error({payload.data, payload.size})) return fail(*error);
      return fail(
          Error{Code::internal, link.peer(), {}, fabric_.who(link.peer()) + " aborted with an unreadable reason"});
    case FrameType::describe:
      return described(link.peer(), frame, {reinterpret_cast<const char*>(payload.data), payload.size});
    case FrameType::status:
      return answered(link.peer(), frame, {reinterpret_cast<const char*>(payload.data), payload.size});
    case FrameType::offer:
      if (host_ != nullptr) return host_->offered(link.peer(), frame, {payload.data, payload.size});
      return fail(Error{Code::internal, link.peer(), {}, fabric_.who(link.peer()) + " takes this rank for a reducer"});
    case FrameType::announce:  // only of use to a receive that has no number yet
      if (frame.seq < ledger_.next(frame.channel)) return;
      break;
    case FrameType::data:
    case FrameType::ready:
    case FrameType::request:
      break;
    case FrameType::pong:
    case FrameType::goodbye:
    case FrameType::taken:
    case FrameType::seen:
    case FrameType::resume:
    case FrameType::cut:
      return;
  }
  const Key key{frame.channel, frame.seq};
  const auto it = executions_.find(key);
  if (it != executions_.end()) return frame_for(*it->second, link, frame, payload);
  const auto channel = channels_.find(frame.channel);
  if (channel != channels_.end() && !channel->second.history.empty() && frame.seq <= channel->second.history.back().seq)
    for (const Past& past : channel->second.history)
      if (past.seq == frame.seq) {  // we are done with it; at best the peer still wants an answer
        link.release(payload);
        if (past.signature.hash() != frame.signature)
          return send_description(frame.channel, frame.seq, past.signature, link.peer());
        if (host_ != nullptr && frame.type == FrameType::data)  // or it could send for ever
          fail(Error{Code::internal, link.peer(), {}, twice(link.peer(), past.signature)});
        return;
      }
  keep_early(link, frame, payload);
  if (receives_.first(frame.channel) != nullptr) settle({frame.channel});
}

void Engine::keep_early(Link& link, const Frame& frame, const Payload& payload) {
  const int peer = link.peer();
  Early early{peer, early_count_++, frame, {}};
  early.payload.assign(payload.data, payload.data + payload.size);
  if (!link.intact(payload)) return;
  link.release(payload);
  // Whoever takes part in a work that is offered offers it first.
  if (host_ != nullptr && frame.seq >= ledger_.next(frame.channel))
    return fail(Error{Code::internal, peer, {}, fabric_.who(peer) + " sent a frame of a work that it has not offered"});
  if (early_.size() >= kMostEarlyWorks)
    return fail(Error{Code::internal, peer, {}, fabric_.who(peer) + " is over a million operations ahead"});
  size_t& kept = early_bytes_[peer];
  kept += early.bytes();
  if (kept > options_.early_bytes)
    return fail(Error{Code::internal,
                      peer,
                      {},
                      fabric_.who(peer) + " sent more than " + std::to_string(options_.early_bytes >> 10) +
                          " KiB for works that have not begun"});
  early_[Key{frame.channel, frame.seq}].push_back(std::move(early));
}

void Engine::frame_for(Execution& execution, Link& link, const Frame& frame, const Payload& payload) {
  const Request& request = execution.work()->request;
  if (frame.signature != request.signature_hash) {
    link.release(payload);
    return send_description(request.channel, request.seq, request.signature, link.peer());
  }
  const int index = peer_index(execution, link.peer());
  if (index < 0) {
    link.release(payload);
    return fail(Error{
        Code::internal,
        link.peer(),
        {},
        fabric_.who(link.peer()) + " sent a frame for " + request.signature.describe() + ", in which it has no part"});
  }
  switch (frame.type) {
    case FrameType::data:
      return execution.arrived(index, link, frame, payload);
    case FrameType::ready:
      return execution.peer_ready(index, link, {payload.data, payload.size});
    case FrameType::announce:
      return;
    default: {  // request
      Frame ready = frame;
      ready.type = FrameType::ready;
      ready.length = 0;
      link.send(ready, nullptr, 0);
    }
  }
}

void Engine::sent(Link&, uint64_t cookie) {
  const PendingSend send = sends_[cookie];
  free_sends_.push_back(cookie);
  if (!failed_) send.execution->sent(send.step, send.chunk);
}

void Engine::up(Link& link) {
  fabric_.came_up(link);
  if (failed_) {
    untold_.erase(link.peer());
    link.send(abort_frame(), abort_.data(), 0);
    return link.close();
  }
  for (size_t i = 0; i < running_.size(); ++i) {
    const int index = peer_index(*running_[i], link.peer());
    if (index >= 0) running_[i]->link_up(index);
  }
}

void Engine::down(Link& link, const Error& error) {
  Error named = error;
  const int peer = link.peer();
  if (named.host.empty()) {
    named.host = fabric_.host_of(peer);
    const std::string rank = "rank " + std::to_string(peer);
    const size_t at = named.text.find(rank);
    if (at != std::string::npos) named.text.replace(at, rank.size(), fabric_.who(peer));
  }
  untold_.erase(peer);
  if (!failed_)  // else the works are complete, and their memory may be gone
    for (Execution* execution : running_) execution->outlive(link);
  const bool stranger = fabric_.never_up(link) && !needs(peer);
  if (!fabric_.went_down(link, named) || failed_) return;
  if (named.code == Code::aborted) {  // it left in good order: that hurts only works that wait for it
    named.code = Code::peer_lost;
    fabric_.set_left(peer, named, now());
    return;
  }
  if (stranger && !is_candidate(peer)) return fabric_.forget(peer);
  if (stranger || suspicion_) return;  // a receive from any source may have others: watch()
  suspicion_ = named;                  // another rank may know better whose fault it is: see EngineOptions
  suspicion_until_ = now() + seconds(options_.suspicion_seconds);
  next_tick_ = {};
}

bool Engine::adopt(std::unique_ptr<Link> link) { return fabric_.adopt(std::move(link)); }

void Engine::dial_back(int rank) {
  if (!failed_) return fabric_.dial_back(rank);
  if (rank < rank_) return;  // it only asks whether we live
  fabric_.forget(rank);      // whatever we thought of it: it lives, and waits for a word from us
  if (fabric_.reach_out(rank)) untold_.insert(rank);
}

void Engine::knocked(int rank, bool alive, const Error& why) {
  if (!alive) untold_.erase(rank);
  if (const Error error = fabric_.knocked(rank, alive, why)) down_without_link(rank, error);
}

void Engine::down_without_link(int rank, const Error& error) {
  if (failed_ || suspicion_ || !needs(rank)) return;
  suspicion_ = error;
  suspicion_until_ = now() + seconds(options_.suspicion_seconds);
  next_tick_ = {};
}

}  // namespace slipstream
