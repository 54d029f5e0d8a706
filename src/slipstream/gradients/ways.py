"""The reduction of a bucket, by the way that its gradients take."""

from __future__ import annotations

from slipstream.gradients.buckets import Bucket
from slipstream.gradients.compression import PowerSGD, TopK
from slipstream.gradients.power_sgd import PowerSGDReduction
from slipstream.gradients.reductions import Exact, Reduction, Terms
from slipstream.gradients.states import States
from slipstream.gradients.top_k import TopKReduction

__all__ = ["reduction_of"]


def reduction_of(bucket: Bucket, terms: Terms, states: States) -> Reduction:
    """What reduces the gradients in ``bucket``; ``states`` has what it remembers of them from step to step."""
    way = bucket.way
    if isinstance(way, TopK):
        return TopKReduction(way, bucket, terms, states)
    if isinstance(way, PowerSGD):
        return PowerSGDReduction(way, bucket, terms, states)
    return Exact(bucket, terms)
