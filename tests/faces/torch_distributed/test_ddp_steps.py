"""Many steps of DistributedDataParallel end where they end on gloo: a wrong sum in one bucket of one step would
show.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tqdm")

import torch.distributed as dist  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

if TYPE_CHECKING:
    from faces.torch_distributed.conftest import C10d

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
BUCKET_MB = 0.001
SEQUENCES = 8


def flat(model: torch.nn.Module) -> torch.Tensor:
    """All parameters in one vector."""
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def walk(text_model: Any, text: Any, steps: int, group: dist.ProcessGroup) -> tuple[torch.Tensor, str]:
    """Trains the text model in small buckets; returns its parameters, and the buckets' sizes."""
    torch.manual_seed(0)
    model = text_model.GPT(width=32)
    wrapped = DistributedDataParallel(model, process_group=group, bucket_cap_mb=BUCKET_MB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(steps):
        optimizer.zero_grad()
        loss = text_model.mean_loss(wrapped, text.batch(step, SEQUENCES))
        (loss * dist.get_world_size()).backward()
        optimizer.step()
    return flat(model), wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"]


def compare(steps: int) -> tuple[float, float, int]:
    """On every rank: the greatest difference to gloo's parameters, how far gloo moved one, the buckets."""
    sys.path.insert(0, str(EXAMPLES))
    import text_model

    text = text_model.load_text()
    gloo = dist.new_group(backend="gloo")
    expected, _ = walk(text_model, text, steps, gloo)
    dist.destroy_process_group(gloo)
    found, buckets = walk(text_model, text, steps, dist.group.WORLD)
    torch.manual_seed(0)
    moved = (expected - flat(text_model.GPT(width=32))).abs().max().item()
    return (found - expected).abs().max().item(), moved, len(buckets.split(","))


def check(c10d: C10d, steps: int, size: int, tolerance: float) -> None:
    """Fails unless all ranks end within ``tolerance`` of gloo, in at least 8 buckets."""
    for difference, moved, buckets in c10d(compare, steps, size=size, patience=900):
        assert buckets >= 8
        assert moved > 0.1
        assert difference <= tolerance


def test_thirty_steps_equal_those_of_gloo(c10d: C10d) -> None:
    check(c10d, 30, 2, 1e-6)


@pytest.mark.slow
@pytest.mark.timeout(1000)
def test_a_thousand_steps_equal_those_of_gloo(c10d: C10d) -> None:
    check(c10d, 1000, 4, 1e-5)
