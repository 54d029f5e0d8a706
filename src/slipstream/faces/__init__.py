"""Faces: each adapts one framework's tensors and lifecycle to `slipstream.comm`, and nothing else."""
