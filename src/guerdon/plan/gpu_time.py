"""Time of a run on GPUs by who works: each kind of work has a number of GPUs of its own.

    who = workers(study)                    # Workers("H100", learners=8, collectors=1, each=1, scorers=1)
    lines_of(text_times(study, shape, ...), who)     # {"time of generating on 1 x H100": "2 h 3 min", ...}

Without a Ray cluster the processes of `torchrun` update together, and the first one does everything else on its GPU
(docs/distributed.md). docs/memory.md has the formulas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from guerdon.pages.durations import duration
from guerdon.plan.text_size import Shape
from guerdon.settings.gpus import GPUS, gpus_named
from guerdon.settings.study import Study

USED, READ = 0.4, 0.6  # shares of the peak rate of products, and of the peak rate of reading memory
LAUNCHES, LAUNCH = 25, 8e-6  # kernels per layer and token of the local engine, seconds of each
PROMPT = 100  # tokens of a prompt for the time; the memory is that of data.max_prompt_length
NVLINK, PCIE = 450e9, 2e10  # bytes per second between GPUs of a node (vendor's), and to the memory of the CPU (assumed)
NETWORK = 2.5e10  # bytes per second to GPUs of another node: 200 Gbit/s, assumed
STORE, FETCH = 7.8e8, 1.67e8  # bytes per second into and out of Ray's object store (measured: docs/scale.md)
ON_CPU = "not known: collectors have no GPU (cluster.collector_gpus)"


class Workers(NamedTuple):
    """Who works in a run, and on how many GPUs.

    Attributes:
        gpu: their name.
        learners: processes that update together, with a GPU each.
        collectors: processes that act or generate at the same time, each with a model of its own.
        each: GPUs of a collector; 0: it computes on a CPU.
        scorers: GPUs on which frozen reward models score.
        spare: GPUs that `policy.gpus` names and nobody uses; below 0, that are missing.
    """

    gpu: str
    learners: int
    collectors: int
    each: float
    scorers: float
    spare: float


class Work(NamedTuple):
    """One kind of work.

    Attributes:
        seconds: it takes; None: not known.
        gpus: that it has; 0: none is named.
        said: what follows the duration, or why there is none.
    """

    seconds: float | None
    gpus: float
    said: str = ""


def workers(study: Study) -> Workers:
    """Who works in a run."""
    policy = study.text_policy if study.text else study.policy
    count, name = gpus_named(getattr(policy, "gpus", None))
    cluster, shards = study.cluster, study.runner.rollout_shards
    if study.engine == "local":
        return Workers(name, count, 1, _engine_gpus(study), 1, 0)
    collectors = min(cluster.collectors, shards)
    scorers = cluster.reward_workers * cluster.reward_worker_gpus if cluster.reward_workers else 0.0
    used = cluster.learners + cluster.collectors * cluster.collector_gpus + scorers
    return Workers(
        name, cluster.learners, collectors, cluster.collector_gpus, scorers or 1, 0 if count == 1 else count - used
    )


def _engine_gpus(study: Study) -> int:
    """GPUs of the engine that generates in this process."""
    return getattr(study.generation, "tensor_parallel_size", 1) if study.text else 1


def computing(operations: float, name: str, gpus: float) -> float:
    """Seconds of so many operations on so many GPUs together, at `USED` of their peak rate."""
    return operations / (gpus * GPUS[name].peak * USED)


def written(shape: Shape, name: str, *, rows: int, tokens: int, gpus: float = 1, local: bool = True) -> float:
    """Seconds until a model has written `rows` responses at a time, each of so many tokens.

    A token takes as long as its products, as all weights and half of the cache need to be read, or as its kernels need
    to be launched, whichever is longest.

    Args:
        shape: of the model.
        name: of the GPUs.
        rows: responses at a time.
        tokens: of each.
        gpus: that share the model.
        local: guerdon's own engine writes, which launches every kernel by itself.
    """
    gpu, read = GPUS[name], PROMPT + tokens
    bytes_ = 2.0 * shape.parameters + 4.0 * shape.keys * shape.layers * rows * read
    seconds = max(bytes_ / (gpu.bandwidth * READ), 2.0 * shape.active * rows / (gpu.peak * USED)) / gpus
    return tokens * max(seconds, LAUNCHES * shape.layers * LAUNCH if local else 0.0)


def text_times(
    study: Study, shape: Shape, who: Workers, *, tokens: int, learn: float, scored: Sequence[Shape], sent: float
) -> dict[str, Work]:
    """Parts of a run of a language model.

    Args:
        study: the configuration.
        shape: of the policy.
        who: works.
        tokens: of a response.
        learn: operations per parameter and token of the learners, all passes together.
        scored: shapes of the frozen reward models.
        sent: bytes that collectors get before each rollout.
    """
    runner, data, generation = study.runner, study.data, study.generation
    assert data is not None
    local, batch = generation.engine == "local", data.train_batch_size * data.n_samples
    rollouts = math.ceil(runner.total_steps / batch)
    shard = math.ceil(batch / runner.rollout_shards)
    limit = generation.batch_size if generation.engine == "local" else max(shard, runner.eval_episodes)
    rows = min(shard, limit)
    batches = rollouts * math.ceil(runner.rollout_shards / who.collectors) * math.ceil(shard / rows)
    asked = evaluations(study) * math.ceil(runner.eval_episodes / (greedy := min(runner.eval_episodes, limit)))
    read = PROMPT + tokens
    parts = {}
    if who.each:
        one = written(shape, who.gpu, rows=rows, tokens=tokens, gpus=max(who.each, 1), local=local)
        each = written(shape, who.gpu, rows=greedy, tokens=tokens, gpus=max(who.each, 1), local=local)
        said = f" = {batches} batches of {rows} x {tokens} tokens"
        parts["generating"] = Work(batches * one / min(who.each, 1), who.collectors * who.each, said)
        parts["evaluating"] = Work(asked * each / min(who.each, 1), who.each, f" = {asked} batches x {tokens} tokens")
    else:
        parts["generating"] = parts["evaluating"] = Work(None, 0, ON_CPU)
    if scored:
        operations = sum(2.0 * one.active for one in scored) * runner.total_steps * read
        parts["scoring"] = Work(computing(operations, who.gpu, who.scorers), who.scorers)
    operations = learn * shape.active * runner.total_steps * read
    parts["updating"] = Work(computing(operations, who.gpu, who.learners), who.learners)
    through_cpu = study.engine == "local" and not local
    parts["sending weights"] = sending(study, who, rollouts + evaluations(study), sent, through_cpu=through_cpu)
    return parts


def evaluations(study: Study) -> int:
    """Evaluations of a run: one whenever `eval_every` is reached, and at the end."""
    return -(-study.runner.total_steps // study.runner.eval_every)


def sending(study: Study, who: Workers, times: int, bytes_: float, *, through_cpu: bool = False) -> Work:
    """Weights to those that act or generate.

    Args:
        study: the configuration.
        who: works.
        times: how often.
        bytes_: of what is sent, or gathered by the first process.
        through_cpu: they cross the memory of the CPU, to vLLM in a process of its own.
    """
    if study.engine == "local":
        if through_cpu:
            return Work(times * bytes_ / PCIE, 0)
        return Work(times * bytes_ / NVLINK if who.learners > 1 else 0.0, 0)
    whole_gpus = who.each >= 1 and study.cluster.weight_transfer != "object_store"
    if whole_gpus or study.cluster.weight_transfer == "collective":
        return Work(times * bytes_ / NETWORK, 0, " by broadcasts")
    return Work(times * bytes_ * (1 / STORE + 1 / FETCH), 0, " by Ray's object store")


COUNTED = {"text", "value", "normal", "prime", "exact", "constant", "resnet", "resnet_reward", "progress", "sarm"}


def uncounted(study: Study) -> list[str]:
    """Sources whose scoring is in no time: servers, judges, vision-language models, models of your own."""
    if not study.reward.use_reward_model and not study.text:
        return []
    sources = study.text_sources if study.text else study.robot_sources
    return [name for name, source in sources.items() if source.model.model_type not in COUNTED]


def lines_of(parts: Mapping[str, Work], who: Workers) -> dict[str, str]:
    """What `--dry-run` prints of them."""
    found = {}
    for name, part in parts.items():
        on = f" on {part.gpus:g} x {who.gpu}" if part.gpus else ""
        if part.seconds != 0.0:
            found[f"time of {name}{on}"] = part.said if part.seconds is None else duration(part.seconds) + part.said
    if who.spare:
        much = f"{who.spare:g} more than" if who.spare > 0 else f"{-who.spare:g} fewer than"
        found["GPUs"] = f"policy.gpus names {much} learners, collectors and reward workers of the cluster section take"
    return found


def together(parts: Mapping[str, Work], study: Study) -> dict[str, float]:
    """`seconds` of all parts: one after the other, or rollouts beside the rest (`runner.max_staleness`).

    Empty where those of a part are not known.
    """
    known = {name: part.seconds for name, part in parts.items() if part.seconds is not None}
    if len(known) < len(parts):
        return {}
    collect = sum(known.pop(name, 0.0) for name in ("generating", "acting", "the simulators"))
    evaluate = sum(known.pop(name, 0.0) for name in ("evaluating", "the simulators in evaluations"))
    rest = sum(known.values())
    return {"seconds": evaluate + (max(collect, rest) if study.runner.max_staleness else collect + rest)}
