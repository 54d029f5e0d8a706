// What Python sees of a session at work: the statistics of its links, the events of the timeline, reports.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include "bindings/gil.h"
#include "bindings/session.h"
#include "transport/sockets.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

nb::dict lane_statistics(const LaneStatistics& lane) {
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
  return one;
}

}  // namespace

nb::dict dict_of(const LinkStatistics& link) {
  nb::list lanes;
  uint64_t sent = link.sent;
  uint64_t received = link.received;
  for (const LaneStatistics& lane : link.lanes) {
    lanes.append(lane_statistics(lane));
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
  one["single_copy"] = link.single_copy;
  one["single_copied"] = link.single_copied;
  one["lanes"] = lanes;
  return one;
}

namespace {

nb::list statistics(Session& self) {
  std::vector<LinkStatistics> links;
  {
    const WithoutGil release;
    links = self.link_statistics();
  }
  nb::list found;
  for (const LinkStatistics& link : links) found.append(dict_of(link));
  return found;
}

const char* name_of(TraceEvent::Kind kind) {
  const char* const names[] = {"work",         "lane lost",     "lane replaced", "lane reopened", "link repaired",
                               "lane damaged", "control moved", "span",          "mark",          "step"};
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
    one["wire"] = event.wire;
    one["error"] = event.error;
  } else if (event.kind == TraceEvent::Kind::span || event.kind == TraceEvent::Kind::mark) {
    one["track"] = event.operation.chars.data();
    one["name"] = nb::bytes(event.name.chars.data());
    one["bytes"] = event.bytes;
  } else if (event.kind == TraceEvent::Kind::step) {
    one["operation"] = event.operation.chars.data();
    one["name"] = nb::bytes(event.name.chars.data());
    one["verb"] = event.verb;
    one["wire"] = event.wire;
    one["step"] = event.step;
    one["chunk"] = event.chunk;
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

nb::dict counters(Session& self) {
  const Counters& found = *self.options().counters;
  nb::list operations;
  for (const Counters::Cell& cell : found.cells()) {
    nb::dict one;
    one["collective"] = name_of(cell.collective);
    one["largest"] = cell.largest == UINT64_MAX ? 0 : cell.largest;
    one["count"] = cell.count;
    one["bytes"] = cell.bytes;
    one["bus_bytes"] = cell.bus_bytes;
    one["seconds"] = double(cell.nanoseconds) * 1e-9;
    operations.append(one);
  }
  nb::list late;
  for (const uint64_t nanoseconds : found.late()) late.append(double(nanoseconds) * 1e-9);
  nb::dict all;
  all["operations"] = operations;
  all["waited"] = double(found.waited()) * 1e-9;
  all["busy"] = double(found.busy()) * 1e-9;
  all["late"] = late;
  all["stalls"] = found.stalls();
  return all;
}

}  // namespace

void bind_observation(nb::module_& m, SessionClass& session) {
  m.def("congestion", &check_congestion, nb::arg("name"),
        "The TCP congestion control that connections get; name: one to take, \"\" for the default. ValueError if this "
        "machine or this user does not have it.");
  m.def(
      "wait_in_background", [] { Counters::in_background() = true; },
      "From now on what this thread waits for is not counted as a wait of the program.");
  session
      .def("counters", &counters,
           "What operations have cost since the start: `operations`, by collective and size class (`largest`: its "
           "bytes, 0: no bound); seconds that callers `waited`, and in which any was under way (`busy`); how `late` "
           "each rank came, after this one; warnings of `stalls`.")
      .def(
          "times",
          [](Session& self) {
            return nb::make_tuple(self.options().counters->waited(), self.options().counters->busy());
          },
          "(waited, busy) of counters(), in nanoseconds.")
      .def(
          "add_wait", [](Session& self, double duration) { self.options().counters->add_wait(seconds(duration)); },
          nb::arg("seconds"), "The program has waited for so long, outside of these calls.");
  session.def("links", &links_of, nb::call_guard<WithoutGil>(), "(tcp, shm) links that are up.")
      .def("link_statistics", &statistics,
           "What each link has done, also if it is closed: a dict each, those of tcp with their lanes.")
      .def(
          "start_trace", [](Session& self, size_t capacity, bool steps) { self.trace().start(capacity, steps); },
          nb::arg("capacity"), nb::arg("steps") = false,
          "Keeps what happens from now on until it is taken, at most `capacity` events; forgets what was kept. "
          "`steps`: "
          "also the steps of plans.")
      .def("stop_trace", [](Session& self) { self.trace().stop(); })
      .def("take_trace", &take_trace,
           "(events, dropped): a dict for each work that is done and each change of a lane, in order; how many more "
           "there were. Times in nanoseconds of the monotonic clock.")
      .def(
          "report", [](Session& session) { return session.report(); }, nb::call_guard<WithoutGil>(),
          "What this rank waits for, from whom and since when, and its last operations; several lines.");
}

}  // namespace slipstream
