"""A sampler that knows which samples of the epoch all ranks have had, and deals the rest anew to those that live."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sized
from typing import Any

import torch
import torch.utils.data

from slipstream.faces.horovod.job import rank, size

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Deals a data set to the ranks as `DistributedSampler` does, and goes on amid an epoch with other ranks.

    ``dataset``: anything with a length, the same on all ranks. ``shuffle``: in an order that ``seed`` and the epoch
    make, else in its own. Every rank gets equally many samples: the first ones again where they do not divide evenly.

    Give it to `TorchState`, call `record_batch` after each batch, and `set_epoch` at the end of each epoch. After a
    failure the samples that no rank had before the last commit are dealt to the ranks that are left.

    >>> sampler = hvd.elastic.ElasticSampler(range(8), shuffle=False)
    >>> list(sampler)  # on rank 0
    [0, 2, 4, 6]
    >>> sampler.record_batch(0, 3)
    >>> sampler.reset()
    >>> list(sampler)  # on rank 0
    [6]
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begins this epoch: with an order of its own, and nothing recorded.

        Call it at the end of an epoch, with the number of the next. At its beginning it would forget what was recorded
        before a failure.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Notes that every rank has had ``batch_size`` more samples; ``batch_idx`` changes nothing."""
        self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Iterable[int]) -> None:
        """Notes that this rank has had these samples: the next ones of its share, in any order, as has every rank.

        ValueError if they are not the next ones.
        """
        given = sorted(indices)
        begin = (self.processed_num - self._dealt) // self.num_replicas
        if given != sorted(self.indices[begin : begin + len(given)]):
            raise ValueError("record_indices: these are not the samples that come next in this rank's share")
        self.record_batch(0, len(given))

    def get_indices(self, batch_idx: int, batch_size: int) -> list[int]:
        """The samples of this rank's batch number ``batch_idx``, counted from the last `reset`."""
        return self.indices[batch_idx * batch_size : (batch_idx + 1) * batch_size]

    @property
    def processed_indices(self) -> set[int]:
        """The samples of this epoch that are recorded, of all ranks."""
        return set(self._order()[: self.processed_num])

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and how many of its samples are recorded."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over what `state_dict` returned, and deals anew."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deals the samples that are not recorded to the ranks there are now."""
        self.num_replicas = size()
        self.rank = rank()
        self._dealt = self.processed_num
        self.remaining_indices = self._order()[self._dealt :]
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas
        padded = itertools.islice(itertools.cycle(self.remaining_indices), self.total_size)
        self.indices = list(padded)[self.rank :: self.num_replicas]

    def _order(self) -> list[int]:
        count = len(self.dataset)
        if not self.shuffle:
            return list(range(count))
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        order: list[int] = torch.randperm(count, generator=generator, device="cpu").tolist()
        return order

    def __iter__(self) -> Iterator[int]:
        return iter(self.indices)

    def __len__(self) -> int:
        return self.num_samples
