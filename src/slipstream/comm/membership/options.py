"""The options of a session, from the settings: the only place that knows both."""

from __future__ import annotations

from collections.abc import Sequence

from slipstream import _core
from slipstream.base.settings import Settings

__all__ = ["link_options"]

_FROM_SETTINGS = sorted(
    name for name, value in vars(_core.LinkOptions).items() if isinstance(value, property) and name != "cpus"
)


def link_options(settings: Settings, cpus: Sequence[int] = ()) -> _core.LinkOptions:
    """How links work: every field but ``cpus`` has the name of its setting."""
    options = _core.LinkOptions()
    for name in _FROM_SETTINGS:
        setattr(options, name, getattr(settings, name))
    options.cpus = list(cpus)
    return options
