"""Where to compute in bfloat16: one answer for every network.

uses_bf16("auto", torch.device("cpu"))
"""

from __future__ import annotations

from typing import Literal

import torch


def uses_bf16(choice: bool | Literal["auto"], device: torch.device) -> bool:
    """Whether to compute in bfloat16: as configured, or where the hardware multiplies it natively."""
    if choice != "auto":
        return choice
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
