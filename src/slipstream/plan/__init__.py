"""What to send where: pure functions from (rank, size, topology) to the steps of one rank.

``steps`` defines plans, ``registry`` builds them by name, ``choose`` picks one by a cost model; ``simulate``,
``order`` and ``predict`` run, prove and time the plans of all ranks in memory.
"""
