"""How long a training step takes on a GPU: one published figure per model.

They are the defaults of ``--compute-time``: what one rank computes between two exchanges. Sources:

- resnet50, bert-base: github.com/lambdal/deeplearning-benchmark, pytorch/csv_v1_v2, "LambdaCloud V100 16GB", float32:
  369 images/s in batches of 128; 42 sequences/s of 384 tokens in batches of 24 (SQuAD).
- vgg16: github.com/u39kun/deep-learning-benchmark, V100 16 GB, float32, PyTorch: 83.5 ms for forward and backward of a
  batch of 16.
- gpt-small: github.com/karpathy/nanoGPT, issue 110: 562 ms for five micro-batches of 12 sequences of 1024 tokens
  (config/train_gpt2.py) on each of eight A100 40 GB, compiled; the little that their NVLink takes is in it.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FIGURES", "Figure"]


@dataclass(frozen=True)
class Figure:
    """Seconds that ``gpu`` needs for one step on ``batch`` samples."""

    seconds: float
    batch: int
    gpu: str


FIGURES = {
    "resnet50": Figure(128 / 369, 128, "V100, float32"),
    "vgg16": Figure(0.0835, 16, "V100, float32"),
    "bert-base": Figure(24 / 42, 24, "V100, float32"),
    "gpt-small": Figure(0.562 / 5, 12, "A100, compiled"),
    "tiny": Figure(0.01, 4, "machine that tests imagine"),
}
