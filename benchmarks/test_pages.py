"""The tables of the pages say what the newest records say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import accuracy
import allreduce
import collectives
import horovod_calls
import lanes
import lightgbm_digits
import many_ranks
import network
import pipeline
import protection
import reducers
import tuning
from readme import RESULTS, ROOT

from slipstream.bench.record import newest


def adasum_page() -> str:
    """Only this benchmark imports PyTorch at once."""
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    import adasum_digits

    return adasum_digits.page(newest("adasum_digits", RESULTS))


PAGES = {
    "adasum_digits": adasum_page,
    "accuracy": lambda: accuracy.page(newest("accuracy", RESULTS)),
    "allreduce": lambda: allreduce.page(
        [newest("all_reduce-np2", RESULTS), newest("all_reduce-np4", RESULTS)]
    ),
    "collectives": lambda: collectives.page(newest("collectives", RESULTS)),
    "horovod-calls": lambda: horovod_calls.page(newest("horovod-calls", RESULTS)),
    "network": lambda: network.all_reduce_page(newest("all_reduce-lab", RESULTS)),
    "links": lambda: network.links_page(newest("links", RESULTS)),
    "train": lambda: network.train_page(
        {model: newest(f"train-{model}-lab", RESULTS) for model in ("resnet50", "bert-base")}
    ),
    "lanes": lambda: lanes.page(newest("lanes", RESULTS)),
    "lightgbm": lambda: lightgbm_digits.page(newest("lightgbm", RESULTS)),
    "many-ranks": lambda: many_ranks.page(newest("many-ranks", RESULTS)),
    "pipeline": lambda: pipeline.page(newest("pipeline", RESULTS)),
    "protection": lambda: protection.page(newest("protection", RESULTS)),
    "tuning": lambda: tuning.page(newest("tuning", RESULTS)),
    "reducers": lambda: reducers.page(newest("reducers", RESULTS)),
}
if any(RESULTS.glob("20*-lab-collectives-*")):
    PAGES["collectives-lab"] = lambda: network.collectives_page(newest("lab-collectives", RESULTS))
_ELSEWHERE = {
    "adasum_digits": "migrating.md",
    "accuracy": "compression.md",
    "reducers": "reducers.md",
    "lightgbm": "lightgbm.md",
}


@pytest.mark.parametrize("name", PAGES)
def test_what_stands_between_the_marks_is_what_the_record_says(name: str) -> None:
    page = ROOT / "docs" / _ELSEWHERE.get(name, "benchmarks.md")
    text = page.read_text(encoding="utf-8")
    shown = text.partition(f"<!-- {name}: begin -->\n")[2].partition(f"\n<!-- {name}: end -->")[0]
    assert shown == PAGES[name]()
