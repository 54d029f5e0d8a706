"""``slipstream bench``, as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from slipstream.bench.collective.catalogue import COLLECTIVES
from slipstream.cli.bench import bench
from slipstream.plan.registry import algorithms

pytest.importorskip("torch")
QUICK = ["-np", "2", "--repeats", "1", "--warmup", "0", "--limit", "100"]


def call(*arguments: str) -> Result:
    return CliRunner().invoke(bench, arguments)


@pytest.mark.parametrize("name", list(COLLECTIVES))
def test_help(name: str) -> None:
    result = call(name, "--help")
    assert result.exit_code == 0
    assert f"slipstream bench {name} -np 2" in result.output
    assert ("--op" in result.output) == COLLECTIVES[name].reduces
    assert ("--root" in result.output) == COLLECTIVES[name].rooted
    assert "--inject-error" not in result.output


def test_json_on_standard_output_is_all_there_is(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot, folder = tmp_path / "plot.svg", tmp_path / "results"
    result = call(
        *("all_reduce", *QUICK, "--min", "4", "--max", "64", "--factor", "4", "--link-rate", "1gbit"),
        *("--against", "gloo,horovod", "--json", "--plot", str(plot), "--save", str(folder)),
    )
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    assert [size["bytes"] for size in record["sizes"]] == [4, 16, 64]
    assert (record["link_rate"], record["repeats"], record["warmup"]) == (1_000_000_000, 1, 0)
    assert "missing: horovod (" in result.stderr
    assert plot.read_text().startswith("<?xml")
    (saved,) = folder.iterdir()
    assert json.loads(saved.read_text()) == record


@pytest.mark.parametrize("way", ["option", "environment", "neither"])
def test_a_record_says_whether_it_was_encrypted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    if way == "environment":
        monkeypatch.setenv("SLIPSTREAM_ENCRYPT", "1")
    kept = tmp_path / "result.json"
    given = ["--encrypt"] if way == "option" else []
    sizes = ["--sizes", "4K", "--transport", "tcp", "--against", "", "--json", str(kept)]
    result = call("all_reduce", *QUICK, *sizes, *given)
    assert result.exit_code == 0, result.output
    assert json.loads(kept.read_text())["encrypted"] == (way != "neither")
    words = f"slipstream's TCP {'not ' if way == 'neither' else ''}encrypted"
    assert words in " ".join(result.stdout.replace("\n#", "").split())


@pytest.mark.parametrize("name", ["broadcast", "reduce_scatter"])
def test_algorithms_are_measured_beside_the_choice(name: str) -> None:
    result = call(name, *QUICK, "--sizes", "256", "--against", "", "--algorithm", "all", "--json")
    assert result.exit_code == 0, result.output
    record = json.loads(result.stdout)
    rows = record["sizes"][0]["contenders"]
    assert set(rows) == {"slipstream", *(f"slipstream/{one}" for one in algorithms(name))}
    assert all(row["wrong"] == 0 for row in rows.values())
    assert rows["slipstream"]["ratio"]["fastest"]["value"] > 0


def test_algorithms_that_are_not_there_are_named() -> None:
    result = call("gather", *QUICK, "--algorithm", "ring")
    assert result.exit_code == 2
    assert "--algorithm ring: not known for gather; there are linear" in " ".join(result.output.split())


def test_a_wrong_result_is_loud_and_nothing_is_kept(tmp_path: Path) -> None:
    kept = tmp_path / "result.json"
    result = call(
        *("all_gather", *QUICK, "--sizes", "4K", "--inject-error", "--json", str(kept)),
        *("--save", str(tmp_path / "results")),
    )
    assert result.exit_code == 1
    assert "WRONG RESULT: slipstream, 4096 B: 1 wrong elements" in result.stderr
    assert "WRONG RESULT: gloo, 4096 B: 1 wrong elements" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_ranks_that_take_too_long() -> None:
    result = call("all_reduce", *QUICK, "--limit", "0.2")
    assert result.exit_code == 2
    assert "Error: the ranks took longer than 0.2 s (--limit)" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--min", "4"], "--min and --max belong together"),
        (["--min", "4", "--max", "8", "--sizes", "4"], "not both"),
        (["--sizes", "4x"], "is not a size"),
        (["--link-rate", "fast"], "is not a rate"),
        (["-H", "localhost:2", "--hostfile", "hosts"], "not both"),
        (["-H", "localhost:1"], "do not fit"),
        (["--hostfile", "/nowhere"], "cannot read"),
        (["--against", "gluu"], "not known"),
        (["--plot", "plot.pdf"], ".svg or .png"),
    ],
)
def test_options_that_cannot_work(arguments: list[str], text: str) -> None:
    result = call("all_reduce", *QUICK, *arguments)
    assert result.exit_code in (1, 2)
    assert text in result.output


def test_hosts_of_a_lab_and_its_rate_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost slots=2\nr1 reducer\n")
    monkeypatch.setenv("SLIPSTREAM_HOSTFILE", str(hosts))
    monkeypatch.setenv("SLIPSTREAM_LAB_RATE", "500mbit")
    result = call("barrier", *QUICK, "--against", "", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["link_rate"] == 500_000_000
    hosts.write_text("localhost slots=1\n")
    assert "do not fit" in call("barrier", *QUICK).output


def test_the_command_line_loads_nothing_heavy() -> None:
    code = "import sys, slipstream.cli.bench; print({'torch', 'rich', 'matplotlib', 'mpi4py'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
