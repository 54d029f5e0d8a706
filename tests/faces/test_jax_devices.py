"""JAX programs that know nothing of slipstream, with several CPU devices in a process: results and failures."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from faces.test_jax_unmodified import job
from launch.test_run import tag

__all__ = ["tag"]

HERE = Path(__file__).parent

pytest.importorskip("jax")


def with_devices(count: int) -> tuple[str, ...]:
    """Options for so many devices in each process."""
    return "-e", f"JAX_NUM_CPU_DEVICES={count}"


@pytest.mark.parametrize(
    ("size", "devices", "kind"),
    [
        (2, 2, "types"),
        (2, 2, "meshes"),
        (2, 2, "ways"),
        (2, 4, "ways"),
        (3, 2, "ways"),
        (3, 2, "meshes"),
        (2, 1, "counts"),  # it has one device in the first process, and three in the second
        pytest.param(2, 4, "types", marks=pytest.mark.slow),
        pytest.param(2, 4, "meshes", marks=pytest.mark.slow),
        pytest.param(3, 2, "types", marks=pytest.mark.slow),
        pytest.param(3, 1, "counts", marks=pytest.mark.slow),
    ],
)
def test_collectives_are_those_of_numpy(tag: str, size: int, devices: int, kind: str) -> None:
    code, out, err = job(tag, size, HERE / "jax_devices_rank.py", kind, options=with_devices(devices))
    assert code == 0, err
    assert len(re.findall(r"^\[\d\] \d of \d+ devices: all is right$", out, re.MULTILINE)) == size, out
    assert "Gloo" not in out + err


def test_xla_s_own_flag_chooses_the_devices(tag: str) -> None:
    flag = ("-e", "XLA_FLAGS=--xla_force_host_platform_device_count=2")
    code, out, err = job(tag, 2, HERE / "jax_devices_rank.py", "ways", options=flag)
    assert code == 0, err
    assert out.count("2 of 4 devices: all is right") == 2


def told(tag: str, kind: str, *options: str) -> dict[int, tuple[str, float]]:
    """The error that each of two processes with two devices gets, and the seconds until it has it, by rank."""
    program = HERE / "jax_devices_faults_rank.py"
    _, out, err = job(tag, 2, program, kind, options=(*with_devices(2), "--min-np", "1", *options))
    texts = dict(re.findall(r"^\[(\d)\] told: (.*)$", out, re.MULTILINE))
    times = dict(re.findall(r"^\[(\d)\] after: (.*)$", out, re.MULTILINE))
    assert texts, out + err
    return {int(rank): (text, float(times[rank])) for rank, text in texts.items()}


@pytest.mark.parametrize(
    "kind", ["killed_psum", "killed_ring", "killed_exchange", "killed_far", "killed_far_pair", "making"]
)
def test_a_killed_process_is_named(tag: str, kind: str) -> None:
    """Devices that wait for another one of their own process are told, too."""
    found = told(tag, kind)
    assert found.keys() == {0}
    text, seconds = found[0]
    assert re.search(r"MPI error: PeerLost: .*rank 1 \(host .*\) died or was killed", text)
    assert seconds < 10  # a tenth of one, where the machine has nothing else to do


def test_processes_that_differ(tag: str) -> None:
    found = told(tag, "sizes")
    assert found.keys() == {0, 1}
    for text, _ in found.values():
        assert "Mismatch: operation #2 differs between ranks" in text
        assert "5 elements" in text
        assert "7 elements" in text


@pytest.mark.parametrize(
    ("kind", "calls"),
    [
        ("lengths", ("all_reduce(float32, 3 elements, op=sum)", "all_reduce(float32, 5 elements, op=sum)")),
        (
            "operations",
            ("all_reduce(float32, 8 elements, op=sum)", "all_reduce(float32, 8 elements, op=max)"),
        ),
    ],
)
def test_devices_of_a_process_that_differ(tag: str, kind: str, calls: tuple[str, str]) -> None:
    found = told(tag, kind)
    assert found.keys() == {0, 1}
    for text, _ in found.values():
        wanted = rf"Mismatch: devices of rank [01] differ: the one at place 0 called {re.escape(calls[0])}, "
        assert re.search(
            wanted + rf"the one at place 1 {re.escape(calls[1])}; all devices of a group must", text
        )


def test_messages_between_devices_of_a_process_that_differ(tag: str) -> None:
    found = told(tag, "message")
    assert found.keys() == {0, 1}
    for text, _ in found.values():
        assert re.search(r"Mismatch: a message between devices of rank [01], from place \d to place \d", text)
        assert "has 12 bytes, and is received with 20" in text


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (
            "absent",
            r"Timeout: all_reduce\(.*\) of a device of rank [01] has waited \d[\d.]* s for .* at the places 1 of",
        ),
        (
            "unsent",
            r"Timeout: a message between devices of rank [01], .* has waited \d[\d.]* s for its sender",
        ),
    ],
)
def test_a_device_that_does_not_come_is_named(tag: str, kind: str, wanted: str) -> None:
    found = told(tag, kind, "-e", "SLIPSTREAM_TIMEOUT=4")
    assert found.keys() == {0, 1}
    assert all(re.search(wanted, text) for text, _ in found.values()), found


@pytest.mark.parametrize("kind", ["unwatched", "unread", "unforeseen"])
def test_a_version_of_jax_that_is_not_known_is_an_error(tag: str, kind: str) -> None:
    found = told(tag, kind)
    assert found.keys() == {0, 1}
    for text, _ in found.values():
        assert "Several devices in a process need a version of JAX that slipstream knows" in text
        assert "JAX_CPU_COLLECTIVES_IMPLEMENTATION=gloo" in text
