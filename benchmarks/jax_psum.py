"""`psum` of an unmodified JAX program on two processes: slipstream by MPItrampoline beside JAX's own gloo.

    python benchmarks/jax_psum.py [--np 2] [--devices 1] [--sizes 4096,16777216] [--rounds 3] [--json FILE|-]
    python benchmarks/jax_psum.py --np 4 --rate 500mbit --reducers 4  # each process on a host of a lab; needs root

``--sizes``: bytes of float32 that each device has. ``--devices``: in each process. Jobs of both take turns; a time is
the slowest process's median of one job, behind its first calls, which take new memory. The table has the median of the
rounds. Every timed batch's result is checked. ``--reducers``: additional hosts of the lab; gloo cannot use them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from slipstream.bench.record import head, write
from slipstream.bench.table import grid
from slipstream.lab import Lab

WAYS = {"gloo": "gloo", "slipstream": "mpi"}
_CALLS = {4096: 300, 16 << 20: 100}
_MARK = "jax_psum: "


def rank_main(sizes: list[int]) -> None:
    """What each process of a job does: prints one line of JSON, seconds by size."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import NamedSharding, PartitionSpec

    jax.distributed.initialize()
    mesh, here = jax.make_mesh((jax.device_count(),), ("i",)), jax.local_device_count()
    spread, everywhere = PartitionSpec("i"), PartitionSpec()
    mapped = jax.shard_map(lambda x: jax.lax.psum(x, "i"), mesh=mesh, in_specs=spread, out_specs=everywhere)
    total = jax.jit(mapped)
    medians = {}
    for nbytes in sizes:
        mine = np.full(nbytes // 4 * here, 1.0 + jax.process_index(), np.float32)
        placed = jax.make_array_from_process_local_data(NamedSharding(mesh, spread), mine)
        calls = _CALLS.get(nbytes, 50)
        times = []
        for _ in range(calls + calls // 5 + 3):
            begun = time.perf_counter()
            summed = total(placed).block_until_ready()
            times.append(time.perf_counter() - begun)
        assert float(jnp.min(summed.addressable_data(0))) == here * sum(range(1, jax.process_count() + 1))
        medians[nbytes] = statistics.median(times[-calls:])
    print(_MARK + json.dumps(medians), flush=True)


def job(way: str, ranks: int, devices: int, sizes: list[int], lab: Lab | None = None) -> dict[int, float]:
    """Seconds by size, of the slowest process."""
    given = ",".join(map(str, sizes))
    launch = [sys.executable, "-m", "slipstream", "run", "-np", str(ranks), "--no-prefix"]
    if lab is not None and way == "slipstream" and any(host.reducer for host in lab.spec.hosts):
        launch += ["--reducers", "auto"]
    command = [*launch, "--", sys.executable, __file__, "--rank", "--sizes", given]
    chosen = {"JAX_CPU_COLLECTIVES_IMPLEMENTATION": WAYS[way], "JAX_PLATFORMS": "cpu"}
    chosen["JAX_NUM_CPU_DEVICES"] = str(devices)
    settings: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True, "timeout": 150, "check": True}
    if lab is None:
        ended = subprocess.run(command, env={**os.environ, **chosen}, **settings)
    else:
        ended = lab.run(lab.spec.hosts[0].name, command, env=chosen, **settings)
    lines = [line.partition(_MARK)[2] for line in ended.stdout.splitlines() if _MARK in line]
    told = [{int(size): seconds for size, seconds in json.loads(line).items()} for line in lines]
    assert len(told) == ranks
    return {size: max(one[size] for one in told) for size in sizes}


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--np", type=int, default=2)
    parser.add_argument("--devices", type=int, default=1, help="CPU devices in each process")
    parser.add_argument("--sizes", default="4096,65536,1048576,16777216")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--rate", help="each process gets a host of a lab with a link of this rate, such as 500mbit"
    )
    parser.add_argument("--reducers", type=int, default=0, help="hosts of the lab beside them that reduce")
    parser.add_argument("--json", help="a file for the raw samples, or -")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    if args.rank:
        rank_main(sizes)
        return
    samples: dict[str, list[dict[int, float]]] = {way: [] for way in WAYS}
    if args.reducers and not args.rate:
        parser.error("--reducers needs a lab: give --rate, too")
    made = Lab(args.np, rate=args.rate, reducers=args.reducers) if args.rate else contextlib.nullcontext()
    with made as lab:
        for _ in range(args.rounds):
            for way in WAYS:
                samples[way].append(job(way, args.np, args.devices, sizes, lab))
    rows = []
    for size in sizes:
        gloo, ours = (statistics.median(one[size] for one in samples[way]) for way in WAYS)
        rows.append([f"{size}", f"{gloo * 1e6:.0f}", f"{ours * 1e6:.0f}", f"{gloo / ours:.1f}"])
    print(grid(["bytes", "gloo us", "slipstream us", "gloo / slipstream"], rows))
    if args.json:
        raw = {way: [{str(size): one[size] for size in sizes} for one in samples[way]] for way in WAYS}
        write(
            {
                **head("jax_psum"),
                "np": args.np,
                "devices": args.devices,
                "rate": args.rate,
                "reducers": args.reducers,
                "seconds": raw,
            },
            args.json,
        )


if __name__ == "__main__":
    main()
