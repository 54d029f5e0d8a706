"""Training by `hvd.elastic.run` goes on when ranks die, with the model that training without failures would give."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from comm import ranks  # noqa: E402

SCRIPT = Path(__file__).with_name("elastic_rank.py")
LIMIT = 90  # seconds
SAMPLES, EPOCHS = 48, 3


def outcomes(
    size: int, case: dict[str, Any], dead: set[int] = frozenset(), **env: str
) -> list[dict[str, Any]]:
    """What each rank that lives found and said; AssertionError if one hangs or fails."""
    with ranks.started(SCRIPT, size, args=[json.dumps(case)], env=env) as job:
        for rank in job:
            try:
                code = rank.process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                texts = "\n".join(f"--- rank {one.number}\n{one.text()}" for one in job)
                raise AssertionError(f"rank {rank.number} hangs\n{texts}") from None
            assert code == (-9 if rank.number in dead else 0), f"rank {rank.number}: {rank.text()}"
        texts = [rank.text() for rank in job if rank.number not in dead]
    return [json.loads(ranks.marked("found ", text)) | {"said": text} for text in texts]


def trained_alone(seen: list[list[int]]) -> list[list[float]]:
    """The parameters after the same steps, each on its samples of all ranks, in one process."""
    from faces import elastic_rank

    model = elastic_rank.first_model()
    optimizer = elastic_rank.sgd(model)
    for samples in seen:
        optimizer.zero_grad()
        elastic_rank.loss_of(model, samples).backward()
        optimizer.step()
    return [param.detach().flatten().tolist() for param in model.parameters()]


def check_trained(found: list[dict[str, Any]], sizes: list[int], every_sample: bool = True) -> None:
    """All ranks have the model that one process would have, and every sample was seen once in each epoch."""
    for rank, one in enumerate(found):
        assert (one["result"], one["error"]) == ("done", None)
        assert (one["rank"], one["sizes"]) == (rank, sizes)
        assert one["seen"] == found[0]["seen"]
        assert one["weights"] == found[0]["weights"]
    seen = found[0]["seen"]
    for mine, alone in zip(found[0]["weights"], trained_alone(seen), strict=True):
        assert mine == pytest.approx(alone, rel=1e-12)
    if every_sample:
        assert Counter(sample for samples in seen for sample in samples) == dict.fromkeys(
            range(SAMPLES), EPOCHS
        )


@pytest.mark.parametrize(
    ("victim", "place", "case"),
    [
        (1, "0.0", {}),  # nothing is known of the optimizer's gradients yet, and nothing has been committed
        (0, "1.4", {"every": 3}),  # a step goes back
        (1, "1.4", {"optimizer": {"overlaps": True}}),
        (0, "1.4.1", {"optimizer": {"backward_passes_per_step": 2}, "late_zero": True}),  # amid a step
        (1, "end", {}),
    ],
)
def test_one_of_three_dies(victim: int, place: str, case: dict[str, Any]) -> None:
    found = outcomes(3, case | {"events": {str(victim): [place, "die"]}}, {victim})
    check_trained(found, [2])
    assert ("rank 0: formerly rank 1: training goes on" in found[0]["said"]) == (victim == 0)
    assert "training goes on" in found[0]["said"]


def test_ranks_die_until_one_is_left() -> None:
    events = {"2": ["0.2", "die"], "1": ["reset", "die"], "3": ["2.5", "die"]}
    found = outcomes(4, {"events": events}, {1, 2, 3})
    # Ranks 0 and 3 are left of three, and rank 0 is left of two; rank 1 has not lived to its own callback's end.
    check_trained(found, [3, 2, 1])


def test_a_rank_dies_while_callbacks_of_the_others_wait_for_it() -> None:
    events = {"2": ["0.2", "die"], "1": ["reset", "die"]}
    found = outcomes(4, {"events": events, "talks": True}, {1, 2})
    check_trained(found, [2])


@pytest.mark.parametrize(
    ("what", "who"), [("raise", "1"), ("interrupt", "1"), ("skip", "1"), ("skip", "012")]
)
def test_a_rank_that_goes_back_takes_the_others_along(what: str, who: str) -> None:
    """Those that do without a sync have one where the others do not."""
    found = outcomes(3, {"every": 3, "events": {rank: ["1.4", what] for rank in who}})
    sizes = found[0]["sizes"]  # a rank may call for a job of its own right after another one has
    assert sizes in [[3] * resets for resets in range(1, len(who) + 1)]
    check_trained(found, sizes, every_sample=what == "raise")


def test_an_error_that_comes_again_without_progress_is_raised() -> None:
    for one in outcomes(2, {"events": {str(rank): ["1.2", "stuck"] for rank in range(2)}}):
        assert "raised it" in one["error"]
        assert (one["result"], one["sizes"]) == (None, [2])
        assert one["calls"] <= 2  # one that the others have overtaken may not have come so far again


def test_a_callback_that_fails_each_time_ends_training() -> None:
    for one in outcomes(2, {"events": {"0": ["0.2", "raise"], "1": ["reset", "stuck"]}}):
        assert "rank 1 raised it" in one["error"]
        assert (one["result"], one["sizes"]) == (None, [2])


def test_the_job_is_not_formed_anew_more_often_than_allowed() -> None:
    case = {"events": {"1": ["0.3", "die"]}}
    for one in outcomes(3, case, {1}, SLIPSTREAM_RESET_LIMIT="0"):
        assert "formed anew 0 times, and SLIPSTREAM_RESET_LIMIT=0 allows no more" in one["error"]
        assert "rank 1 " in one["error"]
        assert one["sizes"] == []


def test_different_operations_are_a_mistake_of_the_program() -> None:
    for one in outcomes(2, {"events": {rank: ["1.2", "differ"] for rank in "01"}}):
        assert one["error"].startswith("Mismatch: ")
        assert (one["sizes"], one["calls"]) == ([], 1)


@pytest.mark.parametrize(("least", "sizes"), [(3, []), (2, [2])])
def test_the_launcher_says_how_many_ranks_must_be_left(least: int, sizes: list[int]) -> None:
    for one in outcomes(3, {"events": {"1": ["1.2", "die"]}}, {1}, SLIPSTREAM_MIN_NP=str(least)):
        assert one["sizes"] == sizes
        assert (one["error"] or "").startswith("PeerLost: rank 1 " if least == 3 else "")
        assert one["result"] == (None if least == 3 else "done")
