"""Peak memory of one update of a language model on a CPU, measured and as `--dry-run` computes it.

    python benchmarks/memory.py            # measured on a CPU, and the formula
    python benchmarks/memory.py --trl      # arithmetic of guerdon and TRL on a GPU; nothing is measured

Each case runs in a process of its own: a model made in code, two gradient steps on responses of one length, and the
highest resident memory during the second one, less that before the model was made. The formulas are those of
`guerdon.plan.gpu`, with what differs on a CPU: frozen matrices stay float32 and pieces have 2^24 logits.
Memory does not depend on what else the machine is doing, so that a busy one is good enough.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "all weights": {},
    "all weights, gradient_checkpointing": {"gradient_checkpointing": True},
    "LoRA": {"lora": {"r": 16, "alpha": 32}},
    "LoRA, gradient_checkpointing": {"lora": {"r": 16, "alpha": 32}, "gradient_checkpointing": True},
}
TINY = {
    "architecture": "qwen2", "hidden_size": 512, "layers": 8, "heads": 8, "kv_heads": 2, "intermediate": 2816,
    "tokenizer": "characters",
}  # fmt: skip
ROWS, PROMPT, ANSWER = 16, 32, 224
VOCABULARY = 16384  # characters of the alphabet, so that logits weigh as they do in a real model


def policy_section(case: str) -> dict[str, Any]:
    """The `policy` section of a case."""
    alphabet = "".join(chr(0x4E00 + i) for i in range(VOCABULARY))
    return {"tiny": {**TINY, "alphabet": alphabet}, "bf16": True, "share_prompts": False, **CASES[case]}


def predicted(case: str, vocabulary: int) -> dict[str, float]:
    """Bytes by part."""
    from dataclasses import replace

    from guerdon.plan.gpu import update_memory
    from guerdon.plan.text_size import size_of_start
    from guerdon.settings.text_policy import TextPolicySettings

    settings = TextPolicySettings.model_validate(policy_section(case))
    size = size_of_start(settings)
    return update_memory(
        replace(size.shape, vocabulary=vocabulary), rank=size.rank, tokens=ROWS * (PROMPT + ANSWER),
        answered=ROWS * ANSWER, checkpointing=settings.gradient_checkpointing, halved=False, logits_at_once=2**24,
    )  # fmt: skip


def trl_memory(shape: Any, *, rank: int | None, tokens: int, bfloat16: bool) -> dict[str, float]:
    """Bytes of an update of TRL 1.16's GRPO with its defaults, from its source; gradient checkpointing is one of them.

    Files in `trl/`: weights in float32 unless `dtype` says otherwise (trainer/grpo_trainer.py, `model`), autocast to
    bfloat16 and gradient checkpointing (trainer/base_config.py), log-probabilities in tiles of 4,096 tokens by 32,768
    logits with the weight's gradient in float32 (kernels/chunked_logprob.py, trainer/utils.py: `add_fused_lm_head`).

    Args:
        shape: of the model.
        rank: of the adapters; None: all weights are trained.
        tokens: in the pass.
        bfloat16: `model_init_kwargs={"dtype": "bfloat16"}`, which is for adapters.
    """
    from guerdon.plan.gpu import layer_bytes

    h, p, e = shape.width, shape.parameters, shape.embedding
    trained = p if rank is None else shape.adapters(rank)
    matrices = p - e * (1 if shape.tied else 2)
    tile = 2.0 * min(tokens, 4096) * 32768 + 4.0 * tokens * h + (4.0 * e if rank is None else 0.0)
    return {
        "weights": (2.0 if bfloat16 else 4.0) * p + (0.0 if rank is None else 4.0 * trained),
        "gradients": 4.0 * trained,
        "Adam": 8.0 * trained,
        "bfloat16 copies": 2.0 * (matrices if rank is None else trained),
        "activations": tokens * ((2 if bfloat16 else 4) * h * shape.layers + 10 * h),
        "logits, or a layer computed again": max(tile, float(tokens * layer_bytes(shape, rank))),
    }


def trl_table() -> list[str]:
    """Rows of the comparison with TRL: 4 sequences of 512 + 2,048 tokens in a pass, gradient checkpointing in both."""
    from guerdon.plan.gpu import update_memory
    from guerdon.plan.text_size import PUBLISHED

    lines = ["| update of | guerdon (GB) | TRL (GB) | ratio |", "|---|---:|---:|---:|"]
    for billions in (1.5, 7.0):
        for rank, half in ((None, False), (32, False), (32, True)):
            shape, tokens = PUBLISHED[billions], 4 * 2560
            own = update_memory(shape, rank=rank, tokens=tokens, answered=4 * 2048, checkpointing=True)
            theirs = trl_memory(shape, rank=rank, tokens=tokens, bfloat16=half)
            a, b = sum(own.values()), sum(theirs.values())
            what = "all weights" if rank is None else "LoRA" + (", TRL with dtype bfloat16" if half else "")
            lines.append(f"| {billions:g}B, {what} | {a / 1e9:.1f} | {b / 1e9:.1f} | {a / b:.2f} |")
    return lines


def measure(case: str) -> dict[str, float]:
    """Peak bytes of an update in this process, and the formula's."""
    import numpy as np
    import torch

    from guerdon.compute.optimizers import AdamW
    from guerdon.policies.batches.tokens import token_batch
    from guerdon.policies.language.text_files import load_policy
    from guerdon.rl.update import Batch, update_policy
    from guerdon.settings.algorithm import TextAlgorithmSettings
    from guerdon.settings.text_policy import TextPolicySettings

    torch.set_num_threads(1)
    load_policy(TextPolicySettings.model_validate({"tiny": {"hidden_size": 32}, "lora": {"r": 2}}), seed=0)  # imports
    before = _resident("VmRSS")
    policy = load_policy(TextPolicySettings.model_validate(policy_section(case)), seed=0)
    vocabulary = policy.base.vocabulary
    rng = np.random.default_rng(0)
    prompts, answers = rng.integers(8, vocabulary, (ROWS, PROMPT)), rng.integers(8, vocabulary, (ROWS, ANSWER))
    tokens = token_batch(list(prompts), list(answers), np.ones(ROWS, dtype=np.bool_), pad_id=0)
    batch = Batch(tokens, torch.from_numpy(tokens.mask_B_T).float(), torch.randn(ROWS, ANSWER))
    optimizer, settings = AdamW(policy.parameters(), 1e-5), TextAlgorithmSettings(loss_agg="token")
    for _ in range(2):
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # the highest resident memory begins anew
        update_policy(policy, optimizer, batch, settings, rng, learning_rate=1e-5)
    parts = predicted(case, vocabulary)
    return {"measured": _resident("VmHWM") - before, "predicted": sum(parts.values()), **parts}


def _resident(name: str) -> float:
    """A line of /proc/self/status, in bytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024.0 * float(lines[name].split()[0])


def run(case: str) -> dict[str, float]:
    """`measure` in a fresh process."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    command = [sys.executable, __file__, "--case", case]
    found = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    result: dict[str, float] = json.loads(found.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Measure one case, or print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES)
    parser.add_argument("--trl", action="store_true", help="arithmetic of guerdon and TRL on a GPU")
    given = parser.parse_args()
    if given.trl:
        sys.stdout.write("\n".join(trl_table()) + "\n")
        return
    case = given.case
    if case is not None:
        sys.stdout.write(json.dumps(measure(case)) + "\n")
        return
    sys.stdout.write("| update of | measured (MB) | formula (MB) | ratio |\n|---|---:|---:|---:|\n")
    for name in CASES:
        found = run(name)
        ratio = found["predicted"] / found["measured"]
        sys.stdout.write(f"| {name} | {found['measured'] / 1e6:.0f} | {found['predicted'] / 1e6:.0f} | {ratio:.2f} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
