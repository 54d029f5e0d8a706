"""What changes on its way between two ranks: the sums are right all the same, or an error says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from comm import ranks
from reducer import service

SCRIPT = Path(__file__).with_name("damage_rank.py")


@pytest.mark.parametrize(
    ("how", "where"),
    [("bit", "near"), *((how, "apart") for how in ("bit", "start", "swap", "cut", "repeat"))],
)
def test_damaged_data_is_sent_again(how: str, where: str) -> None:
    """Between hosts without any setting, within a host if checksums are on."""
    env = {"SLIPSTREAM_HEARTBEAT": "20"}
    if where == "near":
        env["SLIPSTREAM_CHECKSUM"] = "on"
    outputs = ranks.run(SCRIPT, 2, transport="tcp", args=[how, "12", where], env=env)
    found = [int(output.rsplit("damaged ", 1)[1].split()[0]) for output in outputs]
    assert sum(found) > 0
    warned = sum("was damaged on the way" in output for output in outputs)
    assert warned == sum(count > 0 for count in found)


def test_damaged_data_is_sent_again_between_ranks_and_reducers(tmp_path: Path) -> None:
    with service.started(tmp_path) as reducer:
        env = {
            "SLIPSTREAM_HEARTBEAT": "20",
            "SLIPSTREAM_REDUCERS": f"127.0.0.1:{reducer.port}",
            "SLIPSTREAM_REDUCER_SECRET": service.SECRET.hex(),
        }
        outputs = ranks.run(SCRIPT, 2, transport="tcp", args=["bit", "12", "reducer"], env=env)
        assert all("damaged 0" in output for output in outputs)  # between the two
        assert any("was damaged on the way" in text for text in (*outputs, reducer.log.read_text()))


def test_damage_without_end_is_an_error() -> None:
    env = {"SLIPSTREAM_CHECKSUM": "on", "SLIPSTREAM_HEARTBEAT": "20"}
    with ranks.started(SCRIPT, 2, transport="tcp", args=["always", "1000000", "near"], env=env) as job:
        for rank in job:
            rank.process.wait(100)
        assert all(rank.process.returncode != 0 for rank in job)
        texts = [rank.text() for rank in job]
        assert any("look for faulty memory, network cards" in text for text in texts), texts
        assert not any("are wrong" in text for text in texts)
