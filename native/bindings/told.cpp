// Messages of a head and a block, to every rank or to each (slipstream.comm.collectives.ragged): packed, exchanged and
// unpacked here, as short operations take most of their time in Python.
#include "bindings/told.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>

#include "bindings/begun.h"
#include "bindings/board_call.h"
#include "bindings/handle.h"
#include "bindings/session.h"
#include "boards/call_request.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

// Writes message after message: integers of a head, bytes of the block that follows or kNone, and the block. Returns
// where each begins.
std::vector<uint64_t> pack(std::byte* to, const std::vector<int64_t>& heads, const std::byte* blocks,
                           const std::vector<uint64_t>& sizes, bool whole) {
  const size_t fields = heads.size() / sizes.size();
  std::vector<uint64_t> offsets{0};
  for (size_t m = 0; m < sizes.size(); ++m) {
    std::byte* at = to + offsets.back();
    const int64_t follows = whole ? static_cast<int64_t>(sizes[m]) : Told::kNone;
    std::memcpy(at, heads.data() + m * fields, fields * sizeof(int64_t));
    std::memcpy(at + fields * sizeof(int64_t), &follows, sizeof follows);
    at += (fields + 1) * sizeof(int64_t);
    if (whole && sizes[m] > 0) {
      std::memcpy(at, blocks, sizes[m]);
      at += sizes[m];
      blocks += sizes[m];
    }
    offsets.push_back(static_cast<uint64_t>(at - to));
  }
  return offsets;
}

}  // namespace

// `heads`: one, and `sizes` has one entry, if all ranks are told the same; or one for each rank.
nb::object tell(const std::shared_ptr<Session>& self, const CallRequest& request, const std::vector<int64_t>& heads,
                uintptr_t blocks, const std::vector<uint64_t>& sizes, bool whole, std::string name) {
  const size_t ranks = request.group->ranks.size();
  const std::vector<uint64_t>& rooms = request.spaces[1].offsets;
  const bool same = sizes.size() == 1 && ranks > 1;
  if (!request.ragged || sizes.empty() || (!same && sizes.size() != ranks) || heads.size() % sizes.size() != 0)
    throw Failure(Code::invalid, "tell() needs a ragged request, and a head and a size for all ranks or for each");
  const size_t fields = heads.size() / sizes.size();
  const size_t room = rooms[1];
  const size_t begin = (fields + 1) * sizeof(int64_t);
  const uint64_t longest = whole ? *std::max_element(sizes.begin(), sizes.end()) : 0;
  if (begin > room || longest > room - begin) throw Failure(Code::invalid, "a block is too long for its message");
  const uint64_t total = std::accumulate(sizes.begin(), sizes.end(), uint64_t{0});

  nb::object owner = nb::cast(Told(fields, ranks, room, sizes.size() * begin + (whole ? total : 0)));
  const Told& told = nb::cast<const Told&>(owner);
  std::vector<uint64_t> offsets = pack(told.sent(), heads, reinterpret_cast<const std::byte*>(blocks), sizes, whole);
  if (same) {
    const auto me = static_cast<size_t>(request.group->rank);
    const uint64_t length = offsets.back();
    offsets.assign(ranks + 1, 0);
    std::fill(offsets.begin() + static_cast<ptrdiff_t>(me) + 1, offsets.end(), length);
  }
  drop_orphans();
  count_begun();
  BoardForm form = request.form;
  if (form.kind != BoardForm::Kind::none && !same) form.kind = BoardForm::Kind::told_each;
  const BoardCall on_board{request, form, told.sent(), told.received(), 0, name, 0, nullptr, &offsets};
  if (run_on_board(self, on_board, {owner})) return owner;
  Request call = request;
  call.spaces[0].offsets = std::move(offsets);
  call.spaces[0].data = told.sent();
  call.spaces[1].data = told.received();
  call.signature.name = std::move(name);
  Handle handle(self, self->prepare(std::move(call), request.channel), owner);
  handle.run();
  return owner;
}

void bind_told(nb::module_& m, SessionClass& session) {
  nb::class_<Told>(m, "Told", "What all ranks told this one: a head of integers each, and a block of bytes.")
      .def("heads", &Told::heads, "The integers that each rank sent, in order of rank.")
      .def_prop_ro("whole", &Told::whole, "Whether the blocks of all ranks have come with their heads.")
      .def("join", &Told::join, nb::arg("to"), nb::arg("sizes"),
           "Puts `sizes` bytes of the ranks' blocks one after another to the address `to`.")
      .def("part", &Told::part, nb::arg("rank"), nb::arg("begin"), nb::arg("size"), nb::arg("to"),
           "Puts `size` bytes of one rank's block, from `begin` on, to the address `to`.");
  session.def("tell", &tell, nb::arg("request"), nb::arg("heads"), nb::arg("blocks"), nb::arg("sizes"),
              nb::arg("whole"), nb::arg("name") = "",
              "Tells all ranks one head and block, or each rank its own (one after another in `heads`, and from the "
              "address `blocks` on), and waits for theirs. `sizes`: bytes of the blocks. Returns what they told.");
}

}  // namespace slipstream
