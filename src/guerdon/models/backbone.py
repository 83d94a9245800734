"""The network of the image reward models: a residual network (arXiv:1512.03385) and a small head, one logit.

scorer = ImageScorer("resnet18", hidden_dim=256, dropout=0.1)
logits_N = scorer(inputs_N_C_H_W)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval
from transformers import ResNetConfig, ResNetModel

from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.finite import refuse_to_read
from guerdon.hub import check_model

_DEPTHS: dict[str, tuple[str, list[int]]] = {
    "resnet18": ("basic", [2, 2, 2, 2]),
    "resnet34": ("basic", [3, 4, 6, 3]),
    "resnet50": ("bottleneck", [3, 4, 6, 3]),
    "resnet101": ("bottleneck", [3, 4, 23, 3]),
    "resnet152": ("bottleneck", [3, 8, 36, 3]),
}


class ImageScorer(nn.Module):
    """A residual network with a head of one output.

    The head is Linear, ReLU, Dropout, Linear, or a single Linear when `hidden_dim` is None. Its weights are
    Xavier-uniform, its biases zero.

    Args:
        arch: `resnet18`, `resnet34`, `resnet50`, `resnet101` or `resnet152`.
        hidden_dim: width of the hidden layer of the head, or None.
        dropout: before the last layer; unused when `hidden_dim` is None.
        pretrained_path: folder or hub id of transformers ResNet weights; None for random ones.

    Raises:
        ConfigError: unknown `arch`.
        CheckpointError: `pretrained_path` cannot be read, is of another `arch`, or does not fit exactly.
    """

    def __init__(
        self, arch: str, *, hidden_dim: int | None, dropout: float, pretrained_path: str | None = None
    ) -> None:
        super().__init__()
        self.backbone = ResNetModel(_config(arch)) if pretrained_path is None else _load_backbone(arch, pretrained_path)
        features = self.backbone.config.hidden_sizes[-1]
        if hidden_dim is None:
            self.head: nn.Module = nn.Linear(features, 1)
        else:
            self.head = nn.Sequential(
                nn.Linear(features, hidden_dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden_dim, 1)
            )
        for layer in self.head.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, inputs_N_C_H_W: Tensor) -> Tensor:
        """Return logits (N,) float32 for inputs (N, 3, H, W)."""
        features: Tensor = self.backbone(inputs_N_C_H_W.to(self.backbone.dtype)).pooler_output
        logits: Tensor = self.head(features.flatten(1).float())
        return logits.squeeze(1).float()


@contextmanager
def calibrating(network: nn.Module) -> Iterator[None]:
    """Set batch normalisation's statistics to averages over the batches that pass inside the block.

    The running averages of a training lag behind its weights by dozens of steps, which is a large part of a
    short training (arXiv:2105.07576, section 3). Inside the block the network is in training mode, without
    gradients, and dropout draws from a copy of the random state; the mode is restored afterwards.
    """
    layers = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d)]
    momenta = [layer.momentum for layer in layers]
    training = network.training
    for layer in layers:
        layer.reset_running_stats()
        layer.momentum = None  # a plain average
    network.train()
    with torch.random.fork_rng(), torch.no_grad():
        yield
    network.train(training)
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


def inference_copy(scorer: ImageScorer, *, bf16: bool) -> ImageScorer:
    """A copy for scoring: batch normalisation folded into the convolutions, the backbone in bfloat16 with `bf16`.

    Later changes of `scorer` do not reach the copy.
    """
    copy = deepcopy(scorer).eval().requires_grad_(False)
    for layer in copy.backbone.modules():
        if isinstance(getattr(layer, "normalization", None), nn.BatchNorm2d):
            layer.convolution = fuse_conv_bn_eval(layer.convolution, layer.normalization)
            layer.normalization = nn.Identity()
    copy.backbone.to(torch.bfloat16 if bf16 else torch.float32)
    return copy.to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The given device; None: the GPU when there is one, else the CPU."""
    if device is not None:
        return torch.device(device)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _config(arch: str) -> ResNetConfig:
    if arch not in _DEPTHS:
        raise ConfigError(f"unknown arch {arch!r}: choose one of {', '.join(_DEPTHS)}")
    layer_type, depths = _DEPTHS[arch]
    width = 1 if layer_type == "basic" else 4
    return ResNetConfig(
        depths=depths, layer_type=layer_type, hidden_sizes=[width * size for size in (64, 128, 256, 512)]
    )


def _load_backbone(arch: str, path: str) -> Any:
    expected = _config(arch)
    check_model(CheckpointError, "pretrained_path", path)
    with boundary(CheckpointError, f"pretrained_path {path!r} cannot be read as a transformers ResNet"):
        backbone, report = ResNetModel.from_pretrained(path, output_loading_info=True, use_safetensors=True)
    for name in ("layer_type", "depths", "hidden_sizes"):
        found, wanted = getattr(backbone.config, name), getattr(expected, name)
        if found != wanted:
            raise CheckpointError(f"pretrained_path {path!r} has {name} {found}, but arch {arch!r} has {wanted}")
    # The classifier of an image classification checkpoint is not part of the backbone.
    unexpected = sorted(k for k in report["unexpected_keys"] if not k.startswith("classifier."))
    misfits = sorted(str(k) for k in report["mismatched_keys"])
    problems = {"missing": sorted(report["missing_keys"]), "unexpected": unexpected, "of another shape": misfits}
    bad = {what: keys for what, keys in problems.items() if keys}
    if bad:
        raise CheckpointError(f"pretrained_path {path!r} does not fit {arch!r}: {bad}")
    refuse_to_read(backbone.named_parameters(), f"pretrained_path {path!r}")
    return backbone
