"""Objects that somebody changes on the way: an error that says so, and nothing is unpickled."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("objects_rank.py")


@pytest.mark.parametrize("operation", ["broadcast", "allgather"])
@pytest.mark.parametrize("how", ["pickle", "bit", "replay", "size"])
def test_a_changed_object_is_not_unpickled(how: str, operation: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    witness = tmp_path / "witness"
    outputs = ranks.run(SCRIPT, 2, transport="tcp", args=[how, str(witness), operation])
    assert not witness.exists(), outputs[1]
    text = "SlipstreamError: {}_object: what rank 0 sent is not what rank 1 got: the data changed on the way"
    assert text.format(operation) in outputs[1]
    assert "got 0" in outputs[1]


TORCH = Path(__file__).with_name("torch_objects_rank.py")
OPERATIONS = pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("broadcast", "broadcast_object_list"),
        ("all_gather", "all_gather_object"),
        ("gather", "gather_object"),
        ("scatter", "scatter_object_list"),
        ("send", "send_object_list"),
    ],
)


def torch_ranks(tmp_path: Path, operation: str, how: str) -> list[str]:
    pytest.importorskip("torch")
    witness = tmp_path / "witness"
    outputs = ranks.run(TORCH, 2, transport="tcp", args=[operation, how, str(witness)])
    assert not witness.exists(), outputs[1]
    return outputs


@OPERATIONS
@pytest.mark.parametrize("how", ["pickle", "behind", "bit", "replay"])
def test_a_changed_object_of_pytorch_is_not_unpickled(
    how: str, operation: str, name: str, tmp_path: Path
) -> None:
    told = torch_ranks(tmp_path, operation, how)[1]
    assert f"SlipstreamError: {name}: what rank 0 sent is not what rank 1 got: " in told
    assert "Nothing of it was used" in told
    assert "got 1 witness False" in told


@OPERATIONS
def test_an_object_without_a_tag_is_refused(operation: str, name: str, tmp_path: Path) -> None:
    told = torch_ranks(tmp_path, operation, "untagged 0")[1]
    assert f"SlipstreamError: {name}: what rank 0 sent is not what rank 1 got: it has no tag" in told
    assert "another version of slipstream" in told
    assert "got 0" in told


@OPERATIONS
def test_a_rank_that_knows_no_tags_takes_no_object(operation: str, name: str, tmp_path: Path) -> None:
    told = torch_ranks(tmp_path, operation, "untagged 1")[1]
    assert "UnpicklingError: invalid load key, '\\xff'" in told
    assert "got 0" in told
