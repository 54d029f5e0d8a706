"""Print the requirements of the package and of the extras named, one a line, as pyproject.toml states them.

`make venv` installs from this list, so that an environment is ready before the package itself builds.
"""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # scikit-build-core depends on it below Python 3.11


def requirements(extras: list[str]) -> list[str]:
    """Return base dependencies and those of `extras`; KeyError if pyproject.toml has no such extra."""
    root = Path(__file__).resolve().parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    found = list(project["dependencies"])
    for extra in extras:
        found += project["optional-dependencies"][extra]
    return sorted(set(found))


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1].split(","))))
