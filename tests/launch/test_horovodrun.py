"""`horovodrun`: every option of Horovod's command is taken, or answered with what to use."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click
import pytest

from launch.test_run import LIMIT, environment, tag
from slipstream.base.horovod_knobs import KNOBS
from slipstream.cli.horovod_flags import FLAGS, meaning
from slipstream.cli.horovodrun import not_in_config, of_config, translated
from slipstream.cli.main import run

__all__ = ["tag"]

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"

# What the command of Horovod 0.28 takes, with a value where it takes one.
OWN = ["-v", "--version", "-cb", "--check-build"]
_THEIRS = """
-np=2 --num-proc=2 --disable-cache --start-timeout=60 --network-interface=eth0 --network-interfaces=eth0,eth1
--output-filename=logs --verbose -p=22 --ssh-port=22 -i=key --ssh-identity-file=key --fusion-threshold-mb=32
--cycle-time-ms=3.5 --cache-capacity=512 --hierarchical-allreduce --no-hierarchical-allreduce
--hierarchical-allgather --no-hierarchical-allgather --torus-allreduce --no-torus-allreduce --autotune
--no-autotune --autotune-log-file=a.csv --autotune-warmup-samples=3 --autotune-steps-per-sample=10
--autotune-bayes-opt-max-samples=20 --autotune-gaussian-process-noise=0.8 --min-np=1 --min-num-proc=1
--max-np=4 --max-num-proc=4 --elastic-timeout=600 --reset-limit=3
--timeline-filename=t.json --timeline-mark-cycles --no-timeline-mark-cycles --stall-check --no-stall-check
--stall-check-warning-time-seconds=60 --stall-check-shutdown-time-seconds=90 --mpi-threads-disable
--no-mpi-threads-disable --mpi-args=-x_A --tcp --binding-args=x --num-nccl-streams=1 --thread-affinity=0
--gloo-timeout-seconds=30 --log-level=INFO --log-with-timestamp --log-without-timestamp --log-hide-timestamp
--no-log-hide-timestamp -prefix-timestamp --prefix-output-with-timestamp -H=localhost:2 --hosts=localhost:2
-hostfile=hosts --hostfile=hosts --gloo --mpi
"""
THEIRS = _THEIRS.split()
REFUSED = {"--jsrun": ""}
DISCOVERY = ["--host-discovery-script=echo_localhost", "--slots-per-host=2"]
TWO_VALUES = ["--blacklist-cooldown-range", "60", "300"]


def words_of(option: str) -> list[str]:
    name, equals, value = option.partition("=")
    return [name, value] if equals else [name]


@pytest.mark.parametrize("option", [*map(words_of, THEIRS), TWO_VALUES], ids=lambda words: words[0])
def test_an_option_is_taken(option: list[str]) -> None:
    """It is one that `slipstream run` takes, or a line says why it has no meaning, or it is always so."""
    found = translated([*option, "python", "train.py", "--verbose", "-np", "3"])
    assert found.command == ["python", "train.py", "--verbose", "-np", "3"]
    if found.options:
        context = run.make_context("run", found.words[1:])
        assert context.params["command"] == tuple(found.command)
        knobs = [one.partition("=")[0] for one in context.params["variables"]]
        assert set(knobs) <= {"SLIPSTREAM_RESET_LIMIT", *(f"HOROVOD_{name}" for name in KNOBS)}
    else:
        assert found.notes or option[0] in (
            "--tcp",
            "--gloo",
            "--log-without-timestamp",
            "--log-hide-timestamp",
        )


@pytest.mark.parametrize(("option", "value"), REFUSED.items())
def test_an_option_is_answered(option: str, value: str) -> None:
    with pytest.raises(ValueError, match=f"{option}: slipstream does not have it; name the hosts: -H HOST"):
        translated([option, *filter(None, [value]), "python"])


def test_the_table_has_no_other_and_the_page_has_all() -> None:
    theirs = {option.partition("=")[0] for option in (*THEIRS, *DISCOVERY)} | set(REFUSED) | {TWO_VALUES[0]}
    assert {name for flag in FLAGS for name in flag.names.split()} == theirs
    page = PAGE.read_text()
    assert [name for name in (*OWN, "--config-file") if f"`{name}`" not in page] == []
    for flag in FLAGS:
        names = ", ".join(f"`{name}`" for name in flag.names.split())
        assert f"| {names} | {meaning(flag)} |" in page


@pytest.mark.parametrize(
    ("prints", "options", "hosts"),
    [
        ("node1:2\nnode2\n\n", [], "node1:2,node2:1"),
        ("node1:2\nnode2\n", ["--slots-per-host", "4"], "node1:2,node2:4"),
    ],
)
def test_hosts_that_a_script_prints(tmp_path: Path, prints: str, options: list[str], hosts: str) -> None:
    (tmp_path / "hosts").write_text(prints)
    script = f"cat {tmp_path / 'hosts'}"
    assert translated(["--host-discovery-script", script, *options, "x"]).options == ["-H", hosts]


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("false", "host discovery by false: .* returned non-zero exit status 1"),
        ("true", "host discovery by true: it names no host"),
        ("/nowhere/find", "No such file or directory"),
        ("echo a:b:c", "expected host or host:slots, got 'a:b:c'"),
    ],
)
def test_a_script_that_names_no_hosts(script: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        translated(["--host-discovery-script", script, "x"])


@pytest.mark.parametrize(
    ("argv", "options"),
    [
        (["-np4"], ["-np", "4"]),
        (["--num-proc=4", "-Hlocalhost:4"], ["-np", "4", "-H", "localhost:4"]),
        (["--num-p", "4"], ["-np", "4"]),
        (["--network-interface", "a", "--network-interface", "b"], ["--interface", "a,b"]),
        (["--fusion-threshold-mb", "32", "--tcp"], ["--fusion-threshold", "32MiB"]),
        (["--no-stall-check"], ["-e", "HOROVOD_STALL_CHECK_DISABLE=1"]),
        (["--autotune", "--autotune-log-file", "a"], ["-e", "HOROVOD_AUTOTUNE=1", "--autotune-log", "a"]),
    ],
)
def test_what_an_option_becomes(argv: list[str], options: list[str]) -> None:
    assert translated([*argv, "--", "python", "x"]).words == [
        "run",
        "--horovod",
        *options,
        "--",
        "python",
        "x",
    ]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--cycle-tme-ms", "3"], "no option --cycle-tme-ms; did you mean --cycle-time-ms"),
        (["--lanes", "3"], "--lanes is an option of slipstream run"),
        (["--auto"], "--auto may be --autotune, --autotune-log-file"),
        (["-np"], "-np takes 1 value"),
        (["--tcp=1"], "--tcp takes no value"),
        (["--config-file", "/nowhere"], "cannot read /nowhere: "),
    ],
)
def test_mistakes(argv: list[str], said: str) -> None:
    pytest.importorskip("yaml")
    with pytest.raises(ValueError, match=said):
        translated(argv)


CONFIG = """
controller: gloo
params:
  fusion_threshold_mb: 32
  hierarchical_allreduce: true
autotune:
  enabled: false
timeline:
  filename: t.json
  mark_cycles: false
stall_check:
  enabled: false
  warning_time_seconds: 30
library_options:
  thread_affinity: 0
logging:
  level: INFO
  with_timestamp: true
"""


def test_a_file_of_options(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    (tmp_path / "config.yaml").write_text(CONFIG)
    argv = ["-np", "2", "--timeline-filename", "mine.json", "--config-file", str(tmp_path / "config.yaml")]
    found = translated([*argv, "x"])
    options = run.make_context("run", found.words[1:]).params
    assert options["timeline"] == "mine.json"  # what is typed comes first
    assert options["fusion_threshold"] == "32MiB"
    assert sorted(options["variables"]) == [
        "HOROVOD_AUTOTUNE=0",
        "HOROVOD_HIERARCHICAL_ALLREDUCE=1",
        "HOROVOD_LOG_LEVEL=INFO",
        "HOROVOD_STALL_CHECK_DISABLE=1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS=30",
        "HOROVOD_THREAD_AFFINITY=0",
        "HOROVOD_TIMELINE_MARK_CYCLES=0",
    ]
    for wrong, said in (
        ({"prams": {}}, "no section prams; did you mean params"),
        ({"params": {"x": 1}}, "params.x"),
    ):
        with pytest.raises(ValueError, match=said):
            of_config(wrong)
    loose = {"verbose": True, "params": {"cycle_time_ms": 3}, "controller": "gloo"}
    assert of_config(loose) == [("--cycle-time-ms", ["3"]), ("--gloo", [])]
    assert [note.partition(" is ")[0] for note in not_in_config(loose)] == ["--config-file: verbose"]


def test_without_a_library_for_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(ValueError, match="needs a library for YAML: pip install pyyaml"):
        translated(["--config-file", "x.yaml"])


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--fusion-threshold-mb", "for slipstream run: --fusion-threshold VALUEMiB"),
        ("--cycle-time-ms", "for slipstream run: no meaning: there are no cycles"),
        ("--timeline-filename", "for slipstream run: --timeline VALUE"),
        ("--no-such-thing", "No such option"),
    ],
)
def test_slipstream_run_answers_them_too(option: str, said: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        run.make_context("run", ["-np", "2", option, "3", "--", "python"])
    assert said in caught.value.format_message()


def horovodrun(*argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slipstream.cli.horovodrun", *argv]
    return subprocess.run(
        command, env=os.environ | more, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def test_what_is_built() -> None:
    lines = horovodrun("--check-build").stdout.splitlines()
    ticked = {line.split("] ")[1] for line in lines if line.strip().startswith("[X]")}
    assert ticked == {"Gloo"} | ({"PyTorch"} if find_spec("torch") else set())
    assert lines[0].startswith("Horovod v0.28.1, by slipstream v")


def test_a_job_runs_without_two_dashes(tag: str) -> None:
    script = "import horovod, sys; print(horovod.__version__, horovod.__slipstream__, sys.argv[1:])"
    more = environment(tag)
    done = horovodrun(
        "-np", "2", "-H", "localhost:2", "--mpi", sys.executable, "-c", script, "-np", "-v", **more
    )
    assert sorted(done.stdout.splitlines()) == [f"[{rank}] 0.28.1 True ['-np', '-v']" for rank in range(2)]
    assert done.stderr.startswith("horovodrun: --mpi has no meaning here: slipstream uses no MPI")
    done = horovodrun("--bogus", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "horovodrun has no option --bogus; horovodrun --help lists them" in done.stderr
    done = horovodrun("-np", "2", "-H", "localhost:1", "true")
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: horovodrun [OPTIONS]"), done.stderr


@pytest.mark.parametrize(
    ("option", "answer"),
    [
        ("--gloo", "--gloo is an option of horovodrun; for slipstream run: always so: leave it out"),
        ("--autotune", "--autotune of horovodrun, which has no value, is --autotune on"),
        ("--check-build", "`slipstream check` says what is built"),
        (
            "--nproc_per_node",
            "--nproc_per_node is an option of torchrun; for slipstream run: -np N is the number",
        ),
    ],
)
def test_slipstream_run_answers_its_options(option: str, answer: str) -> None:
    with pytest.raises(click.UsageError, match=re.escape(answer)):
        run.make_context("run", ["-np", "2", option, "--", "true"])
