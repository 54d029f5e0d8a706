"""Words of Horovod's errors behind slipstream's own: its users search for them, and programs look for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slipstream.base.errors import Aborted, PeerLost, SlipstreamError, Timeout

__all__ = ["NOT_INITIALIZED", "SHUT_DOWN", "add_words", "adding_words", "in_horovods_words"]

NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."
SHUT_DOWN = "Horovod has been shut down"
_STALLED = "submitted to be reduced, gathered or broadcasted by subset of ranks"

_WORDS: dict[type[SlipstreamError], str] = {PeerLost: SHUT_DOWN, Aborted: SHUT_DOWN, Timeout: _STALLED}


def in_horovods_words(text: str, words: str) -> str:
    """``text``, and what Horovod says where slipstream says that."""
    return f"{text} In Horovod's words: {words}"


def add_words(error: SlipstreamError) -> None:
    """Has the text of an error that ended an operation go on in Horovod's words, if it has any for that."""
    words = next((words for kind, words in _WORDS.items() if isinstance(error, kind)), "")
    text = str(error)
    if words and words not in text:
        error.args = (in_horovods_words(f"{text.rstrip('.')}.", words), *error.args[1:])


@contextmanager
def adding_words() -> Iterator[None]:
    """Within it errors get what `add_words` adds."""
    try:
        yield
    except SlipstreamError as error:
        add_words(error)
        raise
