#include "transport/handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace slipstream {

const uint16_t kProtocolVersion = SLIPSTREAM_PROTOCOL;
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and copied as it is");

constexpr std::byte kAccepted{1};
constexpr std::byte kLacking{2};

// Proofs. Who finds that one side encrypts and the other does not proves that with others, so that nobody who only
// changes a hello can have either side believe it.
constexpr const char* kServer = "slipstream server";
constexpr const char* kClient = "slipstream client";
constexpr const char* kServerDiffers = "slipstream server differs";
constexpr const char* kClientDiffers = "slipstream client differs";

// How far it had come when the other side broke it off.
constexpr const char* kSaidNothing = " without a word";
constexpr const char* kInHello = " in the middle of its hello";
constexpr const char* kUnproven = " before it proved that it has the same secret";
constexpr const char* kOnTheWay = " during the handshake";

}  // namespace

bool broke_off(const std::string& why) {
  return std::ranges::any_of(std::array{kSaidNothing, kInHello, kUnproven, kOnTheWay},
                             [&](const char* how) { return why.find(how) != std::string::npos; });
}

Handshake Handshake::client(const Identity& self, Purpose purpose, int target, uint32_t lane, uint64_t token) {
  Handshake h(self, Stage::hello_out);
  h.client_ = true;
  h.hello_.flags = self.encrypt ? kEncrypted : 0;
  h.hello_.purpose = purpose;
  h.hello_.job = self.job;
  h.hello_.rank = static_cast<uint32_t>(self.rank);
  h.hello_.target = static_cast<uint32_t>(target);
  h.hello_.lane = lane;
  h.hello_.token = token;
  random_bytes(h.hello_.nonce);
  h.put(Stage::hello_out, std::as_bytes(std::span(&h.hello_, 1)));
  return h;
}

Handshake Handshake::server(const Identity& self, std::initializer_list<Purpose> allowed) {
  Handshake h(self, Stage::hello_in);
  for (const Purpose purpose : allowed) h.allowed_ |= 1u << static_cast<unsigned>(purpose);
  h.expect(Stage::hello_in, sizeof(Hello));
  return h;
}

bool Handshake::wants_write() const {
  return stage_ == Stage::hello_out || stage_ == Stage::challenge_out || stage_ == Stage::proof_out ||
         stage_ == Stage::accept_out;
}

Handshake::State Handshake::advance(int fd) {
  while (state_ == State::going) {
    const ssize_t n = wants_write() ? ::send(fd, buffer_.data() + at_, size_ - at_, MSG_NOSIGNAL | MSG_DONTWAIT)
                                    : ::recv(fd, buffer_.data() + at_, size_ - at_, MSG_DONTWAIT);
    if (n < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return state_;
      return broken(errno_text(wants_write() ? "send" : "recv"));
    }
    if (n == 0) return broken("closed the connection");
    at_ += static_cast<size_t>(n);
    if (at_ == size_ && !passed()) return State::failed;
  }
  return state_;
}

bool Handshake::passed() {
  const auto message = std::span(buffer_).first(size_);
  switch (stage_) {
    case Stage::hello_out:
      expect(Stage::challenge_in, sizeof(server_nonce_) + sizeof(Digest));
      return true;
    case Stage::hello_in: {
      std::memcpy(static_cast<void*>(&hello_), message.data(), sizeof(Hello));
      if (std::string what = objection(); !what.empty()) return fail(std::move(what)) == State::done;
      random_bytes(server_nonce_);
      std::array<std::byte, 64> challenge{};
      differs_ = (hello_.flags == kEncrypted) != self_.encrypt;
      const Digest proof = mac(differs_ ? kServerDiffers : kServer);
      std::copy(server_nonce_.begin(), server_nonce_.end(), challenge.begin());
      std::copy(proof.begin(), proof.end(), challenge.begin() + 32);
      put(Stage::challenge_out, challenge);
      return true;
    }
    case Stage::challenge_out:
      expect(Stage::proof_in, sizeof(Digest));
      return true;
    case Stage::challenge_in:
      std::copy_n(message.begin(), server_nonce_.size(), server_nonce_.begin());
      differs_ = equal_constant_time(message.subspan(32), mac(kServerDiffers));
      if (!differs_ && !equal_constant_time(message.subspan(32), mac(kServer)))
        return fail(std::string("does not know our secret") + kOneSecret) == State::done;
      put(Stage::proof_out, mac(differs_ ? kClientDiffers : kClient));
      return true;
    case Stage::proof_out:
      if (differs_) return fail_of_difference();
      expect(Stage::accept_in, 1);
      return true;
    case Stage::proof_in:
      if (!equal_constant_time(message, mac(differs_ ? kClientDiffers : kClient)))
        return fail(std::string("does not know our secret") + kOneSecret) == State::done;
      if (differs_) return fail_of_difference();
      lacking_ = has && !has(hello_);
      put(Stage::accept_out, std::span(lacking_ ? &kLacking : &kAccepted, 1));
      return true;
    case Stage::accept_in:
      lacking_ = message[0] == kLacking;
      if (lacking_) return fail("has given up the link: its session has failed or ended") == State::done;
      if (message[0] != kAccepted) return fail("sent an invalid answer to this rank's proof") == State::done;
      [[fallthrough]];
    case Stage::accept_out:
      if (lacking_) return fail("asks for a link that has ended") == State::done;
      stage_ = Stage::end;
      state_ = State::done;
      return true;
    case Stage::end:
      break;
  }
  return true;
}

std::string Handshake::objection() const {
  if (hello_.magic != Hello{}.magic) return "does not speak our protocol";
  if (hello_.version != kProtocolVersion)
    return "speaks protocol version " + std::to_string(hello_.version) +
           ", this is slipstream " SLIPSTREAM_VERSION " with protocol version " + std::to_string(kProtocolVersion) +
           ": install the same slipstream on all hosts";
  if (hello_.job != self_.job) return "belongs to another job";
  if (!allows(hello_.purpose))
    return "asks for a service that this rank does not offer (purpose " +
           std::to_string(static_cast<int>(hello_.purpose)) + ")";
  if (hello_.target != static_cast<uint32_t>(self_.rank))
    return "looks for rank " + std::to_string(hello_.target) + ", we are rank " + std::to_string(self_.rank);
  // The store speaks to clients that do not know yet how many they are.
  if (hello_.purpose != Purpose::store && hello_.rank >= static_cast<uint32_t>(self_.size))
    return "claims to be rank " + std::to_string(hello_.rank) + " of " + std::to_string(self_.size);
  if ((hello_.flags & ~kEncrypted) != 0) return "sent a damaged hello";
  return {};
}

bool Handshake::allows(Purpose purpose) const {
  const auto bit = static_cast<unsigned>(purpose);
  return bit < 32 && ((allowed_ >> bit) & 1u) != 0;
}

Digest Handshake::mac(const char* label) const {
  return hmac_sha256(bytes_of(self_.secret), {bytes_of(label), std::as_bytes(std::span(&hello_, 1)), server_nonce_});
}

std::unique_ptr<Records> Handshake::records() const {
  if (state_ != State::done || !self_.encrypt) return nullptr;
  return std::make_unique<Records>(bytes_of(self_.secret), std::as_bytes(std::span(&hello_, 1)), hello_.nonce,
                                   server_nonce_, client_);
}

bool Handshake::fail_of_difference() {
  const std::string what = self_.encrypt ? "does not encrypt its connections, and this rank does (SLIPSTREAM_ENCRYPT=1)"
                                         : "encrypts its connections (SLIPSTREAM_ENCRYPT=1), and this rank does not";
  fail(what + ": SLIPSTREAM_ENCRYPT must be the same on all ranks; slipstream run --encrypt sets it");
  return false;
}

Handshake::State Handshake::fail(std::string why) {
  why_ = std::move(why);
  state_ = State::failed;
  return state_;
}

Handshake::State Handshake::broken(const std::string& how) {
  closed_ = true;
  switch (stage_) {
    case Stage::hello_in:
      return fail(at_ == 0 ? how + kSaidNothing : how + kInHello);
    case Stage::challenge_out:
    case Stage::proof_in:
      return fail(how + kUnproven + " (is SLIPSTREAM_SECRET the same on all ranks?)");
    case Stage::hello_out:
    case Stage::challenge_in:
      return fail(how +
                  " after this rank's hello: it has ended, belongs to another job or rank, or is another version of "
                  "slipstream");
    default:
      return fail(how + kOnTheWay);
  }
}

void Handshake::expect(Stage stage, size_t size) {
  stage_ = stage;
  size_ = size;
  at_ = 0;
}

void Handshake::put(Stage stage, std::span<const std::byte> bytes) {
  expect(stage, bytes.size());
  std::copy(bytes.begin(), bytes.end(), buffer_.begin());
}

}  // namespace slipstream
