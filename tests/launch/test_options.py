"""Options of `slipstream run`, and what it says when a job cannot start."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import click
import pytest

from launch.test_run import run, ssh, tag
from slipstream.cli.main import main
from slipstream.launch.agent import advice

__all__ = ["ssh", "tag"]


@pytest.mark.parametrize("option", ["-np", "-n", "--num-proc"])
def test_the_number_of_ranks(tag: str, option: str) -> None:
    code, out, err = run(tag, option, "2", "--", "echo", "up")
    assert (code, sorted(out.splitlines()), err) == (0, ["[0] up", "[1] up"], "")


def test_the_number_may_stand_close_to_its_option(tag: str) -> None:
    code, out, _ = run(tag, "-np2", "--", "echo", "up")
    assert (code, sorted(out.splitlines())) == (0, ["[0] up", "[1] up"])
    code, _, err = run(tag, "-np", "two", "--", "echo", "up")
    assert code == 2
    assert "'two' is not a valid integer" in err


@pytest.mark.parametrize("way", ["-H", "--hostfile", "environment"])
def test_as_many_ranks_as_the_hosts_have_slots(tag: str, ssh: Path, tmp_path: Path, way: str) -> None:
    file = tmp_path / "hosts"
    file.write_text("localhost slots=2\nspare reducer\nnode1\n")
    arguments, env = ["--ssh-command", str(ssh)], {}
    if way == "-H":
        arguments += ["-H", "localhost:2,node1"]
    elif way == "--hostfile":
        arguments += ["--hostfile", str(file)]
    else:
        env["SLIPSTREAM_HOSTFILE"] = str(file)
    code, out, err = run(tag, *arguments, "--", "sh", "-c", "echo of $WORLD_SIZE", **env)
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[0] of 3", "[1] of 3", "[2] of 3"]


def test_without_hosts_the_number_is_asked_for(tag: str) -> None:
    code, _, err = run(tag, "--", "true")
    assert code == 2
    text = "say how many ranks: -np 4; or name hosts and their slots: -H localhost:4"
    assert text in err
    assert "script" not in err
    code, _, err = run(tag, "--", "hello.py")
    assert code == 2
    assert f"{text}; Python runs a script: slipstream run ... -- python hello.py" in err


@pytest.mark.parametrize(
    ("options", "variable", "value"),
    [
        (["--lanes", "5"], "SLIPSTREAM_LANES", "5"),
        (["--transport", "tcp"], "SLIPSTREAM_TRANSPORT", "tcp"),
        (["--timeline", "t-{rank}.json"], "SLIPSTREAM_TIMELINE", "t-{rank}.json"),
        (["--timeout", "90"], "SLIPSTREAM_TIMEOUT", "90"),
        (["--timeout", "250ms"], "SLIPSTREAM_TIMEOUT", "0.25"),
        (["--timeout", "1h"], "SLIPSTREAM_TIMEOUT", "3600"),
        (["--start-timeout", "2m"], "SLIPSTREAM_START_TIMEOUT", "120"),
        (["--full-traceback"], "SLIPSTREAM_FULL_TRACEBACK", "1"),
        (["-x", "COLOUR=red"], "COLOUR", "red"),
    ],
)
def test_options_reach_the_ranks(tag: str, options: list[str], variable: str, value: str) -> None:
    code, out, err = run(tag, "-np", "1", *options, "--", "sh", "-c", f'echo "${variable}"')
    assert (code, out, err) == (0, f"[0] {value}\n", "")


@pytest.mark.parametrize(
    ("options", "env"),
    [
        (["--job", "mine"], {}),
        (["-e", "SLIPSTREAM_JOB=mine"], {}),
        (["-e", "SLIPSTREAM_JOB=mine", "-e", "SLIPSTREAM_ENCRYPT=0"], {"SLIPSTREAM_ENCRYPT": "1"}),
        (["--job", "mine"], {"SLIPSTREAM_JOB": "other"}),
    ],
)
def test_the_launcher_takes_the_same_settings_as_the_ranks(
    tag: str, options: list[str], env: dict[str, str]
) -> None:
    program = "import slipstream; slipstream.init(); from slipstream.comm.membership.job import current; "
    program += "print(current().membership.job, current().settings.encrypt)"
    code, out, err = run(tag, "-np", "2", *options, "--", sys.executable, "-c", program, **env)
    assert (code, sorted(out.splitlines()), err) == (0, ["[0] mine False", "[1] mine False"], "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--lanes", "65"], "--lanes"),
        (["--transport", "rdma"], "--transport"),
        (["--wire", "fp16"], "'int8'; did you mean f16?"),
        (["-e", "SLIPSTREAM_WIRE=fp16"], "int8, got 'fp16'; did you mean f16?"),
        (["--timeout", "soon"], "--timeout"),
        (["--timeout", "0"], "'0' is not a time above 0"),
        (["--timeout", "nan"], "'nan' is not a time: a number of seconds, or"),
        (["--timeout", "5M"], "'5M' is not a time: a number of seconds, or"),
        (["--start-timeout", "-1"], "--start-timeout"),
        (["--timeline"], "expected a file, not --"),
        (["--timeline", "a\nb"], "--timeline: expected printable text"),
        (["-x", "SLIPSTREAM_LANS=3"], "SLIPSTREAM_LANS: slipstream has no such variable; did you mean"),
        (["-e", "SLIPSTREAM_LANES=many"], "SLIPSTREAM_LANES: "),
        (["--min-np", "2"], "--min-np 2 is more than the number of ranks, which is 1"),
    ],
)
def test_a_mistake_does_not_wait_for_the_ranks(tag: str, options: list[str], said: str) -> None:
    code, out, err = run(tag, "-np", "1", *options, "--", "echo", "started")
    assert (code, out) == (2, "")
    assert said in err


@pytest.mark.parametrize(
    "words",
    [
        ["check", "--seconds"],
        ["lab", "measure", "--seconds"],
        ["bench", "all_reduce", "-np", "2", "--limit"],
        ["bench", "train", "--model", "resnet50", "-np", "2", "--limit"],
        ["reducer", "--drain-seconds"],
    ],
)
def test_options_in_seconds_take_units_too(words: list[str]) -> None:
    command: click.Command = main
    while isinstance(command, click.Group):
        name, *words = words
        command = command.commands[name]
    parameter = words[-1][2:].replace("-", "_")
    for given, expected in (("90", 90), ("90s", 90), ("1.5min", 90), ("2500ms", 2.5), ("25e-1s", 2.5)):
        assert command.make_context("command", [*words, given]).params[parameter] == expected
    for wrong in ("soon", "nan", "-1", "1e10", "5M"):
        with pytest.raises(click.BadParameter, match=f"'{wrong}' is not a time"):
            command.make_context("command", [*words, wrong])


def test_the_memory_of_a_reducer_may_be_a_fraction() -> None:
    context = main.commands["reducer"].make_context("reducer", ["--memory", "1.3GiB"])
    assert context.params["memory"] == round(1.3 * 2**30)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none/t.json", "rank 0 cannot write its timeline {}/none/t.json: there is no folder {}/none"),
        ("t-{{rank}}", "rank 1 cannot write its timeline {}/t-1: it is a folder"),
        ("pipe", "rank 0 cannot write its timeline {}/pipe: it is a pipe, "),
        ("file/t.json", "rank 0 cannot write its timeline {}/file/t.json: there is no folder {}/file"),
    ],
)
@pytest.mark.parametrize("way", ["option", "environment"])
def test_a_timeline_that_cannot_be_written(tag: str, tmp_path: Path, name: str, said: str, way: str) -> None:
    (tmp_path / "t-1").mkdir()
    (tmp_path / "file").touch()
    os.mkfifo(tmp_path / "pipe")
    path = f"{tmp_path}/{name.format()}"
    options, env = (["--timeline", path], {}) if way == "option" else ([], {"SLIPSTREAM_TIMELINE": path})
    code, out, err = run(tag, "-np", "2", *options, "--", "echo", "started", **env)
    assert (code, out) == (2, "")
    assert said.format(tmp_path, tmp_path) in err


@pytest.mark.parametrize(("option", "level"), [("-v", "info"), ("-vv", "debug"), ("--verbose", "info")])
def test_verbose_says_what_runs_where(tag: str, ssh: Path, option: str, level: str) -> None:
    arguments = (option, "-H", "localhost:2,node1", "--ssh-command", str(ssh))
    code, out, err = run(tag, *arguments, "--", "sh", "-c", "echo ${SLIPSTREAM_LOG-none}")
    assert code == 0
    assert ": ranks 0, 1, started here\n" in err
    assert "slipstream: host node1: rank 2, started through " in err
    assert err.count("slipstream: ranks started: 3 of 3\n") == 1
    assert {line[4:] for line in out.splitlines()} == {level}


@pytest.mark.parametrize("kind", ["missing", "not executable", "no interpreter"])
def test_a_script_without_python_is_explained(tag: str, tmp_path: Path, kind: str) -> None:
    script = tmp_path / "hello.py"
    if kind != "missing":
        script.write_text("print('hello')\n")
    if kind == "no interpreter":
        script.chmod(0o755)
    code, _, err = run(tag, "-np", "2", "--", str(script))
    assert code == 127
    assert f"cannot start '{script}' in {os.getcwd()}: " in err
    assert err.rstrip().endswith(f"; Python runs a script: slipstream run ... -- python {script}")


def test_a_script_on_the_path_without_its_interpreter_is_not_called_missing(tag: str, tmp_path: Path) -> None:
    script = tmp_path / "hello"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    code, _, err = run(tag, "-np", "1", "-e", f"PATH={path}", "--", "hello")
    assert code == 127
    assert f": No such file or directory: {script}, its interpreter, or the folder" in err
    code, _, err = run(tag, "-np", "1", "-e", f"PATH={path}", "--", "no-such-command")
    assert code == 127
    assert ": no folder of PATH has a command of that name" in err


def test_a_rank_that_waits_for_others_too_long_names_the_option(tag: str) -> None:
    program = """
import os, time
import slipstream
if os.environ["RANK"] == "1":
    time.sleep(1000)
slipstream.init()
"""
    limit = (
        "-e",
        "SLIPSTREAM_START_TIMEOUT=1",
    )  # of the ranks alone: the launcher needs longer to start them
    code, _, err = run(tag, "-np", "2", *limit, "--", sys.executable, "-c", program)
    assert code == 1
    last = err.splitlines()[-1]
    assert "Timeout: rank 1 of 2 did not come within 1 s: every rank must start and call " in last
    assert "epoch/" not in last
    assert "slipstream run --start-timeout" in last


def test_a_rank_that_cannot_start_for_want_of_files_is_not_told_to_name_another_interpreter() -> None:
    assert "ulimit -n" in advice("python", OSError(errno.EMFILE, "Too many open files"))
    assert "python3" in advice("python", FileNotFoundError(errno.ENOENT, "No such file"))
