"""A plug-in of pytest for PyTorch's tests: `results_plugin`, the devices of `pretended`, processes by `preloaded`."""

from __future__ import annotations

import preloaded
import pretended

pytest_plugins = ["results_plugin"]

pretended.install()
preloaded.install()
