#include "bindings/session.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/gil.h"
#include "bindings/handle.h"
#include "bindings/module.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

using PeerTuple = std::tuple<std::string, bool, std::string, std::vector<std::string>, uint16_t>;

void start(Session& self, const std::vector<PeerTuple>& peers) {
  std::vector<PeerAddress> addresses;
  for (const auto& [host, same_host, name, list, port] : peers)
    addresses.push_back({host, same_host, name, list, port});
  self.start(std::move(addresses));
}

std::shared_ptr<Group> make_group(Session& self, uint64_t id, std::vector<int> ranks) {
  return std::const_pointer_cast<Group>(self.make_group(id, std::move(ranks)));
}

nb::object allocate(const std::shared_ptr<Session>& session, size_t bytes) {
  struct Owner {
    std::shared_ptr<Session> session;
    std::shared_ptr<Region> region;
  };
  auto* owner = new Owner{session, session->allocate(bytes)};
  nb::capsule capsule(owner, [](void* p) noexcept {
    auto* o = static_cast<Owner*>(p);
    o->session->free(o->region->id);
    delete o;
  });
  return nb::cast(nb::ndarray<nb::numpy, uint8_t>(owner->region->memory.data(), {bytes}, capsule));
}

std::vector<int> probe(Session& self, const std::vector<int>& ranks, double timeout) {
  std::vector<int> alive;
  self.ask(ranks);
  wait_in_slices(now() + seconds(timeout), [&](Time until) { return self.hear(ranks, until, alive); });
  return alive;
}

void close(Session& self, const std::string& words, bool tell) {
  {
    const WithoutGil release;
    self.close(words, tell);
  }
  drop_orphans();
}

void check(const Session& self) {
  if (const Error e = self.failure()) throw Failure(e);
}

void bind_membership(SessionClass& session) {
  session.def(nb::init<SessionOptions>(), nb::arg("options"))
      .def("listen_shm", &Session::listen_shm)
      .def("listen_tcp", &Session::listen_tcp, nb::arg("addresses"))
      .def("start", &start, nb::arg("peers"), "peers: (host, same_host, shm_name, addresses, port) per rank.")
      .def("make_group", &make_group, nb::arg("id"), nb::arg("ranks"))
      .def("allocate", &allocate, nb::arg("bytes"), "uint8 array in memory that ranks of this host can map.")
      .def("set_lanes", &set_link_lanes, nb::arg("lanes"), nb::call_guard<WithoutGil>(),
           "So many bulk lanes for each TCP link from now on; 0: as the options said at first. On all ranks alike.")
      .def("close", &close, nb::arg("words") = "", nb::arg("tell") = true);
}

void bind_failure(SessionClass& session) {
  session.def("abort", &Session::abort, nb::arg("why"), nb::call_guard<WithoutGil>())
      .def("abandon", &Session::abandon, nb::arg("what"), nb::call_guard<WithoutGil>(),
           "Fails the session on all ranks; to the others this rank is lost: \"rank 1 (host a) <what>\".")
      .def("probe", &probe, nb::arg("ranks"), nb::arg("timeout"),
           "Those of `ranks` that answer within `timeout` seconds, also if the session has failed.")
      .def("check", &check, "Raises the session's error, if it has failed.");
}

}  // namespace

void bind_session(nb::module_& m) {
  m.def(
      "leak", [](nb::object o) { o.inc_ref(); }, nb::arg("object"),
      "Keeps an object for ever: a forked child must not run the destructor of its parent's session.");
  SessionClass session(m, "Session", "A rank's membership in a job.");
  bind_membership(session);
  bind_failure(session);
  bind_calls(m, session);
  bind_told(m, session);
  bind_observation(m, session);
}

}  // namespace slipstream
