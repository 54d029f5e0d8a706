"""A small GPT that learns to write Python, and its data: what the two text examples have in common.

The text is the source of Python's own standard library, byte by byte: it is on every machine that can run the
examples, and it is the same for everyone who has the same Python. Batches are drawn from a seed and then divided
among the workers, so any number of them sees the same text in the same order.
"""

from __future__ import annotations

import argparse
import json
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

__all__ = ["GPT", "Text", "finish", "load_text", "mean_loss", "parse_args", "train", "validate"]

SYMBOLS = 256
CONTEXT = 64  # bytes the model looks back
TARGET = 1.8  # nats per byte: what 800 steps must reach; a uniform guess is worth ln 256 = 5.55
_TEXT_BYTES = 4_000_000
_VALIDATION_BATCHES = 8


class Block(nn.Module):
    """Causal self-attention, then two linear layers, each added to its input (batch, context, width)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of the shape of ``x``."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """A transformer over bytes, and its loss."""

    def __init__(self, width: int = 96, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, width)
        self.places = nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, SYMBOLS)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """The loss in nats, added up over the CONTEXT last bytes of ``sequences``, int64 (n, CONTEXT + 1)."""
        x, following = sequences[:, :-1], sequences[:, 1:]
        x = self.symbols(x) + self.places.weight
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), following.flatten(), reduction="sum")


@dataclass(frozen=True)
class Text:
    """Bytes (uint8) to learn from, and others to be judged by."""

    training: torch.Tensor
    validation: torch.Tensor

    def batch(self, step: int, size: int) -> torch.Tensor:
        """The ``size`` sequences (size, CONTEXT + 1) of a step, int64, the same on every worker."""
        generator = torch.Generator().manual_seed(step)
        return _windows(self.training, torch.randint(_starts(self.training), (size,), generator=generator))

    def validation_batches(self, size: int) -> tuple[torch.Tensor, ...]:
        """Sequences spread evenly over the validation text, in batches of ``size``."""
        starts = torch.linspace(0, _starts(self.validation) - 1, _VALIDATION_BATCHES * size).long()
        return _windows(self.validation, starts).split(size)


def _starts(text: torch.Tensor) -> int:
    return len(text) - CONTEXT


def _windows(text: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    return text[starts[:, None] + torch.arange(CONTEXT + 1)].long()


def load_text() -> Text:
    """The modules of the standard library in the order of their names; the last tenth is for validation."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    # Python's own list, since distributions and virtual environments put other files beside the library.
    files = [folder / f"{name}.py" for name in sorted(sys.stdlib_module_names)]
    source = b"".join(file.read_bytes() for file in files if file.is_file())[:_TEXT_BYTES]
    data = torch.frombuffer(bytearray(source), dtype=torch.uint8)
    cut = len(data) * 9 // 10
    return Text(data[:cut], data[cut:])


def mean_loss(model: nn.Module, sequences: torch.Tensor) -> torch.Tensor:
    """This worker's part of the mean loss (nats per byte) of ``sequences``: those of all workers add up to it.

    Every worker takes its share of the sequences, some one more than others.
    """
    mine = sequences[dist.get_rank() :: dist.get_world_size()]
    return model(mine) / (len(sequences) * CONTEXT)


def train(model: nn.Module, text: Text, steps: int, batch_size: int, lr: float) -> list[float]:
    """Trains ``model``, whose wrapper averages the gradients of all workers; the mean loss of every step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    losses = torch.zeros(steps)
    bar = tqdm(range(steps), unit="step", disable=dist.get_rank() != 0)
    for step in bar:
        optimizer.zero_grad()
        loss = mean_loss(model, text.batch(step, batch_size))
        # Wrappers average gradients; what adds up to the mean loss wants its gradients added up.
        (loss * dist.get_world_size()).backward()
        optimizer.step()
        losses[step] = loss.detach()
        if step % 20 == 0:
            bar.set_postfix(loss=f"{loss.item() * dist.get_world_size():.3f}")
    dist.all_reduce(losses)
    return losses.tolist()


@torch.no_grad()
def validate(model: nn.Module, text: Text, batch_size: int) -> float:
    """The mean loss on the validation text, the same number on every worker."""
    batches = text.validation_batches(batch_size)
    loss = torch.stack([mean_loss(model, batch) for batch in batches]).mean()
    dist.all_reduce(loss)
    return loss.item()


def parse_args(description: str) -> argparse.Namespace:
    """The command line of both examples."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backend", default="slipstream", help="slipstream, or gloo to compare with")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--batch-size", type=int, default=32, help="sequences per step, over all workers")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--target", type=float, default=TARGET, help="validation loss that must be reached")
    parser.add_argument("--json", type=Path, help="write the loss of every step and of the validation there")
    return parser.parse_args()


def finish(losses: list[float], validation: float, options: argparse.Namespace) -> int:
    """Reports on worker 0; the exit code, 1 if the target was missed."""
    reached = validation <= options.target
    if dist.get_rank() == 0:
        if options.json:
            options.json.write_text(json.dumps({"losses": losses, "validation": validation}))
        verdict = "reached" if reached else "NOT reached"
        print(
            f"validation loss: {validation:.4f} nats per byte, target {options.target:g} {verdict}",
            flush=True,
        )
    return 0 if reached else 1
