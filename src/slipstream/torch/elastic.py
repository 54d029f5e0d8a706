"""Horovod's elastic training: ``import slipstream.torch as hvd``, then ``hvd.elastic.run``."""

from __future__ import annotations

from slipstream.faces.horovod.elastic import HostsUpdatedInterrupt, ObjectState, State
from slipstream.faces.torch.elastic import ElasticSampler, TorchState, run

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "ObjectState", "State", "TorchState", "run"]
