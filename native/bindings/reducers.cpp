// What Python sees of reducers: the workers' end (ReducerClient) and the reducer's (ReducerServer).
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/gil.h"
#include "bindings/module.h"
#include "bindings/session.h"
#include "reducers/client.h"
#include "reducers/server.h"
#include "reducers/shares.h"
#include "session/session.h"

namespace nb = nanobind;

namespace slipstream {

namespace {

using ReducerTuple = std::tuple<std::string, std::vector<std::string>, uint64_t>;

struct BoundShards {
  Shards shards;
  std::vector<int> neighbours;
};

std::shared_ptr<ReducerClient> use_reducers(const std::shared_ptr<Session>& session, std::shared_ptr<Group> group,
                                            const std::string& job, const nb::bytes& secret,
                                            const std::vector<ReducerTuple>& reducers, std::shared_ptr<Plan> star,
                                            std::shared_ptr<Plan> small, const BoundShards& shards, double heartbeat,
                                            const LinkOptions& link) {
  ReducerClientOptions options;
  for (const auto& [name, addresses, incarnation] : reducers)
    options.reducers.push_back({name, addresses, incarnation});
  options.job = job;
  options.secret.assign(secret.c_str(), secret.size());
  options.heartbeat_seconds = heartbeat;
  options.link = link;
  options.star = std::move(star);
  options.small = std::move(small);
  options.shards = shards.shards;
  options.shards.make_groups(*group, shards.neighbours);
  options.group = std::move(group);
  const WithoutGil release;
  auto client = std::make_shared<ReducerClient>(*session, std::move(options));
  session->set_splitter(client);
  return client;
}

nb::list states(ReducerClient& client) {
  std::vector<ReducerState> states;
  {
    const WithoutGil release;
    states = client.states();
  }
  nb::list found;
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

nb::dict links(ReducerClient& client) {
  std::map<size_t, LinkStatistics> links;
  {
    const WithoutGil release;
    links = client.links();
  }
  nb::dict found;
  for (const auto& [reducer, link] : links) found[nb::int_(reducer)] = dict_of(link);
  return found;
}

nb::dict served(ReducerServer& server) {
  ReducerServer::Served found;
  {
    const WithoutGil release;
    found = server.served();
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

void bind_reducer_server(nb::module_& m) {
  nb::class_<ReducerServer>(m, "ReducerServer", "The reducer's end of a job's session: listen_tcp(), then start().")
      .def(
          "__init__",
          [](ReducerServer* self, int workers, std::vector<std::vector<int>> carriers, std::string job,
             const nb::bytes& secret, std::shared_ptr<Plan> plan, std::shared_ptr<Plan> small, double heartbeat,
             const LinkOptions& link, size_t window_bytes, double intake) {
            ReducerServerOptions options;
            options.workers = workers;
            options.carriers = std::move(carriers);
            options.small = std::move(small);
            options.job = std::move(job);
            options.secret.assign(secret.c_str(), secret.size());
            options.plan = std::move(plan);
            options.heartbeat_seconds = heartbeat;
            options.link = link;
            options.window_bytes = window_bytes;
            options.intake = intake;
            new (self) ReducerServer(std::move(options));
          },
          nb::arg("workers"), nb::arg("carriers"), nb::arg("job"), nb::arg("secret"), nb::arg("plan"), nb::arg("small"),
          nb::kw_only(), nb::arg("heartbeat"), nb::arg("link"), nb::arg("window_bytes"), nb::arg("intake") = 0.0,
          "carriers: of each shard, a worker of each host. plan: the reducer's in a work of theirs; small: of all "
          "workers. intake: bytes a second that it takes in, of all workers; 0: no bound.")
      .def("listen_tcp", &ReducerServer::listen_tcp, nb::arg("addresses"))
      .def("start", &ReducerServer::start)
      .def("served", &served,
           "works (that were offered), finished, bytes, links; why it failed, whether that was the reducer's own "
           "fault, or a breach of the rules.")
      .def("close", &ReducerServer::close, nb::call_guard<WithoutGil>());
}

}  // namespace

void bind_reducers(nb::module_& m) {
  nb::class_<ReducerClient>(m, "ReducerClient", "A worker's end of the job's reducers; use_reducers() makes it.")
      .def("registered", &ReducerClient::registered, nb::arg("reducer"), nb::arg("incarnation"),
           nb::call_guard<WithoutGil>(), "Rank 0: the reducer has a new session for this job.")
      .def("states", &states, "What is known of each reducer.")
      .def("links", &links, "This rank's link to each reducer, by the reducer's number, as Session.link_statistics.")
      .def("set_rates", &ReducerClient::set_rates, nb::arg("rates"), nb::arg("worker"), nb::call_guard<WithoutGil>(),
           "worker: bytes a second of a worker host's link. Of each reducer's link, relative to that; negative: not "
           "used. The same on all ranks, without works.")
      .def("part_seconds", &ReducerClient::part_seconds, nb::call_guard<WithoutGil>(),
           "How long the parts of the last large all-reduce took: the workers' own, then each reducer's.");
  nb::class_<BoundShards>(m, "Shards", "How workers share hosts (slipstream.plan.shards), and their plans.")
      .def(
          "__init__",
          [](BoundShards* self, std::vector<std::vector<int>> carriers, std::vector<int> neighbours,
             std::shared_ptr<Plan> star, std::shared_ptr<Plan> between, std::shared_ptr<Plan> reduce,
             std::shared_ptr<Plan> gather) {
            new (self) BoundShards{{std::move(carriers),
                                    std::move(star),
                                    std::move(between),
                                    std::move(reduce),
                                    std::move(gather),
                                    {},
                                    {}},
                                   std::move(neighbours)};
          },
          nb::arg("carriers"), nb::arg("neighbours"), nb::arg("star"), nb::arg("between"), nb::arg("reduce").none(),
          nb::arg("gather").none(),
          "carriers: of each shard, a rank of each host. neighbours: the ranks of this host. star, between: this host "
          "with the reducer, and among the hosts. reduce, gather: within the host, None if this rank is alone there.");
  m.def("use_reducers", &use_reducers, nb::arg("session"), nb::arg("group"), nb::arg("job"), nb::arg("secret"),
        nb::arg("reducers"), nb::arg("star"), nb::arg("small"), nb::arg("shards"), nb::arg("heartbeat"),
        nb::arg("link"), nb::keep_alive<0, 1>(),
        "reducers: (name, addresses, incarnation) each. From now on they take part in works of split plans.");
  m.def(
      "reducer_session",
      [](const std::string& job, const nb::bytes& secret, uint64_t incarnation) {
        const ReducerSession found = reducer_session(job, std::string(secret.c_str(), secret.size()), incarnation);
        return std::pair(found.job, nb::bytes(found.secret.data(), found.secret.size()));
      },
      nb::arg("job"), nb::arg("secret"), nb::arg("incarnation"),
      "(job, secret) of the session that a job has with one reducer; of the incarnation the low 48 bits count.");
  m.def("reducer_time", &relative_time, nb::arg("workers"), nb::arg("rate"), "Of slipstream.plan.sizing.");
  m.def(
      "reducer_fractions", [](int workers, const std::vector<double>& rates) { return fractions_of(workers, rates); },
      nb::arg("workers"), nb::arg("rates"), "Of slipstream.plan.sizing.");
  bind_reducer_server(m);
}

}  // namespace slipstream
