"""Settings become the options of links by their names."""

from __future__ import annotations

from slipstream import _core
from slipstream.base.settings import Settings
from slipstream.comm.membership.options import link_options


def test_every_option_of_links_is_that_setting() -> None:
    chosen = {
        "checksum": "on",
        "congestion": "reno",
        "dealing": "round_robin",
        "dscp": 34,
        "encrypt": True,
        "lanes": 7,
        "threads": 3,
        "single_copy": "on",
        "zero_copy": 65536,
    }
    options = link_options(Settings(**chosen), cpus=[1, 2])  # type: ignore[arg-type]
    fields = {name for name, value in vars(_core.LinkOptions).items() if isinstance(value, property)}
    assert fields == {*chosen, "cpus"}
    assert {name: getattr(options, name) for name in chosen} == chosen
    assert options.cpus == [1, 2]


def test_options_have_the_defaults_of_the_settings() -> None:
    made, ours = link_options(Settings()), _core.LinkOptions()
    for name in ("checksum", "dealing", "encrypt", "lanes", "threads", "zero_copy"):
        assert getattr(made, name) == getattr(ours, name), name
