"""The file that remembers choices: strict, atomic, private, and never an end of a job."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from slipstream.base.settings import Settings
from slipstream.cli.main import main
from slipstream.comm.tuning.cache import Entry, cache_file, parse, read, remember, text_of
from slipstream.comm.tuning.candidates import Candidate, Traffic, Way
from slipstream.comm.tuning.job_tuning import JobTuning, what_to_tell

ENTRY = Entry("2 hosts", "on", 24, "exact", "ring", 256 << 10, False, 16, 0.05, 0.1, 1e9)


def test_what_is_remembered_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "choices.json"
    assert read(path) == []
    remember(path, ENTRY)
    remember(path, replace(ENTRY, magnitude=20))
    remember(path, replace(ENTRY, lanes=None, when=2e9))
    assert {(one.magnitude, one.lanes) for one in read(path)} == {(20, 16), (24, None)}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in path.parent.iterdir()] == ["choices.json"]


def test_the_oldest_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    path.write_text(text_of(replace(ENTRY, cluster=str(i), when=i) for i in range(256)))
    remember(path, ENTRY)
    found = read(path)
    assert len(found) == 256
    assert "0" not in {one.cluster for one in found}


def changed(**fields: Any) -> str:
    return json.dumps({"version": 2, "choices": [asdict(ENTRY) | fields]})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{" * 100_000,
        '{"version": 1, "choices": []}',
        '{"version": 2, "choices": {}}',
        '{"version": 2, "choices": [], "more": 1}',
        '{"version": 2, "choices": [1]}',
        changed(wire="f64"),
        changed(wire=[]),
        changed(lanes=65),
        changed(lanes=True),
        changed(algorithm="../ring"),
        changed(algorithm=[]),
        changed(algorithm="recursive_doubling", wire="int8"),  # ranks would end with different bits
        changed(chunk_bytes=1 << 40),
        changed(magnitude="24"),
        changed(seconds="0.1"),
        changed(seconds=-1),
        changed(cluster="a\nb"),
        changed(more=1),
        changed(seconds=float("nan")),
        " " * (2 << 20),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{}", None])
def test_a_broken_file_costs_a_warning(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "choices.json"
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    settings = Settings(autotune="on", tuning_cache=str(path))
    assert JobTuning(settings, 0, what_to_tell(settings, 0, 2)).remembered("2 hosts", Traffic(24)) is None
    JobTuning(settings, 0).keep("2 hosts", Traffic(24), Candidate(Way("ring", 1 << 18), 4), 0.1, 0.2)
    assert [str(path) in record.getMessage() for record in caplog.records] == [True, True]
    assert content is None or path.read_bytes() == content  # it may be another program's


def test_ranks_get_what_rank_0_reads(tmp_path: Path) -> None:
    settings = Settings(autotune="on", tuning_cache=str(tmp_path / "choices.json"))
    remember(tmp_path / "choices.json", ENTRY)
    told = what_to_tell(settings, 0, 2)
    assert JobTuning(settings, 1, told).remembered("2 hosts", Traffic(24)) == ENTRY
    assert what_to_tell(settings, 1, 2) is None
    assert what_to_tell(replace(settings, autotune="auto"), 0, 2) == text_of([])


def test_where_the_file_is() -> None:
    assert cache_file("off") is None
    assert cache_file("/a/b") == Path("/a/b")
    assert cache_file(None, {"HOME": "/h"}) == Path("/h/.cache/slipstream/tuning/choices.json")
    assert cache_file(None, {"HOME": "/h", "XDG_CACHE_HOME": "/c"}) == Path(
        "/c/slipstream/tuning/choices.json"
    )
    assert cache_file(None, {"HOME": "", "XDG_CACHE_HOME": "relative"}) is None


def test_horovods_variables_count_where_ours_say_nothing() -> None:
    assert Settings.from_environment({"HOROVOD_AUTOTUNE": "1"}).autotune == "on"
    assert Settings.from_environment({"HOROVOD_AUTOTUNE": "0"}).autotune == "off"
    ours = {"HOROVOD_AUTOTUNE": "1", "SLIPSTREAM_AUTOTUNE": "auto", "HOROVOD_AUTOTUNE_LOG": "a.log"}
    assert Settings.from_environment(ours).autotune == "auto"
    assert Settings.from_environment(ours).autotune_log == "a.log"


def test_check_shows_and_forgets(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    remember(path, ENTRY)
    run = CliRunner(env={"SLIPSTREAM_TUNING_CACHE": str(path)})
    shown = run.invoke(main, ["check", "--tuning"])
    assert (
        "all_reduce below 16 MiB, --autotune on: ring, chunks of 256 KiB, 16 lanes: "
        "50 ms; with the defaults 100 ms (2.00x); chosen " in shown.output
    )
    assert json.loads(run.invoke(main, ["check", "--tuning", "--json"]).output) == [asdict(ENTRY)]
    assert run.invoke(main, ["check", "--clear"]).exit_code == 2
    assert run.invoke(main, ["check", "--tuning", "--clear"]).exit_code == 0
    assert not os.path.exists(path)
    path.write_text("no cache")
    assert run.invoke(main, ["check", "--tuning"]).exit_code == 1
