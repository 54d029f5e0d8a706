"""What changes on its way between two ranks: the sums are right all the same, or an error says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("damage_rank.py")


@pytest.mark.parametrize("how", ["bit", "start", "swap", "cut", "repeat"])
def test_damaged_data_is_sent_again(how: str) -> None:
    env = {"SLIPSTREAM_CHECKSUM": "on", "SLIPSTREAM_HEARTBEAT": "20"}
    outputs = ranks.run(SCRIPT, 2, transport="tcp", args=[how, "12"], env=env)
    found = [int(output.rsplit("damaged ", 1)[1].split()[0]) for output in outputs]
    assert sum(found) > 0
    warned = sum("was damaged on the way" in output for output in outputs)
    assert warned == sum(count > 0 for count in found)


def test_damage_without_end_is_an_error() -> None:
    env = {"SLIPSTREAM_CHECKSUM": "on", "SLIPSTREAM_HEARTBEAT": "20"}
    with ranks.started(SCRIPT, 2, transport="tcp", args=["always", "1000000"], env=env) as job:
        for rank in job:
            rank.process.wait(100)
        assert all(rank.process.returncode != 0 for rank in job)
        texts = [rank.text() for rank in job]
        assert any("look for faulty memory, network cards" in text for text in texts), texts
        assert not any("are wrong" in text for text in texts)
