// Operations: Request is what calls have in common that differ only in their memory; submit() and run() call.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "base/huge_pages.h"
#include "base/reserve.h"
#include "bindings/begin_note.h"
#include "bindings/begun.h"
#include "bindings/board_call.h"
#include "bindings/gil.h"
#include "bindings/handle.h"
#include "bindings/session.h"
#include "boards/call_request.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

using Int32s = nb::ndarray<const int32_t, nb::c_contig, nb::device::cpu>;
using Offsets = std::optional<std::vector<uint64_t>>;
using Copy = std::optional<std::tuple<uintptr_t, uint64_t, uint64_t>>;
using Source = std::pair<std::shared_ptr<Plan>, uint64_t>;

std::vector<uint64_t> checked(Offsets offsets, const Plan& plan) {
  if (!offsets) return {};
  if (offsets->size() != static_cast<size_t>(plan.blocks()) + 1)
    throw Failure(Code::invalid, "a table of offsets needs one entry per block, and one");
  return std::move(*offsets);
}

// A block that is longer than one eager message would wait for pieces that a shorter one does not have. Who packs and
// unpacks the messages (told.cpp) counts bytes, and takes all blocks for equally long.
void check_ragged(const Request& r, const Plan& plan) {
  const std::vector<uint64_t>& offsets = r.spaces[1].offsets;
  bool fits = !offsets.empty() && offsets[0] == 0;
  for (size_t i = 1; i < offsets.size(); ++i) fits = fits && offsets[i] == i * offsets[1];
  if (!fits || offsets[1] > std::min(r.chunk_bytes, kEagerBytes))
    throw Failure(Code::invalid, "each block of a ragged operation must fit into one message, and all be alike");
  if (r.signature.dtype != DType::u8 || r.signature.reduces ||
      !std::ranges::all_of(plan.steps(), [](const Step& step) { return step.count == 1; }))
    throw Failure(Code::invalid, "a ragged operation moves bytes, block by block");
}

// Tells a send or a receive which side it is.
void set_side(Signature& signature, const Plan& plan, const Group& group) {
  if (!signature.operation.starts_with("send_recv") || plan.peers().size() != 1) return;
  const Plan::Peer& peer = plan.peers().front();
  signature.side = peer.sends.empty() ? Side::receiver : Side::sender;
  signature.other_side = group.ranks.at(static_cast<size_t>(peer.rank));
}

void make_request(CallRequest* self, std::shared_ptr<Group> group, std::shared_ptr<Plan> plan, std::string operation,
                  int dtype, int op, uint32_t chunk_bytes, int root, double prescale, double postscale,
                  uint64_t divisor, Offsets in_offsets, Offsets out_offsets, uint64_t extra, uint64_t channel,
                  bool ragged, int wire) {
  if (dtype < 0 || dtype >= kDTypes) throw Failure(Code::invalid, "unknown dtype code " + std::to_string(dtype));
  if (op >= kOps) throw Failure(Code::invalid, "unknown op code " + std::to_string(op));
  Request r;
  r.signature.operation = std::move(operation);
  r.signature.dtype = static_cast<DType>(dtype);
  r.signature.reduces = op >= 0;
  r.signature.op = op >= 0 ? static_cast<Op>(op) : Op::sum;
  r.signature.root = root;
  r.signature.chunk_bytes = chunk_bytes;
  r.signature.extra = extra;
  if (r.signature.reduces && reduce_fn(r.signature.dtype, r.signature.op) == nullptr)
    throw Failure(Code::invalid,
                  std::string("op ") + name_of(r.signature.op) + " is not defined for " + name_of(r.signature.dtype));
  if (wire < 0 || wire >= kWireTypes) throw Failure(Code::invalid, "unknown wire code " + std::to_string(wire));
  r.signature.wire = static_cast<WireType>(wire);
  if (!fits(r.signature.wire, r.signature))
    throw Failure(Code::invalid, "only float32 data that is moved, or added, travels in a wire type");
  r.chunk_bytes = std::clamp<uint32_t>(chunk_bytes, 64, kMaxPayload);
  r.prescale = prescale;
  r.postscale = postscale;
  r.divisor = divisor;
  r.channel = channel;
  r.spaces[0].offsets = r.spaces[2].offsets = checked(std::move(in_offsets), *plan);
  r.spaces[1].offsets = checked(std::move(out_offsets), *plan);
  r.ragged = ragged;
  if (ragged) check_ragged(r, *plan);
  set_side(r.signature, *plan, *group);
  r.collective = Counters::collective_of(r);
  r.plan = std::move(plan);
  r.group = std::move(group);
  new (self) CallRequest(std::move(r));
}

std::byte* at(uintptr_t address) { return reinterpret_cast<std::byte*>(address); }

// Where the memory of a C-contiguous array begins. NumPy's own way takes ten times as long; it is for dtypes that have
// no buffer.
uintptr_t address_of(nb::handle array) {
  Py_buffer view;
  if (PyObject_GetBuffer(array.ptr(), &view, PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    return nb::cast<uintptr_t>(array.attr("ctypes").attr("data"));
  }
  const auto address = reinterpret_cast<uintptr_t>(view.buf);
  PyBuffer_Release(&view);
  return address;
}

// Submits the handle's work, and notes it if that is wished for.
nb::object submit(const std::shared_ptr<Session>& session, Handle handle, BeginNote* note) {
  nb::object work = nb::cast(std::move(handle));
  session->submit(nb::inst_ptr<Handle>(work)->shared_work());
  if (note != nullptr) note->make(work);
  return work;
}

// submit() and run(): the arguments are those of define_call().
template <bool kRun>
auto issue(const std::shared_ptr<Session>& self, const CallRequest& request, uintptr_t src, uintptr_t dst,
           uint64_t count, std::string name, double timeout, nb::object keep, const Copy& copy_in, const Copy& copy_out,
           int urgency) {
  drop_orphans();
  count_begun();
  if constexpr (kRun) {
    const BoardCall call{request, request.form, at(src), at(dst), count, name, timeout, &request.route};
    if (!copy_in && !copy_out && !request.ragged && run_on_board(self, call, {keep})) return;
  }
  Request call = request.on_memory(at(src), at(dst), count, timeout, std::move(name));
  if (urgency < 0) throw Failure(Code::invalid, "an urgency is not negative");
  call.urgency = urgency;
  [[maybe_unused]] BeginNote* const note = BeginNote::in(keep);  // lives as long as `keep`, which the handle has
  Handle handle(self, self->prepare(std::move(call), request.channel), std::move(keep));
  if (copy_in) {
    const auto [from, begin, bytes] = *copy_in;
    handle.work().copy_in = {at(src) + begin, at(from), bytes};
  }
  if (copy_out) {
    const auto [to, begin, bytes] = *copy_out;
    handle.work().copy_out = {at(to), at(dst) + begin, bytes};
  }
  if constexpr (kRun) {
    handle.run();
  } else {
    return submit(self, std::move(handle), note);
  }
}

// As run(), in place in `memory`: the input is copied there from `source`, and the result from there to `target`. More
// may follow in `memory` than these `bytes`.
void run_copied(const std::shared_ptr<Session>& self, const CallRequest& request, uintptr_t memory, uint64_t count,
                uintptr_t source, uintptr_t target, uint64_t bytes, std::string name, double timeout, nb::object keep) {
  std::memcpy(at(memory), at(source), bytes);
  issue<true>(self, request, memory, memory, count, std::move(name), timeout, std::move(keep), {}, {}, 0);
  std::memcpy(at(target), at(memory), bytes);
}

// A receive from whichever of the sources sends first: the plan of a receive from each, and its channel.
nb::object receive_any(const std::shared_ptr<Session>& self, const CallRequest& request,
                       const std::vector<Source>& sources, uintptr_t dst, uint64_t count, double timeout,
                       nb::object keep) {
  if (sources.empty()) throw Failure(Code::invalid, "a receive needs at least one source");
  Request call = request.on_memory(at(dst), at(dst), count, timeout);
  call.signature.other_side = -1;
  for (const auto& [plan, channel] : sources) {
    if (plan->peers().size() != 1 || plan->blocks() != 1)
      throw Failure(Code::invalid, "the plan of a receive has one step");
    call.candidates.push_back({channel, plan});
  }
  drop_orphans();
  count_begun();
  BeginNote* const note = BeginNote::in(keep);
  const uint64_t channel = call.candidates.front().channel;
  return submit(self, Handle(self, self->prepare(std::move(call), channel), std::move(keep)), note);
}

// Waits until no earlier work needs `bytes` at `address`, which the caller is about to read, or to write.
void await_memory(const std::shared_ptr<Session>& self, const CallRequest& request, uintptr_t address, uint64_t bytes,
                  bool writes, double timeout) {
  Request call = request.on_memory(at(writes ? 0 : address), at(writes ? address : 0), bytes, timeout);
  call.only_waits = true;
  Handle handle(self, self->prepare(std::move(call), request.channel), nb::none());
  handle.work().traced = {};
  handle.run();
}

template <class F>
void define_call(SessionClass& c, const char* name, F f, const char* doc) {
  c.def(name, f, nb::arg("request"), nb::arg("src"), nb::arg("dst"), nb::arg("count"), nb::arg("name") = "",
        nb::arg("timeout") = 0.0, nb::arg("keep") = nb::none(), nb::arg("copy_in") = nb::none(),
        nb::arg("copy_out") = nb::none(), nb::arg("urgency") = 0, doc);
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
      .def("finished", &Handle::finished,
           "When it was done, in seconds of the monotonic clock, some milliseconds late if it is small. None if it is "
           "not done, or has failed.")
      .def("source", &Handle::source,
           "The rank of the group that a finished send or receive talked to; -1 before, and for works of several.")
      .def("wait", &Handle::wait, nb::arg("timeout") = nb::none(),
           "Waits; False if `timeout` seconds pass first. Raises the operation's error.")
      .def("entitle", &Handle::entitle, nb::arg("title"),
           "What reports call the operation from now on, in place of its signature; the first title stays.")
      .def("waits", &Handle::waits, "For people: the operation, and the ranks that it waits for; empty if it is done.");
}

void bind_notes(nb::module_& m) {
  nb::class_<BeginNote>(m, "BeginNote",
                        "First in what `Session.submit` or `receive_any` keeps: notes[key] becomes the Work as it "
                        "begins, before any code of Python runs.")
      .def(nb::init<nb::dict, nb::object>(), nb::arg("notes"), nb::arg("key"));
}

void bind_requests(nb::module_& m) {
  nb::class_<CallRequest>(
      m, "Request",
      "What is asked for, but for the memory: calls that differ in nothing else share one. It never "
      "changes. op -1: none. Tables of offsets in elements, an entry for each block and the end. ragged: "
      "what arrives for a block may be shorter than out_offsets say.")
      .def("__init__", &make_request, nb::kw_only(), nb::arg("group"), nb::arg("plan"), nb::arg("operation"),
           nb::arg("dtype"), nb::arg("op") = -1, nb::arg("chunk_bytes"), nb::arg("root") = -1,
           nb::arg("prescale") = 1.0, nb::arg("postscale") = 1.0, nb::arg("divisor") = 1,
           nb::arg("in_offsets") = nb::none(), nb::arg("out_offsets") = nb::none(), nb::arg("extra") = 0,
           nb::arg("channel") = 0, nb::arg("ragged") = false, nb::arg("wire") = 0);
}

}  // namespace

void bind_calls(nb::module_& m, SessionClass& session) {
  bind_handles(m);
  bind_notes(m);
  bind_requests(m);
  m.def(
      "orphans",
      [] {
        drop_orphans();
        return orphans();
      },
      "For how many works memory is kept that nobody waits for any more: interrupted calls, dropped handles.");
  bind_begun(m);
  m.def("address_of", &address_of, nb::arg("array"), "The address of a C-contiguous NumPy array's memory.");
  m.def("prefer_huge_pages", &prefer_huge_pages, nb::arg("address"), nb::arg("bytes"),
        "Hints that untouched memory of this process should be in huge pages, which the kernel clears faster.");
  m.def("reserve", &reserve, nb::arg("address"), nb::arg("bytes"), nb::call_guard<WithoutGil>(),
        "Has the system give all pages of shared memory now; an error if it cannot.");
  define_call(session, "submit", issue<false>, "Begins an operation; returns its Work.");
  define_call(session, "run", issue<true>, "Runs an operation to its end in this thread.");
  session.def("run_copied", &run_copied, nb::arg("request"), nb::arg("memory"), nb::arg("count"), nb::arg("source"),
              nb::arg("target"), nb::arg("bytes"), nb::arg("name"), nb::arg("timeout") = 0.0,
              nb::arg("keep") = nb::none(),
              "Runs an operation of `count` elements in place in `memory`. Copies `bytes`, which may be less than "
              "that, from `source` there before, and from there to `target` afterwards.");
  session.def("receive_any", &receive_any, nb::arg("request"), nb::arg("sources"), nb::arg("dst"), nb::arg("count"),
              nb::arg("timeout") = 0.0, nb::arg("keep") = nb::none(),
              "Begins a receive from whichever source sends first: (plan, channel) of each. Returns its Work.");
  session.def("quiet", &Session::quiet, "Whether no work is under way; false with reducers.");
  session.def("await_memory", &await_memory, nb::arg("request"), nb::arg("address"), nb::arg("bytes"),
              nb::arg("writes"), nb::arg("timeout") = 0.0,
              "Waits until no earlier work of the channel needs this memory; the request's plan copies `in` to `out`. "
              "Refused as an operation is, where one of another channel does.");
}

}  // namespace slipstream
