"""The page that `torch_table.py` writes: what was measured on each backend, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

__all__ = ["SEVERITY", "Cells", "Key", "page", "summary"]

Key = tuple[str, str, str]  # operation, type, layout
Cells = dict[Key, tuple[str, str]]  # verdict and why
Shape = tuple[tuple[str, str], ...]  # (layouts, types) that an operation shows in some verdict

SEVERITY = ("error", "wrong", "right")
MARKS = {"right": "·", "wrong": "**W**", "error": "E"}
NONE = "-"  # type and layout of operations without tensors
FEW = 8  # types named one by one; of more, the others are named

INTRO = """\
# `torch.distributed`, operation by operation

This page shows what gloo and slipstream do with every operation, element type and memory layout. `python
tests/conformance/torch_table.py` measured it on {date} with PyTorch {torch}, on two ranks, with tensors in host
memory.

A cell is **right** if every rank gets the result that plain arithmetic on the inputs gives, and if no memory beside
the tensors changes. It is **wrong** if the operation raises no error and the result differs. It is **error** if the
operation raises an error, hangs or kills a rank. Inputs and outputs of a cell have the same layout: *contiguous*;
*strided*, every other column of a matrix (`x[:, ::2]`); *transposed*, `x.t()`; *channels_last*, four dimensions in
that format; *zero-size*, no elements. The table omits operations that have no meaning (the order of complex numbers,
the bits of floats, averages of booleans) and the product of complex numbers, which PyTorch refuses for every backend.
"""


def page(table: dict[str, Cells], torch: str, date: str) -> str:
    """The whole page."""
    ours, theirs = table["slipstream"], table["gloo"]
    lines = [INTRO.format(date=date, torch=torch), *counts(table)]
    lines += ["", "## Where gloo is wrong without an error", ""]
    lines += listing(theirs, ours, "wrong")
    lines += ["", "## Where gloo raises or hangs", ""]
    lines += listing(theirs, ours, "error")
    lines += ["", "## Where slipstream is not right", ""]
    lines += listing(ours, theirs, "wrong", "error", other="gloo")
    lines += ["", "## All cells", ""]
    lines += ["Each cell: gloo, then slipstream. `·` right, **W** wrong, E error, empty: no meaning."]
    for layout in dict.fromkeys(layout for _, _, layout in ours):
        if layout != NONE:
            lines += ["", f"### {layout[0].upper()}{layout[1:]}", "", *grid(table, layout)]
    lines += ["", "### Without tensors", "", "| operation | gloo | slipstream |", "|---|---|---|"]
    lines += [
        f"| {key[0]} | {theirs[key][0]} | {ours[key][0]} |"
        for key in ours
        if key[1] == NONE and key in theirs
    ]
    return "\n".join(lines) + "\n"


def summary(table: dict[str, Cells]) -> str:
    """How many cells are right, wrong and errors, a line for each backend."""
    lines = []
    for backend, cells in table.items():
        count = Counter(verdict for verdict, _ in cells.values())
        lines.append(
            f"{backend}: {count['right']} right, {count['wrong']} wrong, {count['error']} error "
            f"of {len(cells)} cells"
        )
    return "\n".join(lines)


def counts(table: dict[str, Cells]) -> list[str]:
    """The summary as a table."""
    lines = ["| cells | right | wrong | error |", "|---|---|---|---|"]
    for backend, cells in table.items():
        count = Counter(verdict for verdict, _ in cells.values())
        lines.append(f"| {backend} | {count['right']} | {count['wrong']} | {count['error']} |")
    return lines


def listing(cells: Cells, others: Cells, *verdicts: str, other: str = "slipstream") -> list[str]:
    """The cells with these verdicts, those that behave alike in one row."""
    reasons: dict[tuple[str, str], list[Key]] = {}
    for key, (verdict, why) in cells.items():
        if verdict in verdicts and key in others:
            reasons.setdefault((why if verdict == "error" else f"wrong {why}", others[key][0]), []).append(
                key
            )
    if not reasons:
        return ["Nowhere."]
    lines = [f"| what happens | operations | layouts | types | {other} |", "|---|---|---|---|---|"]
    for (why, verdict), keys in sorted(reasons.items(), key=lambda item: -len(item[1])):
        for operations, (layouts, types) in rows(keys, cells):
            lines.append(f"| {why} | {operations} | {layouts} | {types} | {verdict} |")
    return lines


def rows(keys: Sequence[Key], cells: Iterable[Key]) -> list[tuple[str, tuple[str, str]]]:
    """(operations, (layouts, types)): cells as few rectangles, operations of the same shape in one."""
    everything: dict[tuple[str, str], list[str]] = {}
    for operation, dtype, layout in cells:
        everything.setdefault((operation, layout), []).append(dtype)
    chosen: dict[tuple[str, str], list[str]] = {}
    for operation, dtype, layout in keys:
        chosen.setdefault((operation, layout), []).append(dtype)
    shapes: dict[str, dict[str, list[str]]] = {}  # operation: types: layouts
    for (operation, layout), types in chosen.items():
        text = name_types(types, everything[operation, layout])
        shapes.setdefault(operation, {}).setdefault(text, []).append(layout)
    alike: dict[tuple[str, str], list[str]] = {}
    for operation, parts in shapes.items():
        for types_text, layouts in parts.items():
            alike.setdefault((", ".join(layouts), types_text), []).append(operation)
    return [("; ".join(join_reductions(operations)), shape) for shape, operations in alike.items()]


def name_types(types: Sequence[str], among: Sequence[str]) -> str:
    """Some types in a few words."""
    missing = [dtype for dtype in among if dtype not in types]
    if not missing:
        return "all" if types[0] != NONE else NONE
    if len(types) <= FEW or len(missing) > FEW:
        return " ".join(types)
    return f"all but {' '.join(missing)}"


def join_reductions(operations: Sequence[str]) -> list[str]:
    """ "all_reduce SUM", "all_reduce MAX" as "all_reduce SUM MAX"."""
    joined: dict[str, list[str]] = {}
    for operation in operations:
        name, _, op = operation.rpartition(" ")
        joined.setdefault(name if op.isupper() else operation, []).extend([op] if op.isupper() else [])
    return [" ".join([name, *ops]) for name, ops in joined.items()]


def grid(table: dict[str, Cells], layout: str) -> list[str]:
    """Operations against types, for one layout."""
    keys = [key for key in table["slipstream"] if key[2] == layout]
    types = list(dict.fromkeys(dtype for _, dtype, _ in table["slipstream"] if dtype != NONE))
    lines = [f"| operation | {' | '.join(types)} |", "|---|" + ":-:|" * len(types)]
    for operation in dict.fromkeys(operation for operation, _, _ in keys):
        marks = [
            " ".join(MARKS[cells[key][0]] for cells in (table["gloo"], table["slipstream"]) if key in cells)
            for key in ((operation, dtype, layout) for dtype in types)
        ]
        lines.append(f"| {operation} | {' | '.join(marks)} |")
    return lines
