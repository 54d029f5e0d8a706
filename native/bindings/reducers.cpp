// What Python sees of reducers: the workers' side (use_reducers ...) and the reducer's (serve ...).
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/gil.h"
#include "bindings/module.h"
#include "session/session.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

using ReducerTuple = std::tuple<std::string, std::vector<std::string>, uint64_t>;

void use_reducers(const std::shared_ptr<Session>& self, std::shared_ptr<Group> group, const std::string& job,
                  const nb::bytes& secret, const std::vector<ReducerTuple>& reducers, std::shared_ptr<Plan> star,
                  std::shared_ptr<Plan> small, double heartbeat, int lanes) {
  ReductionOptions options;
  for (const auto& [name, addresses, incarnation] : reducers)
    options.reducers.push_back({name, addresses, incarnation});
  options.job = job;
  options.secret.assign(secret.c_str(), secret.size());
  options.rank = group->rank;
  options.size = static_cast<int>(group->ranks.size());
  options.heartbeat_seconds = heartbeat;
  options.lanes = lanes;
  options.star = std::move(star);
  options.small = std::move(small);
  options.group = std::move(group);
  const WithoutGil release;
  self->use_reducers(std::move(options));
}

nb::list reducer_states(const std::shared_ptr<Session>& self) {
  nb::list found;
  if (self->reduction() == nullptr) return found;
  std::vector<ReducerState> states;
  {
    const WithoutGil release;
    states = self->reduction()->states();
  }
  for (const ReducerState& state : states) {
    nb::dict one;
    one["name"] = state.name;
    one["used"] = state.used;
    one["ready"] = state.ready;
    one["lost"] = state.lost;
    one["redone"] = state.redone;
    one["sent"] = state.sent;
    one["rate"] = state.rate;
    one["incarnation"] = state.incarnation;
    found.append(one);
  }
  return found;
}

// The reducer's side of a job's session: `workers` ranks and this one, whose part in every work is `plan`.
std::shared_ptr<Session> serve(int workers, const std::string& job, const nb::bytes& secret, std::shared_ptr<Plan> plan,
                               double heartbeat, int lanes, size_t window_bytes, double intake,
                               const std::string& congestion, bool encrypt) {
  SessionOptions options;
  options.rank = workers;
  options.size = workers + 1;
  options.job = job;
  options.secret.assign(secret.c_str(), secret.size());
  options.heartbeat_seconds = heartbeat;
  options.lanes = lanes;
  options.serve = std::move(plan);
  options.window_bytes = window_bytes;
  options.intake = intake;
  options.congestion = congestion;
  options.encrypt = encrypt;
  return std::make_shared<Session>(std::move(options));
}

nb::dict served(const std::shared_ptr<Session>& self) {
  Session::Served found;
  {
    const WithoutGil release;
    found = self->served();
  }
  nb::dict result;
  result["works"] = found.works;
  result["finished"] = found.finished;
  result["bytes"] = found.bytes;
  result["links"] = found.links;
  result["failure"] = found.failure.text;
  result["own"] = found.own;
  result["breach"] = found.failure.code == Code::internal && !found.own;
  return result;
}

}  // namespace

void bind_reducers(nb::module_& m) {
  m.def("use_reducers", &use_reducers, nb::arg("session"), nb::arg("group"), nb::arg("job"), nb::arg("secret"),
        nb::arg("reducers"), nb::arg("star"), nb::arg("small"), nb::arg("heartbeat"), nb::arg("lanes"),
        "reducers: (name, addresses, incarnation) each. From now on they take part in works of split plans.");
  m.def(
      "reducer_registered",
      [](const std::shared_ptr<Session>& self, size_t reducer, uint64_t incarnation) {
        if (self->reduction() != nullptr) self->reduction()->registered(reducer, incarnation);
      },
      nb::arg("session"), nb::arg("reducer"), nb::arg("incarnation"), nb::call_guard<WithoutGil>());
  m.def("reducer_states", &reducer_states, nb::arg("session"));
  m.def(
      "set_reducer_rates",
      [](const std::shared_ptr<Session>& self, const std::vector<double>& rates, double worker) {
        if (self->reduction() != nullptr) self->reduction()->set_rates(rates, worker);
      },
      nb::arg("session"), nb::arg("rates"), nb::arg("worker"), nb::call_guard<WithoutGil>(),
      "worker: bytes a second of a worker's link. Of each reducer's link, relative to a worker's; negative: not used. "
      "The same on all ranks, without works.");
  m.def(
      "reducer_seconds",
      [](const std::shared_ptr<Session>& self) {
        return self->reduction() == nullptr ? std::vector<double>{} : self->reduction()->part_seconds();
      },
      nb::arg("session"), nb::call_guard<WithoutGil>(),
      "How long the parts of the last large all-reduce took: the workers' own, then each reducer's.");
  m.def(
      "reducer_session",
      [](const std::string& job, const nb::bytes& secret, uint64_t incarnation) {
        const ReducerSession found = reducer_session(job, std::string(secret.c_str(), secret.size()), incarnation);
        return std::pair(found.job, nb::bytes(found.secret.data(), found.secret.size()));
      },
      nb::arg("job"), nb::arg("secret"), nb::arg("incarnation"),
      "(job, secret) of the session that a job has with one reducer; of the incarnation the low 48 bits count.");
  m.def(
      "serve", &serve, nb::arg("workers"), nb::arg("job"), nb::arg("secret"), nb::arg("plan"), nb::arg("heartbeat"),
      nb::arg("lanes"), nb::arg("window_bytes"), nb::arg("intake") = 0.0, nb::arg("congestion") = "",
      nb::arg("encrypt") = false,
      "The reducer's end of a job's session: listen_tcp(), then start(). intake: bytes a second that it takes, of all "
      "workers; 0: no bound.");
  m.def("served", &served, nb::arg("session"),
        "What a reducer's session has done: works (offered), finished, bytes, links; why it failed, whether that was "
        "the reducer's own fault, or a breach of the rules.");
}

}  // namespace slipstream
