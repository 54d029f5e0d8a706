"""What a worker keeps of jobs that it has left."""

from __future__ import annotations

from pathlib import Path

from comm import ranks
from reducer import service
from slipstream.comm.reducers import calibration

RANK = Path(__file__).with_name("memory_rank.py")


def test_what_measures_reducers_is_given_back(tmp_path: Path) -> None:
    with service.started(tmp_path) as one:
        env = {
            "SLIPSTREAM_REDUCERS": f"127.0.0.1:{one.port}",
            "SLIPSTREAM_REDUCER_SECRET": service.SECRET.hex(),
        }
        texts = ranks.run(RANK, 2, transport="tcp", env=env)
        assert one.metrics()["works_total"] > 0
    assert all(int(text) < calibration._MOST_BYTES // 2 for text in texts), texts
