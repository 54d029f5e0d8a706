"""One collective, measured at several sizes: what ``slipstream bench`` does with the name of a collective.

`catalogue` says what each collective is. `command` is what the parent process does; `rank` and `meter` measure, with
the peers of `contenders` and the `values` that they exchange. `summary` is pure arithmetic on what was measured;
`report` and `plot` show it.
"""
