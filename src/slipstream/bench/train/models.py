"""The models: parameters of the published shapes, in the published order, so that buckets are the real ones.

A model is made by a function without arguments; it returns a module and a function from the batch size to the tuple
of its inputs. The module returns one tensor; the loss is its mean. Users' own models are given in the same way:
``--model package.module:function``.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["MODELS", "Inputs", "Model", "bert_base", "gpt_small", "make", "resnet50", "tiny", "vgg16"]

Inputs = Callable[[int], tuple[Tensor, ...]]
Model = tuple[nn.Module, Inputs]


class _Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolutions beside a shortcut; the stride is that of the 3x3 (ResNet v1.5)."""

    def __init__(self, inward: int, width: int, stride: int) -> None:
        super().__init__()
        out = 4 * width
        self.conv1 = nn.Conv2d(inward, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.shortcut = nn.Sequential()
        if stride > 1 or inward != out:
            self.shortcut = nn.Sequential(nn.Conv2d(inward, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Tensor) -> Tensor:
        """Images (n, inward, h, w) to (n, 4 width, h / stride, w / stride)."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class _Classifier(nn.Module):
    """The cross-entropy (n,) of what ``layers`` say of images (n, 3, 224, 224) with labels (n,)."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        logits: Tensor = self.layers(images)
        return F.cross_entropy(logits, labels, reduction="none")


def _images(n: int) -> tuple[Tensor, ...]:
    return torch.randn(n, 3, 224, 224), torch.randint(1000, (n,))


def resnet50() -> Model:
    """ResNet-50 (He et al. 2015, in its v1.5 form), 25,557,032 parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inward = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(_Bottleneck(inward, width, stride if block == 0 else 1))
            inward = 4 * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inward, 1000)]
    return _Classifier(*layers), _images


def vgg16() -> Model:
    """VGG-16 without batch normalisation (Simonyan and Zisserman 2014), 138,357,544 parameters, no dropout."""
    layers: list[nn.Module] = []
    inward = 3
    for width, convolutions in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(convolutions):
            layers += [nn.Conv2d(inward, width, 3, padding=1), nn.ReLU()]
            inward = width
        layers.append(nn.MaxPool2d(2))
    layers += [nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU()]
    layers += [nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return _Classifier(*layers), _images


def _heads(x: Tensor, heads: int) -> Tensor:
    """(n, t, width) to (n, heads, t, width / heads)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


class _BertLayer(nn.Module):
    """Attention and a feed-forward part, each added to its input and normalised after it."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm1 = nn.LayerNorm(width)
        self.up = nn.Linear(width, inner)
        self.down = nn.Linear(inner, width)
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (n, t, width) to the same shape."""
        q, k, v = (_heads(part(x), self.heads) for part in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.norm1(x + self.out(mixed))
        y: Tensor = self.norm2(x + self.down(F.gelu(self.up(x))))
        return y


class _Bert(nn.Module):
    """BERT with its masked-language head, whose output matrix is the word embedding."""

    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.kinds = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(_BertLayer(width, heads, 4 * width) for _ in range(layers)))
        self.head = nn.Linear(width, width)
        self.head_norm = nn.LayerNorm(width)
        self.head_bias = _Bias(vocabulary)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The cross-entropy (n t,) of tokens (n, t) with labels (n, t)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        kinds = torch.zeros_like(tokens)
        x = self.norm(self.words(tokens) + self.positions(places) + self.kinds(kinds))
        x = self.head_norm(F.gelu(self.head(self.layers(x))))
        logits = self.head_bias(F.linear(x, self.words.weight))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")


class _Bias(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


def _text(vocabulary: int, length: int) -> Inputs:
    """Tokens and labels, both (n, length)."""
    return lambda n: (torch.randint(vocabulary, (n, length)), torch.randint(vocabulary, (n, length)))


def bert_base() -> Model:
    """BERT-base, uncased (Devlin et al. 2018), with the head for masked words and without pooler.

    109,514,298 parameters: 108,891,648 of the encoder (109,482,240 with the pooler, which no masked word uses),
    622,650 of the head. Sequences of 384 tokens.
    """
    return _Bert(30522, 512, 768, 12, 12), _text(30522, 384)


class _GptBlock(nn.Module):
    """Causal attention and a feed-forward part, each normalised before and added to its input."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (n, t, width) to the same shape."""
        q, k, v = (_heads(part, self.heads) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        y: Tensor = self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))
        return x + y


class _Gpt(nn.Module):
    """GPT-2; the output matrix is the word embedding."""

    def __init__(self, vocabulary: int, context: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(_GptBlock(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The cross-entropy (n t,) of tokens (n, t) with labels (n, t)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.blocks(self.words(tokens) + self.positions(places)))
        logits = F.linear(x, self.words.weight)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")


def gpt_small() -> Model:
    """GPT-2 small (Radford et al. 2019), 124,439,808 parameters, sequences of 1024 tokens."""
    return _Gpt(50257, 1024, 768, 12, 12), _text(50257, 1024)


def tiny() -> Model:
    """A GPT of 2 layers and 28,032 parameters, for tests."""
    return _Gpt(64, 16, 32, 2, 2), _text(64, 16)


MODELS: dict[str, Callable[[], Model]] = {
    "resnet50": resnet50,
    "vgg16": vgg16,
    "bert-base": bert_base,
    "gpt-small": gpt_small,
    "tiny": tiny,
}


def make(name: str) -> Model:
    """The model of that name, or what ``package.module:function`` returns; ValueError if there is no such thing."""
    if name in MODELS:
        return MODELS[name]()
    module, colon, function = name.partition(":")
    if not colon:
        raise ValueError(f"no model {name!r}: expected {', '.join(MODELS)} or module:function")
    try:
        made: Any = getattr(importlib.import_module(module), function)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the model {name!r} cannot be made: {error}") from None
    if not (
        isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module) and callable(made[1])
    ):
        raise ValueError(f"{name} must return a module and a function from the batch size to its inputs")
    return made[0], made[1]
