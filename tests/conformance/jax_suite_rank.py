"""A process of `jax_suite`: runs one file of JAX's multi-process tests, as JAX's own runner starts it.

    slipstream run -np 2 -- python tests/conformance/jax_suite_rank.py FILE FOLDER

The results go to FOLDER/RANK.xml.
"""

from __future__ import annotations

import os
import runpy
import sys


def main() -> None:
    """Gives the file the flags that JAX's runner gives."""
    file, folder = sys.argv[1:]
    rank, size = os.environ["SLIPSTREAM_RANK"], os.environ["SLIPSTREAM_SIZE"]
    sys.argv = [
        file,
        f"--num_processes={size}",
        f"--multiprocess_test_worker_id={rank}",
        f"--multiprocess_test_controller_address={os.environ['SLIPSTREAM_JAX_COORDINATOR']}",
        "--heartbeat_timeout=20",
        "--shutdown_timeout=30",
        "--barrier_timeout=30",
        "--initialization_timeout=60",
        f"--xml_output_file={folder}/{rank}.xml",
    ]
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    runpy.run_path(file, run_name="__main__")


if __name__ == "__main__":
    main()
