"""SLIPSTREAM_LOG: what a job says of itself when it starts, and what it does not say unasked."""

from __future__ import annotations

import logging
import re
import socket
from pathlib import Path
from typing import Any

import pytest

import slipstream
from comm import ranks
from slipstream.base.settings import Settings
from slipstream.observe.messages import without_effect

SCRIPT = Path(__file__).with_name("messages_rank.py")


def messages(n: int, transport: str, **env: str) -> list[str]:
    return ranks.run(SCRIPT, n, transport=transport, env=env)


def test_info_says_what_the_job_runs_on() -> None:
    first, *others = messages(4, "mixed", SLIPSTREAM_LOG="info", SLIPSTREAM_LANES="3", SLIPSTREAM_WIRE="bf16")
    assert "large float32 sums of torch.distributed and of the Horovod API as bf16; " in first
    assert re.search(
        r"the network between hosts: measured \d+ Mbit/s and \d+ us, rounded to 10+ Mbit/s and \d+ us for the choice",
        first,
    )
    assert not any(others)
    assert all(line.startswith("slipstream: rank 0: ") for line in first.splitlines())
    for words in (
        f"slipstream {slipstream.__version__}, job 'job': 4 ranks on 2 hosts",
        "ranks 0, 2; ",
        "ranks 1, 3)",
        "transport: shared memory within a host; tcp between hosts, 3 lanes a link, from 127.0.0.1",
        "reducers: none",
        "a peer may be silent for 10 s",
    ):
        assert words in first


@pytest.mark.parametrize(
    ("transport", "words"),
    [
        ("shm", "transport: shared memory\n"),
        ("tcp", "transport: tcp, 2 lanes a link, from loopback, congestion control "),
    ],
)
def test_the_transport_of_one_host(transport: str, words: str) -> None:
    first = messages(2, transport, SLIPSTREAM_LOG="info")[0]
    assert "2 ranks on 1 host (" in first
    assert words in first


def test_reducers_that_take_no_part_are_said_not_to() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        name = f"127.0.0.1:{nobody.getsockname()[1]}"
        env = {"SLIPSTREAM_LOG": "info", "SLIPSTREAM_REDUCERS": name, "SLIPSTREAM_REDUCER_SECRET": "ab" * 32}
        shared = messages(2, "shm", **env)[0]
        apart = messages(2, "tcp", **env)[0]
        alone = messages(1, "tcp", **env)[0]
    assert (
        f"reducers: {name} are not used: they take part between hosts, and all ranks share one here" in shared
    )
    assert f"reducers: {name} (not reached, and asked again every second); " in apart
    assert f"reducers: {name} are not used: this is a job of one rank; " in alone
    unasked = messages(2, "shm", **{**env, "SLIPSTREAM_LOG": "warning"})
    assert f"slipstream: rank 0: the reducers {name} are not used: they take part between hosts" in unasked[0]
    assert "Leave them out" in unasked[0]
    assert unasked[1] == ""
    for text in (shared, apart):
        assert f"cannot reach reducer {name}: " in text
        assert "`slipstream reducer` has to run there" in text
        assert "the store" not in text
        assert "--start-timeout" not in text


@pytest.mark.parametrize(
    ("given", "ranks", "hosts", "words"),
    [
        ({"wire": "int8"}, 2, 1, ["--wire int8 (SLIPSTREAM_WIRE) has no effect: it acts between hosts"]),
        ({"wire": "int8", "wire_gather": True}, 2, 2, []),
        ({"wire": "int8"}, 1, 1, []),
        (
            {"wire_gather": True},
            2,
            2,
            ["--wire-gather (SLIPSTREAM_WIRE_GATHER) has no effect without --wire"],
        ),
        ({"autotune": "on"}, 2, 1, ["--autotune on (SLIPSTREAM_AUTOTUNE) has no effect"]),
        ({"autotune_log": "log"}, 2, 2, ["--autotune-log (SLIPSTREAM_AUTOTUNE_LOG) has no effect without"]),
        ({"metrics_bind": "::"}, 2, 2, ["--metrics-bind (SLIPSTREAM_METRICS_BIND) has no effect without"]),
        ({"metrics_bind": "::", "metrics_port": 9400}, 2, 2, []),
    ],
)
def test_settings_that_have_no_effect_are_named(
    given: dict[str, Any], ranks: int, hosts: int, words: list[str]
) -> None:
    found = without_effect(Settings(**given), ranks=ranks, hosts=hosts)
    assert len(found) == len(words)
    assert all(text.startswith(start) for text, start in zip(found, words, strict=True))


def test_a_wire_within_one_host_is_said_to_have_no_effect_once() -> None:
    first, second = messages(2, "shm", SLIPSTREAM_WIRE="int8")
    assert first.count("slipstream: rank 0: --wire int8 (SLIPSTREAM_WIRE) has no effect") == 1
    assert second == ""


def test_debug_says_which_plan_is_taken_and_the_default_says_nothing() -> None:
    env = {"SLIPSTREAM_LOG": "debug", "SLIPSTREAM_HOST_NAME": "node7"}  # as `slipstream run` names the host
    for rank, text in enumerate(messages(2, "shm", **env)):
        assert f"slipstream: rank {rank}: all_reduce below 512 bytes: all_reduce/" in text
        assert re.search(rf"^slipstream: rank {rank}: process \d+ on node7, CPUs ", text, re.MULTILINE), text
    assert messages(2, "shm") == ["", ""]


def test_a_program_with_its_own_logging_gets_records(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    log = logging.getLogger("slipstream")
    level, handlers, propagate = log.level, log.handlers[:], log.propagate
    try:
        slipstream.init(rank=0, size=1, settings=Settings(log="info"))
        slipstream.shutdown()
    finally:
        log.level, log.handlers[:], log.propagate = level, handlers, propagate
    assert any("1 rank on 1 host" in record.message for record in caplog.records)
    assert "none, a job of one rank" in caplog.text
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("level", "heard"), [(logging.WARNING, 1), (logging.ERROR, 0)])
def test_a_setting_that_has_no_effect_leaves_the_programs_logger_alone(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], level: int, heard: int
) -> None:
    log = logging.getLogger("slipstream")
    before = log.handlers[:], log.propagate
    with caplog.at_level(level, "slipstream"):
        slipstream.init(rank=0, size=1, settings=Settings(wire_gather=True))
        slipstream.shutdown()
        assert (log.level, log.handlers, log.propagate) == (level, *before)
    assert caplog.text.count("--wire-gather (SLIPSTREAM_WIRE_GATHER) has no effect") == heard
    assert capfd.readouterr().err == ""


def test_another_level_is_refused() -> None:
    with pytest.raises(ValueError, match=r"SLIPSTREAM_LOG: expected one of warning, info, debug, got 'loud'"):
        Settings.from_environment({"SLIPSTREAM_LOG": "loud"})
