"""Bytes for a pipe whose reader may be slow, or gone."""

from __future__ import annotations

import os
import selectors
from collections.abc import Iterator

import pytest

from slipstream.launch.outbox import Outbox


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe2(os.O_NONBLOCK)
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:
            continue


def test_what_the_pipe_takes_is_written_at_once(pipe: tuple[int, int]) -> None:
    with selectors.DefaultSelector() as selector:
        outbox = Outbox(pipe[1], selector)
        outbox.add(b"one ")
        outbox.flush()
        outbox.post(b"two")
        assert os.read(pipe[0], 100) == b"one two"
        assert len(outbox) == 0
        assert not selector.get_map()


def test_the_rest_follows_in_order_when_there_is_room(pipe: tuple[int, int]) -> None:
    sent = bytes(range(256)) * 4096  # more than a pipe takes
    with selectors.DefaultSelector() as selector:
        outbox = Outbox(pipe[1], selector)
        outbox.add(sent)
        outbox.flush()
        outbox.post(b"end")
        assert pipe[1] in selector.get_map()
        got = b""
        while outbox:
            got += os.read(pipe[0], 1 << 20)
            for key, _ in selector.select(0):
                key.data(key.fd)
        assert got + os.read(pipe[0], 1 << 20) == sent + b"end"
        assert not selector.get_map()


def test_a_reader_that_has_gone_is_no_error(pipe: tuple[int, int]) -> None:
    with selectors.DefaultSelector() as selector:
        outbox = Outbox(pipe[1], selector)
        outbox.add(bytes(1 << 20))
        outbox.flush()
        assert not outbox.broken
        os.close(pipe[0])
        outbox.flush()
        assert outbox.broken
        assert len(outbox) == 0
        assert not selector.get_map()


def test_a_pipe_can_be_closed_while_something_is_left(pipe: tuple[int, int]) -> None:
    with selectors.DefaultSelector() as selector:
        outbox = Outbox(pipe[1], selector)
        outbox.add(bytes(1 << 20))
        outbox.flush()
        outbox.close()
        assert len(outbox) == 0
        assert not selector.get_map()
