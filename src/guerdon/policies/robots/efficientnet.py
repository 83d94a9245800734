"""EfficientNet-lite0 up to its last feature map: pictures in, 1,280 features per field of 32 x 32 pixels out.

The architecture of arXiv:1905.11946 without squeeze-and-excitation, with ReLU6 in place of swish. It looks for
vision-language-action policies and for image reward models; its ImageNet weights come from an installed package.

    network = read_efficientnet("package:efficientnet-lite0").eval()
    features_N_1280_h_w = network(pictures_N_3_H_W)        # values in [0, 1]
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from guerdon.compute.finite import load_weights
from guerdon.compute.packaged import local_model
from guerdon.errors import CheckpointError, boundary
from guerdon.files.atomic import COMPLETE, verify_folder

PACKAGE = "package:efficientnet-lite0"
FIELD = 32  # pixels, height and width, that a feature vector stands for
# of a stage: blocks, kernel, stride of the first block, expansion, channels
_STAGES = (
    (1, 3, 1, 1, 16), (2, 3, 2, 6, 24), (2, 5, 2, 6, 40), (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112), (4, 5, 2, 6, 192), (1, 3, 1, 6, 320),
)  # fmt: skip


class EfficientNetLite0(nn.Module):
    """The convolutions of EfficientNet-lite0, with random weights.

    Batch normalisation keeps its statistics (those of ImageNet, once they are loaded) also in training; everything else
    can be trained.

    Attributes:
        width: of the features.
    """

    width = 1280

    def __init__(self) -> None:
        super().__init__()
        self.stem = _Convolution(3, 32, kernel=3, stride=2)
        blocks: list[nn.Module] = []
        channels = 32
        for number, kernel, stride, expansion, out in _STAGES:
            for i in range(number):
                blocks.append(_Block(channels, out, kernel=kernel, stride=1 if i else stride, expansion=expansion))
                channels = out
        self.blocks = nn.Sequential(*blocks)
        self.head = _Convolution(channels, self.width)
        self.train()  # batch normalisation excepted

    def forward(self, x_N_3_H_W: Tensor) -> Tensor:
        """Features of pictures in [0, 1].

        Args:
            x_N_3_H_W: height and width are multiples of 32, so that borders are padded as in its training.

        Returns:
            (N, 1280, H / 32, W / 32), in the data type of the weights.
        """
        x = ((x_N_3_H_W - 127 / 255) / (128 / 255)).to(self.head.convolution.weight.dtype)
        found: Tensor = self.head(self.blocks(self.stem(x)))
        return found


class _Block(nn.Module):
    """An inverted bottleneck (arXiv:1801.04381): expand, convolve each channel, project; added where shapes agree."""

    def __init__(self, channels: int, out: int, *, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        parts = [("expand", _Convolution(channels, inner))] if expansion > 1 else []
        parts.append(("depthwise", _Convolution(inner, inner, kernel=kernel, stride=stride, groups=inner)))
        parts.append(("project", _Convolution(inner, out, activation=nn.Identity())))
        self.layers = nn.Sequential(OrderedDict(parts))
        self.adds = stride == 1 and channels == out

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layers(x)
        return x + found if self.adds else found


class _Convolution(nn.Module):
    """Convolution, batch normalisation, ReLU6; named as in the residual networks of transformers."""

    def __init__(
        self,
        channels: int,
        out: int,
        *,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        activation: nn.Module | None = None,
    ) -> None:
        super().__init__()
        # TensorFlow's padding: as much as needed, an odd pixel at the lower right
        before, after = (kernel - stride) // 2, (kernel - stride + 1) // 2
        self.pad = (before, after) * 2 if before != after else None
        self.convolution = nn.Conv2d(
            channels, out, kernel, stride, 0 if self.pad else before, groups=groups, bias=False
        )
        self.normalization = _FixedNorm(out, eps=1e-3)
        self.activation = nn.ReLU6() if activation is None else activation

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.pad is None else functional.pad(x, self.pad)
        found: Tensor = self.activation(self.normalization(self.convolution(x)))
        return found


class _FixedNorm(nn.BatchNorm2d):
    """Batch normalisation that never takes its statistics from a batch."""

    def train(self, mode: bool = True) -> _FixedNorm:
        return super().train(False)


def read_efficientnet(path: str = PACKAGE, *, mapped: bool = False) -> EfficientNetLite0:
    """The network with the weights of a packaged model or of a folder in the layout of a converted one.

    Args:
        path: `package:<name>`, or a folder with `model.safetensors`.
        mapped: its weights stay a mapped file, which must not change.

    Raises:
        MissingDependencyError: the package is not installed.
        CheckpointError: the folder cannot be read, was altered, or has other weights.
    """
    folder = Path(local_model(path))
    if (folder / COMPLETE).is_file():
        verify_folder(folder)
    with torch.random.fork_rng(devices=[]):
        network = EfficientNetLite0()
    with boundary(CheckpointError, f"{path!r} cannot be read as EfficientNet-lite0"):
        network.load_state_dict(load_weights(folder / "model.safetensors"), strict=True, assign=mapped)
    return network
