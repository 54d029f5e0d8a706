"""One of two ranks: rank 1 drops its optimizer and joins, rank 0 takes another step.

"other": rank 1 joins before its first step; afterwards it makes an optimizer of other parameters than rank 0 has.
"order": rank 1 joins before its first step; later the ranks step two optimizers in different orders.
"""

import sys
from typing import Any

import torch

import slipstream.torch as hvd

hvd.init()


def made(size: int) -> tuple[Any, Any]:
    weight = torch.nn.Parameter(torch.zeros(size))
    return weight, hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0))


def step(weight: Any, optimizer: Any) -> None:
    weight.sum().backward()
    optimizer.step()


def drop() -> None:
    one = made(8)
    step(*one)
    if hvd.rank() == 1:
        del one
        hvd.join()
    else:
        step(*one)


def other() -> None:
    if hvd.rank() == 1:
        hvd.join()
        step(*made(5))
    else:
        one = made(8)
        step(*one)
        hvd.join()
        step(*one)


def order() -> None:
    if hvd.rank() == 1:
        hvd.join()
    both = made(8), made(8)
    for one in both:
        step(*one)
    if hvd.rank() == 0:
        hvd.join()
        for one in both:
            step(*one)
    step(*both[hvd.rank()])


try:
    {"other": other, "order": order}.get("".join(sys.argv[1:]), drop)()
except hvd.HorovodInternalError as error:
    print(error)
