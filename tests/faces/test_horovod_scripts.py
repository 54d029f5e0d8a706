"""Scripts as Horovod's users write them: N workers train what one does with the same batches, resumed or not.

They say ``import horovod.torch as hvd``, and find slipstream as under ``slipstream run --horovod``.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from comm import ranks  # noqa: E402

ON_PATH = Path(importlib.import_module("slipstream").__file__ or "").parent / "as_horovod" / "on_path"
FOLDER = Path(__file__).with_name("horovod_scripts")
EPOCHS = 4
# relative and absolute differences from the model of one worker
EXACT = {"rtol": 1e-9, "atol": 1e-12}
BF16 = {"rtol": 2e-2, "atol": 2e-2}


def models(name: str, size: int, folder: Path, epochs: int = EPOCHS) -> list[dict[str, Any]]:
    """What each worker has trained; it resumes from the checkpoint in the folder, if there is one."""
    folder.mkdir(exist_ok=True)
    out = folder / "model"
    path = os.pathsep.join(filter(None, [str(ON_PATH), os.environ.get("PYTHONPATH")]))
    arguments = [str(out), str(epochs), str(folder / "checkpoint")]
    ranks.run(FOLDER / f"{name}.py", size, args=arguments, env={"PYTHONPATH": path})
    return [torch.load(f"{out}.{rank}") for rank in range(size)]


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        pytest.param("clipping", EXACT, marks=pytest.mark.slow),
        ("mixed_precision", BF16),
        pytest.param("accumulation", EXACT, marks=pytest.mark.slow),
        pytest.param("warmup", EXACT, marks=pytest.mark.slow),
        pytest.param("by_hand", EXACT, marks=pytest.mark.slow),
    ],
)
def test_workers_train_what_one_process_trains(
    name: str, tolerance: dict[str, float], tmp_path: Path
) -> None:
    (alone,) = models(name, 1, tmp_path / "one")
    two, three = (models(name, size, tmp_path / str(size)) for size in (2, 3))
    for model in (*two, *three):
        torch.testing.assert_close(model, alone, **tolerance)
    half = models(name, 2, tmp_path / "resumed", EPOCHS // 2)
    for model in (*models(name, 2, tmp_path / "resumed"), two[1]):
        torch.testing.assert_close(model, two[0], rtol=0, atol=0)
        with pytest.raises(AssertionError):  # it has gone on
            torch.testing.assert_close(model, half[0], **tolerance)
