"""The version of what slipstream speaks on the wire. The native code is compiled with the number of this file."""

from __future__ import annotations

import importlib
from functools import cache

__all__ = ["HOROVOD", "PROTOCOL", "VERSIONS_DIFFER", "package_version"]

# CMakeLists.txt reads this line. docs/architecture.md says which package speaks which version.
PROTOCOL = 6

# The last version of Horovod, whose interface slipstream has: programs compare it.
HOROVOD = "0.28.1"

VERSIONS_DIFFER = "install the same slipstream on all hosts"


@cache
def package_version() -> str:
    """The version of the installed distribution, or "unknown" in a bare source tree."""
    metadata = importlib.import_module("importlib.metadata")  # a tenth of what the start of a rank would take
    try:
        return str(metadata.version("slipstream"))
    except metadata.PackageNotFoundError:
        return "unknown"
