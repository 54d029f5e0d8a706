"""Pictures of records, as SVG or PNG. Needs matplotlib (the extra ``bench``)."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["check_plot", "picture"]

FORMATS = (".svg", ".png")


def check_plot(path: Path) -> None:
    """Raises ValueError unless ``path`` can be plotted to: an SVG or PNG file, and matplotlib is installed."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"--plot {path}: expected a name that ends in .svg or .png")
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install matplotlib")


@contextlib.contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[Any]:
    """Gives axes to draw on, ``width`` by ``height`` inches in all, and writes them to ``path`` after the block.

    The same drawing gives the same file. Raises ValueError as `check_plot` does.
    """
    check_plot(path)
    matplotlib: Any = importlib.import_module("matplotlib")
    canvas: Any = importlib.import_module("matplotlib.backends.backend_agg").FigureCanvasAgg
    figure: Any = importlib.import_module("matplotlib.figure").Figure(
        figsize=(width, height), layout="constrained"
    )
    canvas(figure)
    yield figure.subplots()
    metadata = {"Date": None} if path.suffix.lower() == ".svg" else None
    with matplotlib.rc_context({"svg.hashsalt": "slipstream"}):
        figure.savefig(path, metadata=metadata, dpi=150)
