#include "engine/execution.h"

#include <algorithm>
#include <cstring>

#include "engine/engine.h"

namespace slipstream {

namespace {

constexpr uint8_t kEagerFlag = 1;
constexpr uint8_t kPlacedFlag = 2;  // the bytes are in the receiver's memory already
constexpr uint64_t kNowhere = ~uint64_t{0};
constexpr size_t kStagingBudget = 2 << 20;  // per work: about a core's cache
constexpr uint64_t kFewestChunks = 2;
constexpr uint64_t kMostChunks = 32;
// Over a network a chunk is done when its bytes have been acknowledged: what is under way and in queues has to fit.
constexpr size_t kNetworkBudget = 32 << 20;
constexpr uint64_t kFrameCost = 64;  // what an eager frame costs its receiver beside the payload

Frame frame_of(const Request& request, FrameType type) {
  Frame frame;
  frame.type = type;
  frame.channel = request.channel;
  frame.seq = request.seq;
  frame.signature = request.signature_hash;
  return frame;
}

bool is_short_float(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f8e4m3 || dtype == DType::f8e5m2 ||
         dtype == DType::q8;
}

// A receive that waits for no other step may be written at any time, so the sender can do it where it can reach OUT.
bool sender_may_write(const Step& step) {
  return step.kind == StepKind::recv && step.deps == 0 && step.count == 1 && step.dst == Space::out;
}

Frame offer_of(const Request& request) {
  Frame frame = frame_of(request, FrameType::offer);
  frame.length = static_cast<uint32_t>(request.offer.size());
  return frame;
}

}  // namespace

Execution::Execution(Engine& engine, WorkPtr work)
    : engine_(engine), work_(std::move(work)), request_(work_->request), plan_(*request_.plan) {
  element_ = size_of(reduced().dtype);
  reduce_ = reduce_fn(reduced().dtype, reduced().op);
  spaces_ = request_.spaces;
  steps_ = plan_.steps().size();
  measure();
}

Execution::~Execution() {
  engine_.arena().give_back(staging_);
  for (const auto& [send, block] : scaled_) engine_.arena().give_back(block);
}

// ---- geometry

uint64_t Execution::block_offset(Space space, int block) const {
  const Layout& layout = spaces_[static_cast<size_t>(space)];
  if (!layout.offsets.empty()) return layout.offsets[static_cast<size_t>(block)];
  return layout.count * static_cast<uint64_t>(block) / static_cast<uint64_t>(plan_.blocks());
}

uint64_t Execution::range_elements(Space space, const Step& step) const {
  return block_offset(space, step.block + step.count) - block_offset(space, step.block);
}

Request::Elements Execution::reduced() const {
  return request_.elements.value_or(Request::Elements{request_.signature.dtype, request_.signature.op});
}

std::byte* Execution::address(Space space, uint64_t element) const {
  if (ring_elements_ != 0) element %= ring_elements_;
  return spaces_[static_cast<size_t>(space)].data + element * element_;
}

Execution::Piece Execution::piece(Space space, const Step& step, uint64_t chunk, uint32_t index) const {
  if (merged(step)) return {block_offset(space, step.block), chunk == 0 ? range_elements(space, step) : 0};
  const int block = step.block + static_cast<int>(index);
  const uint64_t begin = block_offset(space, block);
  const uint64_t size = block_offset(space, block + 1) - begin;
  const uint64_t from = std::min(size, chunk * chunk_elements_);
  return {begin + from, std::min(size - from, chunk_elements_)};
}

bool Execution::one_piece(Space space, const Step& step) const {
  if (step.count < 2 || range_elements(space, step) * element_ > kMaxPayload) return false;
  for (int b = step.block; b < step.block + step.count; ++b)
    if (block_offset(space, b + 1) - block_offset(space, b) > chunk_elements_) return false;
  return true;
}

void Execution::measure() {
  chunk_elements_ = chunk_elements(request_);
  uint64_t largest = 0;
  if (plan_.uses_tmp() && !request_.windowed) {
    Layout& tmp = spaces_[static_cast<size_t>(Space::tmp)];
    const uint64_t elements = tmp.offsets.empty() ? tmp.count : tmp.offsets.back();
    tmp_.resize(elements * element_);
    tmp.data = tmp_.data();
  }
  for (size_t s = 0; s < steps_; ++s) {
    const Step& step = plan_.steps()[s];
    const Space space = step.kind == StepKind::send ? step.src : step.dst;
    if (one_piece(space, step)) {
      merged_.resize(steps_);
      merged_[s] = 1;
    }
    for (int b = step.block; b < step.block + step.count; ++b)
      largest = std::max(largest, block_offset(space, b + 1) - block_offset(space, b));
  }
  chunks_ = std::max<uint64_t>(1, (largest + chunk_elements_ - 1) / chunk_elements_);
  const uint64_t chunk_bytes = chunk_elements_ * element_;
  stage_bytes_ = chunk_bytes * static_cast<uint64_t>(plan_.widest_send());
  const uint64_t per_chunk = std::max<uint64_t>(1, stage_bytes_ * plan_.batches());
  const auto near = [this](const Plan::Peer& peer) {
    return engine_.fabric().shares_memory(request_.group->ranks[static_cast<size_t>(peer.rank)]);
  };
  network_ = !std::all_of(plan_.peers().begin(), plan_.peers().end(), near);
  const size_t network = request_.window_bytes != 0 ? request_.window_bytes : kNetworkBudget;
  const uint64_t fitting = network_ ? network / chunk_bytes : kStagingBudget / per_chunk;
  window_ = std::min(chunks_, std::clamp<uint64_t>(fitting, kFewestChunks, network_ ? 4 * kMostChunks : kMostChunks));
  if (request_.windowed) {
    ring_elements_ = std::clamp<uint64_t>(largest, 1, window_ * chunk_elements_);
    ring_.reset(new std::byte[ring_elements_ * element_]);
    for (Layout& space : spaces_) space.data = ring_.get();
    const DType dtype = reduced().dtype;
    if (is_short_float(dtype)) wide_.reset(new float[ring_elements_ * numbers_of(dtype)]);
  }
  if (request_.done) request_.done->assign(chunks_, 0);
  deps_left_.resize(window_ * steps_);
  pieces_left_.resize(window_ * steps_);
  armed_.resize(window_ * steps_);
  steps_left_.resize(window_);
  staged_.resize(window_ * plan_.batches() * static_cast<size_t>(plan_.widest_send()));
  gates_.resize(plan_.peers().size());
}

// ---- gates

std::pair<uint64_t, uint64_t> Execution::traffic(size_t peer_index) const {
  const Plan::Peer& peer = plan_.peers()[peer_index];
  uint64_t out = 0, in = 0;
  for (const uint32_t s : peer.sends) out += range_elements(plan_.steps()[s].src, plan_.steps()[s]) * element_;
  for (const uint32_t s : peer.recvs) in += range_elements(plan_.steps()[s].dst, plan_.steps()[s]) * element_;
  return {out, in};
}

void Execution::start() {
  for (size_t i = 0; i < plan_.peers().size(); ++i) {
    const Plan::Peer& peer = plan_.peers()[i];
    const int global = request_.group->ranks[static_cast<size_t>(peer.rank)];
    const auto [out, in] = traffic(i);
    uint64_t frames = 0;
    for (const uint32_t s : peer.sends) frames += pieces(plan_.steps()[s]);
    Gate& gate = gates_[i];
    const bool silent = out == 0 || out > kEagerBytes;  // nothing of ours travels before the receiver moves
    if (silent && !peer.sends.empty() && request_.channel != request_.group->id)
      engine_.fabric().send(global, frame_of(request_, FrameType::announce));
    bulk_ |= out > kEagerBytes || in > kEagerBytes;
    engine_.fabric().want(global);
    if (!request_.offer.empty()) engine_.fabric().send(global, offer_of(request_), request_.offer);
    gate.must_say_ready = in > kEagerBytes;
    say_ready(static_cast<int>(i));
    if (out <= kEagerBytes) {
      gate.eager = out == 0 || engine_.fabric().spend(global, out + frames * kFrameCost);
      if (!gate.eager) engine_.fabric().send(global, frame_of(request_, FrameType::request));
    }
    try_open(static_cast<int>(i));
  }
  start_chunk();
}

void Execution::try_open(int peer_index) {
  Gate& gate = gates_[static_cast<size_t>(peer_index)];
  const int peer = plan_.peers()[static_cast<size_t>(peer_index)].rank;
  if (gate.open || !(gate.ready || gate.eager)) return;
  if (engine_.fabric().up(request_.group->ranks[static_cast<size_t>(peer)]) == nullptr) return;
  gate.open = true;
  ++progress_;
  for (const auto& [step, chunk] : std::exchange(gate.blocked, {})) issue_send(step, chunk);
  run_ready();
}

void Execution::say_ready(int peer_index) {
  Gate& gate = gates_[static_cast<size_t>(peer_index)];
  const Plan::Peer& peer = plan_.peers()[static_cast<size_t>(peer_index)];
  Link* link = engine_.fabric().up(request_.group->ranks[static_cast<size_t>(peer.rank)]);
  if (!gate.must_say_ready || link == nullptr) return;
  gate.must_say_ready = false;
  std::vector<uint64_t> places;
  const Layout& out = spaces_[static_cast<size_t>(Space::out)];
  const uint64_t bytes = (out.offsets.empty() ? out.count : out.offsets.back()) * element_;
  const auto shared =
      ring_elements_ == 0 && peer.recvs.size() < kEagerBytes / 16 ? link->share(out.data, bytes) : std::nullopt;
  if (shared) {
    places = {shared->region, shared->offset, bytes};
    for (const uint32_t s : peer.recvs) {
      const Step& step = plan_.steps()[s];
      places.push_back(sender_may_write(step) ? block_offset(step.dst, step.block) * element_ : kNowhere);
    }
  }
  Frame frame = frame_of(request_, FrameType::ready);
  frame.length = static_cast<uint32_t>(places.size() * sizeof(uint64_t));
  link->send(frame, reinterpret_cast<const std::byte*>(places.data()), 0);
}

void Execution::peer_ready(int peer_index, Link& link, std::span<const std::byte> places) {
  Gate& gate = gates_[static_cast<size_t>(peer_index)];
  const auto& sends = plan_.peers()[static_cast<size_t>(peer_index)].sends;
  gate.ready = true;
  std::vector<uint64_t> table(places.size() / sizeof(uint64_t));
  if (table.size() == sends.size() + 3) {
    std::memcpy(table.data(), places.data(), table.size() * sizeof(uint64_t));
    gate.out = {table[0], table[1]};
    const bool reachable = link.remote(gate.out, table[2]) != nullptr;
    if (reachable) gate.places.assign(sends.size(), kNowhere);
    for (size_t i = 0; reachable && i < sends.size(); ++i) {
      const Step& step = plan_.steps()[sends[i]];
      const uint64_t bytes = range_elements(step.src, step) * element_;
      const uint64_t offset = table[i + 3];
      if (step.count == 1 && offset <= table[2] && bytes <= table[2] - offset) gate.places[i] = offset;
    }
  }
  try_open(peer_index);
}

void Execution::link_up(int peer_index) {
  say_ready(peer_index);
  try_open(peer_index);
}

void Execution::nudge() {
  for (size_t i = 0; i < gates_.size(); ++i) {
    if (gates_[i].open || gates_[i].blocked.empty()) continue;
    const int peer = plan_.peers()[i].rank;
    engine_.fabric().send(request_.group->ranks[static_cast<size_t>(peer)], frame_of(request_, FrameType::request));
  }
}

// ---- the schedule

uint64_t Execution::allowance() const {
  if (!network_) return window_;
  uint64_t bytes = SIZE_MAX;
  for (const Plan::Peer& peer : plan_.peers())
    if (const Link* link = engine_.fabric().up(request_.group->ranks[static_cast<size_t>(peer.rank)])) {
      const double seconds = request_.window_seconds;
      const auto ahead = seconds > 0
                             ? std::max<uint64_t>(request_.window_least, static_cast<uint64_t>(seconds * link->rate()))
                             : link->window();
      bytes = std::min<uint64_t>(bytes, ahead);
    }
  return std::clamp<uint64_t>(bytes / (chunk_elements_ * element_), std::min(kFewestChunks, window_), window_);
}

uint64_t Execution::intake(uint64_t chunk) const {
  uint64_t elements = 0;
  for (const Step& step : plan_.steps())
    if (step.kind == StepKind::recv || step.kind == StepKind::recv_reduce)
      for (uint32_t j = 0; j < pieces(step); ++j) elements += piece(step.dst, step, chunk, j).count;
  return elements * element_;
}

bool Execution::start_chunk() {
  if (begun_ >= chunks_ || begun_ - oldest_ >= window_ || begun_ - oldest_ >= allowance()) return false;
  if (engine_.intake_bounded() && !engine_.may_take_in(intake(begun_))) return false;
  begin(begun_);
  return true;
}

void Execution::begin(uint64_t chunk) {
  const size_t first = slot(chunk, 0);
  const auto& steps = plan_.steps();
  for (size_t s = 0; s < steps_; ++s) deps_left_[first + s] = steps[s].deps;
  std::fill_n(armed_.begin() + static_cast<ptrdiff_t>(first), steps_, uint8_t{0});
  const size_t staged = plan_.batches() * static_cast<size_t>(plan_.widest_send());
  std::fill_n(staged_.begin() + static_cast<ptrdiff_t>(chunk % window_ * staged), staged, uint8_t{0});
  steps_left_[chunk % window_] = static_cast<uint32_t>(steps_);
  ++begun_;
  if (steps_ == 0) {
    ++done_chunks_;
    oldest_ = begun_;
    return;
  }
  for (auto it = plan_.roots().rbegin(); it != plan_.roots().rend(); ++it) ready_.emplace_back(*it, chunk);
  run_ready();
}

void Execution::run_ready() {
  while (!ready_.empty()) {
    const auto [step, chunk] = ready_.back();
    ready_.pop_back();
    issue(step, chunk);
  }
}

void Execution::issue(uint32_t index, uint64_t chunk) {
  const Step& step = plan_.steps()[index];
  switch (step.kind) {
    case StepKind::send:
      return issue_send(index, chunk);
    case StepKind::recv:
    case StepKind::recv_reduce:
      return issue_recv(index, chunk);
    default:
      issue_local(step, chunk);
      complete(index, chunk);
  }
}

void Execution::complete(uint32_t index, uint64_t chunk) {
  const Step& step = plan_.steps()[index];
  const size_t first = slot(chunk, 0);
  ++progress_;
  armed_[first + index] = 0;
  if (!scaled_.empty()) drop_scaled(key(index, chunk));
  if (request_.done && step.kind == StepKind::recv) (*request_.done)[chunk] = 1;
  for (const uint32_t d : plan_.dependents(step))
    if (--deps_left_[first + d] == 0) ready_.emplace_back(d, chunk);
  if (--steps_left_[chunk % window_] != 0) return;
  ++done_chunks_;
  while (oldest_ < begun_ && steps_left_[oldest_ % window_] == 0) ++oldest_;
}

void Execution::issue_local(const Step& step, uint64_t chunk) {
  const DType dtype = reduced().dtype;
  for (uint32_t j = 0; j < pieces(step); ++j) {
    const Piece to = piece(step.dst, step, chunk, j);
    if (to.count == 0) continue;
    std::byte* dst = address(step.dst, to.offset);
    if (step.kind == StepKind::finish && wide_) {
      finish_wide(to.offset, dst, to.count);
      continue;
    }
    if (step.kind == StepKind::finish) {
      if (request_.divisor > 1) divide(dtype, dst, to.count, request_.divisor);
      if (request_.postscale != 1.0) scale(dtype, dst, dst, to.count, request_.postscale);
      continue;
    }
    const std::byte* src = input(step, address(step.src, piece(step.src, step, chunk, j).offset), to.count);
    if (step.kind == StepKind::reduce)
      reduce_(dst, dst, src, to.count);
    else if (src != dst)
      copy(dst, src, to.count * element_);
  }
}

// ---- sending

const std::byte* Execution::stage(const Step& step, uint64_t chunk, uint32_t index, const std::byte* data,
                                  size_t bytes) {
  if (engine_.regions().find(data, bytes)) return data;  // the peer can read it where it is
  const size_t widest = static_cast<size_t>(plan_.widest_send());
  const size_t batch = chunk % window_ * plan_.batches() + step.batch;
  if (staging_.data == nullptr) staging_ = engine_.arena().take(window_ * plan_.batches() * stage_bytes_);
  std::byte* place = staging_.data + batch * stage_bytes_ + index * (stage_bytes_ / widest);
  uint8_t& staged = staged_[batch * widest + index];
  if (staged == 0) copy(place, data, bytes);
  staged = 1;
  return place;
}

void Execution::issue_send(uint32_t index, uint64_t chunk) {
  const Step& step = plan_.steps()[index];
  const auto peer_index = static_cast<size_t>(plan_.peer_index(step.peer));
  Gate& gate = gates_[peer_index];
  if (!gate.open) {
    if (range_elements(step.src, step) > 0) {
      gate.blocked.emplace_back(index, chunk);
      return;
    }
    return complete(index, chunk);
  }
  Link* link = engine_.fabric().up(request_.group->ranks[static_cast<size_t>(step.peer)]);
  if (link == nullptr) return;  // it went down: the session is failing
  Frame frame = frame_of(request_, FrameType::data);
  frame.flags = gate.eager ? kEagerFlag : 0;
  frame.stream = static_cast<uint16_t>(step.stream);
  frame.chunk = static_cast<uint32_t>(chunk);
  uint32_t& left = pieces_left_[slot(chunk, index)];
  left = 1;
  for (uint32_t j = 0; j < pieces(step); ++j) {
    const Piece from = piece(step.src, step, chunk, j);
    if (from.count == 0) continue;
    frame.piece = static_cast<uint16_t>(j);
    frame.length = static_cast<uint32_t>(from.count * element_);
    const std::byte* data = address(step.src, from.offset);
    if (scales(step)) data = scaled(step, key(index, chunk), j, data, from.count);
    if (!gate.places.empty() && gate.places[step.stream] != kNowhere) {
      const uint64_t at = gate.out.offset + gate.places[step.stream] + chunk * chunk_elements_ * element_;
      if (!put(*link, {gate.out.region, at}, data, frame.length)) return;  // the session is failing
      link->count(frame.length, 0);
      frame.flags |= kPlacedFlag;
      frame.length = 0;
      link->send(frame, nullptr, 0);
      continue;
    }
    const bool bulk = frame.length > kEagerBytes;
    if (bulk && link->needs_shared_memory()) data = stage(step, chunk, j, data, frame.length);
    const uint64_t cookie = bulk ? engine_.track_send(*this, index, chunk) : 0;
    if (link->send(frame, data, cookie)) {
      if (bulk) engine_.forget_send(cookie);
    } else {
      ++left;
    }
  }
  if (--left == 0) complete(index, chunk);
}

bool Execution::put(Link& link, const Link::Shared& at, const std::byte* data, size_t bytes) {
  std::byte* to = link.begin_write(at, bytes);
  if (to == nullptr) return false;
  copy(to, data, bytes);
  link.end_write();
  return true;
}

void Execution::sent(uint32_t step, uint64_t chunk) {
  if (--pieces_left_[slot(chunk, step)] != 0) return;
  complete(step, chunk);
  run_ready();
}

// ---- receiving

void Execution::outlive(const Link& link) {
  for (auto& [step, waiting] : held_) {
    for (Held& held : waiting)
      if (held.link == &link && !held.payload.transient) {
        held.copy.assign(held.payload.data, held.payload.data + held.payload.size);
        held.payload.transient = true;
      }
    std::erase_if(waiting, [&](const Held& held) { return held.link == &link && !link.intact(held.payload); });
    for (Held& held : waiting)
      if (held.link == &link) held.link = nullptr;
  }
}

void Execution::issue_recv(uint32_t index, uint64_t chunk) {
  const Step& step = plan_.steps()[index];
  uint32_t expected = 0;
  for (uint32_t j = 0; j < pieces(step); ++j) expected += piece(step.dst, step, chunk, j).count > 0 ? 1 : 0;
  if (expected == 0) return complete(index, chunk);
  pieces_left_[slot(chunk, index)] = expected;
  armed_[slot(chunk, index)] = 1;
  const auto it = held_.find(key(index, chunk));
  if (it == held_.end()) return;
  const auto waiting = std::move(it->second);
  held_.erase(it);
  for (const Held& held : waiting) {
    Payload payload = held.payload;
    if (payload.transient) payload.data = held.copy.data();
    consume(index, held.link, held.frame, payload);
  }
}

int Execution::step_of(int peer_index, const Frame& frame, uint32_t& expected_bytes) const {
  const auto& recvs = plan_.peers()[static_cast<size_t>(peer_index)].recvs;
  if (frame.stream >= recvs.size() || frame.chunk >= chunks_ || frame.chunk < oldest_) return -1;
  const uint32_t index = recvs[frame.stream];
  const Step& step = plan_.steps()[index];
  if (frame.piece >= pieces(step)) return -1;
  expected_bytes = static_cast<uint32_t>(piece(step.dst, step, frame.chunk, frame.piece).count * element_);
  const bool placed = (frame.flags & kPlacedFlag) != 0 && sender_may_write(step);
  return frame.length == (placed ? 0 : expected_bytes) ? static_cast<int>(index) : -1;
}

bool Execution::is_excess(uint32_t index, const Frame& frame) const {
  if (frame.chunk < begun_) {
    if (deps_left_[slot(frame.chunk, index)] == 0) return true;  // it was taken
  } else if (request_.windowed && frame.chunk >= begun_ + 4 * kMostChunks) {
    return true;  // its sender waits for what becomes of the chunks before
  }
  const auto it = held_.find(key(index, frame.chunk));
  return it != held_.end() && std::any_of(it->second.begin(), it->second.end(),
                                          [&](const Held& held) { return held.frame.piece == frame.piece; });
}

Events::Landing Execution::land(int peer_index, const Frame& frame) {
  uint32_t expected = 0;
  const int index = step_of(peer_index, frame, expected);
  if (index < 0) return {};  // arrived() reports it
  while (begun_ <= frame.chunk && start_chunk()) {
  }
  const Step& step = plan_.steps()[static_cast<size_t>(index)];
  if (step.kind != StepKind::recv || request_.whole_chunks || wide_ ||
      !ready_for(static_cast<uint32_t>(index), frame.chunk))
    return {};
  return {true, address(step.dst, piece(step.dst, step, frame.chunk, frame.piece).offset)};
}

void Execution::arrived(int peer_index, Link& link, const Frame& frame, const Payload& payload) {
  uint32_t expected = 0;
  const int found = step_of(peer_index, frame, expected);
  if (found < 0) {
    link.release(payload);
    engine_.fail(Error{Code::mismatch,
                       link.peer(),
                       {},
                       engine_.fabric().who(link.peer()) + " sent " + std::to_string(frame.length) +
                           " bytes where this rank expects " + std::to_string(expected) + " in " +
                           request_.signature.describe() + ": the ranks disagree on counts or splits"});
    return;
  }
  const auto index = static_cast<uint32_t>(found);
  while (begun_ <= frame.chunk && start_chunk()) {
  }
  if (!ready_for(index, frame.chunk)) {
    if (is_excess(index, frame)) {
      link.release(payload);
      return engine_.fail(Error{Code::internal, link.peer(), {}, engine_.twice(link.peer(), request_.signature)});
    }
    Held held{&link, frame, payload, {}};
    if (payload.transient) held.copy.assign(payload.data, payload.data + payload.size);
    held_[key(index, frame.chunk)].push_back(std::move(held));
    return;
  }
  consume(index, &link, frame, payload);
  run_ready();
}

void Execution::add_wide(const Step& step, uint64_t element, const std::byte* data, uint64_t count) {
  const DType dtype = reduced().dtype;
  float* sum = wide_.get() + element % ring_elements_ * numbers_of(dtype);
  const bool first = step.kind == StepKind::recv;
  const uint64_t numbers = count * numbers_of(dtype);
  if (!first) term_.resize(numbers);
  cast(dtype, DType::f32, first ? sum : term_.data(), data, count);
  if (!first) reduce_fn(DType::f32, reduced().op)(sum, term_.data(), sum, numbers);
}

void Execution::finish_wide(uint64_t element, std::byte* dst, uint64_t count) {
  const DType dtype = reduced().dtype;
  float* sum = wide_.get() + element % ring_elements_ * numbers_of(dtype);
  const uint64_t numbers = count * numbers_of(dtype);
  if (request_.divisor > 1) divide(DType::f32, sum, numbers, request_.divisor);
  if (request_.postscale != 1.0) scale(DType::f32, sum, sum, numbers, request_.postscale);
  cast(DType::f32, dtype, dst, sum, count);
}

void Execution::consume(uint32_t index, Link* link, const Frame& frame, const Payload& payload) {
  const Step& step = plan_.steps()[index];
  const Piece to = piece(step.dst, step, frame.chunk, frame.piece);
  std::byte* dst = address(step.dst, to.offset);
  if (wide_) {
    add_wide(step, to.offset, payload.data, to.count);
  } else if (step.kind == StepKind::recv) {
    if (payload.data != dst && payload.size > 0) copy(dst, payload.data, payload.size);
  } else {
    const std::byte* own = address(step.src, piece(step.src, step, frame.chunk, frame.piece).offset);
    own = input(step, own, to.count);
    const bool lower = step.peer < plan_.rank();  // the lower rank's partial sum stands on the left
    reduce_(dst, lower ? payload.data : own, lower ? own : payload.data, to.count);
  }
  if (link != nullptr && !link->intact(payload)) return;  // its sender has failed or left: this never completes
  if (link != nullptr && payload.hold != 0) link->release(payload);
  if (link != nullptr && (frame.flags & kPlacedFlag) != 0) link->count(0, to.count * element_);
  if (link != nullptr && (frame.flags & kEagerFlag) != 0)
    engine_.fabric().consumed(link->peer(), frame.length + kFrameCost);
  ++progress_;
  if (--pieces_left_[slot(frame.chunk, index)] == 0) complete(index, frame.chunk);
}

std::vector<int> Execution::waiting_on() const {
  std::vector<int> ranks;
  const auto add = [&](int peer) {
    if (std::find(ranks.begin(), ranks.end(), peer) == ranks.end()) ranks.push_back(peer);
  };
  for (size_t i = 0; i < gates_.size(); ++i)
    if (!gates_[i].blocked.empty()) add(plan_.peers()[i].rank);
  const auto& steps = plan_.steps();
  for (uint64_t chunk = oldest_; chunk < begun_; ++chunk)
    for (uint32_t s = 0; s < steps_; ++s) {
      if (steps_left_[chunk % window_] == 0) break;
      const bool waits = armed_[slot(chunk, s)] != 0;
      if (waits) add(steps[s].peer);
    }
  if (ranks.empty())  // only sends that the peers have not taken yet
    for (const Plan::Peer& peer : plan_.peers())
      if (!peer.sends.empty()) add(peer.rank);
  return ranks;
}

}  // namespace slipstream
