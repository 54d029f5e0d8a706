"""Horovod's operations on NumPy arrays: what the faces of frameworks stand on whose tensors show their memory so.

Nothing here imports a framework. No operation writes to what it is given; results are new arrays.
"""
