"""What the networks of control policies take of an observation: numbers side by side, and pictures.

Numbers are normalised by running statistics, but for one-hot ones. Pictures go through convolutions of their own, or
through a frozen backbone, whose features are numbers like others; then the layers of the network follow.

    encoder = Encoder(columns, settings, device)
    x = encoder.prepare(observations)            # a tensor, or tensors by column where there are several parts
    encoder.network(outputs=6, last_gain=0.01)(x)
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from guerdon.compute.packaged import local_model
from guerdon.errors import CheckpointError, ConfigError, boundary
from guerdon.policies.pretrained.reading import read_pretrained
from guerdon.policies.robots.efficientnet import FIELD, read_efficientnet
from guerdon.settings.policy import (
    POLICIES,
    CNNPolicySettings,
    GaussianPolicySettings,
    MLPPolicySettings,
    OwnPolicySettings,
)
from guerdon.types import BoolArray, FloatArray
from guerdon.worlds.spaces import ObservedColumn, allowed_in, chosen_columns, is_numeric

CLIP = 10.0  # normalised observations beyond ten standard deviations are cut off
NUMBERS = ""  # of prepared observations: the numbers, side by side
Prepared = Tensor | dict[str, Tensor]
"""Observations as networks take them: numbers (N, F) or one picture (N, C, H, W); several parts by their column, with
the numbers under ""."""


def select(x: Prepared, index: Tensor) -> Prepared:
    """These rows, in order."""
    if isinstance(x, Tensor):
        return x.index_select(0, index)
    return {name: part.index_select(0, index) for name, part in x.items()}


class RunningMeanStd:
    """Running mean and variance of rows, for observations and returns.

    Chan, Golub & LeVeque (1979), pairwise update of count, mean and sum of squares, in float64.

    Attributes:
        mean: float64 array of the feature shape; zero before the first update.
        var: float64 array of the feature shape; one before the first update.
        count: rows seen.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.mean = np.zeros(shape, dtype=np.float64)
        self.var = np.ones(shape, dtype=np.float64)
        self.count = 0.0

    def update(self, rows_N: np.ndarray) -> None:
        """Take in N more rows of the feature shape; none at all changes nothing."""
        n = rows_N.shape[0]
        if n == 0:
            return
        rows = rows_N.astype(np.float64)
        mean, var = rows.mean(axis=0), rows.var(axis=0)
        total = self.count + n
        delta = mean - self.mean
        squares = self.var * self.count + var * n + delta**2 * self.count * n / total
        self.mean = self.mean + delta * n / total
        self.var = squares / total
        self.count = total

    @property
    def std(self) -> np.ndarray:
        """Square root of the variance, at least 1e-4 so that constant features stay harmless."""
        return np.asarray(np.maximum(np.sqrt(self.var), 1e-4))

    def state_dict(self) -> dict[str, Any]:
        """Arrays to store."""
        return {"mean": self.mean, "var": self.var, "count": np.array(self.count)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Return to stored arrays."""
        self.mean = np.array(state["mean"], dtype=np.float64)
        self.var = np.array(state["var"], dtype=np.float64)
        self.count = float(np.asarray(state["count"]))


class Encoder:
    """From observations of a world to what networks take; it has no parameters.

    Args:
        columns: that the world shows.
        settings: the `policy` section: which keys, whether numbers are normalised, the backbone of pictures.
        device: of the networks.

    Attributes:
        columns: those that the policy looks at.
        pictures: those of them that convolutions look at.
        size: F, numbers that networks take.
        normalizer: running statistics of the numbers (and one-hot ones, which it does not change); None: none.
        shift, factor: (F,) what numbers are normalised by: subtract one, multiply by the other.

    Raises:
        ConfigError: the policy cannot look at what the world shows, or not at these keys.
    """

    def __init__(
        self, columns: Sequence[ObservedColumn], settings: GaussianPolicySettings, device: torch.device
    ) -> None:
        self.settings, self.device = settings, device
        self.columns = chosen_columns(columns, settings.keys, "policy.keys")
        self._shown = tuple(columns)
        images = [c for c in self.columns if c.kind == "image"]
        self._check(images)
        flat = isinstance(settings, MLPPolicySettings)
        if flat:
            images = []
        path = getattr(settings, "backbone", None)
        self._features = None if path is None or not images else FrozenFeatures(path, device)
        self.pictures, self._looked = (images, []) if self._features is None else ([], images)
        self._numbers = [c for c in self.columns if is_numeric(c) or (flat and c.kind == "image")]
        self._normalised = self._which_normalised()
        self.size = len(self._normalised)
        if not self.size and not images:
            raise ConfigError("the policy would observe nothing: the environment shows no numbers (a 0 is enough)")
        self.normalizer: RunningMeanStd | None = None
        if self.size and getattr(settings, "normalize_observations", True):
            self.normalizer = RunningMeanStd((self.size,))
        self.shift = torch.zeros(self.size, device=device)
        self.factor = torch.ones(self.size, device=device)

    def _which_normalised(self) -> BoolArray:
        """(F,) whether each number is normalised: one-hot ones are not, features of a backbone are."""
        known = [np.zeros(0, np.bool_)]
        known += [np.full(c.size, c.kind != "one_hot") for c in self._numbers]
        if self._features is not None:
            known += [np.ones(self._features.width_of(c), np.bool_) for c in self._looked]
        return np.concatenate(known)

    def _check(self, images: Sequence[ObservedColumn]) -> None:
        kind, own = self.settings.type, isinstance(self.settings, OwnPolicySettings)
        names = ", ".join(c.name for c in images if c.name)
        if isinstance(self.settings, CNNPolicySettings) and not images:
            raise ConfigError.about(
                "policy.type",
                f"{kind} takes pictures, and the environment gives "
                f"{', '.join(f'{c.name} {c.shape}'.strip() for c in self.columns)}: set env.observation to pixels, or "
                "take another policy",
            )
        if own and (len(images) > 1 or (images and len(self.columns) > 1)):
            raise ConfigError(
                f"networks of your own take one picture, or numbers: choose with policy.keys ({names})",
                key="policy.keys",
            )

    @property
    def in_parts(self) -> bool:
        """Whether prepared observations are tensors by column."""
        return len(self.pictures) > 1 or bool(self.pictures and self.size)

    @property
    def acts_in_numpy(self) -> bool:
        """Whether copies of the networks in numpy can act: there are only numbers, and no backbone makes any."""
        return not self.pictures and not self.has_backbone

    def numbers(self, rows: np.ndarray) -> np.ndarray:
        """(N, F) of what the world shows, as it is; without keys, the array itself."""
        parts = [_flat(rows[c.name] if c.name else rows, c) for c in self._numbers]
        if self._features is not None:
            parts += [self._features(rows[c.name] if c.name else rows) for c in self._looked]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def allowed(self, rows: np.ndarray) -> BoolArray | None:
        """(N, O) values of discrete actions that are allowed; None: the world does not say so."""
        return allowed_in(rows, self._shown)

    def prepare(self, rows: np.ndarray) -> Prepared:
        """Observations as the networks take them: normalised numbers, pictures (N, C, H, W) in [0, 1]."""
        parts = {c.name: _pixels(rows[c.name] if c.name else rows, self.device) for c in self.pictures}
        if not self.in_parts and parts:
            return next(iter(parts.values()))
        if not self.size:
            return dict(parts)
        x = self.normalised(self.numbers(rows))
        return {**parts, NUMBERS: x} if parts else x

    def unscaled(self, rows: np.ndarray) -> Prepared:
        """As `prepare`, with pictures as they are: (N, H, W, C) bytes, a quarter of the memory; see `scaled`."""
        parts = {c.name: _bytes(rows[c.name] if c.name else rows, self.device) for c in self.pictures}
        if not self.in_parts and parts:
            return next(iter(parts.values()))
        return {**parts, NUMBERS: self.normalised(self.numbers(rows))} if self.size else dict(parts)

    def scaled(self, x: Prepared) -> Prepared:
        """What `unscaled` gave as `prepare` gives it; pictures keep the order of their bytes in memory."""
        if isinstance(x, Tensor):
            return _scaled(x)
        return {name: part if name == NUMBERS else _scaled(part) for name, part in x.items()}

    def normalised(self, numbers: np.ndarray) -> Tensor:
        """(N, F) of what `numbers` returns."""
        x = torch.from_numpy(np.ascontiguousarray(numbers, dtype=np.float32)).to(self.device)
        return ((x - self.shift) * self.factor).clamp_(-CLIP, CLIP)

    def observe(self, rows: np.ndarray) -> None:
        """Update the running statistics; `refresh` makes them the ones in use."""
        if self.normalizer is not None:
            self.normalizer.update(self.numbers(rows))
        if self._features is not None:
            self._features.forget()

    @property
    def has_backbone(self) -> bool:
        """Whether a backbone makes numbers of pictures."""
        return self._features is not None

    def compute_pictures_alone(self, *, keep: bool) -> None:
        """Compute the backbone's features in batches of one picture from now on, so that they do not depend on others.

        Args:
            keep: `observe` does not drop features.
        """
        if self._features is not None:
            self._features.together, self._features.kept = 1, keep

    def refresh(self) -> None:
        """Make the running statistics the ones in use. Between calls they stay fixed, for acting and learning alike."""
        if self.normalizer is not None:
            factor = (1.0 / self.normalizer.std.astype(np.float32)).astype(np.float32)
            mean = self.normalizer.mean.astype(np.float32)
            self.shift = torch.from_numpy(np.where(self._normalised, mean, np.float32(0))).to(self.device)
            self.factor = torch.from_numpy(np.where(self._normalised, factor, np.float32(1))).to(self.device)

    def network(self, outputs: int, *, last_gain: float) -> nn.Module:
        """A network from prepared observations to (N, outputs), with weights drawn from torch's generator."""
        settings = self.settings
        if isinstance(settings, OwnPolicySettings):
            shape = self.pictures[0].shape if self.pictures else (self.size,)
            pixels = (shape[2], *shape[:2]) if len(shape) == 3 else shape
            own: nn.Module = POLICIES.build(
                settings.type, settings.params, nn.Module, observation_shape=pixels, outputs=outputs
            )
            return own
        act = nn.Tanh if settings.activation == "tanh" else nn.ReLU
        layers: list[nn.Module] = []
        width = self.size
        if self.in_parts:
            assert isinstance(settings, CNNPolicySettings)
            found = [convolutions(c.shape, settings.channels, act) for c in self.pictures]
            layers.append(Join([c.name for c in self.pictures], [network for network, _ in found]))
            width += sum(features for _, features in found)
        elif self.pictures:
            assert isinstance(settings, CNNPolicySettings)
            network, width = convolutions(self.pictures[0].shape, settings.channels, act)
            layers += network
        for h in settings.hidden:
            layers += [orthogonal(nn.Linear(width, h), math.sqrt(2)), act()]
            width = h
        layers.append(orthogonal(nn.Linear(width, outputs), last_gain))
        return nn.Sequential(*layers)


class Join(nn.Module):
    """Pictures through convolutions of their own, side by side with the numbers.

    Args:
        names: columns of the pictures.
        networks: of each.
    """

    def __init__(self, names: Sequence[str], networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.names = tuple(names)
        self.pictures = nn.ModuleList(networks)

    def forward(self, x: dict[str, Tensor]) -> Tensor:
        """(N, d) of prepared observations."""
        parts = [network(x[name]) for name, network in zip(self.names, self.pictures, strict=True)]
        return torch.cat([*parts, *([x[NUMBERS]] if NUMBERS in x else [])], 1)


def convolutions(
    shape: tuple[int, ...], channels: Sequence[int], act: Callable[[], nn.Module]
) -> tuple[nn.Sequential, int]:
    """Convolutions of pictures (H, W, C), flattened, and how many features they give.

    They are those of the network of Mnih et al. (2015); with the default channels smaller ones where those do not fit.

    Raises:
        ConfigError: they do not fit.
    """
    usable = _KERNELS if tuple(channels) == CNNPolicySettings.model_fields["channels"].default else _KERNELS[:1]
    kernels = next((one for one in usable if min(_sides(shape[:2], len(channels), one)) >= 1), None)
    if kernels is None:
        raise ConfigError(
            f"the {len(channels)} convolutions of policy.channels do not fit pictures of "
            f"{shape[0]}x{shape[1]}: take larger ones (env.frame_size), or fewer convolutions",
            key="policy.channels",
        )
    layers: list[nn.Module] = []
    inputs = shape[2]
    for i, c in enumerate(channels):
        kernel, stride = kernels[min(i, 2)]
        layers += [orthogonal(nn.Conv2d(inputs, c, kernel, stride), math.sqrt(2)), act()]
        inputs = c
    height, width = _sides(shape[:2], len(channels), kernels)
    return nn.Sequential(*layers, nn.Flatten()), inputs * height * width


_KERNELS = (((8, 4), (4, 2), (3, 1)), ((4, 2), (3, 2), (3, 1)))
"""Sizes and strides of convolutions, the third one repeated: of Mnih et al. (2015), and from 16 x 16 pixels on."""


def _sides(sides: tuple[int, ...], count: int, kernels: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Height and width after so many convolutions; below 1 where they do not fit."""
    for i in range(count):
        kernel, stride = kernels[min(i, 2)]
        sides = tuple((side - kernel) // stride + 1 if side >= kernel else 0 for side in sides)
    return sides


def orthogonal(layer: nn.Linear | nn.Conv2d, gain: float) -> nn.Module:
    """The layer with orthogonal weights and biases of zero."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


class FrozenFeatures:
    """Features of pictures by a pretrained network that is not trained; each picture passes once until `forget`.

    Args:
        path: folder or `package:<name>` of an EfficientNet-lite0, folder or hub id of a ResNet of transformers.
        device: where it computes.

    Attributes:
        together: pictures that are computed at once.
        kept: `forget` does nothing.
    """

    def __init__(self, path: str, device: torch.device) -> None:
        self._network, self.width, self._imagenet = _frozen(path, device)
        self._device, self.together, self.kept = device, 64, False
        self._found: dict[bytes, FloatArray] = {}

    def width_of(self, column: ObservedColumn) -> int:
        """Features of a picture of this column: of each three of its channels, or of one."""
        channels = column.shape[2]
        if channels % 3 and channels != 1:
            raise ConfigError.about(
                "policy.backbone", f"sees colours: {column.name or 'the picture'} has {channels} channels"
            )
        return self.width * max(channels // 3, 1)

    @torch.inference_mode()
    def __call__(self, frames_N: np.ndarray) -> FloatArray:
        """(N, d) float32 of pictures (N, H, W, C) uint8."""
        names = [hashlib.blake2b(np.ascontiguousarray(one).data, digest_size=16).digest() for one in frames_N]
        missing = {name: i for i, name in enumerate(names) if name not in self._found}
        rows = list(missing.values())
        for start in range(0, len(rows), self.together):
            part = rows[start : start + self.together]
            self._found |= dict(zip([names[i] for i in part], self._computed(frames_N[part]), strict=True))
        return np.stack([self._found[name] for name in names]) if names else np.zeros((0, self.width), np.float32)

    def forget(self) -> None:
        """Drop the features of a rollout that is over."""
        if not self.kept:
            self._found.clear()

    def _computed(self, frames_N: np.ndarray) -> FloatArray:
        pixels = _pixels(frames_N, self._device)
        count, channels, height, width = pixels.shape
        pixels = pixels.expand(-1, 3, -1, -1) if channels == 1 else pixels.reshape(-1, 3, height, width)
        if self._imagenet:
            mean, std = (torch.tensor(v, device=self._device).view(1, 3, 1, 1) for v in self._imagenet)
            found = self._network((pixels - mean) / std).pooler_output.flatten(1)
        else:
            size = [max(FIELD, -(-n // FIELD) * FIELD) for n in (height, width)]
            found = self._network(F.interpolate(pixels, size, mode="bilinear", align_corners=False)).mean((2, 3))
        return np.asarray(found.reshape(count, -1).float().cpu().numpy())


def _flat(rows_N: np.ndarray, column: ObservedColumn) -> np.ndarray:
    """(N, F) numbers of a column, of a picture from 0 to 1; without keys, the array itself."""
    if column.kind == "image":
        return rows_N.reshape(len(rows_N), -1) * np.float32(1 / 255)
    return rows_N.reshape(len(rows_N), -1) if column.name else rows_N


def _pixels(frames_N: np.ndarray, device: torch.device) -> Tensor:
    """(N, C, H, W) in [0, 1] of pictures (N, H, W, C) uint8."""
    return _scaled(_bytes(frames_N, device))


def _bytes(frames_N: np.ndarray, device: torch.device) -> Tensor:
    """(N, H, W, C) of pictures."""
    return torch.from_numpy(np.ascontiguousarray(frames_N)).to(device)


def _scaled(bytes_N: Tensor) -> Tensor:
    """(N, C, H, W) in [0, 1] of `_bytes`."""
    return bytes_N.permute(0, 3, 1, 2).float() / 255.0


def _frozen(path: str, device: torch.device) -> tuple[Any, int, Any]:
    """A network in evaluation mode, its features, and mean and deviation of its input where it has any."""
    folder = Path(local_model(path))
    card = folder / "config.json"
    kind = ""
    if card.is_file():
        with boundary(CheckpointError, f"policy.backbone {path!r}"):
            kind = json.loads(card.read_text(encoding="utf-8")).get("model_type", "")
    if kind != "resnet" and (folder / "model.safetensors").is_file():
        network: Any = read_efficientnet(path)
        return network.eval().requires_grad_(False).to(device), network.width, None
    from transformers import ResNetModel

    network = read_pretrained(ResNetModel, str(folder), "policy.backbone", start=True)
    imagenet = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return network.eval().requires_grad_(False).to(device), network.config.hidden_sizes[-1], imagenet
