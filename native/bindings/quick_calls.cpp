#include "bindings/quick_calls.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string_view.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <string>

#include "bindings/begun.h"
#include "bindings/gil.h"
#include "bindings/handle.h"
#include "bindings/module.h"
#include "bindings/quick_entry.h"

namespace nb = nanobind;

namespace slipstream {

QuickCalls::Kind QuickCalls::kind_of(std::string_view collective) {
  constexpr std::string_view kNames[] = {"all_reduce",   "reduce_scatter", "all_gather",    "broadcast", "barrier",
                                         "all_to_all",   "long_gather",    "long_exchange", "gather",    "scatter",
                                         "long_collect", "long_divide",    "reduce",        "send",      "recv"};
  const auto found = std::ranges::find(kNames, collective);
  if (found == std::end(kNames)) throw Failure(Code::invalid, "no collective that has quick calls");
  return static_cast<Kind>(found - std::begin(kNames));
}

void QuickCalls::add(Kind kind, uint64_t size, int dtype, int which, const CallRequest& request) {
  const bool is_message = kind == Kind::send || kind == Kind::recv;
  if (size >> kSizeBits != 0 || which > kMostWhich || requests_.size() >= kMost) return;
  if (is_message && messages_ >= kMostMessages) return;
  const auto [place, is_new] = requests_.try_emplace(key(kind, size, dtype, which));
  place->second = std::make_shared<const CallRequest>(request);
  if (is_message && is_new) ++messages_;
}

QuickCalls::Found QuickCalls::find(Kind kind, uint64_t size, int dtype, int which) const {
  if (size >> kSizeBits != 0 || which > kMostWhich) return nullptr;
  const auto found = requests_.find(key(kind, size, dtype, which));
  return found == requests_.end() ? nullptr : found->second;
}

QuickCalls::Found QuickCalls::message(Kind kind, int dtype, int peer, int64_t tag) const {
  return dtype < 0 || peer < 0 || tag < 0 ? nullptr : find(kind, static_cast<uint64_t>(tag), dtype, peer);
}

void QuickCalls::run(const CallRequest& request, std::byte* src, std::byte* dst, uint64_t count, const Kept& keep,
                     double timeout) const {
  static const std::string no_name;
  drop_orphans();
  count_begun();
  const BoardCall call{request, request.form, src, dst, count, no_name, timeout, &request.route};
  if (run_on_board(session_, call, keep)) return;
  Request by_messages = request.on_memory(src, dst, count, timeout);
  Handle(session_, session_->prepare(std::move(by_messages), request.channel), keep.all()).run();
}

bool QuickCalls::send_at_once(const CallRequest& request, std::byte* data, uint64_t count) const {
  Counters& counters = *session_->options().counters;
  const Time begun = counters.times_next() ? now() : Time{};
  if (!slipstream::send_at_once(*session_, request, data, count)) return false;
  drop_orphans();
  count_begun();
  const Clock::duration time = begun == Time{} ? Clock::duration{} : (now() - begun) * Counters::kSample;
  counters.count_quick(request, count, time);
  return true;
}

bool QuickCalls::receive_at_once(const CallRequest& request, std::byte* data, uint64_t count) const {
  using State = ShortMessages::State;
  Counters& counters = *session_->options().counters;
  const Time begun = counters.times_next() ? now() : Time{};
  // The first look keeps Python's lock: to give it away and get it back takes as long.
  State found = slipstream::receive_at_once(*session_, request, data, count, false);
  if (found == State::needs_work) return false;
  Clock::duration time{};
  if (found == State::taken) {
    if (begun != Time{}) time = (now() - begun) * Counters::kSample;
  } else {
    const Time waits = now();
    {
      const WithoutGil release;
      found = slipstream::receive_at_once(*session_, request, data, count, true);
    }
    time = now() - waits;
    counters.add_late(request.signature.other_side, time);
    counters.add_wait(time);
    if (found != State::taken) return false;
    counters.add_busy(time);
  }
  drop_orphans();
  count_begun();
  counters.count_quick(request, count, time);
  return true;
}

bool QuickCalls::take_at_once(const CallRequest& request, std::byte* data, uint64_t count) const {
  Counters& counters = *session_->options().counters;
  const Time begun = counters.times_next() ? now() : Time{};
  if (slipstream::receive_at_once(*session_, request, data, count, false) != ShortMessages::State::taken) return false;
  drop_orphans();
  count_begun();
  counters.count_quick(request, count, begun == Time{} ? Clock::duration{} : (now() - begun) * Counters::kSample);
  return true;
}

nb::object QuickCalls::submit(const CallRequest& request, std::byte* data, uint64_t count, nb::handle keep) const {
  drop_orphans();
  count_begun();
  Request message = request.on_memory(data, data, count, 0);
  nb::object work =
      nb::cast(Handle(session_, session_->prepare(std::move(message), request.channel), nb::borrow(keep)));
  session_->submit(nb::inst_ptr<Handle>(work)->shared_work());
  return work;
}

void bind_quick_calls(nb::module_& m) {
  nb::class_<QuickCalls>(m, "QuickCalls",
                         "Requests of a group's collectives on NumPy arrays, known from earlier calls.")
      .def(nb::init<std::shared_ptr<Session>>(), nb::arg("session"))
      .def(
          "add",
          [](QuickCalls& self, std::string_view collective, uint64_t size, int dtype, int which,
             const CallRequest& request) { self.add(QuickCalls::kind_of(collective), size, dtype, which, request); },
          nb::arg("collective"), nb::arg("size"), nb::arg("dtype"), nb::arg("which"), nb::arg("request"),
          "Knows `request`, of plain arrays of one dimension, of messages of any. `size`: bit_length() of the bytes "
          "(all_reduce, "
          "broadcast, reduce), "
          "elements of the input (reduce_scatter, and what follows an all_gather or all_to_all of as many on all "
          "ranks: long_gather, long_exchange; of a gather or scatter of equal blocks, those of a block: long_collect, "
          "long_divide), the tag (send, recv), else 0. `which`: op or root, of a reduce root * 16 + op, the other rank "
          "(send, recv), else 0.")
      .def("clear", &QuickCalls::clear)
      .def(
          "all_reduce",
          [](const QuickCalls& self, uintptr_t address, uint64_t count, int dtype, int op, nb::object keep,
             double timeout) {
            if (dtype < 0 || dtype >= kDTypes) return false;
            const uint64_t bytes = count * size_of(static_cast<DType>(dtype));
            const auto request =
                self.find(QuickCalls::Kind::all_reduce, static_cast<uint64_t>(std::bit_width(bytes)), dtype, op);
            if (!request) return false;
            auto* const at = reinterpret_cast<std::byte*>(address);
            self.run(*request, at, at, count, {keep}, timeout);
            return true;
          },
          nb::arg("address"), nb::arg("count"), nb::arg("dtype"), nb::arg("op"), nb::arg("keep"), nb::arg("timeout"),
          "Runs an all-reduce in place to its end. False, and nothing has happened, if it does not know its request.")
      .def(
          "send",
          [](const QuickCalls& self, uintptr_t address, uint64_t count, int dtype, int peer, int64_t tag) {
            const auto request = self.message(QuickCalls::Kind::send, dtype, peer, tag);
            return request && self.send_at_once(*request, reinterpret_cast<std::byte*>(address), count);
          },
          nb::arg("address"), nb::arg("count"), nb::arg("dtype"), nb::arg("peer"), nb::arg("tag"),
          "Sends a short message. False, and nothing has happened, if that needs a work.")
      .def(
          "receive",
          [](const QuickCalls& self, uintptr_t address, uint64_t count, int dtype, int peer, int64_t tag) {
            const auto request = self.message(QuickCalls::Kind::recv, dtype, peer, tag);
            return request && self.take_at_once(*request, reinterpret_cast<std::byte*>(address), count);
          },
          nb::arg("address"), nb::arg("count"), nb::arg("dtype"), nb::arg("peer"), nb::arg("tag"),
          "Takes a short message that has come. False, and nothing has happened, if there is none, or that needs a "
          "work.");
  bind_quick_entries(m);
}

}  // namespace slipstream
