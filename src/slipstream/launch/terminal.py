"""What of a rank's output may reach a terminal: text, colours, and what progress bars need. Nothing that acts on it.

A terminal obeys what it is sent: sequences set its title, clear it, write the clipboard, or have it type an answer.
"""

from __future__ import annotations

import re

__all__ = ["harmless"]

_PART = re.compile(
    rb"""(?P<kept>
        [\t\b\n\r\x20-\x7e]+
      | \xc2[\xa0-\xbf] | [\xc3-\xdf][\x80-\xbf]                  # UTF-8, without its second set of control characters
      | \xe0[\xa0-\xbf][\x80-\xbf] | [\xe1-\xef][\x80-\xbf]{2}
      | \xf0[\x90-\xbf][\x80-\xbf]{2} | [\xf1-\xf4][\x80-\xbf]{3}
      | [\xa0-\xc1\xc3-\xff] | \xc2(?![\x80-\x9f])               # of an older character set
      | \x1b\[ [0-9;:]* m                                         # colours
      | \x1b\[ [0-9]* [ABCDGK]                                    # up, down, right, left, to a column; erase the line
    )
    | \x1b[\]PX^_] .*? (?: \x07 | \x1b\\ | \xc2\x9c | \Z)          # strings: title, clipboard, answers of the terminal
    | \xc2[\x90\x98\x9d-\x9f] .*? (?: \x07 | \x1b\\ | \xc2\x9c | \Z)
    | (?: \x1b\[ | \xc2\x9b) [0-?]* [ -/]* [@-~]?                 # every other sequence of this kind
    | \x1b [ -/]* [0-Z\\`-~]?                                     # the short ones; a complete reset is among them
    | \xc2[\x80-\x9f] | .                                                           # every other control character
    """,
    re.VERBOSE | re.DOTALL,
)

_SUSPECT = re.compile(rb"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def harmless(line: bytes) -> bytes:
    """A line without what would do more to a terminal than show it. A sequence that has begun ends with the line."""
    if _SUSPECT.search(line) is None:  # the usual case, and quick
        return line
    return b"".join(match["kept"] or b"" for match in _PART.finditer(line))
