"""What a vision-language-action model looks with: uint8 pictures in, one feature vector per patch out.

Pictures come as a world draws them, (N, H, W, 3) with the upper left corner first, and each tower scales and
normalises them as it was trained: `DinoSiglipTowers` gives the first three of six channels ImageNet's mean and standard
deviation (DINOv2) and the other three 0.5 and 0.5 (SigLIP).

    tower = ConvTower(image_size=64, width=64)
    patches_N_P_d = tower(cropped(pictures, None))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from guerdon.policies.robots.efficientnet import EfficientNetLite0, read_efficientnet

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
CROP_AREA = 0.9  # of OpenVLA's `center_crop`, and of the random crops that it was trained with


def cropped(pictures_N_H_W_C: Tensor, crop: str | None) -> Tensor:
    """Pictures as float (N, 3, H, W) in [0, 1], cropped to 90 % of their area and resized to what they were.

    Sampling is bilinear between the centres of the outermost pixels, as `tf.image.crop_and_resize` does, and the
    result becomes whole grey levels again as in `tf.image.convert_image_dtype`: 255.5 times it, rounded down.

    Args:
        pictures_N_H_W_C: uint8.
        crop: `center`; `random`: each picture at a place drawn from torch's generator; None: as they are.
    """
    x = pictures_N_H_W_C.permute(0, 3, 1, 2).float() / 255
    if crop is None:
        return x
    n, _, height, width = x.shape
    side = math.sqrt(CROP_AREA)
    shift_N_2 = (torch.rand(n, 2) * 2 - 1) * (1 - side) if crop == "random" else torch.zeros(n, 2)
    theta = torch.zeros(n, 2, 3)
    theta[:, 0, 0] = theta[:, 1, 1] = side
    theta[:, :, 2] = shift_N_2
    grid = functional.affine_grid(theta.to(x.device), [n, 3, height, width], align_corners=True)
    sampled = functional.grid_sample(x, grid, align_corners=True, padding_mode="border")
    return (sampled * 255.5).floor().clamp(0, 255) / 255


def normalised(x_N_3_H_W: Tensor, statistics: tuple[Sequence[float], Sequence[float]]) -> Tensor:
    """Channels minus their mean, divided by their standard deviation."""
    mean, std = (torch.tensor(s, device=x_N_3_H_W.device).view(1, 3, 1, 1) for s in statistics)
    return (x_N_3_H_W - mean) / std


class ConvTower(nn.Module):
    """Strided convolutions: a picture of 64 pixels becomes 16 patches.

    Args:
        image_size: height and width of the pictures, in pixels.
        width: of the features.

    Attributes:
        width: of the features.
    """

    def __init__(self, image_size: int, width: int = 64) -> None:
        super().__init__()
        self.width = width
        channels = (3, 32, 48, 64, width)
        layers: list[nn.Module] = []
        for before, after in pairwise(channels):
            layers += [nn.Conv2d(before, after, 4, 2, 1), nn.GroupNorm(8, after), nn.SiLU()]
        self.layers = nn.Sequential(*layers)
        side = image_size // 16
        self.position = nn.Parameter(0.02 * torch.randn(1, side * side, width))

    def forward(self, x_N_3_H_W: Tensor) -> Tensor:
        """(N, P, d) features of pictures in [0, 1]."""
        found: Tensor = self.layers(normalised(x_N_3_H_W, HALF))
        return found.flatten(2).transpose(1, 2) + self.position


class EfficientNetTower(nn.Module):
    """EfficientNet-lite0 as it was trained on ImageNet (1,280 features per patch of 32 pixels).

    Gradients flow; the statistics of batch normalisation stay those of ImageNet.

    Raises:
        MissingDependencyError: its package is not installed.
    """

    width = EfficientNetLite0.width

    def __init__(self) -> None:
        super().__init__()
        self.network = read_efficientnet()

    def forward(self, x_N_3_H_W: Tensor) -> Tensor:
        """(N, P, d) features of pictures in [0, 1]."""
        found: Tensor = self.network(x_N_3_H_W)
        return found.flatten(2).transpose(1, 2)


@dataclass(frozen=True)
class ViTSize:
    """The size of a vision transformer.

    Attributes:
        image: height and width of a picture, in pixels.
        patch: height and width of a patch, in pixels.
        width, depth, heads, mlp: of the transformer.
        prefix: tokens before those of the patches: a class token, then registers.
        scaled: residual branches are scaled per channel (LayerScale).
        words: width of the instruction's embedding that modulates every block (FiLM); 0: none does.
    """

    image: int
    patch: int
    width: int
    depth: int
    heads: int
    mlp: int
    prefix: int = 0
    scaled: bool = False
    words: int = 0

    @property
    def patches(self) -> int:
        """Patches of a picture."""
        return (self.image // self.patch) ** 2


class ViT(nn.Module):
    """A vision transformer with the parameter names of timm's, up to the last block but one.

    Prismatic models take the output of the last block but one (`get_intermediate_layers`, without the final norm), so
    the block after it, the norm and the pooling of a published checkpoint are left out: see `unused`.
    """

    _no_split_modules = ("_Block",)

    def __init__(self, size: ViTSize) -> None:
        super().__init__()
        self.size, self.width = size, size.width
        self.patch_embed = nn.ModuleDict({"proj": nn.Conv2d(3, size.width, size.patch, size.patch)})
        self.pos_embed = nn.Parameter(0.02 * torch.randn(1, size.patches, size.width))
        if size.prefix:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, size.width))
        if size.prefix > 1:
            self.reg_token = nn.Parameter(torch.zeros(1, size.prefix - 1, size.width))
        self.blocks = nn.ModuleList(_Block(size) for _ in range(size.depth - 1))

    def forward(self, x_N_3_H_W: Tensor, words_N_h: Tensor | None = None) -> Tensor:
        """(N, P, d) features of normalised pictures, with the mean embedding of the instruction where it modulates."""
        x = self.patch_embed["proj"](x_N_3_H_W).flatten(2).transpose(1, 2) + self.pos_embed
        before = [self.cls_token] if self.size.prefix else []
        before += [self.reg_token] if self.size.prefix > 1 else []
        if before:
            x = torch.cat([*(token.expand(len(x), -1, -1) for token in before), x], dim=1)
        for block in self.blocks:
            x = block(x, words_N_h)
        found: Tensor = x[:, self.size.prefix :]
        return found

    def unused(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes of the parameters that a published checkpoint has after the features are taken."""
        w, m = self.size.width, self.size.mlp
        last = {f"blocks.{self.size.depth - 1}.{k}": tuple(v.shape) for k, v in self.blocks[0].state_dict().items()}
        norms = {"norm.weight": (w,), "norm.bias": (w,)}
        if self.size.prefix:
            return last | norms
        linear = {"q": (w, w), "kv": (2 * w, w), "proj": (w, w), "mlp.fc1": (m, w), "mlp.fc2": (w, m)}
        pool: dict[str, tuple[int, ...]] = {"attn_pool.latent": (1, 1, w)}
        for name, shape in linear.items():
            pool |= {f"attn_pool.{name}.weight": shape, f"attn_pool.{name}.bias": shape[:1]}
        return last | norms | pool | {f"attn_pool.{k}": v for k, v in norms.items()}


class _Block(nn.Module):
    def __init__(self, size: ViTSize) -> None:
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.attn = nn.ModuleDict({"qkv": nn.Linear(width, 3 * width), "proj": nn.Linear(width, width)})
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, size.mlp), "fc2": nn.Linear(size.mlp, width)})
        self.ls1 = _Scale(width) if size.scaled else nn.Identity()
        self.ls2 = _Scale(width) if size.scaled else nn.Identity()
        if size.words:
            self.scale, self.shift = nn.Linear(size.words, width), nn.Linear(size.words, width)

    def forward(self, x: Tensor, words_N_h: Tensor | None = None) -> Tensor:
        n, tokens, width = x.shape
        qkv = self.attn["qkv"](self.norm1(x)).view(n, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(*qkv).transpose(1, 2).reshape(n, tokens, width)
        x = x + self.ls1(self.attn["proj"](mixed))
        if words_N_h is not None:  # feature-wise linear modulation (Perez et al. 2017, 1709.07871)
            x = x * (1 + self.scale(words_N_h)[:, None]) + self.shift(words_N_h)[:, None]
        x = x + self.ls2(self.mlp["fc2"](functional.gelu(self.mlp["fc1"](self.norm2(x)))))
        return x


class _Scale(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale_factor = nn.Parameter(torch.full((width,), 1e-5))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale_factor


class DinoSiglipTowers(nn.Module):
    """DINOv2 and SigLIP side by side, features joined, as in Prismatic models; or one of them alone.

    Args:
        sizes: of one tower, or of both.

    Attributes:
        width: of the joined features.
    """

    def __init__(self, sizes: Sequence[ViTSize]) -> None:
        super().__init__()
        self.statistics = [IMAGENET if size.prefix else HALF for size in sizes]  # DINOv2 has class and register tokens
        self.featurizer = ViT(sizes[0])
        self.fused_featurizer = ViT(sizes[1]) if len(sizes) > 1 else None
        self.width = sum(size.width for size in sizes)

    def channels(self, x_N_3_H_W: Tensor) -> Tensor:
        """(N, 6, H, W): channels 0-2 as DINOv2 takes them, 3-5 as SigLIP does; of one tower, its three."""
        return torch.cat([normalised(x_N_3_H_W, statistics) for statistics in self.statistics], dim=1)

    def forward(self, x_N_3_H_W: Tensor, words_N_h: Tensor | None = None) -> Tensor:
        """(N, P, d) features of pictures in [0, 1], with the mean embedding of the instruction where it modulates."""
        x = self.channels(x_N_3_H_W)
        found: list[Tensor] = [self.featurizer(x[:, :3], words_N_h)]
        if self.fused_featurizer is not None:
            found.append(self.fused_featurizer(x[:, 3:], words_N_h))
        return torch.cat(found, dim=-1)
