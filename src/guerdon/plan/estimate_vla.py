"""Estimates for a vision-language-action policy of real size on the GPUs that the study names (`policy.gpus`).

Nothing here was measured: each line holds its formula, and `SOURCES` say where its inputs come from. P is the number of
parameters, T of those that are trained, S the tokens of a decision, h the width of the language part, I its inner
width, L its layers, D decisions.

    estimate_vla(study)["memory of the policy"]      # "73.3 GB: fits on one GPU"
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from guerdon.durations import duration
from guerdon.errors import DataError, boundary
from guerdon.plan.estimate_text import CONTEXT, layer_bytes
from guerdon.plan.text_size import Shape
from guerdon.settings.gpus import GPUS, gpus_named
from guerdon.settings.study import Study
from guerdon.settings.vla_policy import VLAPolicySettings

PUBLISHED = {  # shapes of the language part; parameters of the rest
    "token": {"hidden_size": 4096, "layers": 32, "intermediate_size": 11008, "vocab_size": 32064, "rest": 0.80e9},
    "flow": {"hidden_size": 960, "layers": 16, "intermediate_size": 2560, "vocab_size": 49280, "rest": 0.20e9},
}
TOWERS = {  # of vision, as far as they are computed: width, inner width, blocks, tokens of a picture
    "token": ((1024, 4096, 23, 261), (1152, 4304, 26, 256)),  # DINOv2 L with registers, SigLIP So400M
    "flow": (),  # its tower is not counted
}
PATCHES, PROMPT, ACTION = 256, 35, 7  # tokens of a picture, of an instruction, of an action
USED = 0.4  # share of a GPU's peak rate that is reached
STEPS_PER_SECOND = 13.0  # of one copy of LIBERO with pictures
SOURCES = {
    "P": "config.json of policy.vla_path, else the published shapes (OpenVLA: Llama 2 7B, DINOv2 L, SigLIP So400M, "
    "2406.09246 section 3.1; SmolVLA: 2506.01844)",
    "bytes": "16 per trained parameter: weight, gradient and two moments in float32 (1412.6980), and 2 of its copy in "
    "bfloat16; 2 per frozen one, in bfloat16, or 0.5625 in 4 bits with a float32 scale per 64 (2305.14314), but for "
    "embeddings; activations: counted from what autograd keeps on a CPU (docs/libero.md)",
    "operations": "2 P per token forwards, 4 P backwards, 2 P of those for frozen weights (2001.08361 section 2.1)",
    "rate": f"{USED:.0%} of the peak in bfloat16 on NVIDIA's data sheets; the share is assumed (46 % in 2204.02311)",
    "simulator": f"{STEPS_PER_SECOND:g} steps/s of a copy, each on a core of its own (docs/libero.md)",
}


def estimate_vla(study: Study) -> dict[str, str]:
    """Memory and time of `guerdon run` with a vision-language-action policy; empty without `policy.gpus`."""
    policy, env, algorithm, runner = study.policy, study.env, study.control_algorithm, study.runner
    if not isinstance(policy, VLAPolicySettings) or policy.gpus is None:
        return {}
    count, name = gpus_named(policy.gpus)
    memory, peak, _ = GPUS[name]
    shape = _shape(policy)
    parameters, adapters = _parameters(shape), _adapters(policy, shape)
    trained = adapters if policy.use_lora else parameters
    tokens = PATCHES * policy.num_images_in_input + PROMPT + ACTION * policy.num_action_chunks
    micro = algorithm.micro_batch_size or algorithm.minibatch_size
    embedded = 2 * shape["vocab_size"] * shape["hidden_size"]
    frozen = 0.5625 * (parameters - embedded) + 2 * embedded if policy.use_quantization else 2 * parameters
    state = frozen + 18 * adapters if policy.use_lora else 18 * parameters
    one = _decision_bytes(policy, shape, tokens)
    activations = micro * one
    limit = env.max_episode_steps or 1
    steps = env.num_envs * (limit if algorithm.needs.groups else algorithm.rollout_steps)
    decisions = math.ceil(steps / policy.num_action_chunks)
    updates = math.ceil(runner.total_steps / steps)
    evaluated = runner.total_steps // runner.eval_every * runner.eval_episodes * limit
    per_update = 4 + algorithm.num_epochs * (4 if policy.use_lora else 6)
    operations = parameters * tokens * (
        updates * decisions * per_update + 2 * evaluated / policy.num_action_chunks
    )  # fmt: skip
    rate = count * peak * USED
    simulated = (runner.total_steps + evaluated) / (STEPS_PER_SECOND * env.num_envs)
    whole = state + activations + CONTEXT
    fits = (
        "fits on one GPU" if whole <= memory else _advice(study, math.floor((memory - CONTEXT - state) / one), memory)
    )
    held = f"0.5625 (P - E) + 2 E + 18 T, E = {embedded / 1e9:.3g}e9," if policy.use_quantization else "2 P + 18 T with"
    formula = f"{held} T = {trained / 1e9:.3g}e9" if policy.use_lora else "18 P"
    layer = f"S L ({_LAYER[policy.use_lora]}), and the towers of vision"
    return {
        "estimated, not measured, for": f"{count} x {name}; P = {parameters / 1e9:.3g}e9, S = {tokens}",
        "memory of weights, gradients and moments": f"{state / 1e9:.1f} GB = {formula}",
        "memory of activations": (
            f"{activations / 1e9:.1f} GB = {one / 1e9:.2f} GB ({layer}) x {micro} decisions (micro_batch_size)"
        ),
        "memory": f"{whole / 1e9:.0f} GB, {CONTEXT / 1e9:.0f} GB of it CUDA's own (assumed): {fits}",
        "time on the GPUs": (
            f"{duration(operations / rate)} = P S ({per_update} x {updates * decisions} D + 2 x "
            f"{evaluated // policy.num_action_chunks} D of evaluations) / "
            f"({USED:g} x {count * peak / 1e12:.0f} TFLOP/s), "
            "spread evenly over them"
        ),
        "time of the simulators": f"{duration(simulated)} = steps / ({STEPS_PER_SECOND:g}/s x {env.num_envs} copies)",
        **{f"source of {what}": source for what, source in SOURCES.items()},
    }


_LAYER = {True: "28 h + 8 I + 14 r", False: "34 h + 8 I"}  # by use_lora


def _decision_bytes(policy: VLAPolicySettings, shape: Mapping[str, float], tokens: int) -> float:
    """Bytes that autograd keeps for one decision.

    Of a block of a vision transformer of width w and inner width m, with adapters of rank r: 18 w + 4 m + 8 r per
    token, and on a GPU, whose layer norms are in float32, 22 w + 4 m + 8 r; 24 w + 4 m where all weights are trained.
    """
    rank = policy.lora_rank if policy.use_lora else None
    seen = sum(
        policy.num_images_in_input * patches * blocks * (24 * w + 4 * m if rank is None else 22 * w + 4 * m + 8 * rank)
        for w, m, blocks, patches in TOWERS[policy.decoding.family]
    )
    return seen + tokens * shape["layers"] * layer_bytes(_language(shape), rank)


def _language(shape: Mapping[str, float]) -> Shape:
    h, layers, inner, words = (int(shape[key]) for key in ("hidden_size", "layers", "intermediate_size", "vocab_size"))
    return Shape(h, layers, inner, queries=h, keys=h, vocabulary=words, tied=False)


def _advice(study: Study, most: int, memory: float) -> str:
    """What to change where a GPU, which holds the whole policy, has room for the activations of `most` decisions."""
    policy, whole = study.policy, study.control_algorithm.minibatch_size
    assert isinstance(policy, VLAPolicySettings)
    change = "policy.use_quantization: true" if policy.use_lora else "policy.use_lora: true"
    if most > 0:
        change = f"algorithm.micro_batch_size: {max(k for k in range(1, most + 1) if whole % k == 0)}"
    return f"does not fit on one GPU of {memory / 1e9:.0f} GB: take {change}"


def vla_bytes(study: Study) -> tuple[int, int]:
    """Bytes on disk of what is trained: the policy at the end, and each checkpoint, with the two moments of Adam."""
    policy = study.policy
    if not isinstance(policy, VLAPolicySettings) or policy.vla_path is None:
        return 0, 0
    shape = _shape(policy)
    trained = _adapters(policy, shape) if policy.use_lora else _parameters(shape)
    return int(4 * trained), int(12 * trained)


def _parameters(shape: Mapping[str, float]) -> float:
    """Of the language part, whose layers have four square and three wide matrices, its two embeddings, and the rest."""
    h = shape["hidden_size"]
    return (
        shape["layers"] * (4 * h * h + 3 * h * shape["intermediate_size"]) + 2 * shape["vocab_size"] * h + shape["rest"]
    )


def _adapters(policy: VLAPolicySettings, shape: Mapping[str, float]) -> float:
    """Parameters of adapters on all matrices of the language part, the towers of vision and what projects these."""
    rank, h, towers = policy.lora_rank, int(shape["hidden_size"]), TOWERS[policy.decoding.family]
    seen = sum(rank * blocks * (8 * w + 2 * m) for w, m, blocks, _ in towers)  # qkv, proj, fc1, fc2
    features = sum(w for w, *_ in towers)
    projector = rank * (5 * features + (4 * features + h) + 2 * h) if towers else 0
    return _language(shape).adapters(rank) + seen + projector


def _shape(policy: VLAPolicySettings) -> dict[str, float]:
    """Shapes from the checkpoint's configuration; those of the published model where it is not here."""
    published = dict(PUBLISHED[policy.decoding.family])
    file = Path(policy.vla_path or "") / "config.json"
    if not file.is_file():
        return published
    with boundary(DataError, f"{file} cannot be read"):
        found = json.loads(file.read_text(encoding="utf-8"))
    text = found.get("text_config") or {}
    names = {"layers": "num_hidden_layers"}
    return {key: text.get(names.get(key, key), value) for key, value in published.items()}
