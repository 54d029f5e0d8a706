"""The page that `horovod_suite.py` writes: how many of Horovod's tests pass, and why the others do not, as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from horovod_job import BAD, VERDICTS, Result

__all__ = ["INTRO", "MXNET", "TENSORFLOW", "page"]

INTRO = """\
# Horovod's tests on slipstream

`python tests/conformance/horovod_suite.py CHECKOUT --page` runs Horovod's own tests of its PyTorch API on slipstream,
and wrote this page. CHECKOUT is a source tree of Horovod: nothing of it is part of slipstream. The tables show a run of
{date} with Horovod's commit {horovod}, slipstream {slipstream}, PyTorch {torch} and Python {python}, on CPUs, with
`{launch}`.

Each file of tests runs as one job, as a user of Horovod would run it; those of `single` run on one rank. A test
**failed** if it failed on any rank; it **hung** if no rank went on within its time, which ends the job; it **died** if
a rank ended in it. Those behind such a test run in another job. Each test that did not pass runs again, **alone** in
a job: what passes there follows from an earlier failure. Tests that `horovod_exceptions.json` marks "apart" run
only so.

Horovod itself, built on the same PyTorch, passes 102 tests of `test_torch.py` on 2 ranks, fails 3, and skips 10. The
3 make an optimizer of every class in `torch.optim`, and `Muon` refuses their models.

Stand-ins: the tests of process sets are written for TensorFlow and use nothing of it: they get `horovod.torch`. The
tests of Adasum ask for MPI and GPUs: they run on the CPU. `unittest.mock` serves as `mock`.
"""

TENSORFLOW = """\
# Horovod's tests of TensorFlow on slipstream

`python tests/conformance/horovod_tensorflow_suite.py CHECKOUT --page` runs Horovod's own tests of its TensorFlow and
Keras APIs on slipstream, and wrote this page. CHECKOUT is a source tree of Horovod: nothing of it is part of
slipstream. The tables show a run of {date} with Horovod's commit {horovod}, slipstream {slipstream}, TensorFlow
{tensorflow-cpu}, tf_keras {tf-keras} and Python {python}, on CPUs, with `{launch}`.

Most tests run twice, in a session of TensorFlow 1 and eagerly: one **passed** if it passed in one of them and was
skipped in the other at most. Those that ask for GPUs are skipped. Otherwise the words mean what they do on
[Horovod's tests](horovod_tests.md) of PyTorch. **Bad alone** are those that do not pass in a job of their own either.

The tests are written for Keras 2: they run with `TF_USE_LEGACY_KERAS=1` ([legacy Keras](keras.md#legacy-keras)).

Stand-ins: the test of Adasum asks for MPI; here it runs without it.
"""

MXNET = """\
# Horovod's tests of MXNet on slipstream

`python tests/conformance/horovod_mxnet_suite.py CHECKOUT --page` runs Horovod's own tests of its MXNet API on
slipstream, and wrote this page. CHECKOUT is a source tree of Horovod: nothing of it is part of slipstream. The tables
show a run of {date} with Horovod's commit {horovod}, slipstream {slipstream}, MXNet {mxnet}, NumPy {numpy} and Python
{python}, on CPUs, with `{launch}`.

Those that ask for GPUs are skipped, and those for MXNet 2, which has no release. Otherwise the words mean what they do
on [Horovod's tests](horovod_tests.md) of PyTorch. **Bad alone** are those that do not pass in a job of their own
either.

The tests import MXNet before Horovod: `horovod.mxnet` is imported before them, for MXNet's sake
([MXNet](mxnet.md#install)).
"""


def page(
    results: Mapping[int, Mapping[str, Mapping[str, Mapping[str, Result]]]],
    ran: Mapping[str, str],
    known: Sequence[Mapping[str, Any]],
    intro: str = INTRO,
) -> str:
    """The page, given what ran on each number of ranks, the known exceptions, and what comes before the tables."""
    return "\n".join([intro.format(**ran), *_counts(results), "", *_failures(results, known), ""])


def _counts(results: Mapping[int, Mapping[str, Mapping[str, Mapping[str, Result]]]]) -> list[str]:
    """A row for each file and number of ranks."""
    lines = ["## Counts", "", "| file | ranks | " + " | ".join(VERDICTS) + " | bad alone |"]
    lines.append("|---" * (len(VERDICTS) + 3) + "|")
    files = dict.fromkeys(file for of_ranks in results.values() for file in of_ranks)
    for file in files:
        for ranks, tests in sorted(
            (ranks, of_ranks[file]) for ranks, of_ranks in results.items() if file in of_ranks
        ):
            counts = Counter(test["together"].verdict for test in tests.values())
            alone = sum(test["alone"].verdict in BAD for test in tests.values() if "alone" in test)
            cells = [str(counts[verdict] or "") for verdict in VERDICTS]
            lines.append(f"| `{file}` | {ranks} | {' | '.join(cells)} | {alone or ''} |")
    return lines


def _failures(
    results: Mapping[int, Mapping[str, Mapping[str, Mapping[str, Result]]]],
    known: Sequence[Mapping[str, Any]],
) -> list[str]:
    """A row for each test that did not pass on some number of ranks."""
    rows: dict[tuple[str, str], dict[int, str]] = {}
    for ranks, files in results.items():
        for file, tests in files.items():
            for name, test in tests.items():
                if test["together"].verdict in BAD:
                    told = test["together"].verdict
                    if "alone" in test and test["alone"].verdict != told:
                        told += f" (alone {test['alone'].verdict})"
                    rows.setdefault((file, name), {})[ranks] = told
    lines = ["## What does not pass, and why", ""]
    if not rows:
        return [*lines, "Everything passes or is skipped."]
    lines += ["| test | ranks | why |", "|---|---|---|"]
    for (file, name), where in rows.items():
        reasons = [
            entry["reason"]
            for entry in known
            if (entry["file"], entry["test"]) == (file, name)
            and where.keys() <= set(entry.get("ranks", where))
        ]
        why = reasons[0] if reasons else _why(results, file, name)
        cells = ", ".join(f"{ranks}: {told}" for ranks, told in sorted(where.items()))
        lines.append(f"| `{name.split('::')[-1]}` | {cells} | {why} |")
    return lines


def _why(
    results: Mapping[int, Mapping[str, Mapping[str, Mapping[str, Result]]]], file: str, name: str
) -> str:
    """What the test said, alone where it ran so."""
    for files in results.values():
        test = files.get(file, {}).get(name, {})
        for way in ("alone", "together"):
            if way in test and test[way].verdict in BAD:
                text = test[way].reason.replace("|", "\\|").replace("`", "'")
                return f"`{text}`"
    return ""
