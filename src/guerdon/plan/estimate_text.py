"""Memory and time of language models on a GPU, by part, with formulas: what `--dry-run` prints.

None of it was measured on a GPU; `benchmarks/memory.py` prints the formulas next to the peak of an update on a CPU. P
is the number of parameters, E those of the embedding, T those that are trained; of a layer, h is the width, q and k the
widths of queries and keys, I the inner width; L is the number of layers, V the vocabulary, N the tokens of a pass.

    memory = update_memory(shape, rank=None, tokens=8192, answered=8192, checkpointing=True)
    memory["gradients"]             # bytes
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from guerdon.durations import duration
from guerdon.plan.text_size import Shape, size_of_start
from guerdon.settings.gpus import GPUS, gpus_named
from guerdon.settings.prime import PrimeSettings
from guerdon.settings.reward_models import PrimeModelSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.settings.train import TextTrainSettings

TOKENS_PER_PASS, LOGITS_AT_ONCE = 8192, 2**26  # on a GPU (guerdon.policies.passes and text; a test compares them)
PER_LOGIT = 22  # bytes of a logit of the piece that goes backward: counted from the operators of `token_log_probs`
CONTEXT = 1e9  # bytes of CUDA, cuBLAS and what the allocator cannot use
USED, READ = 0.4, 0.6  # shares of the peak rate of products, and of the peak rate of reading memory
LAUNCHES, LAUNCH = 25, 8e-6  # kernels per layer and token of the local engine, seconds of each
SMALLEST = 100.0  # millions of parameters from which the memory of a GPU is worth a line
PROMPT = 100  # tokens of a prompt for the time; the memory is that of data.max_prompt_length

SOURCES = {
    "P": "config.json; of a model that is not here policy.config_file, or the size in its name (assumed)",
    "bytes": "weights, gradients and Adam: float32 (1412.6980), frozen matrices in bfloat16; activations: counted from "
    "what autograd keeps, compared with a count on a CPU (docs/memory.md)",
    "operations": "2 P per token forwards, 4 P backwards, 2 P of those for frozen weights, 2 P more with "
    "gradient_checkpointing (2001.08361 section 2.1); attention is left out",
    "rates": f"NVIDIA's data sheets; {USED:.0%} of the products' and {READ:.0%} of the memory's are assumed, and "
    f"{LAUNCHES} launches of {LAUNCH * 1e6:.0f} us per layer and token of the local engine",
    "lengths": "memory: the longest that data allows; time: assumed",
}


def layer_bytes(shape: Shape, rank: int | None) -> int:
    """Bytes per token that a layer keeps for its backward pass, with bfloat16 products and float32 sums.

    All weights trained: residual and normalised states in float32 and five casts of them, 26 h; queries, keys, values
    and what attention gives, 4 q + 4 k; gate, its SiLU, up and their product, 8 I. Of an adapter on frozen weights: no
    normalised states, but a cast of its own input for each of seven matrices.
    """
    h, q, k, inner = shape.width, shape.queries, shape.keys, shape.inner
    attention = 4 * q + 4 * k
    if rank is None:
        return 26 * h + attention + 8 * inner
    return 18 * h + attention + 2 * q + 8 * inner + 14 * rank


def update_memory(
    shape: Shape,
    *,
    rank: int | None,
    tokens: int,
    answered: int,
    checkpointing: bool,
    head: bool = True,
    halved: bool = True,
    quantized: bool = False,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> dict[str, float]:
    """Bytes of each part while a gradient step's largest pass is under way; their sum is the peak.

    Args:
        shape: of the model.
        rank: of the adapters; None: all weights are trained.
        tokens: in the pass, padding included.
        answered: of those, tokens whose log-probabilities are wanted.
        checkpointing: `gradient_checkpointing`.
        head: whether log-probabilities are computed; a reward model with a head of its own has none.
        halved: frozen matrices are kept in bfloat16 (on a GPU); else in float32.
        quantized: frozen matrices are in 4 bits with a scale per 64.
        logits_at_once: in a piece.
    """
    p, e = shape.parameters, shape.embedding
    tied_head = e if head and shape.tied else 0
    if rank is None:
        trained, weights = p, 4.0 * p
        casts = 2.0 * (p - e - (0 if head or shape.tied else e)) + 2.0 * tied_head
    else:
        trained = shape.adapters(rank)
        each = 0.5625 if quantized else 2.0 if halved else 4.0
        weights = each * (p - e) + 4.0 * e + 4.0 * trained
        casts = 2.0 * tied_head + 2.0 * trained + (0.0 if halved or quantized else 2.0 * (p - e))
    layer = layer_bytes(shape, rank)
    kept = tokens * (shape.layers * (4 * shape.width if checkpointing else layer) + 10 * shape.width)
    logits = 0.0
    if head:
        logits = PER_LOGIT * min(answered * shape.vocabulary, max(logits_at_once, shape.vocabulary))
        logits += 6.0 * e if rank is None else 0.0  # the gradient of the matrix of a piece, in bfloat16 and float32
    again = tokens * layer if checkpointing else 0
    return {
        "weights": weights,
        "gradients": 4.0 * trained,
        "Adam": 8.0 * trained,
        "bfloat16 copies": casts,
        "activations": kept,
        "logits, or a layer computed again": max(logits, again),
    }


def rollout_memory(shape: Shape, *, rows: int, length: int) -> dict[str, float]:
    """Bytes that the local engine needs while it writes `rows` responses, each of `length` tokens with its prompt."""
    return {
        "bfloat16 copy of the weights": 2.0 * (shape.parameters - (0 if shape.tied else shape.embedding)),
        "cache": 4.0 * shape.keys * shape.layers * rows * length,
        "logits": 16.0 * rows * shape.vocabulary,
    }


def state_memory(parts: Mapping[str, float]) -> float:
    """What stays between updates: weights and Adam."""
    return parts["weights"] + parts["Adam"]


def estimate_text_run(study: Study, *, written: int) -> dict[str, str]:
    """Memory and time on a GPU of `guerdon run`, by part; empty for models that are small or of unknown size.

    Args:
        study: the configuration.
        written: tokens of a response, for the time.
    """
    policy, data = _started(study), study.data
    size = size_of_start(policy)
    if data is None or size.millions < SMALLEST or not size.known:
        return _unknown(size.known)
    shape = size.shape
    length = data.max_prompt_length + data.max_response_length
    tokens = max(policy.max_tokens_per_pass or TOKENS_PER_PASS, length)
    answered = tokens * data.max_response_length // length
    options: dict[str, Any] = {"rank": size.rank, "tokens": tokens, "answered": answered}
    checkpointing = policy.gradient_checkpointing
    parts = update_memory(shape, checkpointing=checkpointing, **options)
    others = _others(study, policy, shape, options, checkpointing)
    beside = sum(others.values())
    count, name = gpus_named(policy.gpus)
    memory = GPUS[name].memory
    rows = data.train_batch_size * data.n_samples
    if study.generation.engine == "local":
        rows = min(rows, study.generation.batch_size)
        rollout = rollout_memory(shape, rows=rows, length=length)
        cache = f"4 k L x {rows} responses (generation.batch_size) x {length} tokens"
    else:
        rollout = {"cache": study.generation.gpu_memory_utilization * memory}
        cache = "generation.gpu_memory_utilization; given back during updates"
    update, acting = sum(parts.values()), state_memory(parts) + sum(rollout.values())
    return {
        **_lines(parts, shape, size.rank, tokens, checkpointing),
        **{f"memory of {what}": _gb(bytes_) for what, bytes_ in others.items()},
        "memory of the rollout": f"{_gb(sum(rollout.values()))}, its cache {_gb(rollout['cache'])} = {cache}",
        "memory at most": _fits(max(update, acting) + beside + CONTEXT, memory, name, checkpointing),
        **_time(study, shape, size.rank, count, name, written),
        **{f"source of {what}": source for what, source in SOURCES.items()},
    }


def estimate_text_train(
    model: TextTrainSettings, start: TextPolicySettings, *, solutions: int, written: int
) -> dict[str, str]:
    """Memory and time on a GPU of training one reward model, by part; empty for models that are small or unknown.

    Args:
        model: of `train`.
        start: the language model that it starts from.
        solutions: to learn from, one pass after the other counted.
        written: tokens of a solution.
    """
    size = size_of_start(start)
    if size.millions < SMALLEST or not size.known:
        return _unknown(size.known)
    shape = size.shape
    length = model.max_length or TOKENS_PER_PASS
    tokens = max(model.max_tokens_per_pass or TOKENS_PER_PASS, length)
    if model.micro_batch_size is not None:
        tokens = min(tokens, model.micro_batch_size * length)
    head = model.type in ("implicit", "verdict")
    parts = update_memory(
        shape, rank=size.rank, tokens=tokens, answered=tokens, checkpointing=model.gradient_checkpointing, head=head,
        quantized=model.quantize is not None,
    )  # fmt: skip
    # written with the model, so it stays in float32
    second = 0.0 if model.type != "implicit" or size.rank is not None else 4.0 * shape.parameters
    count, name = gpus_named(start.gpus)
    gpu, read = GPUS[name], PROMPT + written
    learn = (6 if size.rank is None else 4) + (2 if model.gradient_checkpointing else 0)
    learn += 2 if model.type == "implicit" else 0
    seconds = solutions * read * shape.parameters * learn / (count * gpu.peak * USED)
    whole = sum(parts.values()) + second + CONTEXT
    return {
        **_lines(parts, shape, size.rank, tokens, model.gradient_checkpointing),
        **({"memory of the reference": _gb(second)} if second else {}),
        "memory at most": _fits(whole, gpu.memory, name, model.gradient_checkpointing),
        f"time on {count} x {name}": (
            f"{duration(seconds)} = {learn} P x {solutions} solutions x {read} tokens / "
            f"({USED:g} x {count * gpu.peak / 1e12:.0f} TFLOP/s)"
        ),
        **{f"source of {what}": source for what, source in SOURCES.items()},
    }


def _started(study: Study) -> TextPolicySettings:
    """The policy, with the model that its `sft` section starts from where it is one."""
    policy = study.text_policy
    first = study.sft.policy if study.sft is not None else None
    if first is None:
        return policy
    return policy.model_copy(update={"path": first.path, "tiny": first.tiny, "config_file": first.config_file})


def _unknown(known: bool) -> dict[str, str]:
    return {} if known else {"GPU memory": "not known without the size of the model: give policy.config_file"}


def _frozen(shape: Shape) -> float:
    """Bytes of a model that is only read on a GPU."""
    return 2.0 * (shape.parameters - shape.embedding) + 4.0 * shape.embedding


def _others(
    study: Study, policy: TextPolicySettings, shape: Shape, options: Mapping[str, Any], checkpointing: bool
) -> dict[str, float]:
    """Bytes of the KL's reference and of reward models, by name, that are there next to the policy."""
    found: dict[str, float] = {}
    if study.text_algorithm.kl_coef and policy.lora is None:
        found["the reference of the KL"] = _frozen(shape)
    for name, source in study.text_sources.items():
        model = source.model
        if isinstance(model, PrimeModelSettings):
            found |= _prime(name, model, shape, options, checkpointing)
        elif (path := getattr(model, "checkpoint_path", None)) is not None:
            start = _trained_at(study, str(path)) or TextPolicySettings(path=str(path))
            size = size_of_start(start)
            if size.known and size.millions >= SMALLEST:
                found[f"the reward model {name}"] = _frozen(size.shape)
    return found


def _prime(
    name: str, model: PrimeSettings, shape: Shape, options: Mapping[str, Any], checkpointing: bool
) -> dict[str, float]:
    """What PRIME's model and its reference add: on adapters only the adapters."""
    own = update_memory(shape, checkpointing=checkpointing, **options)
    shared = options["rank"] is not None and model.prime_model.path is None
    state = own["gradients"] + own["Adam"] + (4.0 * shape.adapters(options["rank"]) if shared else own["weights"])
    found = {f"{name}'s weights, gradients and Adam": state}
    if model.prime_model.ref_type == "freeze" and not shared:
        found[f"{name}'s reference"] = _frozen(shape)
    return found


def _trained_at(study: Study, path: str) -> TextPolicySettings | None:
    """What a reward model of this study that is trained at a path starts from."""
    for model in study.text_models.values():
        if path.startswith(model.save_dir):
            return model.start(study.text_default)
    return None


def _lines(
    parts: Mapping[str, float], shape: Shape, rank: int | None, tokens: int, checkpointing: bool
) -> dict[str, str]:
    layer = layer_bytes(shape, rank)
    each = (
        "4 h L + 10 h"
        if checkpointing
        else f"{layer} L + 10 h, {layer} = "
        + ("26 h + 4 q + 4 k + 8 I" if rank is None else "18 h + 6 q + 4 k + 8 I + 14 r")
    )
    state = "16 P" if rank is None else "2 (P - E) + 4 E + 16 T"
    formulas = {
        "weights": f"with gradients and Adam {_gb(parts['weights'] + parts['gradients'] + parts['Adam'])} = {state}",
        "activations": f"N x ({each}), N = {tokens} (max_tokens_per_pass)",
        "logits, or a layer computed again": f"{PER_LOGIT} bytes x {LOGITS_AT_ONCE} logits at a time, or {layer} N",
    }
    e, p = shape.embedding / 1e9, shape.parameters / 1e9
    trained = "" if rank is None else f", T = {shape.adapters(rank) / 1e9:.3g}e9"
    return {
        "estimated, not measured": f"P = {p:.3g}e9, E = {e:.3g}e9{trained}",
        **{
            f"memory of {what}": _gb(bytes_) + (f" ({formulas[what]})" if what in formulas else "")
            for what, bytes_ in parts.items()
        },
    }


def _fits(whole: float, memory: float, name: str, checkpointing: bool) -> str:
    more = "" if checkpointing else "gradient_checkpointing: true, "
    advice = f"take {more}a smaller max_tokens_per_pass, lora, or (in a run) a smaller generation.batch_size"
    fits = "fits on one GPU" if whole <= memory else f"does not fit on one {name} of {_gb(memory)}: {advice}"
    return f"{_gb(whole)}, {_gb(CONTEXT)} of it CUDA's own (assumed): {fits}"


def _time(study: Study, shape: Shape, rank: int | None, count: int, name: str, written: int) -> dict[str, str]:
    """Seconds on the GPUs that `policy.gpus` names, one H100 without it."""
    data, algorithm, policy = study.data, study.text_algorithm, study.text_policy
    assert data is not None
    gpu, p = GPUS[name], shape.parameters
    responses = study.runner.total_steps
    length = PROMPT + written
    learn = (6 if rank is None else 4) + (2 if policy.gradient_checkpointing else 0)
    per_token = learn * algorithm.num_epochs + 2  # and the log-probabilities before the update
    per_token += 2 if algorithm.kl_coef else 0
    for source in study.text_sources.values():
        prime = isinstance(source.model, PrimeModelSettings)
        per_token += learn + 2 if prime else 2
    learning = responses * length * p * per_token / (count * gpu.peak * USED)
    batch = (
        study.generation.batch_size if study.generation.engine == "local" else data.train_batch_size * data.n_samples
    )
    rows = min(batch, data.train_batch_size * data.n_samples)
    read = 2.0 * p + 4.0 * shape.keys * shape.layers * rows * length
    step = read / (gpu.bandwidth * READ)
    if study.generation.engine == "local":
        step = max(step, LAUNCHES * shape.layers * LAUNCH)
    writing = math.ceil(responses / rows) * written * step
    return {
        f"time on {count} x {name} of updates": (
            f"{duration(learning)} = {per_token} P x {responses} responses x {length} tokens / "
            f"({USED:g} x {count * gpu.peak / 1e12:.0f} TFLOP/s)"
        ),
        f"time on one {name} of rollouts": (
            f"{duration(writing)} = {math.ceil(responses / rows)} batches x {written} tokens x {step * 1e3:.1f} ms"
        ),
    }


def _gb(bytes_: float) -> str:
    return f"{bytes_ / 1e9:.1f} GB"
