"""The version of what slipstream speaks on the wire. The native code is compiled with the number of this file."""

from __future__ import annotations

import importlib.metadata

__all__ = ["PROTOCOL", "VERSIONS_DIFFER", "package_version"]

# CMakeLists.txt reads this line. docs/architecture.md says which package speaks which version.
PROTOCOL = 3

VERSIONS_DIFFER = "install the same slipstream on all hosts"


def package_version() -> str:
    """The version of the installed distribution, or "unknown" in a bare source tree."""
    try:
        return importlib.metadata.version("slipstream")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
