"""The names of Horovod, for programs that say ``import horovod.torch as hvd``.

`on_path` holds the package ``horovod`` that Python finds; `modules` lists the modules that it has, `importing` makes
them. Only `slipstream run --horovod`, and the distribution slipstream-horovod, put it where Python looks.
"""
