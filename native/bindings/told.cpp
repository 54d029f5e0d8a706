// Messages of a head and a block, to every rank or to each (slipstream.comm.collectives.ragged): packed, exchanged and
// unpacked here, as short operations take most of their time in Python.
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
#include "bindings/call_request.h"
#include "bindings/handle.h"
#include "bindings/session.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

using Sizes = std::vector<uint64_t>;

constexpr int64_t kNone = -1;  // in place of a block's size: it does not follow

// What all ranks told this one, and what it told them: the memory of the operation.
class Told {
 public:
  Told(size_t fields, size_t ranks, size_t room, size_t sent)
      : begin_((fields + 1) * sizeof(int64_t)),
        ranks_(ranks),
        room_(room),
        sent_(std::make_unique_for_overwrite<std::byte[]>(sent)),
        received_(std::make_unique_for_overwrite<std::byte[]>(ranks * room)) {
    for (size_t r = 0; r < ranks; ++r) std::memset(received() + r * room, 0, begin_);  // of messages without a head
  }

  std::byte* sent() const { return sent_.get(); }
  std::byte* received() const { return received_.get(); }

  // The integers of every rank's head.
  nb::list heads() const {
    nb::list all;
    for (size_t r = 0; r < ranks_; ++r) {
      nb::list head;
      for (size_t i = 0; i + 1 < begin_ / sizeof(int64_t); ++i) head.append(field(r, i));
      all.append(head);
    }
    return all;
  }
  // True if every rank's blocks followed its heads.
  bool whole() const {
    for (size_t r = 0; r < ranks_; ++r)
      if (sent_by(r) < 0) return false;
    return true;
  }
  // Puts the first sizes[r] bytes of every rank's block one after another.
  void join(uintptr_t to, const Sizes& sizes) const {
    auto* at = reinterpret_cast<std::byte*>(to);
    for (size_t r = 0; r < std::min(ranks_, sizes.size()); ++r) {
      take(r, 0, sizes[r], at);
      at += sizes[r];
    }
  }
  // Bytes [begin, begin + size) of one rank's block.
  void part(size_t rank, size_t begin, size_t size, uintptr_t to) const {
    if (rank < ranks_) take(rank, begin, size, reinterpret_cast<std::byte*>(to));
  }

 private:
  // Bytes of a rank's block; kNone: it did not follow its head.
  int64_t sent_by(size_t rank) const { return field(rank, begin_ / sizeof(int64_t) - 1); }
  int64_t field(size_t rank, size_t index) const {
    int64_t value = 0;
    std::memcpy(&value, received() + rank * room_ + index * sizeof value, sizeof value);
    return value;
  }
  void take(size_t rank, size_t begin, size_t size, std::byte* to) const {
    const int64_t sent = sent_by(rank);
    const size_t most = std::min(room_ - begin_, static_cast<size_t>(std::max<int64_t>(sent, 0)));
    if (begin > most || size > most - begin) throw Failure(Code::internal, "a block is longer than its message");
    if (size > 0) std::memcpy(to, received() + rank * room_ + begin_ + begin, size);
  }

  size_t begin_;  // of the block in a message: bytes
  size_t ranks_;
  size_t room_;  // bytes of the longest message
  std::unique_ptr<std::byte[]> sent_;
  std::unique_ptr<std::byte[]> received_;
};

// Writes message after message: integers of a head, bytes of the block that follows or kNone, and the block. Returns
// where each begins.
Sizes pack(std::byte* to, const std::vector<int64_t>& heads, const std::byte* blocks, const Sizes& sizes, bool whole) {
  const size_t fields = heads.size() / sizes.size();
  Sizes offsets{0};
  for (size_t m = 0; m < sizes.size(); ++m) {
    std::byte* at = to + offsets.back();
    const int64_t follows = whole ? static_cast<int64_t>(sizes[m]) : kNone;
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

// `heads`: one, and `sizes` has one entry, if all ranks are told the same; or one for each rank.
nb::object tell(const std::shared_ptr<Session>& self, const CallRequest& request, const std::vector<int64_t>& heads,
                uintptr_t blocks, const Sizes& sizes, bool whole, std::string name) {
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
  Sizes offsets = pack(told.sent(), heads, reinterpret_cast<const std::byte*>(blocks), sizes, whole);
  if (same) {
    const auto me = static_cast<size_t>(request.group->rank);
    const uint64_t length = offsets.back();
    offsets.assign(ranks + 1, 0);
    std::fill(offsets.begin() + static_cast<ptrdiff_t>(me) + 1, offsets.end(), length);
  }
  drop_orphans();
  count_begun();
  Request call = request;
  call.spaces[0].offsets = std::move(offsets);
  BoardForm form = request.form;
  if (form.kind != BoardForm::Kind::none && !same) form.kind = BoardForm::Kind::told_each;
  if (run_on_board(self, {call, form, told.sent(), told.received(), 0, name, 0}, owner)) return owner;
  call.spaces[0].data = told.sent();
  call.spaces[1].data = told.received();
  call.signature.name = std::move(name);
  Handle handle(self, self->prepare(std::move(call), request.channel), owner);
  handle.run();
  return owner;
}

}  // namespace

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
