"""A rank of a Horovod script: horovod_timeline_rank.py [FILE of a timeline that it begins itself]."""

from __future__ import annotations

import sys

import torch

import slipstream.torch as hvd

hvd.init()
if len(sys.argv) > 1:
    hvd.start_timeline(sys.argv[1], mark_cycles=True)
hvd.allreduce(torch.ones(3), name="loss")
if len(sys.argv) > 1:
    hvd.stop_timeline()
hvd.shutdown()
