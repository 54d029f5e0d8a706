"""What the launcher takes from agents: well-formed messages about their own ranks, and nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launch.test_run import run, tag
from slipstream.launch import wire
from slipstream.launch.agents import Remote
from slipstream.launch.wire import PREAMBLE, message

__all__ = ["tag"]

STARTED = message(wire.STARTED, 1, b"1234")


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        (message(wire.STARTED, 0, b"1234"), "it speaks for rank 0, which is not on this host"),
        (STARTED + message(wire.OUT, 0, b"forged\n"), "it speaks for rank 0, which is not on this host"),
        (STARTED + message(wire.EXITED, 0, bytes(4)), "it speaks for rank 0, which is not on this host"),
        (message(wire.FAILED, 70000, b"x"), "it speaks for rank 70000, which is not on this host"),
        (STARTED + message(wire.EXITED, 1, b"\0"), "a message of kind 19 with 1 bytes"),
        (message(wire.STARTED, 1), "a message of kind 16 with 0 bytes"),
        (STARTED + message(wire.EXITED, 1, bytes(4)) * 2, "rank 1 ended twice"),
        (STARTED + message(wire.DONE), "it is done, but rank 1 has not ended"),
        (STARTED + message(99, 1), "a message of kind 99, which does not exist"),
        (STARTED + message(wire.SPEC, 1, b"{}"), "a message of kind 1, which does not exist"),
        (STARTED + b"\x11\1\0\0\0\xff\xff\xff\xff", "a message of 4294967295 bytes"),
    ],
    ids=range(11),
)
def test_a_malformed_frame_is_an_error_that_names_the_host(
    tag: str, tmp_path: Path, sent: bytes, said: str
) -> None:
    rogue = tmp_path / "rogue"
    rogue.write_bytes(PREAMBLE + sent)
    stand_in = tmp_path / "ssh"
    stand_in.write_text(f"#!/bin/sh\ncat {rogue}\nexec sleep 1000\n")
    stand_in.chmod(0o755)
    arguments = ("-np", "2", "-H", "localhost,node1", "--ssh-command", str(stand_in))
    code, out, err = run(tag, *arguments, "--", sys.executable, "-c", "import time; time.sleep(1000)")
    assert code == 1
    assert f"slipstream: host node1: its agent breaks the protocol: {said}\n" in err
    assert "Traceback" not in err
    assert "forged" not in out


def test_no_host_is_an_option_of_ssh() -> None:
    arguments = Remote("ssh -F 'my file'", 22, "key").arguments("-oProxyCommand=x", "true")
    assert arguments[:3] == ["ssh", "-F", "my file"]
    assert arguments[-3:] == ["--", "-oProxyCommand=x", "true"]
