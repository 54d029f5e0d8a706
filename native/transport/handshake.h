// The first bytes on every stream, TCP or unix: both sides prove that they know the job's secret before anything
// else is parsed (docs/architecture.md, "Handshake"). A non-blocking state machine; it never reads a byte beyond
// its own messages, so the stream can be handed on as it is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>

#include "transport/crypto.h"
#include "transport/identity.h"
#include "transport/records.h"

namespace slipstream {

// Ends what a handshake says of a side with another secret. Sessions with reducers have another cure.
inline constexpr const char* kOneSecret = ": SLIPSTREAM_SECRET must be the same on all ranks";

// Whether `why`, what a handshake says of its failure, means that the other side broke off the connection.
bool broke_off(const std::string& why);

enum class Purpose : uint16_t { store = 1, link = 2, lane = 3, knock = 4, shm = 5 };

extern const uint16_t kProtocolVersion;  // the number of src/slipstream/base/protocol.py

// As on the wire: little-endian, no padding. docs/wire.md lists the fields.
struct Hello {
  std::array<char, 4> magic{'S', 'L', 'I', 'P'};
  uint16_t version = kProtocolVersion;
  Purpose purpose = Purpose::link;
  std::array<std::byte, 16> job{};
  uint32_t rank = 0;    // who speaks
  uint32_t target = 0;  // to whom
  uint32_t lane = 0;
  uint32_t flags = 0;
  uint64_t token = 0;  // which link a lane belongs to
  std::array<std::byte, 32> nonce{};
};
static_assert(sizeof(Hello) == 80);

inline constexpr uint32_t kEncrypted = 1;  // of a hello's flags: what follows the handshake is encrypted

class Handshake {
 public:
  enum class State { going, done, failed };

  static Handshake client(const Identity& self, Purpose purpose, int target, uint32_t lane, uint64_t token);
  static Handshake server(const Identity& self, std::initializer_list<Purpose> allowed);

  // Reads and writes what it can; call again when `fd` is writable if wants_write(), else when it is readable.
  State advance(int fd);
  bool wants_write() const;

  // On the server side: valid once done, and then true.
  const Hello& hello() const { return hello_; }
  // Once done: what seals and opens all that follows; null if it is plain. The same keys each time, so ask once.
  std::unique_ptr<Records> records() const;
  // Why it failed, as text.
  const std::string& why() const { return why_; }
  // On the server side: whether there is what a client asks for that has proved itself. Else it is told that there is
  // not, and this fails.
  std::function<bool(const Hello&)> has;
  // On the client side: it failed because the server says so.
  bool lacking() const { return lacking_; }
  // It failed because the stream ended or broke, not because of what the other side said.
  bool closed() const { return closed_; }
  // On the server side: and the client had said nothing by then.
  bool wordless() const { return closed_ && stage_ == Stage::hello_in && at_ == 0; }

 private:
  enum class Stage {
    hello_out,
    hello_in,
    challenge_out,
    challenge_in,
    proof_out,
    proof_in,
    accept_out,
    accept_in,
    end
  };

  Handshake(const Identity& self, Stage first) : stage_(first), self_(self) {}

  State fail(std::string why);
  State broken(const std::string& how);
  bool passed();                  // the message of the stage is complete: check it, prepare the next
  std::string objection() const;  // to the client's hello; empty if there is none
  bool allows(Purpose purpose) const;
  bool fail_of_difference();
  Digest mac(const char* label) const;
  void expect(Stage stage, size_t size);
  void put(Stage stage, std::span<const std::byte> bytes);

  Stage stage_;
  State state_ = State::going;
  Identity self_;
  uint32_t allowed_ = 0;  // bit mask of purposes
  bool client_ = false;
  bool differs_ = false;  // one side encrypts, and the other one does not
  Hello hello_;
  std::array<std::byte, 32> server_nonce_{};
  std::array<std::byte, 80> buffer_{};  // the one message under way
  size_t size_ = 0;
  size_t at_ = 0;
  std::string why_;
  bool closed_ = false;
  bool lacking_ = false;
};

}  // namespace slipstream
