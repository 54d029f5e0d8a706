#include "transport/shm/link.h"

#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>

#include "base/log.h"

namespace slipstream {

namespace {

enum RecordKind : uint32_t {
  kFrame = 1,
  kDescriptor = 2,
  kReleased = 3,
  kDropped = 4,
  kMark = 5,     // PrivateReads::Mark
  kAnswer = 6,   // to it
  kPrivate = 7,  // a descriptor of private memory
};
enum MessageKind : uint32_t { kSetup = 1, kRegion = 2 };

static_assert(kAtOnceBytes == Ring::kMost / 4);
constexpr double kCopySeconds = 0.005;
// Until the socket says that a process has ended that could not be read: its memory goes first.
constexpr double kEndSeconds = 1;
constexpr uint64_t kBytesPerTurn = 1 << 20;  // that come in
constexpr auto kLookAgain = std::chrono::microseconds(50);

struct DescriptorBody {
  Frame frame;
  uint64_t offset;  // into a region, or an address
};

std::string in_seconds(double duration) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g s", duration);
  return text;
}

template <class T>
std::span<const std::byte> bytes_of(const T& object) {
  return std::as_bytes(std::span(&object, 1));
}

Error refused(int peer, const std::string& why) {
  return Error{
      Code::refused,
      peer,
      {},
      "rank " + std::to_string(peer) + ": " + why + "; all ranks need the same SLIPSTREAM_SECRET and SLIPSTREAM_JOB"};
}

Error lost(int peer, const std::string& how) {
  return Error{Code::peer_lost, peer, {}, "rank " + std::to_string(peer) + " " + how};
}

Error broken(int peer, const std::string& text) { return Error{Code::internal, peer, {}, text}; }

Error unmappable(int peer, const Failure& failure) {
  return broken(peer, "memory of rank " + std::to_string(peer) + ": " + failure.error().text);
}

Error malformed(int peer, const std::string& what) {
  return broken(peer, "rank " + std::to_string(peer) + " sent a malformed " + what);
}

Error not_up(int peer, const std::string& why, double limit) {
  if (!why.empty()) return lost(peer, "could not be reached for " + in_seconds(limit) + " (" + why + ")");
  return lost(peer, "does not answer (no handshake within " + in_seconds(limit) + "; is the process stopped?)");
}

Error unreadable(int peer, int error) {
  if (error == ESRCH) return lost(peer, "is gone: its memory cannot be read any more");
  return broken(peer, "memory of rank " + std::to_string(peer) + " cannot be read any more: " +
                          errno_text("process_vm_readv", error) + "; SLIPSTREAM_SINGLE_COPY=off does without");
}

constexpr const char* kNoDescriptors = "it has run out of file descriptors (ulimit -n)";

// A reason that lies in the times of this link differs from rank to rank and from job to job, and nobody can mend it.
void say_if_twice(int rank, int peer, const std::string& why, bool by_time) {
  if (why.empty()) return;
  (by_time ? log_debug : log_info)(rank, "large data for rank " + std::to_string(peer) +
                                             " is copied twice: it does not read this rank's memory (" + why + ")");
}

// It has closed its end on purpose, or died: either way it copies nothing.
bool has_closed(const Fd& socket) {
  pollfd end{socket.get(), 0, 0};
  return ::poll(&end, 1, 0) > 0 && (end.revents & (POLLHUP | POLLERR)) != 0;
}

// Afterwards the peer neither writes to our memory nor counts what it reads of it.
void take_back(Access& access, const Fd& socket, Regions& regions, int rank, int peer) {
  access.take_back();
  // A chunk takes a millisecond at most. A peer that has not ended by then may be stopped, for as long as it likes.
  const Time limit = now() + seconds(kCopySeconds);
  while (access.written() && now() < limit && !has_closed(socket)) std::this_thread::sleep_for(kLookAgain);
  const auto place = access.written();
  if (!place || has_closed(socket)) return;
  try {
    regions.part(place->region, place->offset, place->bytes);
  } catch (const Failure& failure) {
    log_warning(rank,
                "rank " + std::to_string(peer) + " may still write to memory of this rank: " + failure.error().text);
  }
}

// For a link that perhaps no work needs: without descriptors, the session goes on.
Error make_memory(size_t bytes, int peer, Fd& memory) {
  try {
    memory = make_memfd("slipstream-link", bytes);
    return {};
  } catch (const Failure& failure) {
    return unmappable(peer, failure);
  }
}

// False if the entry has not the size of this body.
template <class T>
bool read_body(const Ring::EntryHeader& entry, const std::byte* body, T& into) {
  if (entry.size - sizeof(entry) != sizeof(into)) return false;
  std::memcpy(&into, body, sizeof(into));
  return true;
}

bool is_sound(const Frame& frame, const Ring::EntryHeader& entry) {
  const bool is_known = frame.type >= FrameType::data && static_cast<uint8_t>(frame.type) <= kLastFrameType;
  const bool is_short = frame.length <= kEagerBytes || frame.type == FrameType::data;
  return is_known && is_short && frame.length == entry.size - sizeof(entry) - sizeof(frame);
}

}  // namespace

bool must_arrive(uint32_t kind, std::span<const std::byte> body) {
  const bool has_frame = kind == kFrame || kind == kDescriptor || kind == kPrivate;
  return kind == kReleased || (has_frame && body.front() == static_cast<std::byte>(FrameType::data));
}

ShmLink::ShmLink(std::shared_ptr<ShmTransport::Impl> home, int peer, std::string listener)
    : ShmLink(home, peer, Fd(), Handshake::client(home->identity, Purpose::shm, peer, 0, 0)) {
  listener_ = std::move(listener);
  dial();
}

ShmLink::ShmLink(std::shared_ptr<ShmTransport::Impl> home, int peer, Fd socket, Handshake handshake)
    : Link(peer, Kind::shm),
      home_(std::move(home)),
      socket_(std::move(socket)),
      handshake_(std::move(handshake)),
      dialler_(!socket_),
      phase_(dialler_ ? Phase::handshake : Phase::setup),
      deadline_(now() + seconds(home_->connect_seconds)),
      peer_regions_(home_->identity.rank, peer),
      private_(home_->single_copy) {
  if (socket_) home_->poller.add(socket_.get(), EPOLLIN, this);
  home_->links.add(this);
}

void ShmLink::dial() {
  again_ = Time::max();
  int error = 0;
  socket_ = connect_unix(listener_, error);
  if (socket_) {
    handshake_ = Handshake::client(home_->identity, Purpose::shm, peer_, 0, 0);
    home_->poller.add(socket_.get(), EPOLLIN | EPOLLOUT, this);
  } else if (error == EAGAIN) {
    dial_again("too many others connect to it at the same time");
  } else {  // the listener has gone with its process; the caller has to hold the link before Events::down names it
    refusal_ = lost(peer_, error == ECONNREFUSED ? "finished, died or was killed: nothing listens there any more"
                                                 : "is gone: " + errno_text("connect", error));
    deadline_ = now();
  }
}

void ShmLink::dial_again(std::string why) {
  home_->poller.remove(socket_.get(), this);
  socket_.reset();
  why_ = std::move(why);
  again_ = now() + seconds(kDialPause);
}

ShmLink::~ShmLink() {
  close();
  home_->links.remove(this);
}

void ShmLink::close() {
  if (!open_) return;
  if (phase_ == Phase::up) flush_entries();
  open_ = false;
  up_ = false;
  if (phase_ == Phase::up) take_back(access_, socket_, home_->regions, home_->identity.rank, peer_);
  home_->poller.remove(socket_.get(), this);
  socket_.reset();
  if (peer_bell_) peer_bell_->ring(home_->identity.rank);
}

void ShmLink::fail(Error error) {
  if (!open_) return;
  close();
  home_->events.down(*this, error);
}

Time ShmLink::tick(Time now) {
  if (!open_) return Time::max();
  if (now >= private_.due()) send_mark();
  if (phase_ == Phase::up && !refusal_) return private_.due();
  if (now >= deadline_) {
    fail(refusal_ ? Error(refusal_) : not_up(peer_, why_, home_->connect_seconds));
    return Time::max();
  }
  if (phase_ == Phase::up) return deadline_;
  if (now >= again_) dial();
  return std::min(deadline_, again_);
}

// ---- the unix socket: handshake, set-up, regions, and the peer's death

void ShmLink::ready(uint32_t) {
  if (phase_ == Phase::handshake) continue_handshake();
  auto received = Received::message;
  while (open_ && phase_ != Phase::handshake && received == Received::message) received = receive_message();
  if (open_ && received == Received::end) peer_is_gone();
}

void ShmLink::continue_handshake() {
  switch (handshake_.advance(socket_.get())) {
    case Handshake::State::going:
      home_->poller.modify(socket_.get(), EPOLLIN | (handshake_.wants_write() ? EPOLLOUT : 0u), this);
      return;
    case Handshake::State::failed:
      // If it has died, nobody listens any more; else it may have had too many to greet.
      if (handshake_.closed()) return dial_again(handshake_.why());
      return fail(refused(peer_, handshake_.why()));
    case Handshake::State::done:
      home_->poller.modify(socket_.get(), EPOLLIN, this);
      phase_ = Phase::setup;
      const size_t bytes = mapping_of(home_->ring_bytes);
      if (const Error error = make_memory(bytes, peer_, memory_fd_)) return fail(error);
      messages_.send(socket_, {kSetup, 0, bytes}, {memory_fd_.get(), home_->bell.page_fd(), home_->bell.event_fd()});
      home_->links.wait_for_room(*this);
  }
}

void ShmLink::accept_setup(const Message& message, std::vector<Fd> fds) {
  const size_t ring = dialler_ ? home_->ring_bytes : (message.size - sizeof(LinkPair)) / 2;
  const bool fits = dialler_ || (Ring::is_size(ring) && message.size == mapping_of(ring));
  if (phase_ != Phase::setup || fds.size() != (dialler_ ? 2u : 3u) || !fits)
    return fail(malformed(peer_, "set-up message"));
  if (dialler_) return become_up(ring, std::move(memory_fd_), std::move(fds[0]), std::move(fds[1]));
  messages_.send(socket_, {kSetup, 0, 0}, {home_->bell.page_fd(), home_->bell.event_fd()});
  home_->links.wait_for_room(*this);
  if (open_) become_up(ring, std::move(fds[0]), std::move(fds[1]), std::move(fds[2]));
}

void ShmLink::become_up(size_t ring, Fd link_memory, Fd bell_page, Fd bell_event) {
  try {
    memory_ = Mapping(link_memory.get(), mapping_of(ring));
    peer_bell_ = std::make_unique<Bell>(std::move(bell_event), std::move(bell_page));
  } catch (const Failure& failure) {
    return fail(unmappable(peer_, failure));
  }
  auto* pair = reinterpret_cast<LinkPair*>(memory_.data());
  entries_.open(pair->ring_from(dialler_, ring));
  incoming_ = pair->ring_from(!dialler_, ring);
  access_ = pair->access_of(dialler_);
  distance_ = pair->distance_of(dialler_);
  phase_ = Phase::up;
  up_ = true;
  home_->links.look_at(*this);
  last_heard_ = now();
  send_mark();
  home_->events.up(*this);
}

void ShmLink::send_mark() {
  if (const auto mark = private_.mark(incoming_.bytes() == Ring::kMost))
    push(kMark, 0, bytes_of(*mark), private_.probe());
}

ShmLink::Received ShmLink::receive_message() {
  Message message{};
  std::vector<Fd> fds;
  const auto read = DescriptorChannel::read(socket_, message, fds);
  if (read == DescriptorChannel::Read::nothing) return Received::nothing;
  if (read == DescriptorChannel::Read::end) return Received::end;
  last_heard_ = now();
  const bool none = read == DescriptorChannel::Read::no_descriptors;
  if (none && message.kind == kRegion) {
    peer_regions_.miss(message.id, kNoDescriptors);
    return Received::message;
  }
  if (none || read == DescriptorChannel::Read::malformed || (message.kind != kRegion && message.kind != kSetup) ||
      (message.kind == kRegion && fds.size() != 1)) {
    fail(none ? peer_regions_.cannot_take(kNoDescriptors).error() : malformed(peer_, "message"));
    return Received::nothing;
  }
  if (message.kind == kSetup) {
    accept_setup(message, std::move(fds));
    return Received::message;
  }
  peer_regions_.take(message.id, fds[0], message.size);
  return Received::message;
}

void ShmLink::peer_is_gone() {
  while (open_ && poll()) {  // what it sent before it went still counts
  }
  if (peer_said_goodbye_) return fail(Error{Code::aborted, peer_, {}, farewell(peer_, goodbye_reason_)});
  const char* const after[] = {"finished, died or was killed: it closed the connection while that was being set up",
                               "died or was killed: it closed its connection"};
  fail(lost(peer_, after[phase_ == Phase::up ? 1 : 0]));
}

// ---- the rings

void ShmLink::push(uint32_t kind, uint64_t value, std::span<const std::byte> head, std::span<const std::byte> tail) {
  if (!open_ || phase_ != Phase::up) return;
  if (!entries_.push(kind, value, head, tail, !messages_.empty())) return home_->links.wait_for_room(*this);
  peer_bell_->ring(home_->identity.rank);
}

bool ShmLink::flush_entries() {
  messages_.flush(socket_);
  if (!messages_.empty() || !entries_.flush()) return false;
  peer_bell_->ring(home_->identity.rank);
  return true;
}

bool ShmLink::send(const Frame& frame, const std::byte* data, uint64_t cookie, int /*urgency*/) {
  if (!open_) return true;  // Events::down has been told
  count(frame.length, 0);
  if (frame.type == FrameType::abort || frame.type == FrameType::goodbye) {  // what waits may never find room
    entries_.make_way(messages_.empty());
    messages_.clear();
  }
  if (frame.length <= kEagerBytes || cookie == 0) {
    push(kFrame, 0, bytes_of(frame), {data, frame.length});
    return true;
  }
  const auto shared = share(data, frame.length);
  if (!shared && single_copy() != SingleCopy::off) {
    const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(data));
    private_.lent(frame.length);
    push(kPrivate, tickets_.take(cookie), bytes_of(frame), bytes_of(address));
    return false;
  }
  if (!shared) throw Failure(Code::internal, "a large send over shared memory from memory that is not in a region");
  const uint32_t ticket = tickets_.take(cookie);
  distance_.sending();
  push(kDescriptor, uint64_t{ticket} << 32 | shared->region, bytes_of(frame), bytes_of(shared->offset));
  return false;
}

std::shared_ptr<Mapping> ShmLink::find_region(uint32_t id) {
  // An end of the stream is left to ready(): this may be called while an entry of the ring is being handled.
  while (!peer_regions_.knows(id) && open_ && receive_message() == Received::message) {
  }
  return open_ ? peer_regions_.find(id) : nullptr;
}

std::optional<Link::Shared> ShmLink::share(const std::byte* data, size_t bytes) {
  const auto region = home_->regions.find(data, bytes);
  if (!region || !open_) return std::nullopt;
  if (announced_.insert(region->id).second) {
    messages_.send(socket_, {kRegion, region->id, region->memory.size()}, {region->fd.get()}, region);
    home_->links.wait_for_room(*this);
  }
  return Shared{region->id, static_cast<uint64_t>(data - region->memory.data())};
}

std::shared_ptr<std::byte> ShmLink::hold(const Shared& shared, size_t bytes) {
  const std::shared_ptr<Mapping> region = find_region(static_cast<uint32_t>(shared.region));
  if (region == nullptr || bytes > region->size() || shared.offset > region->size() - bytes) return nullptr;
  return {region, region->data() + shared.offset};
}

std::byte* ShmLink::begin_write(const Shared& shared, size_t bytes) {
  std::byte* to = remote(shared, bytes);
  const Access::WriteRange range{static_cast<uint32_t>(shared.region), shared.offset, bytes};
  return to != nullptr && access_.begin_write(range) ? to : nullptr;
}

void ShmLink::release(const Payload& payload) {
  if (payload.hold != 0) push(kReleased, payload.hold - 1);
}

void ShmLink::drop_region(uint32_t id) {
  if (announced_.erase(id) != 0) push(kDropped, id);
}

bool ShmLink::poll() {
  if (open_) messages_.flush(socket_);
  if (!open_ || phase_ != Phase::up) return false;
  bool moved = flush_entries();
  const uint64_t enough = received() + kBytesPerTurn;
  for (int i = 0; i < 32 && open_ && received() < enough; ++i) {
    Ring::EntryHeader entry{};
    const std::byte* body = nullptr;
    const auto found = incoming_.peek(entry, body);
    if (found == Ring::Peek::none) break;
    if (found == Ring::Peek::damaged || !handle(entry, body)) {
      fail(broken(peer_, "the shared-memory ring from rank " + std::to_string(peer_) + " is damaged"));
      return true;
    }
    moved = true;
  }
  if (moved) last_heard_ = now();
  return moved;
}

bool ShmLink::handle(const Ring::EntryHeader& entry, const std::byte* body) {
  const size_t bytes = entry.size - sizeof(entry);
  switch (entry.kind) {
    case kFrame:
      if (bytes < sizeof(Frame) || bytes > sizeof(Frame) + kAtOnceBytes) return false;
      handle_frame(entry, body);
      return true;
    case kDescriptor:
    case kPrivate: {
      DescriptorBody descriptor{};
      if (!read_body(entry, body, descriptor)) return false;
      incoming_.pop();
      if (entry.kind == kPrivate) return handle_private(entry.value, descriptor.frame, descriptor.offset);
      handle_descriptor(entry.value, descriptor.frame, descriptor.offset);
      return true;
    }
    case kMark: {
      const auto answer = private_.meet(socket_, {body, bytes});
      incoming_.pop();
      if (answer) push(kAnswer, *answer);
      return answer.has_value();
    }
    case kAnswer:
      incoming_.pop();
      say_if_twice(home_->identity.rank, peer_, private_.answered(entry.value), PrivateReads::by_time(entry.value));
      if (now() >= private_.due()) send_mark();
      return true;
    case kReleased: {
      incoming_.pop();
      const auto cookie = tickets_.give_back(entry.value);
      if (!cookie) return false;
      home_->events.sent(*this, *cookie);
      return true;
    }
    case kDropped:
      incoming_.pop();
      peer_regions_.drop(static_cast<uint32_t>(entry.value));
      return true;
    default:
      return false;
  }
}

void ShmLink::handle_frame(const Ring::EntryHeader& entry, const std::byte* body) {
  Frame frame;
  std::memcpy(&frame, body, sizeof(frame));
  if (!is_sound(frame, entry)) return fail(malformed(peer_, "frame"));
  if (frame.type == FrameType::goodbye) {
    peer_said_goodbye_ = true;
    goodbye_reason_.assign(reinterpret_cast<const char*>(body) + sizeof(frame), frame.length);
    incoming_.pop();
    return;
  }
  count(0, frame.length);
  home_->events.arrived(*this, frame, Payload{body + sizeof(frame), frame.length, true, 0});
  if (phase_ == Phase::up) incoming_.pop();
}

void ShmLink::handle_descriptor(uint64_t value, const Frame& frame, uint64_t offset) {
  const auto ticket = value >> 32;
  const std::shared_ptr<Mapping> region = find_region(static_cast<uint32_t>(value));
  if (!open_) return;
  if (region == nullptr || frame.type != FrameType::data || frame.length > kMaxPayload ||
      frame.length > region->size() || offset > region->size() - frame.length)
    return fail(malformed(peer_, "descriptor"));
  count(0, frame.length);
  distance_.arrived();
  home_->events.arrived(*this, frame, Payload{region->data() + offset, frame.length, false, ticket + 1});
}

// ---- private memory of the peer's

bool ShmLink::handle_private(uint64_t ticket, const Frame& frame, uint64_t address) {
  if (frame.type != FrameType::data || frame.length <= kEagerBytes || frame.length > kMaxPayload || address == 0 ||
      ticket > UINT32_MAX)
    return false;
  count(0, frame.length);
  home_->events.arrived(*this, frame, Payload{nullptr, frame.length, false, ticket + 1, address});
  return true;
}

bool ShmLink::fetch(const Payload& payload, std::byte* to) {
  if (!open_ || refusal_) return false;
  const int error = private_.read(socket_, payload.remote, to, payload.size);
  if (error == 0) return true;
  refusal_ = unreadable(peer_, error);
  deadline_ = now() + seconds(kEndSeconds);
  return false;
}

LinkStatistics ShmLink::statistics() const {
  LinkStatistics found = Link::statistics();
  found.single_copy = single_copy() != SingleCopy::off;
  found.single_copied = private_.lent();
  return found;
}

}  // namespace slipstream
