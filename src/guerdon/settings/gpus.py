"""GPUs that `--dry-run` estimates memory and time for.

gpus_named("8 x H100")        # (8, "H100")
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from pydantic import Field


class GPU(NamedTuple):
    """What a maker's data sheet says of a GPU.

    Attributes:
        memory: bytes.
        peak: operations per second in bfloat16, without sparsity.
        bandwidth: bytes per second from its memory.
    """

    memory: float
    peak: float
    bandwidth: float


GPUS = {  # from NVIDIA's data sheets: B200 of an HGX board, H100, H200 and H20 of SXM, A100 of 80 GB unless named
    "B200": GPU(180e9, 2250e12, 7.7e12), "H200": GPU(141e9, 989e12, 4.8e12), "H100": GPU(80e9, 989e12, 3.35e12),
    "H20": GPU(96e9, 148e12, 4.0e12), "A100": GPU(80e9, 312e12, 2.04e12), "A100-40GB": GPU(40e9, 312e12, 1.555e12),
    "L40S": GPU(48e9, 362e12, 0.864e12), "L4": GPU(24e9, 121e12, 0.3e12), "RTX4090": GPU(24e9, 165e12, 1.01e12),
}  # fmt: skip
_ALSO = {"A100-80GB": "A100", "H100-80GB": "H100", "H200-141GB": "H200", "H20-96GB": "H20", "B200-180GB": "B200"}
_GIVEN = re.compile(r"(?:([1-9][0-9]{0,5}) *[x×*] *)?([a-z][a-z0-9 _-]*)", re.IGNORECASE)

TOKENS_PER_PASS = 8192  # of a model of 1.5 billion parameters, which then keeps 29 GB of activations
LEAST_PER_PASS, MOST_PER_PASS = 2048, 65_536
_LAYERS, _WIDTH = 28, 1536  # of that model

GPUS_FIELD: Any = Field(
    None,
    description=f"what --dry-run estimates memory and time for, such as 8 x H100; nothing else reads it. Known are "
    f"{', '.join(GPUS)}",
)


def tokens_per_pass(layers: int, width: int) -> int:
    """The tokens that share a pass on a GPU where `max_tokens_per_pass` is null.

    8,192 of a model of 1.5 billion parameters, and of others as many as keep activations of about the same size: a
    small model waits for the launches of its kernels (measured on an H200: docs/benchmarks.md), and 8,192 tokens of
    one of 7 billion parameters keep 55 GB with adapters (`--dry-run`).

    Args:
        layers: of the model.
        width: of its hidden states.
    """
    return min(max(LEAST_PER_PASS, TOKENS_PER_PASS * _LAYERS * _WIDTH // (layers * width)), MOST_PER_PASS)


def known_gpus(given: str | None) -> str | None:
    """A number of known GPUs as `gpus_named` reads it: `8xH100`, `8*h100` and `8 x H100` are one.

    Raises:
        ValueError: it is not a number of known GPUs.
    """
    if given is None:
        return None
    found = _GIVEN.fullmatch(given.strip())
    name = None if found is None else _known(found[2])
    if found is None or name is None:
        raise ValueError(f"{given!r} is not a number of known GPUs: write, for example, 8 x H100 ({', '.join(GPUS)})")
    return f"{found[1] or 1} x {name}"


def _known(name: str) -> str | None:
    """The key of `GPUS` that a name means, whatever its case and what stands between its words."""
    plain = re.sub(r"[ _-]", "", name).upper().removeprefix("NVIDIA")
    for known in (*GPUS, *_ALSO):
        if known.replace("-", "") == plain:
            return _ALSO.get(known, known)
    return None


def gpus_named(given: str | None) -> tuple[int, str]:
    """How many GPUs a text names, and which; one H100 without a text."""
    count, _, name = (known_gpus(given) or "1 x H100").partition(" x ")
    return int(count), name
