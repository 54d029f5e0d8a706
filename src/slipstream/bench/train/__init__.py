"""A training step, measured end to end: ``slipstream bench train``.

`catalogue` says how long real steps take, `models` what they train. `delay` replaces compute by a delay and
`pattern` makes its gradients; `workloads` makes either kind of compute ready to run, `contenders` exchange the
gradients, and `rank` measures them. `command` is what the parent process does; `summary` is pure arithmetic on what
was measured; `report` and `plot` show it.
"""
