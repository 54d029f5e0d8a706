"""A script as users write them for gloo; nothing in it knows slipstream. Prints what served it, as JSON."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist


def served_by(group: Any = None) -> str:
    """The class behind a group, after it has shown that it works."""
    total = torch.tensor([float(dist.get_rank(group) + 1)])
    dist.all_reduce(total, group=group)
    size = dist.get_world_size(group)
    assert total.item() == size * (size + 1) / 2
    return type(group or dist.group.WORLD).__name__


def barriers() -> str:
    """monitored_barrier, which PyTorch allows for gloo alone; the second one waits for a rank that does not come."""
    dist.monitored_barrier(timeout=timedelta(seconds=30))
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.get("named")
        store.set("heard", "yes")
        return ""
    try:
        dist.monitored_barrier(timeout=timedelta(seconds=1))
    except RuntimeError as error:
        return str(error)
    finally:
        store.set("named", "yes")
        store.get("heard")  # the store is in this process, which must not end before
    return "no error"


def main() -> None:
    """Makes groups in the ways there are, one after the other."""
    folder, rank, size = sys.argv[1], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    found: dict[str, object] = {}
    for number, name in enumerate(["gloo", "cpu:gloo", None, "slipstream"]):
        if number == 0:
            dist.init_process_group("gloo")  # env://, as under any launcher
            found["size"] = dist.get_world_size()
        else:
            dist.init_process_group(name, init_method=f"file://{folder}/{number}", rank=rank, world_size=size)
        found[str(name)] = served_by()
        found[f"{name} says"] = dist.get_backend()
        found[f"{name}, new group"] = served_by(dist.new_group())
        found[f"{name}, new gloo group"] = served_by(dist.new_group(backend="gloo"))
        if number == 0:
            found["mesh"] = served_by(dist.init_device_mesh("cpu", (size,)).get_group())
            found["barrier"] = barriers()
        dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
