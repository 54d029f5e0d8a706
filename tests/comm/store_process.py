"""Serves a job's store until standard input ends: store_process.py ADDRESS, the secret in SLIPSTREAM_SECRET."""

from __future__ import annotations

import os
import sys

from slipstream.comm.rendezvous.store_server import StoreServer

server = StoreServer(sys.argv[1], bytes.fromhex(os.environ["SLIPSTREAM_SECRET"]), "job")
print("{}:{}".format(*server.address[:2]), flush=True)
sys.stdin.read()
server.close()
