"""From samples to rows, and from rows to what people read."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from slipstream.bench import page, table
from slipstream.bench.collective.command import kind_name, save, wrong_results
from slipstream.bench.collective.plot import bandwidth_lines, draw, limit_line
from slipstream.bench.collective.report import report
from slipstream.bench.collective.summary import contender_row, limit_seconds, memory_rates, summarise_size
from slipstream.bench.plot import check_plot
from slipstream.bench.samples import ratio
from slipstream.bench.view import showing

MIB = 1 << 20
JOB = {"collective": "all_reduce", "hosts": [0, 1], "root": None, "link_rate": 1e9, "memory": None}


def _found(*ranks: list[float], wrong: int = 0) -> dict[str, Any]:
    return {"seconds": list(ranks), "wrong": wrong, "first_wrong": "rank 1: element 3" if wrong else ""}


def record(**changes: Any) -> dict[str, Any]:
    """A record of two sizes: slipstream, one peer, one that cannot."""
    machine = {"cpu": "Some(R) CPU @ 2 GHz", "cores": 2, "memory_gib": 4, "kernel": "6", "load_1min": 0.0}
    base: dict[str, Any] = {"benchmark": "collective", "collective": "all_reduce", "date": "2026-01-02"}
    base |= {"ranks": 2, "dtype": "float32", "op": "sum", "root": None, "in_place": True, "repeats": 3}
    base |= {"warmup": 1, "transport": "auto", "lanes": None, "link_rate": 1e9, "lab": None, "hosts": [0, 1]}
    base |= {"machine": machine, "versions": {"python": "3"}, "missing": {"mpi": "mpirun not found"}}
    base |= {"contenders": ["slipstream", "gloo", "nccl"]}
    base |= {"peers": ["gloo", "nccl"], "memories": {"nccl": "of the GPU"}, "memory": None, "idle_cpu": None}
    base |= changes
    found = {"slipstream": _found([1.0, 2.0, 1.0], [1.0, 1.0, 3.0]), "gloo": _found([6.0] * 3, [2.0] * 3)}
    found["nccl"] = {"unsupported": "no GPU today"}
    sizes = [{"bytes": n, "count": n // 4, "calls": 2, "contenders": found} for n in (4096, 8 * MIB)]
    return base | {"sizes": [summarise_size(size, base) for size in sizes]}


def test_a_repeat_lasts_as_long_as_its_slowest_rank() -> None:
    row = record()["sizes"][0]["contenders"]["slipstream"]
    assert row["samples"] == [1.0, 2.0, 3.0]
    assert (row["median"], row["min"], row["p90"]) == (2.0, 1.0, 3.0)
    assert row["ratio"]["gloo"] == {"value": 3.0, "low": 2.5, "high": 4.5}
    assert set(row["ratio"]) == {"gloo"}
    assert "ratio" not in record()["sizes"][0]["contenders"]["gloo"]


def test_the_choice_is_compared_with_the_fastest_algorithm() -> None:
    found = {"slipstream": _found([4.0] * 3), "slipstream/ring": _found([8.0] * 3)}
    found |= {"slipstream/tree": _found([3.0] * 3), "slipstream/direct": {"unsupported": "not for 2"}}
    found["gloo"] = _found([1.0] * 3)
    size = {"bytes": 4096, "count": 1024, "calls": 2, "contenders": found}
    rows = summarise_size(size, JOB)["contenders"]
    assert rows["slipstream"]["ratio"]["fastest"]["value"] == 0.75
    assert set(rows["slipstream/ring"]["ratio"]) == {"gloo"}


def test_bandwidths() -> None:
    row = contender_row([2.0, 1.0, 4.0], "all_reduce", 1000, 4)
    assert (row["algbw"], row["busbw"]) == (500.0, 750.0)
    barrier = contender_row([2.0], "barrier", 0, 4)
    assert (barrier["algbw"], barrier["busbw"]) == (None, None)


def test_spread_of_a_single_repeat_is_none() -> None:
    assert ratio([6.0], [2.0]) == {"value": 3.0, "low": 3.0, "high": 3.0}


def test_rates_of_memory_are_those_of_the_slowest_rank() -> None:
    fast = {"bytes": 10**9, "copy": [0.2, 0.1, 0.3], "add": [0.1, 0.2, 0.2]}
    slow = fast | {"copy": [0.1, 0.4, 0.5]}  # with the other rank: 0.2, 0.4, 0.5
    assert memory_rates([fast, slow]) == pytest.approx({"copy": 5e9, "add": 10e9, "traffic": 30e9})


def test_limits() -> None:
    one, two = [0, 0], [0, 1]
    memory = limit_seconds("all_reduce", 8 * MIB, one, 0, link_rate=1e9, traffic=4e9)
    assert memory == {"seconds": pytest.approx(4 * 8 * MIB / 4e9), "of": "memory"}
    assert limit_seconds("all_reduce", 4096, one, 0, link_rate=1e9, traffic=4e9) is None  # caches decide
    assert limit_seconds("all_reduce", 8 * MIB, one, 0, link_rate=1e9, traffic=None) is None
    network = limit_seconds("all_reduce", 4096, two, 0, link_rate=1e9, traffic=4e9)
    assert network == {"seconds": pytest.approx(8 * 4096 / 1e9), "of": "network"}
    assert limit_seconds("all_reduce", 4096, two, 0, link_rate=None, traffic=4e9) is None


def test_rows_have_a_cell_for_each_column() -> None:
    one = record()
    shown = report(one)
    head = shown.head
    ours, gloo, nccl = shown.lines[:3]
    assert len(ours) == len(gloo) == len(head) == len(shown.sizes())
    cells = dict(zip(head, ours, strict=True))
    assert (cells["contender"], cells["median"], cells["#wrong"]) == ("slipstream", "2.00 s", "0")
    assert cells["vs gloo"] == "3.00x [2.50-4.50]"
    assert cells["limit"] == "32.8 us"
    assert nccl[-1] == "unsupported: no GPU today"


def test_narrow_terminals_lose_what_matters_least() -> None:
    head, lines = ["count", "contender", "min", "median"], [["12345", "slipstream", "1.0", "123.4 us"]]
    dispensable = ["count", "min"]
    wide = table.fitting(head, lines, 34, 2, dispensable)
    assert [head[at] for at in wide] == head
    assert [head[at] for at in table.fitting(head, lines, 33, 2, dispensable)] == [
        "contender",
        "min",
        "median",
    ]
    lines.append(["12345", "nccl", "unsupported: a long story"])
    assert table.fitting(head, lines, 34, 2, dispensable) == wide
    assert [head[at] for at in table.fitting(head, lines, 5, 2, dispensable)] == ["contender", "median"]


@pytest.mark.parametrize(("of", "text"), [("memory", "200 % (cached)"), ("network", "200 % (burst)")])
def test_more_than_the_limit_is_explained(of: str, text: str) -> None:
    one = record()
    one["sizes"][0]["limit"] = {"seconds": 4.0, "of": of}
    assert report(one).lines[0][-1] == text


def test_wrong_results_are_named_and_not_saved(tmp_path: Path) -> None:
    one = record()
    assert wrong_results(one) == []
    one["sizes"][1]["contenders"]["gloo"]["wrong"] = 7
    one["sizes"][1]["contenders"]["gloo"]["first_wrong"] = "rank 1: element 3"
    (text,) = wrong_results(one)
    assert text.startswith("gloo, 8388608 B: 7 wrong elements")
    assert "rank 1: element 3" in text
    with pytest.raises(ValueError, match="not saved"):
        save(one, tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_saved_records_are_dated_and_named(tmp_path: Path) -> None:
    path = save(record(), tmp_path / "results")
    assert path.name == "2026-01-02-all_reduce-np2-2-core-some.json"
    assert json.loads(path.read_text()) == record()
    assert kind_name(record(lab="lab-1")) == "all_reduce-np2-lab"
    assert kind_name(record(transport="tcp", hosts=[0, 0])) == "all_reduce-np2-tcp"


def test_a_page_shows_saved_records(tmp_path: Path) -> None:
    path, document = save(record(), tmp_path), tmp_path / "page.md"
    document.write_text("before\n<!-- here: begin -->\nold\n<!-- here: end -->\nafter\n")
    assert page.main([str(document), "here", str(path), str(path)]) == 0
    once = document.read_text()
    assert once.startswith("before\n<!-- here: begin -->\nall_reduce, 2 ranks on 2 hosts, in place")
    assert once.endswith("<!-- here: end -->\nafter\n")
    assert "old" not in once
    assert once.count("| 4 KiB ") == 2
    assert "missing: mpi (mpirun not found)." in once
    assert page.main([str(document), "here", str(path), str(path)]) == 0
    assert document.read_text() == once
    assert page.main([str(document)]) == 2
    with pytest.raises(ValueError, match="lacks"):
        page.replace_between("no marks", "here", "text")
    with pytest.raises(ValueError, match="not of collective or train"):
        page.render([record(benchmark="ddp")])


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [io.StringIO, _Terminal])
def test_rows_are_shown_as_they_come(kind: type[io.StringIO], monkeypatch: pytest.MonkeyPatch) -> None:
    if kind is _Terminal:
        pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("TERM", "xterm")
    whole, out = record(), kind()
    partial = whole | {"sizes": []}
    with showing(out) as show:
        show(report(partial))
        assert "busbw" in out.getvalue()
        for size in whole["sizes"]:
            assert str(size["bytes"]) not in out.getvalue()
            partial["sizes"].append(size)
            show(report(partial))
            assert str(size["bytes"]) in out.getvalue()
    assert "missing: mpi (mpirun not found)" in out.getvalue()
    assert "unsupported: no GPU" in out.getvalue()


@pytest.mark.parametrize("kind", [io.StringIO, _Terminal])
@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("peers", [["gloo"], ["gloo", "nccl"], ["gloo", "mpi", "nccl", "slipstream-shared"]])
def test_no_line_is_wider_than_the_terminal(
    kind: type[io.StringIO], width: int, peers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind is _Terminal:
        pytest.importorskip("rich")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("TERM", "xterm")
    whole, out = record(peers=peers, collective="reduce_scatter", root=0), kind()
    with showing(out) as show:
        for count in (0, 1, 2):
            show(report(whole | {"sizes": whole["sizes"][:count]}))
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    assert max(map(len, text.splitlines())) <= width
    for name in report(whole).head:  # as words: no cell was folded
        assert name in text
    for cell in report(whole).lines[0]:
        assert cell in text


def test_a_pipe_gets_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    whole, out = record(peers=["gloo", "mpi", "nccl"], collective="reduce_scatter", root=0), io.StringIO()
    with showing(out) as show:
        show(report(whole))
    (head,) = [line for line in out.getvalue().splitlines() if "contender" in line]
    assert all(name in head for name in report(whole).head)


def test_further_tables_have_the_columns_that_do_not_fit() -> None:
    whole = report(record())
    first, *further = whole.tables(80)
    assert further
    assert all(table.head[:2] == ["size (B)", "contender"] for table in further)
    shown = [name for table in (first, *further) for name in table.head]
    assert set(shown) == set(whole.head)
    assert all(table.width() <= 80 for table in (first, *further))
    # What is measured alone has figures there, in the order of the first table.
    assert [line[:2] for line in further[0].lines] == [
        ["4096", "slipstream"],
        ["4096", "gloo"],
        ["8388608", "slipstream"],
        ["8388608", "gloo"],
    ]
    assert whole.tables(300) == [whole]


@pytest.mark.parametrize("width", range(80, 200, 6))
def test_only_ratios_without_their_quartiles_are_shown_again(width: int) -> None:
    first, *further = report(record()).tables(width)
    again = {name for table in further for name in table.head} & set(first.head)
    brief = not any("[" in cell for line in first.lines for cell in line)
    ratios = {name for name in first.head if name.startswith("vs ")}
    assert again - {"size (B)", "contender"} == (ratios if brief else set())


def test_lines_of_the_plot() -> None:
    lines = bandwidth_lines(record())
    assert set(lines) == {"slipstream", "gloo"}
    assert lines["slipstream"]["x"] == [4096, 8 * MIB]
    assert lines["slipstream"]["y"][0] == pytest.approx(4096 / 2.0 / 1e9)
    assert lines["slipstream"]["low"][0] == pytest.approx(4096 / 2.5 / 1e9)
    assert lines["slipstream"]["high"][0] == pytest.approx(4096 / 1.5 / 1e9)
    assert limit_line(record())["y"] == pytest.approx([1e9 / 8 / 1e9] * 2)


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_plots(tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot{suffix}"
    draw(record(), path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    if suffix == ".svg":
        draw(record(), tmp_path / "again.svg")
        assert (tmp_path / "again.svg").read_bytes() == data


def test_a_plot_needs_a_format_that_is_known() -> None:
    with pytest.raises(ValueError, match=r"\.svg or \.png"):
        check_plot(Path("plot.pdf"))
