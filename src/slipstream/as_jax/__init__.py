"""What lets JAX programs that know nothing of slipstream run on it.

`on_path` is a folder that `slipstream run` puts where Python looks first: Python imports its `sitecustomize` as it
starts. `cluster` tells ``jax.distributed.initialize()`` the place of the process, `float16` has such arrays travel,
`memory` has arrays in memory that the process keeps, and `ending` lets processes end without those that were lost.
"""
