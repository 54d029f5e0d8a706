#include "session/session.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bindings/gil.h"
#include "bindings/handle.h"
#include "bindings/module.h"
#include "transport/sockets.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

using Int32s = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
using Offsets = std::optional<std::vector<uint64_t>>;
using Copy = std::optional<std::tuple<uintptr_t, uint64_t, uint64_t>>;
using PeerTuple = std::tuple<std::string, bool, std::string, std::vector<std::string>, uint16_t>;

Layout layout(uintptr_t address, uint64_t count, Offsets offsets, int blocks) {
  if (offsets && offsets->size() != static_cast<size_t>(blocks) + 1)
    throw Failure(Code::invalid, "a table of offsets needs one entry per block, and one");
  return {reinterpret_cast<std::byte*>(address), count, offsets ? std::move(*offsets) : std::vector<uint64_t>{}};
}

Request make_request(std::shared_ptr<const Group> group, std::shared_ptr<const Plan> plan, Signature signature,
                     uintptr_t src, uintptr_t dst, uint64_t count, Offsets in_offsets, Offsets out_offsets) {
  if (signature.reduces && reduce_fn(signature.dtype, signature.op) == nullptr)
    throw Failure(Code::invalid,
                  std::string("op ") + name_of(signature.op) + " is not defined for " + name_of(signature.dtype));
  Request r;
  r.chunk_bytes = std::clamp<uint32_t>(signature.chunk_bytes, 64, kMaxPayload);
  r.signature = std::move(signature);
  r.spaces[0] = layout(src, count, std::move(in_offsets), plan->blocks());
  r.spaces[1] = layout(dst, count, std::move(out_offsets), plan->blocks());
  r.spaces[2] = r.spaces[0];
  r.spaces[2].data = nullptr;
  r.plan = std::move(plan);
  r.group = std::move(group);
  return r;
}

thread_local uint64_t begun = 0;

// submit() and run(): the arguments are those of define_call().
template <bool kRun>
auto issue(const std::shared_ptr<Session>& self, std::shared_ptr<Group> group, std::shared_ptr<Plan> plan,
           std::string operation, int dtype, int op, uintptr_t src, uintptr_t dst, uint64_t count, uint32_t chunk_bytes,
           int root, std::string name, double prescale, double postscale, uint64_t divisor, Offsets in_offsets,
           Offsets out_offsets, uint64_t signed_count, uint64_t extra, double timeout, uint64_t channel,
           const Copy& copy_in, const Copy& copy_out, nb::object keep) {
  drop_orphans();
  ++begun;
  if (dtype < 0 || dtype >= kDTypes) throw Failure(Code::invalid, "unknown dtype code " + std::to_string(dtype));
  if (op >= kOps) throw Failure(Code::invalid, "unknown op code " + std::to_string(op));
  const Op known = op >= 0 ? static_cast<Op>(op) : Op::sum;
  Signature signature{std::move(operation),
                      std::move(name),
                      static_cast<DType>(dtype),
                      known,
                      op >= 0,
                      signed_count,
                      root,
                      chunk_bytes,
                      extra};
  Request request = make_request(std::move(group), std::move(plan), std::move(signature), src, dst, count,
                                 std::move(in_offsets), std::move(out_offsets));
  request.prescale = prescale;
  request.postscale = postscale;
  request.divisor = divisor;
  request.timeout_seconds = timeout;
  Handle handle(self, self->prepare(std::move(request), channel), std::move(keep));
  if (copy_in) {
    const auto [from, begin, bytes] = *copy_in;
    handle.work().copy_in = {reinterpret_cast<std::byte*>(src) + begin, reinterpret_cast<const std::byte*>(from),
                             bytes};
  }
  if (copy_out) {
    const auto [to, begin, bytes] = *copy_out;
    handle.work().copy_out = {reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(dst) + begin, bytes};
  }
  if constexpr (kRun) {
    handle.run();
  } else {
    self->submit(handle.shared_work());
    return handle;
  }
}

// A receive from whichever of the plans' peers sends first; `channels` are those of the plans.
Handle receive_any(const std::shared_ptr<Session>& self, std::shared_ptr<Group> group,
                   const std::vector<std::shared_ptr<Plan>>& plans, const std::vector<uint64_t>& channels,
                   std::string operation, int dtype, uintptr_t dst, uint64_t count, uint32_t chunk_bytes,
                   uint64_t signed_count, uint64_t extra, double timeout, nb::object keep) {
  drop_orphans();
  if (dtype < 0 || dtype >= kDTypes) throw Failure(Code::invalid, "unknown dtype code " + std::to_string(dtype));
  if (plans.empty() || plans.size() != channels.size())
    throw Failure(Code::invalid, "a receive needs at least one source, and one channel per source");
  Signature signature;
  signature.operation = std::move(operation);
  signature.dtype = static_cast<DType>(dtype);
  signature.count = signed_count;
  signature.chunk_bytes = chunk_bytes;
  signature.extra = extra;
  Request request = make_request(std::move(group), plans.front(), std::move(signature), dst, dst, count, {}, {});
  for (size_t i = 0; i < plans.size(); ++i) {
    if (plans[i]->peers().size() != 1 || plans[i]->blocks() != 1)
      throw Failure(Code::invalid, "the plan of a receive has one step");
    request.candidates.push_back({channels[i], plans[i]});
  }
  request.timeout_seconds = timeout;
  Handle handle(self, self->prepare(std::move(request), channels.front()), std::move(keep));
  self->submit(handle.shared_work());
  return handle;
}

// Waits until no earlier work needs `bytes` at `address`, which the caller is about to read, or to write.
void await_memory(const std::shared_ptr<Session>& self, std::shared_ptr<Group> group, std::shared_ptr<Plan> plan,
                  std::string operation, uintptr_t address, uint64_t bytes, bool writes, double timeout,
                  uint64_t channel) {
  Signature signature;
  signature.operation = std::move(operation);
  signature.dtype = DType::u8;
  signature.count = bytes;
  Request request = make_request(std::move(group), std::move(plan), std::move(signature), writes ? 0 : address,
                                 writes ? address : 0, bytes, {}, {});
  request.only_waits = true;
  request.timeout_seconds = timeout;
  Handle handle(self, self->prepare(std::move(request), channel), nb::none());
  handle.work().traced = {};
  handle.run();
}

template <class F>
void define_call(nb::class_<Session>& c, const char* name, F f, const char* doc) {
  c.def(name, f, nb::arg("group"), nb::arg("plan"), nb::arg("operation"), nb::arg("dtype"), nb::arg("op"),
        nb::arg("src"), nb::arg("dst"), nb::arg("count"), nb::arg("chunk_bytes"), nb::arg("root") = -1,
        nb::arg("name") = "", nb::arg("prescale") = 1.0, nb::arg("postscale") = 1.0, nb::arg("divisor") = 1,
        nb::arg("in_offsets") = nb::none(), nb::arg("out_offsets") = nb::none(), nb::arg("signed_count") = 0,
        nb::arg("extra") = 0, nb::arg("timeout") = 0.0, nb::arg("channel") = 0, nb::arg("copy_in") = nb::none(),
        nb::arg("copy_out") = nb::none(), nb::arg("keep") = nb::none(), doc);
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

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self)) Py_VISIT(nb::inst_ptr<Handle>(self)->collectable().ptr());
  return 0;
}

int clear(PyObject* self) {
  if (nb::inst_ready(self)) nb::inst_ptr<Handle>(self)->let_go();
  return 0;
}

PyType_Slot kHandleSlots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse)}, {Py_tp_clear, reinterpret_cast<void*>(clear)}, {0, nullptr}};

void bind_handles(nb::module_& m) {
  nb::class_<Plan>(m, "Plan", "A compiled plan of one rank; see slipstream.plan.")
      .def_static(
          "compile",
          [](int rank, int size, int blocks, const Int32s& rows, const Int32s& deps, bool split) {
            return std::const_pointer_cast<Plan>(
                Plan::compile(rank, size, blocks, {rows.data(), rows.size()}, {deps.data(), deps.size()}, split));
          },
          nb::arg("rank"), nb::arg("size"), nb::arg("blocks"), nb::arg("rows"), nb::arg("deps"),
          nb::arg("split") = false);
  nb::class_<Group>(m, "Group", "The members of a group, by their global ranks.")
      .def_ro("id", &Group::id)
      .def_ro("rank", &Group::rank)
      .def_ro("ranks", &Group::ranks);
  nb::class_<Handle>(m, "Work", nb::type_slots(kHandleSlots), "A running operation.")
      .def("done", [](const Handle& h) { return h.work().done(); })
      .def("source", &Handle::source,
           "The rank of the group that a finished send or receive talked to; -1 before, and for works of several.")
      .def("wait", &Handle::wait, nb::arg("timeout") = nb::none(),
           "Waits; False if `timeout` seconds pass first. Raises the operation's error.");
}

nb::list link_statistics(Session& self) {
  std::vector<LinkStatistics> links;
  {
    const WithoutGil release;
    links = self.link_statistics();
  }
  nb::list found;
  for (const LinkStatistics& link : links) {
    nb::list lanes;
    uint64_t sent = link.sent;
    uint64_t received = link.received;
    for (const LaneStatistics& lane : link.lanes) {
      nb::dict one;
      one["local"] = lane.local;
      one["remote"] = lane.remote;
      one["control"] = lane.control;
      one["up"] = lane.up;
      one["sent"] = lane.sent;
      one["received"] = lane.received;
      one["rate"] = lane.rate;
      one["delivery_rate"] = lane.delivery;
      one["rtt"] = lane.rtt_us * 1e-6;
      one["retransmits"] = lane.retransmits;
      one["zero_copy"] = lane.zero_copy;
      one["zero_copied"] = lane.zero_copied;
      one["zero_copy_from"] = lane.zero_copy_from;
      lanes.append(one);
      sent += lane.sent;
      received += lane.received;
    }
    nb::dict one;
    one["rank"] = link.peer;
    one["transport"] = link.kind == Link::Kind::tcp ? "tcp" : "shm";
    one["closed"] = link.closed;
    one["sent"] = sent;
    one["received"] = received;
    one["lost"] = link.lost;
    one["replaced"] = link.replaced;
    one["repeated"] = link.repeated;
    one["dropped"] = link.dropped;
    one["damaged"] = link.damaged;
    one["encrypted"] = link.encrypted;
    one["lanes"] = lanes;
    found.append(one);
  }
  return found;
}

Checksums checksums_of(const std::string& text) {
  if (text == "off") return Checksums::off;
  return text == "on" ? Checksums::always : Checksums::automatic;
}

const char* name_of(TraceEvent::Kind kind) {
  const char* const names[] = {"work",          "lane lost",    "lane replaced", "lane reopened",
                               "link repaired", "lane damaged", "control moved"};
  return names[static_cast<int>(kind)];
}

nb::dict trace_event(const TraceEvent& event) {
  const auto nanoseconds = [](Time t) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(t.time_since_epoch()).count();
  };
  nb::dict one;
  one["kind"] = name_of(event.kind);
  one["begin"] = nanoseconds(event.begin);
  one["end"] = nanoseconds(event.end);
  one["peer"] = event.peer;
  if (event.kind == TraceEvent::Kind::work) {
    const char* const directions[] = {"", "send", "recv"};
    one["operation"] = event.operation.chars.data();
    one["name"] = nb::bytes(event.name.chars.data());  // it may have been cut within a character
    one["dtype"] = name_of(event.dtype);
    one["bytes"] = event.bytes;
    one["ranks"] = event.ranks;
    one["direction"] = directions[static_cast<int>(event.direction)];
    one["error"] = event.error;
  } else {
    one["lane"] = event.lane;
    one["old_local"] = endpoint_name(event.old_local);
    one["new_local"] = endpoint_name(event.new_local);
  }
  return one;
}

nb::tuple take_trace(Session& self) {
  const Trace::Taken taken = self.trace().take();
  nb::list events;
  for (const TraceEvent& event : taken.events) events.append(trace_event(event));
  return nb::make_tuple(events, taken.dropped);
}

}  // namespace

void bind_session(nb::module_& m) {
  bind_handles(m);
  m.def(
      "leak", [](nb::object o) { o.inc_ref(); }, nb::arg("object"),
      "Keeps an object for ever: a forked child must not run the destructor of its parent's session.");
  m.def("congestion", &check_congestion, nb::arg("name"),
        "The TCP congestion control that connections get; name: one to take, \"\" for the default. ValueError if this "
        "machine or this user does not have it.");
  m.def(
      "orphans",
      [] {
        drop_orphans();
        return orphans();
      },
      "For how many works memory is kept that nobody waits for any more: interrupted calls, dropped handles.");
  m.def("begun", [] { return begun; }, "How many operations this thread has begun.");
  nb::class_<Session> session(m, "Session", "A rank's membership in a job.");
  session
      .def(
          "__init__",
          [](Session* self, int rank, int size, std::string job, nb::bytes secret, double heartbeat, double timeout,
             int lanes, int spin_us, bool round_robin, bool zero_copy, int threads, std::vector<int> cpus,
             size_t lend_from, std::string congestion, const std::string& checksums, bool encrypt) {
            SessionOptions options{rank, size, std::move(job), std::string(secret.c_str(), secret.size())};
            options.heartbeat_seconds = heartbeat;
            options.timeout_seconds = timeout;
            options.lanes = lanes;
            options.spin_us = spin_us;
            options.round_robin = round_robin;
            options.zero_copy = zero_copy;
            options.lend_from = lend_from;
            options.checksums = checksums_of(checksums);
            options.encrypt = encrypt;
            options.congestion = std::move(congestion);
            options.threads = threads;
            options.cpus = std::move(cpus);
            new (self) Session(std::move(options));
          },
          nb::arg("rank"), nb::arg("size"), nb::arg("job"), nb::arg("secret"), nb::arg("heartbeat") = 10.0,
          nb::arg("timeout") = 1800.0, nb::arg("lanes") = 2, nb::arg("spin_us") = 0, nb::arg("round_robin") = false,
          nb::arg("zero_copy") = true, nb::arg("threads") = 0, nb::arg("cpus") = std::vector<int>{},
          nb::arg("lend_from") = 0, nb::arg("congestion") = "", nb::arg("checksums") = "auto",
          nb::arg("encrypt") = false)
      .def("listen_shm", &Session::listen_shm)
      .def("listen_tcp", &Session::listen_tcp, nb::arg("addresses"))
      .def(
          "start",
          [](Session& self, const std::vector<PeerTuple>& peers) {
            std::vector<PeerAddress> addresses;
            for (const auto& [host, same_host, name, list, port] : peers)
              addresses.push_back({host, same_host, name, list, port});
            self.start(std::move(addresses));
          },
          nb::arg("peers"), "peers: (host, same_host, shm_name, addresses, port) per rank.")
      .def(
          "make_group",
          [](Session& self, uint64_t id, std::vector<int> ranks) {
            return std::const_pointer_cast<Group>(self.make_group(id, std::move(ranks)));
          },
          nb::arg("id"), nb::arg("ranks"))
      .def("allocate", &allocate, nb::arg("bytes"), "uint8 array in memory that ranks of this host can map.")
      .def("abort", &Session::abort, nb::arg("why"), nb::call_guard<WithoutGil>())
      .def("abandon", &Session::abandon, nb::arg("what"), nb::call_guard<WithoutGil>(),
           "Fails the session on all ranks; to the others this rank is lost: \"rank 1 (host a) <what>\".")
      .def(
          "probe",
          [](Session& self, const std::vector<int>& ranks, double timeout) {
            std::vector<int> alive;
            self.ask(ranks);
            wait_in_slices(now() + seconds(timeout), [&](Time until) { return self.hear(ranks, until, alive); });
            return alive;
          },
          nb::arg("ranks"), nb::arg("timeout"),
          "Those of `ranks` that answer within `timeout` seconds, also if the session has failed.")
      .def(
          "close",
          [](Session& self, const std::string& words, bool tell) {
            {
              const WithoutGil release;
              self.close(words, tell);
            }
            drop_orphans();
          },
          nb::arg("words") = "", nb::arg("tell") = true)
      .def("links", &Session::links, nb::call_guard<WithoutGil>(), "(tcp, shm) links that are up.")
      .def("link_statistics", &link_statistics,
           "What each link has done, also if it is closed: a dict each, those of tcp with their lanes.")
      .def(
          "start_trace", [](Session& self, size_t capacity) { self.trace().start(capacity); }, nb::arg("capacity"),
          "Keeps what happens from now on until it is taken, at most `capacity` events; forgets what was kept.")
      .def("stop_trace", [](Session& self) { self.trace().stop(); })
      .def("take_trace", &take_trace,
           "(events, dropped): a dict for each work that is done and each change of a lane, in order; how many more "
           "there were. Times in nanoseconds of the monotonic clock.")
      .def("report", &Session::report, nb::call_guard<WithoutGil>(),
           "What this rank waits for, from whom and since when, and its last operations; several lines.")
      .def(
          "check",
          [](const Session& self) {
            if (const Error e = self.failure()) throw Failure(e);
          },
          "Raises the session's error, if it has failed.");
  define_call(session, "submit", issue<false>, "Begins an operation; returns its Work.");
  session.def("receive_any", &receive_any, nb::arg("group"), nb::arg("plans"), nb::arg("channels"),
              nb::arg("operation"), nb::arg("dtype"), nb::arg("dst"), nb::arg("count"), nb::arg("chunk_bytes"),
              nb::arg("signed_count"), nb::arg("extra"), nb::arg("timeout") = 0.0, nb::arg("keep") = nb::none(),
              "Begins a receive from whichever source sends first; returns its Work.");
  define_call(session, "run", issue<true>, "Runs an operation to its end in this thread.");
  session.def("quiet", &Session::quiet, "Whether no work is under way; false with reducers.");
  session.def("await_memory", &await_memory, nb::arg("group"), nb::arg("plan"), nb::arg("operation"),
              nb::arg("address"), nb::arg("bytes"), nb::arg("writes"), nb::arg("timeout") = 0.0, nb::arg("channel") = 0,
              "Waits until no earlier work of the channel needs this memory; `plan` copies `in` to `out`. Refused as "
              "an operation is, where one of another channel does.");
}

}  // namespace slipstream
