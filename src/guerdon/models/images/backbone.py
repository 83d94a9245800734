"""The network of the image reward models and its input: a backbone, a small head, one logit.

The backbone is a residual network (arXiv:1512.03385), or EfficientNet-lite0 as it was trained on ImageNet. With
`mlp` it is two layers on states instead of frames.

Frames become the input in two stages, the same for training, scoring and tests, so that the first can be done once and
its small result stored: `to_pixels` checks, resizes and keeps bytes; `to_input` divides by 255 and normalises.

    scorer = ImageScorer("resnet18", hidden_dim=256, dropout=0.1)
    pixels_N_H_W_C = to_pixels(frames, (3, 64, 64))
    logits_N = scorer(to_input(torch.from_numpy(pixels_N_H_W_C), "imagenet"))
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.fusion import fuse_conv_bn_eval

from guerdon.compute.finite import refuse_to_read
from guerdon.compute.packaged import local_model
from guerdon.episodes.images import refuse_one_or_several
from guerdon.errors import CheckpointError, ConfigError, DataError, boundary
from guerdon.models import frames as vlm_frames
from guerdon.network.hub import check_model
from guerdon.policies.batches.precision import PaddedConv2d
from guerdon.policies.pretrained.reading import map_pretrained, refuse_undescribed
from guerdon.policies.robots.efficientnet import EfficientNetLite0, read_efficientnet
from guerdon.types import ByteArray

if TYPE_CHECKING:  # a model on states does not need transformers
    from transformers import ResNetConfig

_DEPTHS: dict[str, tuple[str, list[int]]] = {
    "resnet18": ("basic", [2, 2, 2, 2]),
    "resnet34": ("basic", [3, 4, 6, 3]),
    "resnet50": ("bottleneck", [3, 4, 6, 3]),
    "resnet101": ("bottleneck", [3, 4, 23, 3]),
    "resnet152": ("bottleneck", [3, 8, 36, 3]),
}

EFFICIENTNET = "efficientnet_lite0"
MLP = "mlp"
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class ImageScorer(nn.Module):
    """A backbone with a head of one output.

    The head is Linear, ReLU, Dropout, Linear, or a single Linear when `hidden_dim` is None. Its weights are
    Xavier-uniform, its biases zero.

    Args:
        arch: `resnet18`, `resnet34`, `resnet50`, `resnet101`, `resnet152` or `efficientnet_lite0`; `mlp` for states.
        hidden_dim: width of the hidden layer of the head, or None.
        dropout: before the last layer; unused when `hidden_dim` is None.
        pretrained_path: weights of the backbone: folder, `package:<name>` or hub id of a ResNet of transformers; folder
            or `package:<name>` of an EfficientNet-lite0; None for random ones.
        freeze_backbone: only the head can be trained; the backbone stays in evaluation mode.
        state_size: S, numbers of a state; of `mlp` alone.
        sharded: for `Shards`: weights that are read stay mapped files.

    Raises:
        ConfigError: unknown `arch`.
        CheckpointError: `pretrained_path` cannot be read, is of another `arch`, or does not fit exactly.
    """

    def __init__(
        self,
        arch: str,
        *,
        hidden_dim: int | None,
        dropout: float,
        pretrained_path: str | None = None,
        freeze_backbone: bool = False,
        state_size: int | None = None,
        sharded: bool = False,
    ) -> None:
        super().__init__()
        self.frozen = freeze_backbone
        self.backbone: Any
        if arch == MLP:
            assert state_size is not None
            self.backbone, width = StateLayers(state_size), StateLayers.width
        elif arch == EFFICIENTNET:
            self.backbone = (
                EfficientNetLite0() if pretrained_path is None else read_efficientnet(pretrained_path, mapped=sharded)
            )
            width = self.backbone.width
        else:
            from transformers import ResNetModel

            self.backbone = (
                ResNetModel(_config(arch))
                if pretrained_path is None
                else _load_backbone(arch, pretrained_path, mapped=sharded)
            )
            width = self.backbone.config.hidden_sizes[-1]
            for layer in self.backbone.modules():
                if type(layer) is nn.Conv2d:
                    layer.__class__ = PaddedConv2d
        self.backbone.requires_grad_(not freeze_backbone)
        if hidden_dim is None:
            self.head: nn.Module = nn.Linear(width, 1)
        else:
            self.head = nn.Sequential(
                nn.Linear(width, hidden_dim), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden_dim, 1)
            )
        for layer in self.head.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        self.train()
        if not sharded:
            self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def train(self, mode: bool = True) -> ImageScorer:
        """A frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def features(self, inputs_N_C_H_W: Tensor) -> Tensor:
        """Features (N, d) float32 of inputs (N, 3, H, W), averaged over the picture, or of states (N, S)."""
        if isinstance(self.backbone, StateLayers):
            states: Tensor = self.backbone(inputs_N_C_H_W)
            return states
        if isinstance(self.backbone, EfficientNetLite0):
            maps: Tensor = self.backbone(inputs_N_C_H_W)
            return maps.float().mean((2, 3))
        found: Tensor = self.backbone(inputs_N_C_H_W.to(self.backbone.dtype)).pooler_output
        return found.flatten(1).float()

    def forward(self, inputs_N_C_H_W: Tensor) -> Tensor:
        """Return logits (N,) float32 for inputs (N, 3, H, W), or of `mlp` (N, S)."""
        logits: Tensor = self.head(self.features(inputs_N_C_H_W))
        return logits.squeeze(1).float()

    def gradient_penalty(self, positive_N_S: Tensor, negative_M_S: Tensor) -> Tensor:
        """Mean of (|d logit / d z| - 1)^2 at points between positive and negative states (WGAN-GP, 1704.00028, eq. 3).

        z are standardised states. Each of max(N, M) points lies at a random share of the way between a positive and a
        negative state. The penalty keeps the logit of a discriminator from saturating where the classes lie apart.

        Returns:
            A scalar with gradient; 0 where one side is empty.
        """
        assert isinstance(self.backbone, StateLayers)
        if not len(positive_N_S) or not len(negative_M_S):
            return positive_N_S.new_zeros(())
        n, device = max(len(positive_N_S), len(negative_M_S)), positive_N_S.device
        ends = [part[torch.randint(len(part), (n,), device=device)] for part in (positive_N_S, negative_M_S)]
        between_N_S = torch.lerp(ends[0], ends[1], torch.rand(n, 1, device=device)).requires_grad_()
        (gradient_N_S,) = torch.autograd.grad(self(between_N_S).sum(), between_N_S, create_graph=True)
        excess: Tensor = (gradient_N_S * self.backbone.std).norm(dim=1) - 1
        return excess.square().mean()


class StateLayers(nn.Module):
    """Two layers on standardised states.

    Args:
        size: S, numbers of a state.
    """

    width = 256

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))
        self.layers = nn.Sequential(
            nn.Linear(size, self.width), nn.ReLU(), nn.Linear(self.width, self.width), nn.ReLU()
        )

    def standardise(self, states_N_S: NDArray[np.float32]) -> None:
        """Take mean and standard deviation of each number from states; one that does not change keeps its unit."""
        std = states_N_S.std(axis=0)
        self.mean = torch.from_numpy(states_N_S.mean(axis=0))
        self.std = torch.from_numpy(np.where(std > 1e-3, std, np.float32(1)))

    def forward(self, states_N_S: Tensor) -> Tensor:
        """(N, 256) features of states (N, S)."""
        found: Tensor = self.layers((states_N_S - self.mean) / self.std)
        return found


def residual_layers(scorer: ImageScorer) -> list[nn.Module]:
    """The layers of a residual network, in their order: each adds what its convolutions give to what goes in."""
    from transformers.models.resnet.modeling_resnet import ResNetBasicLayer, ResNetBottleNeckLayer

    return [layer for layer in scorer.modules() if isinstance(layer, ResNetBasicLayer | ResNetBottleNeckLayer)]


def batch_normalizations(network: nn.Module) -> list[nn.BatchNorm2d]:
    """The layers whose statistics follow the batches in training: not those of frozen or fixed backbones."""
    training = network.training
    network.train()
    found = [layer for layer in network.modules() if isinstance(layer, nn.BatchNorm2d) and layer.training]
    network.train(training)
    return found


@contextmanager
def calibrating(network: nn.Module) -> Iterator[None]:
    """Set batch normalisation's statistics to averages over the batches that pass inside the block.

    The running averages of a training lag behind its weights by dozens of steps, which is a large part of a
    short training (arXiv:2105.07576, section 3). Inside the block the network is in training mode, without
    gradients, and dropout draws from a copy of the random state; the mode is restored afterwards.
    """
    layers = batch_normalizations(network)
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


def _config(arch: str) -> ResNetConfig:
    from transformers import ResNetConfig

    if arch not in _DEPTHS:
        raise ConfigError(
            f"unknown arch {arch!r}: choose one of {', '.join([*_DEPTHS, EFFICIENTNET, MLP])}", key="arch"
        )
    layer_type, depths = _DEPTHS[arch]
    width = 1 if layer_type == "basic" else 4
    return ResNetConfig(
        depths=depths, layer_type=layer_type, hidden_sizes=[width * size for size in (64, 128, 256, 512)]
    )


def _load_backbone(arch: str, path: str, *, mapped: bool) -> Any:
    from transformers import AutoModel, ResNetModel

    expected = _config(arch)
    path = local_model(path)
    check_model(CheckpointError, "pretrained_path", path)
    with boundary(CheckpointError, f"pretrained_path {path!r} cannot be read as a transformers ResNet"):
        found = map_pretrained(AutoModel, path, "pretrained_path", start=True) if mapped else None
        if found is None:
            backbone, report = ResNetModel.from_pretrained(
                path, output_loading_info=True, trust_remote_code=False, use_safetensors=True
            )
        else:
            backbone, weights = found
            loaded = backbone.load_state_dict(weights, assign=True, strict=False)
            missing = [name for name in loaded.missing_keys if not name.endswith("num_batches_tracked")]
            report = {"missing_keys": missing, "unexpected_keys": loaded.unexpected_keys, "mismatched_keys": []}
    for name in ("layer_type", "depths", "hidden_sizes"):
        has = getattr(backbone.config, name, None)
        wanted = getattr(expected, name)
        if has != wanted:
            raise CheckpointError(f"pretrained_path {path!r} has {name} {has}, but arch {arch!r} has {wanted}")
    # The classifier of an image classification checkpoint is not part of the backbone.
    unexpected = sorted(k for k in report["unexpected_keys"] if not k.startswith("classifier."))
    misfits = sorted(str(k) for k in report["mismatched_keys"])
    problems = {"missing": sorted(report["missing_keys"]), "unexpected": unexpected, "of another shape": misfits}
    bad = {what: keys for what, keys in problems.items() if keys}
    if bad:
        raise CheckpointError(f"pretrained_path {path!r} does not fit {arch!r}: {bad}")
    refuse_undescribed(backbone, path, report["unexpected_keys"], f"pretrained_path {path!r}")
    refuse_to_read(backbone.named_parameters(), f"pretrained_path {path!r}")
    return backbone


def to_pixels(
    frames: NDArray[Any] | Tensor, image_size: tuple[int, int, int], *, channels_last: bool = False
) -> ByteArray:
    """Bring frames of any accepted kind to RGB bytes of one size.

    Values stay bytes throughout (floats in [0, 1] are rounded to the nearest 1/255), so one image gives the
    same pixels whether it arrives as bytes or as floats. Resizing is bilinear with antialiasing.

    Args:
        frames: (N, H, W, C), (N, C, H, W) or grey (N, H, W); uint8, or floats in [0, 1]. C is 3; 1 is grey
            and repeated; 4 is RGBA and accepted when it is fully opaque.
        image_size: (3, H', W').
        channels_last: they are (N, H, W, C), as those of an `Episode` are; else the axis of 1, 3 or 4 is found.

    Returns:
        (N, H', W', 3) uint8, contiguous.

    Raises:
        DataError: for another shape or type, floats outside [0, 1], or a picture with transparency.
    """
    array = frames.detach().cpu().numpy() if isinstance(frames, Tensor) else np.asarray(frames)
    array = _to_channels_last(array, known=channels_last)
    array = vlm_frames.to_bytes(array) if array.size else array
    _, height, width = image_size
    if array.shape[1:3] != (height, width) and len(array):
        resized = F.interpolate(
            torch.from_numpy(np.ascontiguousarray(array)).permute(0, 3, 1, 2),
            (height, width),
            mode="bilinear",
            antialias=True,
        )
        array = resized.permute(0, 2, 3, 1).numpy()
    if not len(array):
        return np.zeros((0, height, width, 3), np.uint8)
    return np.ascontiguousarray(array)


def to_input(pixels_N_H_W_C: Tensor, normalize: Literal["none", "imagenet"]) -> Tensor:
    """Turn bytes into the network's input; states are returned unchanged.

    Args:
        pixels_N_H_W_C: (N, H, W, 3) uint8, or (N, S) float32, on the device where the network runs.
        normalize: `none` leaves values in [0, 1]; `imagenet` standardises each channel.

    Returns:
        (N, 3, H, W) float32 in channels-last memory, or the states.
    """
    if pixels_N_H_W_C.ndim == 2:
        return pixels_N_H_W_C
    images = pixels_N_H_W_C.permute(0, 3, 1, 2).to(torch.float32).div_(255.0)
    if normalize == "imagenet":
        mean = torch.tensor(IMAGENET_MEAN, device=images.device).view(1, 3, 1, 1)
        std = torch.tensor(IMAGENET_STD, device=images.device).view(1, 3, 1, 1)
        images = images.sub_(mean).div_(std)
    return images.contiguous(memory_format=torch.channels_last)


def random_shift(pixels_N_H_W_C: Tensor, pad: int = 4) -> Tensor:
    """Shift each picture by up to `pad` pixels both ways, repeating its border (DrQ, arXiv:2004.13649).

    Uses torch's global random state.
    """
    n, height, width, _ = pixels_N_H_W_C.shape
    device = pixels_N_H_W_C.device
    shift_N_2 = torch.randint(-pad, pad + 1, (n, 2), device=device)
    rows = (torch.arange(height, device=device) + shift_N_2[:, :1]).clamp_(0, height - 1)
    columns = (torch.arange(width, device=device) + shift_N_2[:, 1:]).clamp_(0, width - 1)
    index = torch.arange(n, device=device)[:, None, None]
    return pixels_N_H_W_C[index, rows[:, :, None], columns[:, None, :]]


def _to_channels_last(array: NDArray[Any], *, known: bool) -> NDArray[Any]:
    if array.ndim == 3:
        if not known:
            refuse_one_or_several(array.shape)
        return array[..., None]
    if array.ndim != 4:
        raise DataError(f"frames must be (N, H, W, C), (N, C, H, W) or (N, H, W), got shape {array.shape}")
    return vlm_frames.channels_last(array, (1, 3, 4), known=known)
