"""What of a rank's output a terminal is sent."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.launch.output import Console, RankOutput
from slipstream.launch.terminal import harmless

ALLOWED = re.compile(rb"\x1b\[(?:[0-9;:]*m|[0-9]*[ABCDGK])")


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"plain text, tab\tand all", b"plain text, tab\tand all"),
        ("späte Größe, 進捗 █▌ 🙂".encode(), "späte Größe, 進捗 █▌ 🙂".encode()),
        (b"\x1b[1;31mred\x1b[0m \x1b[38;5;9mx\x1b[m", b"\x1b[1;31mred\x1b[0m \x1b[38;5;9mx\x1b[m"),
        (b"\x1b[2A\x1b[K 50% \x1b[1B\x1b[10G", b"\x1b[2A\x1b[K 50% \x1b[1B\x1b[10G"),
        (b"a\x1b]0;title\x07b", b"ab"),
        (b"a\x1b]0;title\x1b\\b", b"ab"),
        (b"a\x1b]52;c;ZWNobyBoaQ==\x07b", b"ab"),  # the clipboard
        (b"a\x1b]52;c;ZWNobyBoaQ==", b"a"),  # it would go on in the next line
        (b"a\x1bP+q544e\x1b\\b\x1b_x\x1b\\c\x1b^y\x1b\\d\x1bXz\x1b\\e", b"abcde"),
        (b"a\x1b[2J\x1b[3J\x1b[Hb", b"ab"),  # the screen, what was scrolled, the upper left corner
        (b"a\x1b[?1049h\x1b[?25l\x1b[6n\x1b[c\x1b[5;10r\x1b[!pb", b"ab"),
        (b"a\x1bcb\x1b7c\x1b(0d", b"abcd"),  # the first is a complete reset
        ("a\x9b2Jb\x9d0;title\x07c\x90x\x9cd".encode(), b"abcd"),  # the same in one character of Unicode
        (b"a\x9b2Jb", b"a2Jb"),  # and in one byte
        (b"caf\xe9 \xa0", b"caf\xe9 \xa0"),  # an older character set
        (b"ding\x07\x0e\x05\x7f!", b"ding!"),
        (b"cut off\x1b[3", b"cut off"),
        (b"cut off\x1b", b"cut off"),
    ],
)
def test_a_terminal_gets_text_and_colours(line: bytes, shown: bytes) -> None:
    assert harmless(line) == shown


PARTS = [b"\x1b", b"[", b"]", b"\x9b", b"\xc2", b"2J", b"m", b"0;", b"\x07", b"a", b"\x1b\\", b"P", b"\xe2"]


@given(line=st.lists(st.one_of(st.sampled_from(PARTS), st.binary(max_size=3)), max_size=12).map(b"".join))
def test_nothing_else_passes_whatever_is_sent(line: bytes) -> None:
    left = ALLOWED.sub(b"", harmless(line))
    assert not re.search(rb"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]", left)
    assert not re.search("[\x80-\x9f]", left.decode(errors="ignore"))
    assert harmless(harmless(line)) == harmless(line)


@pytest.mark.parametrize("end", [b"\n", b"\r"])
def test_only_a_terminal_is_filtered(tmp_path: Path, end: bytes) -> None:
    sent = b"x\x1b]0;title\x07y\x1b[2J" + end
    for out in (Terminal(), io.BytesIO()):
        shared = Console(out, io.BytesIO(), prefix=False, timestamps=False)  # type: ignore[arg-type]
        one = RankOutput(0, False, shared, tmp_path)
        one.feed(sent)
        one.feed(b"")
        assert (b"title" in out.getvalue()) == (not out.isatty())
        assert b"x" in out.getvalue()
        assert (tmp_path / "rank.0" / "stdout").read_bytes() == sent


def test_what_the_launcher_says_of_a_rank_is_filtered_too() -> None:
    err = Terminal()
    Console(io.BytesIO(), err, prefix=True, timestamps=False).say("it printed \x1b]0;title\x07\x1b[2J!")
    assert err.getvalue() == b"slipstream: it printed !\n"
