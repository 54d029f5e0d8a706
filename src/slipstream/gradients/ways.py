"""The reduction of a bucket, by the way that its gradients take."""

from __future__ import annotations

from slipstream.gradients.buckets import Bucket
from slipstream.gradients.compression import PowerSGD, TopK, Wire
from slipstream.gradients.power_sgd import PowerSGDReduction
from slipstream.gradients.reductions import Exact, Reduction, Terms
from slipstream.gradients.states import States
from slipstream.gradients.top_k import TopKReduction
from slipstream.gradients.wires import RoundedReduction

__all__ = ["reduction_of"]


def reduction_of(bucket: Bucket, terms: Terms, states: States) -> Reduction:
    """What reduces the gradients in ``bucket``; ``states`` has what it remembers of them from step to step."""
    way = bucket.way
    if isinstance(way, TopK):
        return TopKReduction(way, bucket, terms, states)
    if isinstance(way, Wire):
        return (
            RoundedReduction(way, bucket, terms, states) if way.feedback else Exact(bucket, terms, way.name)
        )
    if isinstance(way, PowerSGD):
        return PowerSGDReduction(way, bucket, terms, states)
    return Exact(bucket, terms)
