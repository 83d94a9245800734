"""Memory and time of language models and vision-language-action policies on a GPU, by part: what `--dry-run` prints.

docs/memory.md and docs/libero.md have the formulas and where their inputs come from, and what was compared with a GPU;
`benchmarks/memory.py` prints them next to the peak of an update on a CPU.

    memory = update_memory(shape, rank=None, tokens=8192, answered=8192, checkpointing=True)
    memory["gradients"]             # bytes
    estimate_vla(study)["memory at most"]      # "73.3 GB, 1.0 GB of it CUDA's own (assumed): fits on one GPU"
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from guerdon.pages.durations import duration
from guerdon.plan.gpu_time import (
    ON_CPU,
    PROMPT,
    Work,
    Workers,
    computing,
    evaluations,
    lines_of,
    sending,
    text_times,
    together,
    workers,
)
from guerdon.plan.text_size import Shape, Size, read_config, shape_of, size_of_start
from guerdon.settings.data import run_prompts
from guerdon.settings.gpus import GPUS, gpus_named, tokens_per_pass
from guerdon.settings.reward_models import PrimeModelSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.settings.train import TextTrainSettings
from guerdon.settings.vla_policy import FlowDecodingSettings, VLAPolicySettings

LOGITS_AT_ONCE = 2**26  # on a GPU (guerdon.policies.language.text; a test compares them)
PER_LOGIT = 22  # bytes of a logit of the piece that goes backward: counted from the operators of `token_log_probs`
CONTEXT = 1e9  # bytes of CUDA, cuBLAS and what the allocator cannot use
GATHERED, WHOLE = "what is gathered in an update", "the whole policy, while it acts"  # of sharded weights
COLLECTOR = "a collector, on a GPU of its own"
SMALLEST = 100.0  # millions of parameters from which the memory of a GPU is worth a line
ADVICE = "a smaller max_tokens_per_pass, lora, or (in a run) a smaller generation.batch_size"


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
    processes: int = 1,
) -> dict[str, float]:
    """Bytes of each part while a gradient step's largest pass is under way; their sum is the peak.

    Of several processes each holds its part of the base, frozen or not, in float32, and all of an adapter.

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
        processes: that share the weights; `tokens` are of one of them.
    """
    if rank is None:
        weights = _all_trained(shape, head, processes)
    else:
        weights = _adapters_trained(shape, rank, head, processes, halved=halved, quantized=quantized)
    layer = layer_bytes(shape, rank)
    per_layer = 4 * shape.width if checkpointing else layer
    computed_again = tokens * layer if checkpointing else 0
    logits = 0.0
    if head:
        at_once = max(logits_at_once, shape.vocabulary)
        logits = PER_LOGIT * min(answered * shape.vocabulary, at_once)
        if rank is None:
            logits += 6.0 * shape.embedding  # the gradient of the matrix of a piece, in bfloat16 and float32
    parts = {
        "weights": weights.held,
        "gradients": 4.0 * weights.trained,
        "Adam": 8.0 * weights.trained,
        "bfloat16 copies": weights.casts,
        "activations": tokens * (shape.layers * per_layer + 10 * shape.width),
        "logits, or a layer computed again": max(logits, computed_again),
    }
    if processes > 1:
        parts[GATHERED] = gathered_bytes(shape, full=rank is None)
    return parts


class _Weights(NamedTuple):
    """Weights of a model in an update.

    Attributes:
        held: bytes of all weights, of one process.
        trained: how many of them are trained in one process.
        casts: bytes of their copies in bfloat16 while a pass is under way.
    """

    held: float
    trained: float
    casts: float


def _all_trained(shape: Shape, head: bool, processes: int) -> _Weights:
    """All weights are trained, and lie in float32."""
    parameters, embedding = shape.parameters, shape.embedding
    casts = 2.0 * embedding * head
    if processes == 1:  # of several, they are made of what is gathered
        embeddings = embedding * (1 if shape.tied else 2)
        casts += 2.0 * (parameters - embeddings)
    return _Weights(4.0 * parameters / processes, parameters / processes, casts)


def _adapters_trained(
    shape: Shape, rank: int, head: bool, processes: int, *, halved: bool, quantized: bool
) -> _Weights:
    """Adapters are trained, on frozen matrices and embeddings in float32."""
    trained = shape.adapters(rank)
    matrices = shape.parameters - shape.embedding
    held = (_frozen_bytes(halved, quantized, processes) * matrices + 4.0 * shape.embedding) / processes
    casts = 2.0 * shape.embedding * (head and shape.tied) + 2.0 * trained
    if processes == 1 and not halved and not quantized:
        casts += 2.0 * matrices
    return _Weights(held + 4.0 * trained, trained, casts)


def _frozen_bytes(halved: bool, quantized: bool, processes: int) -> float:
    """Bytes of a frozen weight of a matrix."""
    if processes > 1:
        return 4.0
    if quantized:
        return 0.5625  # 4 bits, and a scale per 64
    return 2.0 if halved else 4.0


def gathered_bytes(shape: Shape, *, full: bool, root: float = 4.0) -> float:
    """Bytes that a process gathers in an update of sharded weights: two blocks in bfloat16, and the embeddings.

    Args:
        shape: of the model.
        full: all weights are trained: with gradients in float32.
        root: bytes of each weight of the embeddings.
    """
    embedded, gradients = shape.embedding * (1 if shape.tied else 2), 4.0 if full else 0.0
    block = (shape.parameters - embedded) / shape.layers
    return 2 * block * (2.0 + gradients) + embedded * (root + gradients)


def rollout_memory(shape: Shape, *, rows: int, length: int) -> dict[str, float]:
    """Bytes that the local engine needs while it writes `rows` responses, each of `length` tokens with its prompt."""
    return {
        "bfloat16 copy of the weights": 2.0 * (shape.parameters - (0 if shape.tied else shape.embedding)),
        "cache": 4.0 * shape.keys * shape.layers * rows * length,
        "logits": 16.0 * rows * shape.vocabulary,
    }


def gpu_lines(parts: Mapping[str, float], most: float, gpus: str | None, advice: str, what: str) -> dict[str, str]:
    """Lines of an estimate: each part, and whether all that is there at a time fits.

    Args:
        parts: bytes by name.
        most: bytes at a time, without CUDA's own.
        gpus: as `policy.gpus`.
        advice: what to change where it does not fit.
        what: sizes, for the first line.
    """
    count, name = gpus_named(gpus)
    whole, memory = most + CONTEXT, GPUS[name].memory
    fits = "fits on one GPU" if whole <= memory else f"does not fit on one {name} of {_gb(memory)}: take {advice}"
    return {
        "estimated, not measured, for": f"{count} x {name}; {what} (formulas: docs/memory.md)",
        **{f"memory of {name}": _gb(bytes_) for name, bytes_ in parts.items()},
        "memory at most": f"{_gb(whole)}, {_gb(CONTEXT)} of it CUDA's own (assumed): {fits}",
    }


def _gb(bytes_: float) -> str:
    return f"{bytes_ / 1e9:.1f} GB"


def _no_lines(size: Size) -> dict[str, str] | None:
    """What is said of a model that is small or of unknown size; None where its memory is worth lines."""
    if not size.known:
        return {"GPU memory": "not known without the size of the model: give policy.config_file"}
    return {} if size.millions < SMALLEST else None


def _advice(checkpointing: bool) -> str:
    return ADVICE if checkpointing else f"gradient_checkpointing: true, {ADVICE}"


def estimate_text_run(study: Study, *, written: int) -> dict[str, Any]:
    """Memory and time on GPUs of `guerdon run`, by part, and `seconds` in all where they are known.

    Nothing for models that are small, but for the time where `policy.gpus` names GPUs.

    Args:
        study: the configuration.
        written: tokens of a response, for the time.
    """
    policy, data = started(study), study.data
    size = size_of_start(policy)
    small = _no_lines(size)
    if data is None or small:
        return dict(small or {})
    if small is not None and policy.gpus is None:
        return {}
    who = workers(study)
    shape, cards = size.shape, who.learners
    answer = data.max_response_length if study.agent is None else study.agent.longest(data)
    length = data.max_prompt_length + answer
    tokens = max(policy.max_tokens_per_pass or tokens_per_pass(shape.layers, shape.width), length)
    parts = update_memory(
        shape, rank=size.rank, tokens=tokens, answered=tokens * answer // length,
        checkpointing=policy.gradient_checkpointing, processes=cards,
    )  # fmt: skip
    others = _others(study, policy, size, parts, cards)
    here, acting = _acting_memory(study, shape, who, length, parts)
    most = max(sum(parts.values()), acting) + sum(others.values())
    scored = [one.shape for one in _frozen_models(study).values() if one.known]
    is_sent_whole = study.engine == "ray" or study.generation.engine == "vllm"
    sent = 4e6 * size.trained if is_sent_whole else _frozen(shape)
    learn = _run_per_token(study, size, policy.gradient_checkpointing)
    times = text_times(study, shape, who, tokens=written, learn=learn, scored=scored, sent=sent)
    if small is not None:
        return lines_of(times, who) | together(times, study)
    advice = _advice(policy.gradient_checkpointing)
    found = gpu_lines(parts | others | here, most, policy.gpus, advice, f"{tokens} tokens in a pass")
    return found | lines_of(times, who) | together(times, study)


def _acting_memory(
    study: Study, shape: Shape, who: Workers, length: int, parts: Mapping[str, float]
) -> tuple[dict[str, float], float]:
    """Bytes of what writing responses adds, by name; and all that a learner's GPU holds while they are written.

    Args:
        study: the configuration.
        shape: of the policy.
        who: computes.
        length: tokens of the longest prompt with its response.
        parts: of the update.
    """
    data, generation = run_prompts(study.data), study.generation
    if generation.engine == "local":
        rows = min(data.train_batch_size * data.n_samples, generation.batch_size)
        rollout = sum(rollout_memory(shape, rows=rows, length=length).values())
    else:
        rollout = generation.gpu_memory_utilization * GPUS[who.gpu].memory
    if study.engine == "ray" and who.each >= 1:  # on GPUs of the collectors
        return {COLLECTOR: rollout + (4.0 * shape.parameters if generation.engine == "local" else 0.0)}, 0.0
    whole: dict[str, float] = {}
    if generation.engine == "local" and study.engine == "local" and who.learners > 1:
        whole = {WHOLE: _frozen(shape)}  # in every process
    acting = parts["weights"] + parts["Adam"] + sum(whole.values()) + rollout
    return whole | {"the rollout": rollout}, acting


def _run_per_token(study: Study, size: Size, checkpointing: bool) -> int:
    """Operations per parameter of the policy for a token of a run, but for writing it."""
    learn = _per_token(size, checkpointing)
    sources = [source.model for source in study.text_sources.values()]
    per_token = learn * study.text_algorithm.num_epochs + 2  # and the log-probabilities before the update
    per_token += 2 if study.text_algorithm.kl_coef else 0
    return per_token + (learn + 2) * sum(isinstance(model, PrimeModelSettings) for model in sources)


def _per_token(size: Size, checkpointing: bool) -> int:
    """Operations per parameter to learn from a token."""
    return (6 if size.rank is None else 4) + (2 if checkpointing else 0)


def learning_seconds(size: Size, gpus: str, tokens: float, *, again: bool) -> float:
    """Seconds to learn from so many tokens once.

    Args:
        size: of the model.
        gpus: that learn together.
        tokens: prompts aside.
        again: with gradient checkpointing.
    """
    cards, name = gpus_named(gpus)
    return computing(tokens * size.shape.active * _per_token(size, again), name, cards)


def estimate_text_train(
    model: TextTrainSettings, start: TextPolicySettings, *, solutions: int, written: int
) -> dict[str, Any]:
    """Memory and time on GPUs of training one reward model, by part, and `seconds` where the size is known.

    Of models that are small only `seconds`.

    Args:
        model: of `train`.
        start: the language model that it starts from.
        solutions: to learn from, one pass after the other counted.
        written: tokens of a solution.
    """
    size, implicit = size_of_start(start), model.type == "implicit"
    small, (cards, name) = _no_lines(size), gpus_named(start.gpus)
    learn = _per_token(size, model.gradient_checkpointing) + (2 if implicit else 0)
    seconds = computing(solutions * (PROMPT + written) * size.shape.active * learn, name, cards)
    if small is not None:
        return dict(small) if small else {"seconds": seconds}
    usual = tokens_per_pass(size.shape.layers, size.shape.width)
    length = model.max_length or usual
    tokens = max(model.max_tokens_per_pass or usual, length)
    if model.micro_batch_size is not None:
        tokens = min(tokens, model.micro_batch_size * length)
    parts = update_memory(
        size.shape, rank=size.rank, tokens=tokens, answered=tokens, checkpointing=model.gradient_checkpointing,
        head=implicit or model.type == "verdict", quantized=model.quantize is not None, processes=cards,
    )  # fmt: skip
    if implicit and size.rank is None:  # written with the model, so it stays in float32
        parts["the reference"] = 4.0 * size.shape.parameters / cards
    advice = _advice(model.gradient_checkpointing)
    lines = gpu_lines(parts, sum(parts.values()), start.gpus, advice, f"{tokens} tokens in a pass")
    return {**lines, f"time on {cards} x {name}": duration(seconds), "seconds": seconds}


def started(study: Study) -> TextPolicySettings:
    """The policy, with the model that its `sft` section starts from where it is one."""
    first = study.sft.policy if study.sft is not None else None
    same = ("path", "tiny", "config_file")
    return study.text_policy.model_copy(update={key: getattr(first, key) for key in same} if first is not None else {})


def _others(
    study: Study, policy: TextPolicySettings, size: Size, update: Mapping[str, float], cards: int
) -> dict[str, float]:
    """Bytes of the KL's reference and of reward models, by name, that are there next to the policy."""
    found: dict[str, float] = {}
    reference = _frozen(size.shape) if cards == 1 else 4.0 * size.shape.parameters / cards
    if study.text_algorithm.kl_coef and policy.lora is None:
        found["the reference of the KL"] = reference
    for name, source in study.text_sources.items():
        model = source.model
        if isinstance(model, PrimeModelSettings):  # on adapters that share the base, only the adapters
            shared = size.rank is not None and model.prime_model.path is None
            weights = 4e6 * size.trained if shared else update["weights"]
            found[f"{name}'s weights, gradients and Adam"] = weights + update["gradients"] + update["Adam"]
            if model.prime_model.ref_type == "freeze" and not shared:
                found[f"{name}'s reference"] = reference
    for name, third in _frozen_models(study).items():
        if _no_lines(third) is None:
            found[f"the reward model {name}"] = _frozen(third.shape)
    return found


def _frozen_models(study: Study) -> dict[str, Size]:
    """Sizes of the frozen language models that reward a run, by the name of their source."""
    found: dict[str, Size] = {}
    for name, source in study.text_sources.items():
        path = getattr(source.model, "checkpoint_path", None)
        if path is not None and not isinstance(source.model, PrimeModelSettings):
            made = (one for one in study.text_models.values() if str(path).startswith(one.save_dir))
            first = next((one.start(study.text_default) for one in made), TextPolicySettings(path=str(path)))
            found[name] = size_of_start(first)
    return found


def _frozen(shape: Shape) -> float:
    """Bytes of a model that is only read on a GPU."""
    return 2.0 * (shape.parameters - shape.embedding) + 4.0 * shape.embedding


_LLAMA = {"hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 11008, "vocab_size": 32064}
_PRISMATIC = ((1024, 4096, 23, 261), (1152, 4304, 26, 256))  # DINOv2 L with registers, SigLIP So400M
PUBLISHED_VLA = {  # configurations of the language part
    "token": _LLAMA,
    "regression": _LLAMA,
    "flow": {
        "hidden_size": 960, "num_hidden_layers": 16, "intermediate_size": 2560, "vocab_size": 49280,
        "num_attention_heads": 15, "num_key_value_heads": 5, "tie_word_embeddings": True,
    },
    "pi0": {
        "hidden_size": 2048, "num_hidden_layers": 18, "intermediate_size": 16384, "vocab_size": 257152,
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "tie_word_embeddings": True,
    },
}  # fmt: skip
REST = {"token": 0.80e9, "regression": 0.95e9, "flow": 0.198e9, "pi0": 0.73e9}  # parameters of the other parts
TOWERS = {  # of vision, as far as they are computed: width, inner width, blocks, tokens of a picture
    "token": _PRISMATIC,
    "regression": _PRISMATIC,
    "flow": ((768, 3072, 12, 1024),),
    "pi0": ((1152, 4304, 27, 256),),
}
EXPERTS = {"flow": Shape(720, 16, 2048, 960, 320, 0, True), "pi0": Shape(1024, 18, 4096, 2048, 256, 0, True)}
HORIZON = 50  # actions that pi0 denoises, where the checkpoint does not say
PATCHES = {"token": 256, "regression": 256, "flow": 64, "pi0": 256}  # tokens that the language part reads of a picture
INSTRUCTION, ACTION = 35, 7  # tokens of an instruction, of an action
STEPS_PER_SECOND = 13.0  # of one copy of LIBERO with pictures


def estimate_vla(study: Study) -> dict[str, Any]:
    """Memory and time of `guerdon run` with a vision-language-action policy, and `seconds` in all where they are known.

    Nothing without `policy.gpus`.
    """
    policy, env = study.policy, study.env
    if not isinstance(policy, VLAPolicySettings) or policy.gpus is None:
        return {}
    algorithm, who = study.on_policy, workers(study)
    shape, p, trained = vla_size(policy)
    kind = _kind(policy)
    tokens = PATCHES[kind] * policy.num_images_in_input + INSTRUCTION
    tokens += 1 if kind in EXPERTS else ACTION * policy.num_action_chunks
    one = sum(decision_bytes(policy, shape, tokens))
    held = vla_state(policy, shape, p, trained, who.learners)
    if study.engine == "ray" and WHOLE in held:
        held = {**{name: size for name, size in held.items() if name != WHOLE}, COLLECTOR: held[WHOLE]}
    acting = held.get(WHOLE, 0.0)
    updating = sum(held.values()) - acting - held.get(COLLECTOR, 0.0)
    micro = algorithm.micro_batch_size or algorithm.minibatch_size
    room = GPUS[who.gpu].memory - CONTEXT - updating
    parts = {**held, f"activations of {micro} decisions": micro * one}
    most = max(updating + micro * one, held["weights, gradients and moments"] + acting)
    found = gpu_lines(
        parts, most, policy.gpus, _vla_advice(policy, algorithm.minibatch_size, int(room // one)),
        f"P = {p / 1e9:.3g}e9, T = {trained / 1e9:.3g}e9, S = {tokens}",
    )  # fmt: skip
    sent = 4.0 * trained if study.engine == "ray" else acting
    if env.max_episode_steps is None:  # then nobody knows how many decisions an evaluation takes
        return found
    times = _vla_times(study, who, _work(policy, shape, p, tokens), env.max_episode_steps, sent)
    return found | lines_of(times, who) | together(times, study)


def _vla_times(
    study: Study, who: Workers, work: Sequence[tuple[float, int]], limit: int, sent: float
) -> dict[str, Work]:
    """Parts of a run of a vision-language-action policy.

    Args:
        study: the configuration.
        who: works.
        work: as `_work` gives it.
        limit: steps of an episode.
        sent: bytes that go to those that act, before each rollout.
    """
    env, runner, algorithm = study.env, study.runner, study.on_policy
    chunk = study.policy.num_action_chunks  # type: ignore[union-attr]
    steps = env.num_envs * (limit if algorithm.needs.groups else algorithm.rollout_steps)
    rollouts = math.ceil(runner.total_steps / steps)
    decisions, evaluated = rollouts * math.ceil(steps / chunk), evaluations(study) * runner.eval_episodes * limit
    forward = sum(2.0 * once for once, _ in work)
    parts: dict[str, Work] = {}
    if who.each:
        act = 2 * decisions * forward  # to act, and for the log-probabilities of what was done
        acting = who.collectors * who.each
        parts["acting"] = Work(computing(act, who.gpu, acting), acting)
        parts["evaluating"] = Work(computing(evaluated / chunk * forward, who.gpu, who.each), who.each)
    else:
        parts["acting"] = parts["evaluating"] = Work(None, 0, ON_CPU)
    learned = sum(once * each for once, each in work) * decisions * algorithm.num_epochs
    parts["updating"] = Work(computing(learned, who.gpu, who.learners), who.learners)
    parts["sending weights"] = sending(study, who, rollouts + evaluations(study), sent)
    shard = env.num_envs // runner.rollout_shards
    processes, said = who.collectors, ", one copy after another: env.vectorization: async steps them at the same time"
    if env.vectorization == "async":
        processes, said = -(-env.num_envs // env.num_envs_per_process), ""
        shard = -(-shard // env.num_envs_per_process)
    one_core = f" in {processes} {'process' if processes == 1 else 'processes'}{said}"
    at_a_time = shard if env.vectorization == "async" else 1
    parts["the simulators"] = Work(rollouts * steps / (STEPS_PER_SECOND * processes), 0, one_core)
    parts["the simulators in evaluations"] = Work(evaluated / (STEPS_PER_SECOND * at_a_time), 0)
    return parts


def _work(policy: VLAPolicySettings, shape: Shape, p: float, tokens: int) -> list[tuple[float, int]]:
    """Of each part: parameters times the tokens of a decision, and the operations on each of them per epoch."""
    again = 2 * policy.gradient_checkpointing
    each = (4 if policy.use_lora else 6) + again
    if (expert := EXPERTS.get(kind := _kind(policy))) is None:
        return [(p * tokens, each)]
    tower_frozen, language_frozen = _frozen_parts(policy)
    read = each
    if language_frozen:
        read = 4 + again if _passes_gradients(policy) else 2
    actions, steps = denoised(policy)
    ((w, m, blocks, patches),) = TOWERS[kind]
    tower, own = blocks * (4 * w * w + 2 * w * m), expert.parameters
    seen = tower * patches * policy.num_images_in_input
    language = (p - shape.embedding - tower - own) * tokens
    return [(seen, 2 if tower_frozen else each), (language, read), (own * actions * steps, each)]


def vla_state(policy: VLAPolicySettings, shape: Shape, p: float, trained: float, cards: int) -> dict[str, float]:
    """Bytes of each part but activations, on each of so many GPUs that shard a policy.

    Weights are float32, frozen ones bfloat16 but for those that a checkpoint freezes on several GPUs, and the base is
    shared. To act, each of several GPUs gathers all of it, where no collectors have copies of their own.

    Args:
        policy: the `policy` section.
        shape: of the language part.
        p: all parameters.
        trained: those that are trained.
        cards: GPUs.
    """
    embedded = shape.embedding * (1 if shape.tied else 2)
    base, own, copied, root = 2.0 * p, 16.0 * trained, trained, 2.0
    if not policy.use_lora:
        frozen = 2.0 if cards == 1 else 4.0
        base, own, copied, root = 16.0 * trained + frozen * (p - trained), 0.0, trained * (cards == 1), 4.0
    if policy.use_quantization:
        base = 0.5625 * (p - embedded) + 2 * embedded
    several = cards > 1 and not policy.use_quantization  # which several learners refuse
    parts = {"weights, gradients and moments": (base / cards if several else base) + own}
    if copied:
        parts["bfloat16 copies in an update"] = 2.0 * copied
    if several:
        parts[GATHERED] = gathered_bytes(shape, full=not policy.use_lora, root=root)
        parts[WHOLE] = root * p
    return parts


def decision_bytes(policy: VLAPolicySettings, shape: Shape, tokens: int) -> tuple[float, float]:
    """Bytes that autograd keeps for one decision.

    A block of a vision transformer of width w and inner width m keeps 24 w + 4 m per token where all weights are
    trained; with adapters of rank r 18 w + 4 m + 8 r, and on a GPU, whose layer norms are in float32, 22 w + 4 m + 8 r;
    where queries, keys and values are three matrices (SmolVLA, pi0), 4 w + 4 r more. A layer of the language part keeps
    b = `layer_bytes` per token, and the norm after the last 10 h.

    SmolVLA and pi0 read S tokens once; their layers add up in bfloat16 (4 h less where all weights are trained) and
    repeat keys and values for every head (4 q - 4 k more). All denoising steps are evaluated with gradients, and in
    each of them every layer of the expert attends to keys and values of the S tokens, copied and repeated for every
    head. So the expert keeps steps (L (C b + 4 q S) + 16 C h), with L, b, q and h of the expert and C its tokens: the
    actions that are executed (SmolVLA), or those of the checkpoint's horizon and the state (pi0).

    With gradient checkpointing only what goes into a block is kept of it: 4 w per token, 2 w in bfloat16 (adapters; the
    language part and the expert of SmolVLA and pi0), and 4 k of each layer of S tokens for the expert. Parts that a
    checkpoint freezes keep nothing, but for the language part of SmolVLA, through which gradients go to the projection
    of the state: 8 h + 8 q + 6 I per token of a layer.

    Args:
        policy: the `policy` section.
        shape: of the language part.
        tokens: that it reads, S.

    Returns:
        The bytes that are kept until the backward pass; and with gradient checkpointing those of the largest block,
        while it is computed again, else 0.
    """
    kind = _kind(policy)
    rank = policy.lora_rank if policy.use_lora else None
    tower_frozen, language_frozen = _frozen_parts(policy)
    expert = EXPERTS.get(kind)
    each = 4 if rank is None else 2
    parts: list[_Blocks] = []
    if not tower_frozen:
        parts += _tower_blocks(kind, rank, each, policy.num_images_in_input)
    ends = 0.0 if language_frozen else 10.0 * tokens * shape.width
    if expert is None:
        parts.append((shape.layers, tokens * each * shape.width, tokens * layer_bytes(shape, rank)))
    else:
        read = _reading_bytes(shape, rank)
        if language_frozen:
            read = (8 * shape.width + 8 * shape.queries + 6 * shape.inner) * _passes_gradients(policy)
        actions, steps = denoised(policy)
        inputs_of_layer = tokens * (2 * shape.width + 4 * shape.keys) if read else 0
        parts.append((shape.layers, inputs_of_layer, tokens * read))
        expert_layer = actions * _reading_bytes(expert, rank) + 4 * expert.queries * tokens
        parts.append((steps * expert.layers, actions * 2 * expert.width, expert_layer))
        ends += 16 * actions * steps * expert.width
    if not policy.gradient_checkpointing:
        return ends + sum(blocks * whole for blocks, _, whole in parts), 0.0
    return ends + sum(blocks * inputs for blocks, inputs, _ in parts), max(whole for *_, whole in parts)


_Blocks = tuple[int, float, float]  # number of blocks, bytes that go into one, bytes that one keeps


def _tower_blocks(kind: str, rank: int | None, each: int, pictures: int) -> list[_Blocks]:
    """The blocks of the vision transformers, each of which reads the patches of all pictures."""
    found: list[_Blocks] = []
    for w, m, blocks, patches in TOWERS[kind]:
        of_width = 24 * w
        if rank is not None:
            of_width = 22 * w + 8 * rank
            if kind in EXPERTS:
                of_width += 4 * w + 4 * rank
        tokens = pictures * patches
        found.append((blocks, tokens * each * w, tokens * (of_width + 4 * m)))
    return found


def _reading_bytes(shape: Shape, rank: int | None) -> int:
    """`layer_bytes` of SmolVLA and pi0."""
    return layer_bytes(shape, rank) + 4 * (shape.queries - shape.keys) - (4 * shape.width if rank is None else 0)


def _frozen_parts(policy: VLAPolicySettings) -> tuple[bool, bool]:
    """Whether the checkpoint freezes the towers of vision, and whether the language part, too."""
    kind, config = _kind(policy), _configuration(policy)
    if policy.use_lora or kind not in EXPERTS or policy.vla_path is None:
        return False, False
    published = kind == "flow"  # LeRobot's default of SmolVLA
    language_frozen = bool(config.get("train_expert_only", published))
    return language_frozen or bool(config.get("freeze_vision_encoder", published)), language_frozen


def _passes_gradients(policy: VLAPolicySettings) -> bool:
    """Whether gradients go through a frozen language part: to SmolVLA's projection of the state."""
    return _kind(policy) == "flow" and policy.use_proprio


def denoised(policy: VLAPolicySettings) -> tuple[int, int]:
    """Tokens that the expert computes together, and how often: 0 of a policy without one."""
    if not isinstance(policy.decoding, FlowDecodingSettings):
        return 0, 0
    config = _configuration(policy)
    horizon = int(config.get("chunk_size", config.get("action_horizon", HORIZON))) + 1
    return horizon if _kind(policy) == "pi0" else policy.num_action_chunks, policy.decoding.num_steps


def _vla_advice(policy: VLAPolicySettings, minibatch: int, most: int) -> str:
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


def _configuration(policy: VLAPolicySettings) -> dict[str, Any]:
    """That of the language part of the checkpoint, where it is here."""
    if policy.openpi is not None:
        return policy.openpi.model_dump()
    file = Path(policy.vla_path or "") / "config.json"
    return read_config(file) if file.is_file() else {}


def _kind(policy: VLAPolicySettings) -> str:
    """The published model whose parts count: `pi0` (pi0.5, too) by the checkpoint's configuration, else the family."""
    return "pi0" if "paligemma_variant" in _configuration(policy) else policy.family


def vla_size(policy: VLAPolicySettings) -> tuple[Shape, float, float]:
    """The language part, all parameters, and those that are trained.

    Shapes are those of the checkpoint's configuration, of the published model where that does not say. Adapters are on
    all matrices of the language part, of the towers of vision (qkv, proj, fc1, fc2; of SmolVLA and pi0 q, k, v, out,
    fc1, fc2), of what projects these, and of the expert.
    """
    kind, rank = _kind(policy), policy.lora_rank
    shape = shape_of({"tie_word_embeddings": False, **PUBLISHED_VLA[kind], **_configuration(policy)})
    p = shape.parameters + REST[kind]
    if (expert := EXPERTS.get(kind)) is not None and not policy.use_lora:
        tower_frozen, language_frozen = _frozen_parts(policy)
        seen = sum(n * (4 * w * w + 2 * w * m) for w, m, n, _ in TOWERS[kind])
        return shape, p, p - seen * tower_frozen - shape.parameters * language_frozen
    if not policy.use_lora:
        return shape, p, p
    if expert is not None:
        seen = sum(n * (10 * w + 2 * m) + w * patches // PATCHES[kind] for w, m, n, patches in TOWERS[kind])
        return shape, p, shape.adapters(rank) + expert.adapters(rank) + rank * (seen + shape.width)
    seen = sum(blocks * (8 * w + 2 * m) + 9 * w for w, m, blocks, _ in TOWERS[kind])
    return shape, p, shape.adapters(rank) + rank * (seen + 3 * shape.width)
