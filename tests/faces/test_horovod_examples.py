"""The examples in the shapes of Horovod's: they learn, N workers as one, and go on where they ended."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from comm import ranks

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "horovod"


def printed(name: str, size: int, *options: str) -> str:
    """What worker 0 of ``size`` prints; the others print nothing."""
    first, *others = ranks.run(FOLDER / f"{name}.py", size, args=options)
    assert others == [""] * (size - 1)
    return first


def last(kind: str, text: str) -> float:
    """The last "loss" or "accuracy" that a script has printed."""
    return float(re.findall(rf"{kind} ([\d.]+)", text)[-1])


def test_digits_are_learned_alike_by_one_worker_and_by_three() -> None:
    common = ("--epochs", "2", "--dtype", "float64")
    alone = printed("torch_mnist_style", 1, *common, "--batch-size", "48", "--lr", "0.06")
    options = ("--batch-size", "16", "--lr", "0.02", "--gradient-predivide-factor", "3")
    together = printed("torch_mnist_style", 3, *common, *options)
    assert last("accuracy", alone) == last("accuracy", together) > 0.8
    assert last("loss", together) == pytest.approx(last("loss", alone), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--fp16-allreduce",)])
def test_digits_are_learned(options: tuple[str, ...]) -> None:
    assert last("accuracy", printed("torch_mnist_style", 2, *options)) >= 0.96


def test_training_of_a_residual_network_is_resumed(tmp_path: Path) -> None:
    common = ("--images", "96", "--batch-size", "8", "--batches-per-allreduce", "2", "--wd", "0.01")
    whole = printed("torch_imagenet_style", 2, *common, "--epochs", "3")
    common = (*common, "--checkpoints", str(tmp_path))
    begun = printed("torch_imagenet_style", 2, *common, "--epochs", "3", "--stop-after", "2")
    resumed = printed("torch_imagenet_style", 2, *common, "--epochs", "3")
    assert begun + resumed == whole
    assert resumed.splitlines()[0].startswith("epoch 3: ")


@pytest.mark.slow
def test_made_up_images_are_told_apart() -> None:
    assert last("accuracy", printed("torch_imagenet_style", 2)) >= 0.9


def test_the_benchmark_sums_what_the_workers_measure() -> None:
    options = ("--model", "small", "--image-size", "32", "--batch-size", "2", "--num-warmup-batches", "1")
    text = printed(
        "torch_synthetic_benchmark", 2, *options, "--num-iters", "2", "--num-batches-per-iter", "1"
    )
    one, total = re.search(r"worker: ([\d.]+) .*\ntotal img/sec on 2 workers: ([\d.]+) ", text).groups()  # type: ignore[union-attr]
    assert float(total) > float(one)


@pytest.mark.parametrize(("epochs", "least"), [(2, 0.5), pytest.param(12, 0.96, marks=pytest.mark.slow)])
def test_digits_are_learned_though_a_worker_dies(epochs: int, least: float) -> None:
    options = ["--epochs", str(epochs), "--kill-rank", "0", "--kill-epoch", "1"]
    with ranks.started(FOLDER / "torch_elastic_style.py", 3, args=options) as job:
        codes = [rank.process.wait(240) for rank in job]
        texts = [rank.text() for rank in job]
    assert codes == [-signal.SIGKILL, 0, 0], texts
    assert last("accuracy", texts[1]) >= least
    assert f"epoch {epochs}, 2 workers" in texts[1]
