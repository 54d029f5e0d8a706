"""HOROVOD_* variables: each becomes a setting, or a line says why it has no meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slipstream.base.horovod_knobs import KNOBS, told
from slipstream.base.settings import PREFIX, Settings, of_horovod, variables

PAGE = Path(__file__).parents[2] / "docs" / "migrating.md"

# What Horovod 0.28 reads while a job runs.
_THEIRS = """
FUSION_THRESHOLD CYCLE_TIME CACHE_CAPACITY AUTOTUNE AUTOTUNE_LOG AUTOTUNE_WARMUP_SAMPLES
AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_BAYES_OPT_MAX_SAMPLES AUTOTUNE_GAUSSIAN_PROCESS_NOISE
HIERARCHICAL_ALLREDUCE HIERARCHICAL_ALLGATHER TORUS_ALLREDUCE STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS
STALL_SHUTDOWN_TIME_SECONDS TIMELINE TIMELINE_MARK_CYCLES LOG_LEVEL LOG_HIDE_TIME GLOO_TIMEOUT_SECONDS
START_TIMEOUT ELASTIC_TIMEOUT DYNAMIC_PROCESS_SETS DISABLE_GROUP_FUSION ENABLE_ASYNC_COMPLETION
NUM_NCCL_STREAMS THREAD_AFFINITY CONTROLLER CPU_OPERATIONS GLOO_IFACE MPI_THREADS_DISABLE
"""
THEIRS = _THEIRS.split()


def read(**given: str) -> Settings:
    return Settings.from_environment({f"HOROVOD_{name}": text for name, text in given.items()})


def test_all_are_known_and_none_is_silent() -> None:
    assert set(THEIRS) <= set(KNOBS)
    for name, knob in KNOBS.items():
        assert bool(knob.field) != bool(knob.why), name
        assert not knob.field or PREFIX + knob.field.upper() in variables()


def test_the_page_lists_them() -> None:
    rows = set(PAGE.read_text().splitlines())
    for name, knob in KNOBS.items():
        becomes = f"`{PREFIX}{knob.field.upper()}`" if knob.field else knob.why
        assert f"| `HOROVOD_{name}` | {becomes} |" in rows


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("FUSION_THRESHOLD", "33554432", "fusion_threshold", 32 << 20),
        ("FUSION_THRESHOLD", "0", "fusion_threshold", 0),
        ("FUSION_THRESHOLD", str(1 << 40), "fusion_threshold", 1 << 30),
        ("AUTOTUNE", "1", "autotune", "on"),
        ("AUTOTUNE_LOG", "a.csv", "autotune_log", "a.csv"),
        ("HIERARCHICAL_ALLREDUCE", "1", "hierarchy", "on"),
        ("HIERARCHICAL_ALLREDUCE", "0", "hierarchy", "off"),
        ("TORUS_ALLREDUCE", "1", "hierarchy", "on"),
        ("TORUS_ALLREDUCE", "0", "hierarchy", "auto"),
        ("STALL_SHUTDOWN_TIME_SECONDS", "90", "timeout", 90.0),
        ("STALL_SHUTDOWN_TIME_SECONDS", "0", "timeout", 1800.0),
        ("TIMELINE", "t.json", "timeline", "t.json"),
        ("TIMELINE", "DYNAMIC", "timeline", None),
        ("LOG_LEVEL", "TRACE", "log", "debug"),
        ("LOG_LEVEL", "info", "log", "info"),
        ("LOG_LEVEL", "WARNING", "log", "warning"),
        ("LOG_LEVEL", "fatal", "log", "warning"),
        ("START_TIMEOUT", "120", "start_timeout", 120.0),
        ("GLOO_IFACE", "eth0", "interface", "eth0"),
        ("CYCLE_TIME", "3.5", "timeout", 1800.0),
        ("AUTOTUNE", "", "autotune", "off"),
    ],
)
def test_what_a_variable_becomes(name: str, text: str, field: str, value: Any) -> None:
    assert getattr(read(**{name: text}), field) == value


def test_pairs() -> None:
    assert read(STALL_SHUTDOWN_TIME_SECONDS="90", STALL_CHECK_DISABLE="1").timeout == 1800
    assert read(TORUS_ALLREDUCE="1", HIERARCHICAL_ALLREDUCE="0").hierarchy == "off"
    of_rank = {"HOROVOD_THREAD_AFFINITY": "4,7", "SLIPSTREAM_LOCAL_RANK": "1", "SLIPSTREAM_LOCAL_SIZE": "2"}
    assert Settings.from_environment(of_rank).affinity == "7"
    assert read(THREAD_AFFINITY="4,7").affinity == "none"  # in the launcher, which is no rank


def test_ours_come_first() -> None:
    given = {"HOROVOD_LOG_LEVEL": "debug", "SLIPSTREAM_LOG": "info"}
    assert Settings.from_environment(given).log == "info"
    assert told("HOROVOD_LOG_LEVEL", given) == (
        True,
        "HOROVOD_LOG_LEVEL=debug is not used: SLIPSTREAM_LOG=info is set",
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("FUSION_THRESHOLD", "much"), ("AUTOTUNE", "true"), ("THREAD_AFFINITY", "x")),
        *(("START_TIMEOUT", "nan"), ("LOG_LEVEL", "debugg")),
    ],
)
def test_a_mistake_names_the_variable(name: str, text: str) -> None:
    given = {f"HOROVOD_{name}": text, "SLIPSTREAM_LOCAL_RANK": "0", "SLIPSTREAM_LOCAL_SIZE": "1"}
    with pytest.raises(ValueError, match=f"HOROVOD_{name}: expected .*, got '{text}'"):
        Settings.from_environment(given)


@pytest.mark.parametrize(
    ("variable", "text", "warns", "said"),
    [
        ("FUSION_THRESHOLD", "64", True, "HOROVOD_FUSION_THRESHOLD=64 became SLIPSTREAM_FUSION_THRESHOLD=64"),
        ("CYCLE_TIME", "5", True, "HOROVOD_CYCLE_TIME=5 has no meaning here: there are no cycles"),
        ("CYCLE_TIME", "0", False, "HOROVOD_CYCLE_TIME=0 has no meaning here"),
        ("TIMELINE", "DYNAMIC", False, "HOROVOD_TIMELINE=DYNAMIC changes nothing"),
        *(("STALL_SHUTDOWN_TIME_SECONDS", text, False, "changes nothing") for text in ("", "0", "-5")),
        ("STALL_SHUTDOWN_TIME_SECONDS", "90", True, "became SLIPSTREAM_TIMEOUT=90"),
        ("DYNAMIC_PROCESS_SETS", "1", False, "HOROVOD_DYNAMIC_PROCESS_SETS=1: process sets can always"),
        ("GPU_OPERATIONS", "NCCL", False, "HOROVOD_GPU_OPERATIONS=NCCL: it is for the build of Horovod"),
        ("WITH_PYTORCH", "1", False, "it is for the build"),
        ("CICLE_TIME", "1", True, "HOROVOD_CICLE_TIME=1 is ignored: slipstream knows no such variable"),
    ],
)
def test_what_is_said(variable: str, text: str, warns: bool, said: str) -> None:
    name = f"HOROVOD_{variable}"
    found = told(name, {name: text})
    assert found.warns == warns
    assert said in found.text


def test_what_launchers_tell_ranks_sets_nothing() -> None:
    places = ("RANK", "SIZE", "LOCAL_RANK", "CROSS_SIZE", "HOSTNAME", "GLOO_RENDEZVOUS_PORT")
    given = {f"HOROVOD_{name}": "x" for name in places}
    assert of_horovod(given) == []
    assert of_horovod({**given, "HOROVOD_FOO": "1"}) == ["HOROVOD_FOO"]
