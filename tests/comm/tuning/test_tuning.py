"""Tuning on real ranks: all choose alike, sums stay right, and nobody hangs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comm import ranks
from slipstream.comm.tuning.cache import read

SCRIPT = Path(__file__).with_name("tuning_rank.py")
ON = {"SLIPSTREAM_AUTOTUNE": "on", "SLIPSTREAM_TUNING_CACHE": "off"}


@pytest.mark.parametrize(("n", "calls", "ahead"), [(2, 500, 0), (3, 500, 0), (4, 800, 5), (8, 600, 2)])
def test_all_ranks_choose_alike(n: int, calls: int, ahead: int) -> None:
    ranks.run(SCRIPT, n, transport="tcp", args=["settles", str(calls), str(ahead)], env=ON, timeout=120)


def test_hosts_of_several_ranks() -> None:
    ranks.run(SCRIPT, 4, transport="mixed", args=["settles", "500", "0"], env=ON, timeout=120)


def test_calls_that_do_not_wait_for_other_ranks_do_not_with_tuning() -> None:
    env = {**ON, "SLIPSTREAM_TIMEOUT": "15"}
    ranks.run(SCRIPT, 2, transport="tcp", args=["bursts"], env=env, timeout=120)


def test_a_call_with_wrong_arguments_does_not_count_on_its_rank() -> None:
    env = {**ON, "SLIPSTREAM_TIMEOUT": "15"}
    ranks.run(SCRIPT, 2, transport="tcp", args=["mistakes"], env=env, timeout=120)


def test_a_rank_that_dies_in_the_search_is_named() -> None:
    ranks.run(SCRIPT, 3, transport="tcp", args=["dies"], env=ON, timeout=60)


def test_ranks_with_different_settings_are_told() -> None:
    envs = {1: {"SLIPSTREAM_AUTOTUNE": "auto"}}
    with ranks.started(SCRIPT, 2, transport="tcp", args=["bits"], env=ON, envs=envs) as started:
        for rank in started:
            assert rank.process.wait(60) != 0
            assert "rank 0 has on, rank 1 has auto" in rank.text()


def files_of(folder: Path) -> tuple[Path, Path, dict[str, str]]:
    """The cache and the log of jobs that tune, and the settings that name them."""
    cache, log = folder / "choices.json", folder / "log.jsonl"
    return (
        cache,
        log,
        {
            "SLIPSTREAM_AUTOTUNE": "on",
            "SLIPSTREAM_TUNING_CACHE": str(cache),
            "SLIPSTREAM_AUTOTUNE_LOG": str(log),
        },
    )


def test_the_second_run_begins_with_what_the_first_one_chose(tmp_path: Path) -> None:
    cache, log, env = files_of(tmp_path)
    runs = [
        ranks.run(SCRIPT, 3, transport="tcp", args=["bits"], env=env)[0].split(maxsplit=1) for _ in range(3)
    ]
    assert runs[0][1] == runs[1][1] == runs[2][1]
    assert runs[1] == runs[2]  # the same bits
    (entry,) = read(cache)
    assert str(entry.candidate) == runs[0][1].strip()
    events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
    assert events.count("chosen") == 1
    assert events[-2:] == ["remembered", "remembered"]


def test_what_travels_in_a_wire_type_is_tuned_for_itself(tmp_path: Path) -> None:
    cache, log, env = files_of(tmp_path)
    first, second = (ranks.run(SCRIPT, 3, transport="tcp", args=["wired"], env=env)[0] for _ in range(2))
    assert first == second
    (entry,) = read(cache)
    assert (entry.wire, str(entry.candidate)) == ("int8", first.strip())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["wire"] for line in lines} == {"int8"}
    assert len({line["algorithm"] for line in lines}) > 1
    assert "recursive_doubling" not in {line["algorithm"] for line in lines}
    assert [line["event"] for line in lines[-2:]] == ["chosen", "remembered"]


def test_auto_leaves_the_order_of_additions(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    env = {
        "SLIPSTREAM_AUTOTUNE": "auto",
        "SLIPSTREAM_TUNING_CACHE": "off",
        "SLIPSTREAM_AUTOTUNE_LOG": str(log),
    }
    ranks.run(SCRIPT, 2, transport="tcp", args=["bits"], env=env)
    tried = [json.loads(line) for line in log.read_text().splitlines()]
    assert len({one["algorithm"] for one in tried}) == 1
    assert len({one["lanes"] for one in tried}) > 1


def test_lanes_come_and_go() -> None:
    env = {"SLIPSTREAM_AUTOTUNE": "off", "SLIPSTREAM_HEARTBEAT": "30"}
    ranks.run(SCRIPT, 2, transport="tcp", args=["lanes"], env=env, timeout=120)


def test_a_network_that_is_slower_for_long_is_searched_again() -> None:
    ranks.run(SCRIPT, 2, transport="tcp", args=["again"], env=ON)


def test_a_cache_that_cannot_be_written_ends_no_job(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = {**ON, "SLIPSTREAM_TUNING_CACHE": str(tmp_path / "file" / "choices.json")}
    texts = ranks.run(SCRIPT, 2, transport="tcp", args=["bits"], env=env)
    assert "is not remembered" in texts[0]
