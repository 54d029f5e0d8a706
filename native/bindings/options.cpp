// What Python chooses of a session: SessionOptions, and the LinkOptions in it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include "bindings/module.h"
#include "session/session.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

using ZeroCopy = std::variant<size_t, std::string>;
using Lanes = std::variant<int, std::string>;

const char* checksum(const LinkOptions& options) {
  const char* const names[] = {"off", "auto", "on"};
  return names[static_cast<int>(options.checksums)];
}

void set_checksum(LinkOptions& options, const std::string& text) {
  options.checksums = text == "off" ? Checksums::off : text == "on" ? Checksums::always : Checksums::automatic;
}

const char* single_copy(const LinkOptions& options) {
  return options.single_copy == SingleCopy::off ? "off" : options.single_copy == SingleCopy::always ? "on" : "auto";
}

Lanes lanes(const LinkOptions& options) {
  if (options.more_lanes) return "auto";
  return options.lanes;
}

void set_lanes(LinkOptions& options, const Lanes& value) {
  const int* count = std::get_if<int>(&value);
  options.more_lanes = count == nullptr;  // "auto"
  options.lanes = count != nullptr ? *count : LinkOptions{}.lanes;
}

void set_single_copy(LinkOptions& options, const std::string& text) {
  options.single_copy = text == "off" ? SingleCopy::off : text == "on" ? SingleCopy::always : SingleCopy::automatic;
}

ZeroCopy zero_copy(const LinkOptions& options) {
  if (options.lend_from != 0) return options.lend_from;
  return options.lending == Lending::off ? "off" : "auto";
}

void set_zero_copy(LinkOptions& options, const ZeroCopy& value) {
  const auto* size = std::get_if<size_t>(&value);
  options.lend_from = size != nullptr ? *size : 0;
  options.lending = size == nullptr && std::get<std::string>(value) == "off" ? Lending::off : Lending::automatic;
}

}  // namespace

void bind_options(nb::module_& m) {
  nb::class_<LinkOptions>(m, "LinkOptions",
                          "How links work. Each field has the name and the values of its setting, but for `cpus`.")
      .def(nb::init<>())
      .def_prop_rw("lanes", &lanes, &set_lanes)
      .def_prop_rw(
          "dealing", [](const LinkOptions& o) { return o.round_robin ? "round_robin" : "pull"; },
          [](LinkOptions& o, const std::string& text) { o.round_robin = text == "round_robin"; })
      .def_prop_rw("zero_copy", &zero_copy, &set_zero_copy)
      .def_prop_rw("checksum", &checksum, &set_checksum)
      .def_rw("congestion", &LinkOptions::congestion)
      .def_rw("dscp", &LinkOptions::dscp)
      .def_rw("encrypt", &LinkOptions::encrypt)
      .def_rw("threads", &LinkOptions::threads)
      .def_prop_rw("single_copy", &single_copy, &set_single_copy)
      .def_rw("cpus", &LinkOptions::cpus);
  nb::class_<SessionOptions>(m, "SessionOptions", "A rank's place in a job, and how its session works.")
      .def(nb::init<>())
      .def_rw("rank", &SessionOptions::rank)
      .def_rw("size", &SessionOptions::size)
      .def_rw("job", &SessionOptions::job)
      .def_prop_rw(
          "secret", [](const SessionOptions& o) { return nb::bytes(o.secret.data(), o.secret.size()); },
          [](SessionOptions& o, const nb::bytes& secret) { o.secret.assign(secret.c_str(), secret.size()); })
      .def_rw("heartbeat", &SessionOptions::heartbeat_seconds)
      .def_rw("timeout", &SessionOptions::timeout_seconds)
      .def_rw("spin_us", &SessionOptions::spin_us)
      .def_rw("board_spin_us", &SessionOptions::board_spin_us)
      .def_rw("held_ns", &SessionOptions::held_ns)
      .def_rw("relays", &SessionOptions::relays)
      .def_rw("busy_poll_us", &SessionOptions::busy_poll_us)
      .def_rw("board_ranks", &SessionOptions::board_ranks)
      .def_prop_rw(
          "report_pipe", [](const SessionOptions& o) { return std::pair(o.report.fd, o.report.inode); },
          [](SessionOptions& o, const std::pair<int, uint64_t>& pipe) { o.report = {pipe.first, pipe.second}; })
      .def_rw("link", &SessionOptions::link);
}

}  // namespace slipstream
