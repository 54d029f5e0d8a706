"""The secret of a job is in no log, timeline, rendezvous file or command line, and other users can read none of it."""

from __future__ import annotations

import base64
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from comm import ranks

SCRIPT = Path(__file__).with_name("secret_rank.py")
NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all users can look into, as /tmp is."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


def shown(secret: bytes, text: bytes) -> bool:
    """Whether the text has the secret, or half of it, in one of the ways to write it."""
    half = len(secret) // 2 // 3 * 3  # so that base64 of a part is a part of base64
    parts = (secret[:half], secret[half : 2 * half])
    ways = [way for part in parts for way in (part, part.hex().encode(), base64.b64encode(part))]
    ways += [base64.urlsafe_b64encode(part) for part in parts] + [repr(part)[2:-1].encode() for part in parts]
    return any(way in text or way in text.lower() for way in ways)


def read(paths: list[Path], **user: object) -> bytes:
    """What these files hold, of those that may be read (by the user)."""
    found = subprocess.run(["cat", *map(str, paths)], capture_output=True, check=False, **user)  # type: ignore[call-overload]
    text: bytes = found.stdout
    return text


def test_a_secret_is_found_in_any_way_of_writing_it() -> None:
    secret = bytes(range(7, 39))
    for text in (secret, secret.hex().encode(), base64.b64encode(secret), repr(secret).encode()):
        assert shown(secret, b"..." + text + b"...")
    assert not shown(secret, b"secret")


@pytest.mark.parametrize("encrypt", [False, True])
def test_the_secret_is_nowhere_to_be_read(encrypt: bool, folder: Path) -> None:
    env = {
        "SLIPSTREAM_LOG": "debug",
        "SLIPSTREAM_TIMELINE": str(folder / "timeline.json"),
        "SLIPSTREAM_ENCRYPT": str(int(encrypt)),
    }
    meet = ranks.meeting_place("file", folder)
    arguments = [str(folder / "done")]
    with ranks.started(SCRIPT, 2, transport="tcp", args=arguments, env=env, meet=meet, new=True) as job:
        deadline = time.monotonic() + 120
        while not all("\nsaid\n" in rank.text() for rank in job):
            assert time.monotonic() < deadline, [rank.text() for rank in job]
            time.sleep(0.01)  # a poll of files that other processes write
        secret = bytes.fromhex(job[0].environment["SLIPSTREAM_SECRET"])
        published = (folder / "meet").read_bytes()
        processes = [Path(f"/proc/{rank.process.pid}") for rank in job]
        texts = [published, read([process / "cmdline" for process in processes])]
        assert str(SCRIPT).encode() in texts[1]
        if os.geteuid() == 0:
            everything = [
                file for process in processes for file in (process / "cmdline", process / "environ")
            ]
            found = read([folder / "meet", *everything], user=NOBODY, group=NOBODY, extra_groups=[])
            assert str(SCRIPT).encode() in found
            assert published not in found
            texts.append(found)
        (folder / "done").touch()
        for rank in job:
            assert rank.process.wait(60) == 0, rank.text()
            texts.append(rank.output.read_bytes())
    timelines = [path.read_bytes() for path in folder.glob("timeline*")]
    assert timelines
    for text in texts + timelines:
        assert not shown(secret, text)
