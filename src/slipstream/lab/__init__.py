"""A cluster on one machine: hosts are namespaces, their links are shaped to any rate. Linux, root.

    from slipstream.lab import Lab

    with Lab(hosts=4, rate="500mbit") as lab:
        lab.run("h1", ["slipstream", "run", "-np", "4", "--", "python", "train.py"])

``slipstream lab`` is the same for the command line.
"""

from slipstream.lab.errors import LabError
from slipstream.lab.lab import Lab
from slipstream.lab.spec import Event, HostSpec, Spec

__all__ = ["Event", "HostSpec", "Lab", "LabError", "Spec"]
