"""Runs Horovod's own tests of its MXNet API on slipstream: `horovod_suite.py` with other files.

CHECKOUT is a source tree of Horovod. MXNet 1.9 must be installed, as `make test-mxnet` does it in `.venv-mxnet`.
"""

from __future__ import annotations

import horovod_page
from horovod_suite import DOCS, HERE, Suite, command

MXNET = Suite(
    name="horovod_mxnet_suite.py",
    api="MXNet",
    files=("parallel/test_mxnet*.py",),
    exceptions=HERE / "horovod_mxnet_exceptions.json",
    page=DOCS / "horovod_mxnet_tests.md",
    intro=horovod_page.MXNET,
    packages=["mxnet", "numpy"],
)

if __name__ == "__main__":
    command(MXNET)()
