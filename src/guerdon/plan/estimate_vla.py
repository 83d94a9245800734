"""Estimates for a vision-language-action policy of real size on the GPUs that the study names (`policy.gpus`).

Nothing here was measured: docs/libero.md has the formulas and where their inputs come from. P is the number of
parameters, T of those that are trained, S the tokens of a decision.

    estimate_vla(study)["memory at most"]      # "73.3 GB, 1.0 GB of it CUDA's own (assumed): fits on one GPU"
"""

from __future__ import annotations

import math
from pathlib import Path

from guerdon.durations import duration
from guerdon.plan.estimate_text import CONTEXT, computing, gpu_lines, layer_bytes
from guerdon.plan.text_size import Shape, read_config, shape_of
from guerdon.settings.gpus import GPUS, gpus_named
from guerdon.settings.study import Study
from guerdon.settings.vla_policy import VLAPolicySettings

PUBLISHED = {  # configurations of the language part
    "token": {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 11008, "vocab_size": 32064},
    "flow": {"hidden_size": 960, "num_hidden_layers": 16, "intermediate_size": 2560, "vocab_size": 49280},
}
REST = {"token": 0.80e9, "flow": 0.20e9}  # parameters of the other parts
TOWERS = {  # of vision, as far as they are computed: width, inner width, blocks, tokens of a picture
    "token": ((1024, 4096, 23, 261), (1152, 4304, 26, 256)),  # DINOv2 L with registers, SigLIP So400M
    "flow": (),  # its tower is not counted
}
PATCHES, PROMPT, ACTION = 256, 35, 7  # tokens of a picture, of an instruction, of an action
STEPS_PER_SECOND = 13.0  # of one copy of LIBERO with pictures


def estimate_vla(study: Study) -> dict[str, str]:
    """Memory and time of `guerdon run` with a vision-language-action policy; empty without `policy.gpus`."""
    policy, env, algorithm, runner = study.policy, study.env, study.control_algorithm, study.runner
    if not isinstance(policy, VLAPolicySettings) or policy.gpus is None:
        return {}
    shape, p, trained = vla_size(policy)
    tokens = PATCHES * policy.num_images_in_input + PROMPT + ACTION * policy.num_action_chunks
    state, one = 18 * trained, _decision_bytes(policy, shape, tokens)
    if policy.use_lora:
        embedded = 2 * shape.embedding
        state += 0.5625 * (p - embedded) + 2 * embedded if policy.use_quantization else 2 * p
    micro = algorithm.micro_batch_size or algorithm.minibatch_size
    limit, chunk = env.max_episode_steps or 1, policy.num_action_chunks
    steps = env.num_envs * (limit if algorithm.needs.groups else algorithm.rollout_steps)
    decisions = math.ceil(runner.total_steps / steps) * math.ceil(steps / chunk)
    evaluated = runner.total_steps // runner.eval_every * runner.eval_episodes * limit
    per_token = 4 + algorithm.num_epochs * (4 if policy.use_lora else 6)
    room = GPUS[gpus_named(policy.gpus)[1]].memory - CONTEXT - state
    parts = {"weights, gradients and moments": state, f"activations of {micro} decisions": micro * one}
    return {
        **gpu_lines(
            parts, sum(parts.values()), policy.gpus, _advice(policy, algorithm.minibatch_size, int(room // one)),
            f"P = {p / 1e9:.3g}e9, T = {trained / 1e9:.3g}e9, S = {tokens}",
        ),
        **computing(p * tokens * (decisions * per_token + 2 * evaluated / chunk), policy.gpus),
        "time of the simulators": duration((runner.total_steps + evaluated) / (STEPS_PER_SECOND * env.num_envs)),
    }  # fmt: skip


def _decision_bytes(policy: VLAPolicySettings, shape: Shape, tokens: int) -> float:
    """Bytes that autograd keeps for one decision.

    Of a block of a vision transformer of width w and inner width m, with adapters of rank r: 18 w + 4 m + 8 r per
    token, and on a GPU, whose layer norms are in float32, 22 w + 4 m + 8 r; 24 w + 4 m where all weights are trained.
    """
    rank = policy.lora_rank if policy.use_lora else None
    seen = sum(
        policy.num_images_in_input * patches * blocks * (24 * w + 4 * m if rank is None else 22 * w + 4 * m + 8 * rank)
        for w, m, blocks, patches in TOWERS[policy.decoding.family]
    )
    return seen + tokens * shape.layers * layer_bytes(shape, rank)


def _advice(policy: VLAPolicySettings, minibatch: int, most: int) -> str:
    """What to change where a GPU, which holds the whole policy, has room for the activations of `most` decisions."""
    if most > 0:
        return f"algorithm.micro_batch_size: {max(k for k in range(1, most + 1) if minibatch % k == 0)}"
    return "policy.use_quantization: true" if policy.use_lora else "policy.use_lora: true"


def vla_bytes(study: Study) -> tuple[int, int]:
    """Bytes on disk of what is trained: the policy at the end, and each checkpoint, with the two moments of Adam."""
    policy = study.policy
    if not isinstance(policy, VLAPolicySettings) or policy.vla_path is None:
        return 0, 0
    trained = vla_size(policy)[2]
    return int(4 * trained), int(12 * trained)


def vla_size(policy: VLAPolicySettings) -> tuple[Shape, float, float]:
    """The language part, all parameters, and those that are trained.

    Shapes are those of the checkpoint's configuration, of the published model where that does not say. Adapters are on
    all matrices of the language part, of the towers of vision (qkv, proj, fc1, fc2) and of what projects these.
    """
    family, file, rank = policy.decoding.family, Path(policy.vla_path or "") / "config.json", policy.lora_rank
    found = read_config(file) if file.is_file() else {}
    shape = shape_of({"tie_word_embeddings": False, **PUBLISHED[family], **found})
    p = shape.parameters + REST[family]
    if not policy.use_lora:
        return shape, p, p
    seen = sum(blocks * (8 * w + 2 * m) for w, m, blocks, _ in TOWERS[family])
    features = sum(w for w, *_ in TOWERS[family])
    projector = 9 * features + 3 * shape.width if features else 0
    return shape, p, shape.adapters(rank) + rank * (seen + projector)
