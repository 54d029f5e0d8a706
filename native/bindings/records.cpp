// The records of an encrypted connection, for connections that Python makes (slipstream.comm.rendezvous.handshake).
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <vector>

#include "bindings/module.h"
#include "transport/crypto.h"
#include "transport/handshake.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

ByteView view(const nb::bytes& bytes) { return std::as_bytes(std::span(bytes.c_str(), bytes.size())); }

void make(Records* self, const nb::bytes& secret, const nb::bytes& hello, const nb::bytes& nonce, bool client) {
  if (hello.size() != sizeof(Hello) || nonce.size() != sizeof(Hello::nonce))
    throw nb::value_error("a hello has 80 bytes, a nonce 32");
  new (self) Records(view(secret), view(hello), view(hello).subspan(offsetof(Hello, nonce)), view(nonce), client);
}

nb::bytes seal(Records& self, const nb::bytes& text) {
  std::vector<std::byte> sealed;
  for (size_t at = 0; at < text.size();) {
    const iovec part{const_cast<char*>(text.c_str()) + at, text.size() - at};
    at += self.out.seal({&part, 1});
    const auto bytes = self.out.waiting();
    sealed.insert(sealed.end(), bytes.begin(), bytes.end());
    self.out.went(bytes.size());
  }
  return nb::bytes(sealed.data(), sealed.size());
}

nb::bytes open(Records& self, const nb::bytes& bytes) {
  std::vector<std::byte> text;
  std::vector<std::byte> part(kRecordMost);
  const auto take = [&] {
    const iovec into{part.data(), part.size()};
    while (const size_t n = self.in.take({&into, 1}, 0, true)) text.insert(text.end(), part.data(), part.data() + n);
  };
  for (ByteView left = view(bytes); !left.empty() && !self.in.damaged(); take()) {
    const auto space = self.in.space();
    const size_t n = std::min(space.size(), left.size());
    std::memcpy(space.data(), left.data(), n);
    self.in.filled(n);
    left = left.subspan(n);
  }
  if (self.in.damaged()) throw nb::value_error("what came was damaged or tampered with on the way");
  return nb::bytes(text.data(), text.size());
}

}  // namespace

void bind_records(nb::module_& m) {
  m.def("crypto_version", &crypto_version, "The version of OpenSSL's libcrypto that encrypts.");
  nb::class_<Records>(m, "Records", "Seals what goes over an encrypted connection, and opens what comes.")
      .def("__init__", &make, nb::arg("secret"), nb::arg("hello"), nb::arg("nonce"), nb::arg("client"),
           "After a handshake that began with this hello and the server's nonce.")
      .def("seal", &seal, nb::arg("text"))
      .def("open", &open, nb::arg("bytes"),
           "The text of all records that are complete now; ValueError if they are not what was sent.");
}

}  // namespace slipstream
