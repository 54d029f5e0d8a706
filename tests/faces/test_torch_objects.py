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
