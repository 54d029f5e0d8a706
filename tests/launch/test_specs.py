"""What the agents of a job are told to start, host by host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.base.settings import Settings
from slipstream.launch.hosts import Host, place
from slipstream.launch.options import JobOptions
from slipstream.launch.specs import JobSpecs, check_outputs

HERE, ELSEWHERE = "localhost", "192.0.2.7"  # the latter is nobody's, but numeric, so no look-up
SECRET = bytes(range(32))


def options_of(*hosts: str, **more: Any) -> JobOptions:
    return JobOptions(["train"], place(len(hosts), [Host(host, 1) for host in hosts]), "/tmp", **more)


def specs(
    options: JobOptions, store: tuple[str, int] = ("0.0.0.0", 4000), settings: Settings | None = None
) -> JobSpecs:
    local = {one.host: one.host == HERE for one in options.placed}
    names = {host: f"name of {host}" for host in local}
    return JobSpecs(options, settings or Settings(), local, names, store, 29500, 29501, SECRET)


def env_of(given: JobSpecs, host: str, **reducers: str) -> dict[str, str]:
    return given.of_ranks(host, [one for one in given.options.placed if one.host == host], reducers).env


def test_ranks_learn_of_the_store_and_of_each_other() -> None:
    given = specs(options_of(HERE))
    spec = given.of_ranks(HERE, given.options.placed, {})
    assert (spec.argv, spec.cwd, spec.inherit) == (["train"], "/tmp", False)
    told = {
        "SLIPSTREAM_STORE": "127.0.0.1:4000",
        "SLIPSTREAM_SECRET": SECRET.hex(),
        "SLIPSTREAM_HOST_NAME": "name of localhost",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",
        "SLIPSTREAM_JAX_COORDINATOR": "127.0.0.1:29501",
    }
    assert told.items() <= spec.env.items()
    assert [(one.rank, one.env["WORLD_SIZE"]) for one in spec.ranks] == [(0, "1")]


@pytest.mark.parametrize(
    ("bound", "here", "elsewhere"),
    [
        ("::", "[::1]:4000", None),
        ("0.0.0.0", "127.0.0.1:4000", None),
        ("10.0.0.1", "10.0.0.1:4000", "10.0.0.1:4000"),
        ("fd00::1", "[fd00::1]:4000", "[fd00::1]:4000"),
    ],
)
def test_each_host_reaches_the_store_by_an_address_it_can_use(
    bound: str, here: str, elsewhere: str | None
) -> None:
    given = specs(options_of(HERE, ELSEWHERE), (bound, 4000))
    assert env_of(given, HERE)["SLIPSTREAM_STORE"] == here
    if elsewhere is not None:
        assert env_of(given, ELSEWHERE)["SLIPSTREAM_STORE"] == elsewhere
    behind_nat = specs(options_of(HERE, ELSEWHERE), (bound, 4000), Settings(address=("198.51.100.1",)))
    assert env_of(behind_nat, HERE)["SLIPSTREAM_STORE"] == here
    assert env_of(behind_nat, ELSEWHERE)["SLIPSTREAM_STORE"] == "198.51.100.1:4000"


def test_what_the_user_gives_counts_most() -> None:
    given = specs(options_of(HERE, env={"SLIPSTREAM_REDUCERS": "x:1", "MASTER_PORT": "1"}))
    env = env_of(given, HERE, SLIPSTREAM_REDUCERS="cpu1:2")
    assert (env["SLIPSTREAM_REDUCERS"], env["MASTER_PORT"]) == ("x:1", "1")


def test_reducers_of_the_job_replace_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIPSTREAM_REDUCERS", "old:1")
    monkeypatch.setenv("SLIPSTREAM_REDUCER_SECRET_FILE", "/nowhere")
    given = specs(options_of(HERE))
    assert env_of(given, HERE)["SLIPSTREAM_REDUCERS"] == "old:1"
    env = env_of(given, HERE, SLIPSTREAM_REDUCERS="cpu1:2")
    assert env["SLIPSTREAM_REDUCERS"] == "cpu1:2"
    assert "SLIPSTREAM_REDUCER_SECRET_FILE" not in env
    assert given.of_reducer(HERE).env["SLIPSTREAM_REDUCER_SECRET"] == SECRET.hex()


def test_a_reducer_listens_on_loopback_alone_in_a_job_of_one_host() -> None:
    assert "--bind" in specs(options_of(HERE)).of_reducer(HERE).argv
    assert "--bind" not in specs(options_of(HERE, ELSEWHERE)).of_reducer(HERE).argv
    assert "--bind" not in specs(options_of(HERE, interface="lo")).of_reducer(HERE).argv
    assert specs(options_of(HERE, interface="lo")).reducer_address(HERE) == "127.0.0.1"
    assert specs(options_of(HERE, ELSEWHERE)).reducer_address(ELSEWHERE) == ELSEWHERE


@pytest.mark.parametrize("what", ["timeline", "summary"])
def test_a_file_that_cannot_be_written_is_found_before_the_start(tmp_path: Path, what: str) -> None:
    def settings(path: Path) -> Settings:
        return Settings(timeline=str(path)) if what == "timeline" else Settings(summary=str(path))

    bad = settings(tmp_path / "missing" / "it.json")
    with pytest.raises(ValueError, match=f"rank 0 cannot write its {what} .*: there is no folder"):
        check_outputs(options_of(HERE), bad, {HERE: True})
    check_outputs(options_of(HERE), settings(tmp_path / "it.json"), {HERE: True})
    check_outputs(options_of(ELSEWHERE), bad, {ELSEWHERE: False})  # it is not known here
    check_outputs(options_of(HERE), Settings(summary="1"), {HERE: True})


def test_the_secret_is_not_shown() -> None:
    assert repr(SECRET) not in repr(specs(options_of(HERE)))
