"""A replica group of torchft, of one process: "leaves" ends after five steps beside "stays", which goes on alone."""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from ranks_agree import data
from torchft import Manager, Optimizer
from torchft.process_group import ProcessGroupWrapper

import slipstream.torch  # noqa: F401 - adds the backend to torch.distributed


class ProcessGroupSlipstream(ProcessGroupWrapper):
    """A job of slipstream for each quorum."""

    def _create_pg(self, store, rank, world_size):
        options = dist.distributed_c10d._DistributedBackendOptions()
        options.store, options.group_rank, options.group_size = store, rank, world_size
        options.timeout, options.group_id, options.global_ranks_in_group = self._timeout, "torchft", []
        return dist.Backend._plugins["SLIPSTREAM"].creator_fn(options, None)

    def getBackendName(self):
        return "torchft-slipstream"


name, lighthouse = sys.argv[1:]
own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
torch.manual_seed(0 if name == "leaves" else 1)  # torchft gives both the state of one
model = torch.nn.Linear(5, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.1)


def load(state):
    model.load_state_dict(state["model"])
    sgd.load_state_dict(state["sgd"])


limit = timedelta(seconds=20)
manager = Manager(
    pg=ProcessGroupSlipstream(timeout=limit),
    load_state_dict=load,
    state_dict=lambda: {"model": model.state_dict(), "sgd": sgd.state_dict()},
    min_replica_size=1,
    use_async_quorum=False,
    timeout=limit,
    rank=0,
    world_size=1,
    store_addr="127.0.0.1",
    store_port=own.port,
    lighthouse_addr=lighthouse,
    hostname="127.0.0.1",
    replica_id=name,
)
optimizer = Optimizer(manager, sgd)
x, y = data()
losses, replicas = [], []
while 2 not in replicas or replicas[-5:] != [1] * 5:
    optimizer.zero_grad()  # asks for a quorum
    mine = slice(manager.participating_rank(), None, manager.num_participants())
    loss = torch.nn.functional.mse_loss(model(x[mine]), y[mine])
    loss.backward()
    for parameter in model.parameters():
        manager.allreduce(parameter.grad).wait()
    mean = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    own_parameters = mean.clone()
    manager.allreduce(mean).wait()
    if manager.errored() is None:  # else the other has gone, and the step counts for nothing
        assert torch.allclose(mean, own_parameters), "the replicas differ"
    optimizer.step()
    losses.append(loss.item())
    replicas.append(manager.num_participants())
    if name == "leaves" and replicas.count(2) == 5:
        os._exit(0)
kind = type(manager._pg._pg).__module__
assert kind.startswith("slipstream."), kind
assert replicas.count(2) >= 5, replicas
assert losses[-1] < losses[0] / 2, losses
print("ok", flush=True)
manager.shutdown(wait=False)
os._exit(0)  # threads of torchft would wait for the other replica group
