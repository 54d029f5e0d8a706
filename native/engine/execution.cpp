#include "engine/execution.h"

#include <algorithm>

#include "engine/texts.h"

namespace slipstream {

namespace {

constexpr size_t kStagingBudget = 2 << 20;  // per work: about a core's cache
constexpr uint64_t kFewestChunks = 2;
constexpr uint64_t kMostChunks = 32;
// Over a network a chunk is done when its bytes have been acknowledged: what is under way and in queues has to fit.
constexpr size_t kNetworkBudget = 32 << 20;

WorkHeader frame_of(const Request& request, MessageType type) {
  WorkHeader frame;
  frame.type = type;
  frame.channel = request.channel;
  frame.seq = request.seq;
  frame.signature = request.signature_hash;
  return frame;
}

Geometry cut(const Request& request, const Fabric& fabric) {
  Geometry geometry(request);
  geometry.encode([&](int peer) { return !fabric.shares_memory(request.group->ranks[static_cast<size_t>(peer)]); });
  return geometry;
}

const Geometry& folded(Geometry& geometry, const Request& request, uint64_t window) {
  if (!is_windowed(request)) geometry.fold_tmp(window);  // else all spaces are one ring
  return geometry;
}

WorkHeader offer_of(const Request& request) {
  WorkHeader frame = frame_of(request, MessageType::offer);
  frame.length = static_cast<uint32_t>(request.part->offer.size());
  return frame;
}

// True if what the work moves to OUT, on `here` ranks of this host together, does not stay in the last-level cache.
bool is_past_cache(const Request& request, const Geometry& geometry, size_t here) {
  if (request.signature.reduces) return false;  // it reads its output
  return geometry.elements(Space::out) * geometry.element_bytes() >= last_level_cache() / 2 / here;
}

// True if some ranks get what is given in the wire type, so that all must.
bool rounds(const Request& request, const Geometry& geometry, const Fabric& fabric) {
  const std::vector<int>& ranks = request.group->ranks;
  const int me = ranks[static_cast<size_t>(request.group->rank)];
  return geometry.wire() != WireType::exact &&
         std::ranges::any_of(ranks, [&](int rank) { return rank != me && !fabric.shares_memory(rank); });
}

using Copy = decltype(&copy);

// Puts bytes where the peer wants them; false if it has failed or left.
bool put(Link& link, const Link::Shared& at, const std::byte* data, size_t bytes, Copy move) {
  std::byte* to = link.begin_write(at, bytes);
  if (to == nullptr) return false;
  move(to, data, bytes);
  link.end_write();
  return true;
}

}  // namespace

Execution::Execution(const ExecutionContext& context, WorkPtr work)
    : lateness(*work),
      context_(context),
      work_(std::move(work)),
      request_(work_->request),
      part_(request_.part),
      plan_(*request_.plan),
      geometry_(cut(request_, context.fabric)),
      network_(peers_here() < plan_.peers().size()),
      schedule_(plan_, geometry_.chunks(), std::min(geometry_.chunks(), widest_window())),
      memory_(context.arena, request_, folded(geometry_, request_, schedule_.window()), schedule_.window(),
              peers_here() != 0),
      scaled_(context.arena, geometry_, request_.prescale),
      past_cache_(is_past_cache(request_, geometry_, 1 + peers_here())),
      operator_(request_, geometry_, memory_, scaled_, {rounds(request_, geometry_, context.fabric), past_cache_}),
      trace_(work_->steps, request_),
      encoded_(context.arena, geometry_),
      shared_copies_(context.arena, context.regions, plan_, geometry_, schedule_.window()),
      private_sends_(request_, geometry_, context.fabric, context.regions, context.receiving, 1 + peers_here()),
      gates_(plan_.peers().size()) {
  if (part_ && part_->received) part_->received->assign(geometry_.chunks(), 0);
}

size_t Execution::peers_here() const {
  return static_cast<size_t>(std::count_if(plan_.peers().begin(), plan_.peers().end(), [this](const Plan::Peer& peer) {
    return context_.fabric.shares_memory(global_rank(peer.rank));
  }));
}

uint64_t Execution::widest_window() const {
  const size_t network = part_ && part_->window_bytes != 0 ? part_->window_bytes : kNetworkBudget;
  const uint64_t staged = std::max<uint64_t>(1, SharedCopies::bytes_per_chunk(plan_, geometry_));
  const uint64_t chunk = is_windowed(request_) ? geometry_.chunk_bytes() : geometry_.wire_chunk_bytes();
  const uint64_t fitting = network_ ? network / chunk : kStagingBudget / staged;
  return std::clamp<uint64_t>(fitting, kFewestChunks, network_ ? 4 * kMostChunks : kMostChunks);
}

// ---- leave to send

void Execution::start() {
  lateness.begin();
  for (size_t i = 0; i < plan_.peers().size(); ++i) {
    const Plan::Peer& peer = plan_.peers()[i];
    const int global = global_rank(peer.rank);
    const auto [out, in] = geometry_.traffic(peer);
    Gate& gate = gates_[i];
    const bool silent = out == 0 || out > kEagerBytes;  // nothing of ours need travel before the receiver moves
    if (silent && !peer.sends.empty() && request_.channel != request_.group->id)
      context_.fabric.send(global, frame_of(request_, MessageType::announce));
    bulk_ |= out > kEagerBytes || in > kEagerBytes;
    context_.fabric.want(global);
    if (part_ && !part_->offer.empty()) context_.fabric.send(global, offer_of(request_), part_->offer);
    gate.must_say_ready = in > kEagerBytes;
    say_ready(static_cast<int>(i));
    if (out <= kEagerBytes) {
      if (out == 0 || context_.fabric.credit(global).spend(out + geometry_.frames(peer) * EagerCredit::kFrameCost))
        gate.sends.set_eager();
      else
        context_.fabric.send(global, frame_of(request_, MessageType::request));
    }
    try_open(static_cast<int>(i));
  }
  start_chunk();
}

void Execution::try_open(int peer_index) {
  SendGate& gate = gates_[static_cast<size_t>(peer_index)].sends;
  const Plan::Peer& peer = plan_.peers()[static_cast<size_t>(peer_index)];
  const Link* link = link_to(peer.rank);
  if (link == nullptr || gate.is_open()) return;
  if (!gate.may_open() && !private_sends_.at_once(*link, geometry_.traffic(peer).first)) return;
  ++progress_;
  for (const auto& [step, chunk] : gate.open()) issue_send(step, chunk);
  run_ready();
}

void Execution::say_ready(int peer_index) {
  Gate& gate = gates_[static_cast<size_t>(peer_index)];
  const Plan::Peer& peer = plan_.peers()[static_cast<size_t>(peer_index)];
  Link* link = link_to(peer.rank);
  if (!gate.must_say_ready || link == nullptr) return;
  gate.must_say_ready = false;
  std::vector<uint64_t> placement;
  const uint64_t bytes = geometry_.elements(Space::out) * geometry_.element_bytes();
  if (memory_.ring_elements() == 0 && peer.recvs.size() < kEagerBytes / 16)
    if (const auto shared = link->share(memory_.at(Space::out, 0), bytes))
      placement = encode_placement(*shared, bytes, plan_, peer, geometry_);
  WorkHeader frame = frame_of(request_, MessageType::ready);
  frame.length = static_cast<uint32_t>(placement.size() * sizeof(uint64_t));
  link->send(frame, reinterpret_cast<const std::byte*>(placement.data()), 0);
}

void Execution::peer_ready(int peer_index, Link& link, std::span<const std::byte> placement) {
  const auto i = static_cast<size_t>(peer_index);
  gates_[i].sends.set_ready(placement, link, plan_, plan_.peers()[i], geometry_);
  try_open(peer_index);
}

// The peer may not submit this work before it has got a later one: a program may receive in another order than it
// sends.
void Execution::credit_came(int peer_index) {
  SendGate& gate = gates_[static_cast<size_t>(peer_index)].sends;
  const Plan::Peer& peer = plan_.peers()[static_cast<size_t>(peer_index)];
  const uint64_t out = geometry_.traffic(peer).first;
  if (gate.is_open() || gate.eager() || out > kEagerBytes) return;
  const uint64_t cost = out + geometry_.frames(peer) * EagerCredit::kFrameCost;
  if (!context_.fabric.credit(global_rank(peer.rank)).spend(cost)) return;
  gate.set_eager();
  try_open(peer_index);
}

void Execution::link_up(int peer_index) {
  say_ready(peer_index);
  try_open(peer_index);
}

void Execution::nudge() {
  for (size_t i = 0; i < gates_.size(); ++i)
    if (!gates_[i].sends.is_open() && gates_[i].sends.blocks())
      context_.fabric.send(global_rank(plan_.peers()[i].rank), frame_of(request_, MessageType::request));
}

// ---- running steps

uint64_t Execution::allowance() const {
  if (!network_) return schedule_.window();
  uint64_t bytes = SIZE_MAX;
  for (const Plan::Peer& peer : plan_.peers())
    if (const Link* link = link_to(peer.rank)) {
      if (part_ && context_.fabric.shares_memory(global_rank(peer.rank))) continue;  // the others take turns on a port
      const auto ahead =
          part_ && part_->window_seconds > 0
              ? std::max<uint64_t>(part_->window_least, static_cast<uint64_t>(part_->window_seconds * link->rate()))
              : link->window();
      bytes = std::min<uint64_t>(bytes, ahead);
    }
  const uint64_t window = schedule_.window();
  return std::clamp<uint64_t>(bytes / geometry_.wire_chunk_bytes(), std::min(kFewestChunks, window), window);
}

bool Execution::start_chunk() {
  if (!schedule_.may_begin(schedule_.window()) || !schedule_.may_begin(allowance())) return false;
  if (context_.intake.bounded() && !context_.intake.take(geometry_.received(schedule_.begun()))) return false;
  shared_copies_.begin(schedule_.begin());
  run_ready();
  return true;
}

void Execution::run_ready() {
  while (const auto found = schedule_.next()) issue(found->step, found->chunk);
}

void Execution::issue(uint32_t index, uint64_t chunk) {
  const Step& step = plan_.steps()[index];
  if (trace_.on()) trace_.begin(index, chunk);
  switch (step.kind) {
    case StepKind::send:
      return issue_send(index, chunk);
    case StepKind::recv:
    case StepKind::recv_reduce:
      return issue_recv(index, chunk);
    default:
      operator_.apply(step, chunk);
      complete(index, chunk);
  }
}

void Execution::complete(uint32_t index, uint64_t chunk) {
  const Step& step = plan_.steps()[index];
  ++progress_;
  scaled_.drop(send_key(index, chunk));
  if (step.kind == StepKind::send && geometry_.is_encoded(step)) encoded_.drop(step, chunk);
  if (part_ && part_->received && step.kind == StepKind::recv) (*part_->received)[chunk] = 1;
  if (trace_.on())
    trace_.end(step, index, chunk, step.peer < 0 ? -1 : global_rank(step.peer), geometry_.is_encoded(step));
  schedule_.complete(index, chunk);
}

// ---- sending

// The first bulk of a work that goes to another host: to ask its receiver takes a round trip, which may pass through
// queues full of other bulk.
bool Execution::leaves_early(Link* link, const Step& step, uint64_t chunk) {
  if (link == nullptr || link->needs_shared_memory() || part_) return false;
  uint64_t bytes = 0;
  for (uint32_t j = 0; j < geometry_.pieces(step); ++j)
    if (geometry_.piece(step.src, step, chunk, j).count > 0)
      bytes += geometry_.bytes(step.src, step, chunk, j) + EagerCredit::kFrameCost;
  return context_.fabric.credit(link->peer()).spend_on_bulk(bytes);
}

void Execution::issue_send(uint32_t index, uint64_t chunk) {
  const Step& step = plan_.steps()[index];
  SendGate& gate = gates_[static_cast<size_t>(plan_.peer_index(step.peer))].sends;
  if (geometry_.is_empty(step.src, step, chunk)) return complete(index, chunk);  // also if the peer has left by now
  Link* link = link_to(step.peer);
  const bool early = !gate.is_open() && leaves_early(link, step, chunk);
  if (!gate.is_open() && !early) return gate.block({index, chunk});
  if (link == nullptr) return;  // it went down: the session is failing
  WorkHeader frame = frame_of(request_, MessageType::data);
  frame.flags = gate.eager() || early ? kEagerFlag : 0;
  frame.stream = static_cast<uint16_t>(step.stream);
  frame.chunk = static_cast<uint32_t>(chunk);
  uint32_t& left = schedule_.pieces_left(index, chunk);
  left = 1;
  const std::byte* encoded = nullptr;
  if (geometry_.is_encoded(step))
    encoded = encoded_.take(step, chunk, [&](uint32_t j) {
      return scaled_.read(step, operator_.at(step.src, step, chunk, j),
                          geometry_.piece(step.src, step, chunk, j).count);
    });
  for (uint32_t j = 0; j < geometry_.pieces(step); ++j) {
    const Geometry::Extent from = geometry_.piece(step.src, step, chunk, j);
    if (from.count == 0) continue;
    frame.piece = static_cast<uint16_t>(j);
    frame.length = static_cast<uint32_t>(geometry_.bytes(step.src, step, chunk, j));
    const std::byte* data = memory_.at(step.src, from.offset);
    if (encoded != nullptr)
      data = std::exchange(encoded, encoded + frame.length);
    else if (scaled_.applies(step))
      data = scaled_.for_send(step, send_key(index, chunk), j, data, from.count);
    const bool places = request_.signature.reduces || !step.multicast;
    if (const auto place = places ? gate.place(step.stream, chunk * geometry_.chunk_bytes()) : std::nullopt) {
      if (!put(*link, *place, data, frame.length, past_cache_ ? copy_past_cache : copy))
        return;  // the session is failing
      link->count(frame.length, 0);
      frame.flags |= kPlacedFlag;
      frame.length = 0;
      link->send(frame, nullptr, 0);
      continue;
    }
    const bool bulk = frame.length > kEagerBytes;
    if (bulk && link->needs_shared_memory() && !private_sends_.over(*link))
      data = shared_copies_.stage(step, chunk, j, data, frame.length, link->far());
    const uint64_t cookie = bulk ? context_.sends.add({this, index, chunk}) : 0;
    if (!link->send(frame, data, cookie, request_.urgency))
      ++left;
    else if (bulk)
      context_.sends.remove(cookie);
  }
  if (--left == 0) complete(index, chunk);
}

void Execution::sent(uint32_t step, uint64_t chunk) {
  if (--schedule_.pieces_left(step, chunk) != 0) return;
  complete(step, chunk);
  run_ready();
}

// ---- receiving

void Execution::issue_recv(uint32_t index, uint64_t chunk) {
  const Step& step = plan_.steps()[index];
  uint32_t expected = 0;
  for (uint32_t j = 0; j < geometry_.pieces(step); ++j)
    expected += geometry_.piece(step.dst, step, chunk, j).count > 0 ? 1 : 0;
  if (expected == 0) return complete(index, chunk);
  schedule_.await(index, chunk, expected);
  for (const HeldPieces::Held& held : held_.take(index, chunk))
    consume(index, held.link(), held.frame(), held.payload());
}

int Execution::step_of(int peer_index, const WorkHeader& frame, uint32_t& expected_bytes) const {
  const auto& recvs = plan_.peers()[static_cast<size_t>(peer_index)].recvs;
  if (frame.stream >= recvs.size() || frame.chunk >= geometry_.chunks() || frame.chunk < schedule_.oldest()) return -1;
  const uint32_t index = recvs[frame.stream];
  const Step& step = plan_.steps()[index];
  if (frame.piece >= geometry_.pieces(step)) return -1;
  expected_bytes = static_cast<uint32_t>(geometry_.bytes(step.dst, step, frame.chunk, frame.piece));
  const bool placed =
      (frame.flags & kPlacedFlag) != 0 && memory_.ring_elements() == 0 && sender_may_write(step, geometry_);
  const bool shorter = request_.ragged && !placed && frame.length > 0 && frame.length < expected_bytes;
  return shorter || frame.length == (placed ? 0 : expected_bytes) ? static_cast<int>(index) : -1;
}

bool Execution::is_excess(uint32_t index, const WorkHeader& frame) const {
  if (frame.chunk < schedule_.begun()) {
    if (schedule_.released(index, frame.chunk)) return true;  // it was taken
  } else if (is_windowed(request_) && frame.chunk >= schedule_.begun() + 4 * kMostChunks) {
    return true;  // its sender waits for what becomes of the chunks before
  }
  return held_.has(index, frame);
}

Events::Landing Execution::land(int peer_index, const WorkHeader& frame) {
  uint32_t expected = 0;
  const int index = step_of(peer_index, frame, expected);
  if (index < 0) return {};  // arrived() reports it
  while (schedule_.begun() <= frame.chunk && start_chunk()) {
  }
  const Step& step = plan_.steps()[static_cast<size_t>(index)];
  if (!operator_.lands(step) || (part_ && part_->whole_chunks) ||
      !schedule_.awaits(static_cast<uint32_t>(index), frame.chunk))
    return {};
  return {true, operator_.at(step.dst, step, frame.chunk, frame.piece)};
}

Error Execution::arrived(int peer_index, Link& link, const WorkHeader& frame, const Payload& payload) {
  uint32_t expected = 0;
  const int found = step_of(peer_index, frame, expected);
  if (found < 0) {
    link.release(payload);
    return Error{Code::mismatch,
                 link.peer(),
                 {},
                 context_.fabric.who(link.peer()) + " sent " + std::to_string(frame.length) + " bytes where " +
                     context_.fabric.who(global_rank(request_.group->rank)) + " expects " + std::to_string(expected) +
                     " in " + request_.signature.describe() + ": the ranks disagree on counts or splits"};
  }
  const auto index = static_cast<uint32_t>(found);
  while (schedule_.begun() <= frame.chunk && start_chunk()) {
  }
  if (schedule_.awaits(index, frame.chunk)) {
    consume(index, &link, frame, payload);
    run_ready();
    return {};
  }
  if (is_excess(index, frame)) {
    link.release(payload);
    return Error{Code::internal, link.peer(), {}, twice_text(context_.fabric.who(link.peer()), request_.signature)};
  }
  held_.keep(index, link, frame, payload);
  return {};
}

void Execution::consume(uint32_t index, Link* link, const WorkHeader& frame, const Payload& payload) {
  const Step& step = plan_.steps()[index];
  const Geometry::Extent to = geometry_.piece(step.dst, step, frame.chunk, frame.piece);
  std::byte* there = operator_.lands(step) ? memory_.at(step.dst, to.offset) : nullptr;
  const std::byte* data = private_sends_.bytes_of(link, payload, there, past_cache_ && step.last);
  if (data == nullptr && payload.size > 0) return;  // its sender has failed or left: this never completes
  operator_.absorb(step, frame.chunk, frame.piece, data, payload.size);
  if (link != nullptr && !link->intact(payload)) return;  // as above
  if (!geometry_.is_encoded(step)) operator_.round_moved(step, to);
  if (link != nullptr && payload.hold != 0) link->release(payload);
  if (link != nullptr && (frame.flags & kPlacedFlag) != 0) link->count(0, to.count * geometry_.element_bytes());
  if (link != nullptr && (frame.flags & kEagerFlag) != 0)
    context_.fabric.consumed(link->peer(), frame.length + EagerCredit::kFrameCost);
  ++progress_;
  if (--schedule_.pieces_left(index, frame.chunk) == 0) complete(index, frame.chunk);
}

// ---- whom it waits for

int Execution::peer_index(int global_rank) const {
  const int member = request_.group->index_of(global_rank);
  return member < 0 ? -1 : plan_.peer_index(member);
}

std::vector<int> Execution::waiting_on() const {
  std::vector<int> ranks;
  const auto add = [&](int group_rank) {
    const int peer = global_rank(group_rank);
    if (std::find(ranks.begin(), ranks.end(), peer) == ranks.end()) ranks.push_back(peer);
  };
  for (size_t i = 0; i < gates_.size(); ++i)
    if (gates_[i].sends.blocks()) add(plan_.peers()[i].rank);
  const auto& steps = plan_.steps();
  for (uint64_t chunk = schedule_.oldest(); chunk < schedule_.begun(); ++chunk)
    for (uint32_t s = 0; s < steps.size() && !schedule_.chunk_done(chunk); ++s)
      if (schedule_.awaits(s, chunk)) add(steps[s].peer);
  if (ranks.empty())  // only sends that the peers have not taken yet
    for (const Plan::Peer& peer : plan_.peers())
      if (!peer.sends.empty()) add(peer.rank);
  return ranks;
}

}  // namespace slipstream
