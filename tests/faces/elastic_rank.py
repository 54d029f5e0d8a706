"""One rank of the tests of `hvd.elastic.run`: trains a linear model, and prints as JSON what it trained on.

elastic_rank.py CASE: a case in JSON, with
    events     what happens where: {"rank of the first job": [place, what]}. Places are "EPOCH.STEP", "end" (of the
               last epoch) and "reset" (its callback); what happens is "die", "raise" (HorovodInternalError, once),
               "stuck" (the same each time), "interrupt" (HostsUpdatedInterrupt), "skip" (the same, without a sync)
               or "differ" (in the shape of a call)
    optimizer  arguments of DistributedOptimizer
    every      steps from commit to commit
    late_zero  gradients are cleared after steps, not before
    talks      the callback calls an operation
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch

import slipstream.torch as hvd

SAMPLES, FEATURES, BATCH, EPOCHS = 48, 5, 2, 3
FIRST = int(os.environ.get("SLIPSTREAM_RANK", "0"))  # in the first job


def data() -> tuple[torch.Tensor, torch.Tensor]:
    """Features and targets, the same on all ranks."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, FEATURES, generator=generator, dtype=torch.float64)
    return x, x.sum(1, keepdim=True) + 0.1 * torch.randn(SAMPLES, 1, generator=generator, dtype=torch.float64)


def first_model() -> torch.nn.Module:
    """The model that training begins with."""
    torch.manual_seed(0)
    return torch.nn.Linear(FEATURES, 1, dtype=torch.float64)


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    """With a momentum, which has to go back with the model."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: torch.nn.Module, samples: list[int]) -> torch.Tensor:
    """The mean over these samples."""
    x, y = data()
    return torch.nn.functional.mse_loss(model(x[samples]), y[samples])


class Trainer:
    """Trains by one case."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.case = case
        self.place, self.what = case.get("events", {}).get(str(FIRST), ("", ""))
        self.sizes: list[int] = []  # of the jobs after resets
        self.calls = 0
        self.model = first_model()
        if FIRST:  # which the others get over
            torch.nn.init.zeros_(self.model.weight)
        options = dict(case.get("optimizer", {}))
        if options.pop("overlaps", False):
            options["overlap_forward"] = self.model
        named = self.model.named_parameters()
        self.optimizer = hvd.DistributedOptimizer(sgd(self.model), named_parameters=named, **options)
        self.sampler = hvd.elastic.ElasticSampler(range(SAMPLES))
        self.passes = options.get("backward_passes_per_step", 1)

    def reach(self, place: str) -> None:
        """What this rank does at a place."""
        if place != self.place:
            return
        if self.what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "differ":
            hvd.allreduce(torch.zeros(2 + hvd.rank()))
        if self.what in ("interrupt", "skip"):
            self.place = ""
            raise hvd.elastic.HostsUpdatedInterrupt(skip_sync=self.what == "skip")
        if self.what in ("raise", "stuck"):
            self.place = "" if self.what == "raise" else place
            raise hvd.HorovodInternalError(f"rank {FIRST} raised it")

    def step(self, state: Any, samples: list[int]) -> None:
        """One step on this rank's samples."""
        if not self.case.get("late_zero"):
            self.optimizer.zero_grad()
        for number in range(self.passes):
            if number:
                self.reach(f"{state.epoch}.{state.batch}.{number}")
            (loss_of(self.model, samples[number :: self.passes]) / self.passes).backward()
        self.optimizer.step()
        if self.case.get("late_zero"):
            self.optimizer.zero_grad()
        seen = hvd.allgather(torch.tensor(samples), name="seen").tolist()
        state.seen.append(seen)  # in place: what a commit keeps must not change with it

    def train(self, state: Any) -> str:
        """What `hvd.elastic.run` calls."""
        self.calls += 1
        every = self.case.get("every", 1)
        while state.epoch < EPOCHS:
            share, steps = list(self.sampler), 0
            while steps * BATCH < len(share):
                self.reach(f"{state.epoch}.{state.batch}")
                samples = share[steps * BATCH : (steps + 1) * BATCH]
                self.step(state, samples)
                self.sampler.record_batch(steps, len(samples))
                steps += 1
                state.batch += 1
                if state.batch % every == 0:
                    state.commit()
            state.epoch, state.batch = state.epoch + 1, 0
            self.sampler.set_epoch(state.epoch)
            state.commit()
        self.reach("end")
        return "done"

    def on_reset(self) -> None:
        """The callback."""
        if not self.case.get("talks"):
            self.sizes.append(hvd.size())
        self.reach("reset")
        if self.case.get("talks"):
            hvd.allreduce(torch.ones(1))
            self.sizes.append(hvd.size())


def main() -> None:
    """Trains, and prints."""
    hvd.init()
    trainer = Trainer(json.loads(sys.argv[1]))
    state = hvd.elastic.TorchState(
        trainer.model, trainer.optimizer, sampler=trainer.sampler, epoch=0, batch=0, seen=[]
    )
    state.register_reset_callbacks([trainer.on_reset])
    result, error = None, None
    try:
        result = hvd.elastic.run(trainer.train)(state)
    except hvd.HorovodInternalError as raised:
        error = f"{type(raised).__name__}: {raised}"
    found = {
        "result": result,
        "error": error,
        "sizes": trainer.sizes,
        "calls": trainer.calls,
        "seen": state.seen,
    }
    weights = [param.detach().flatten().tolist() for param in trainer.model.parameters()]
    print("found " + json.dumps(found | {"weights": weights, "rank": hvd.rank()}), flush=True)


if __name__ == "__main__":
    main()
