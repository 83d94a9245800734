"""The parts of a run of a language model: prompts, a verifier, reward models of text, the learner."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from guerdon.collect.agents import check_agent_here
from guerdon.collect.evaluated import EvaluatedCollector, evaluation
from guerdon.collect.text import Responses, RunPrompts, TextCollector, TextRollout, conversation_rows, join_shards
from guerdon.compute import distributed
from guerdon.compute.optimizers import AdamW
from guerdon.engines.reward_models import RewardModels
from guerdon.errors import ConfigError, MissingDependencyError
from guerdon.models.load import load_source_model
from guerdon.policies.batches.dialogues import tool_form
from guerdon.policies.language.generate_vllm import check_vllm
from guerdon.policies.language.text import TextPolicy, add_policy, reference
from guerdon.policies.language.text_files import (
    check_disk,
    check_form,
    load_policy,
    outline,
    save_policy,
    written_bytes,
)
from guerdon.rewards.prime import PrimeReward
from guerdon.rewards.source import GroundTruth, RewardSource, SourceTerms
from guerdon.rewards.text_sources import ExactReward, TextReward, VerifiedTurns
from guerdon.rl.advantages import check_estimator
from guerdon.rl.episode_stats import TRUTH, EpisodeStats
from guerdon.rl.learner import KL, OnPolicyLearner
from guerdon.rl.parts import Parts, run_collector, run_reward_models
from guerdon.rl.videos import write_answers
from guerdon.settings.algorithm import TextAlgorithmSettings
from guerdon.settings.data import run_prompts
from guerdon.settings.reward import RewardSettings
from guerdon.settings.reward_models import (
    ExactModelSettings,
    JudgeModelSettings,
    PrimeModelSettings,
    relative,
)
from guerdon.settings.reward_source import RunSource, TextSource
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings, VLLMGenerationSettings
from guerdon.tasks.prompt_files import check_here, load_prompts
from guerdon.tasks.prompts import shared_system_prompt
from guerdon.tasks.verifier import verifier_from
from guerdon.types import RewardModel, Rewards

VERIFIER = "verifier"
ENV = "env"  # the same of conversations with an agent
SHOWN_PROMPTS, SHOWN_SAMPLES = 6, 4
KL_START = "kl_ref"  # the adapter that holds the start of a second stage


def text_parts(study: Study, folder: Path, *, fresh: bool) -> Parts:
    """A language model that answers prompts, with reward models that read its answers.

    `runner.total_steps` counts responses: all that were generated, those that the filters dropped and those that a
    reward model warmed up on included.

    Args:
        study: the resolved configuration.
        folder: of the run.
        fresh: take over `runner.resume_dir`; off where a checkpoint of this run follows.

    Raises:
        ConfigError: parts do not go together, or the disk has no room for what the run will write.
    """
    if distributed.launched() > 1 and study.runner.max_staleness and study.engine == "local":
        raise ConfigError.about(
            "runner.max_staleness",
            ": a thread of the first process would collect while all learners compute together; "
            "with several learners set it to 0, or engine: ray",
        )
    check_estimator(study.text_algorithm)
    learning = distributed.everywhere(build_learning, study, fresh=fresh)
    policy, prompts, learner = learning.policy, learning.prompts, learning.learner
    _check_generation(study, policy)
    _check_disk_of(study, folder, policy, learning.primes)
    cluster, runner = study.cluster if study.engine == "ray" else None, study.runner
    models = run_reward_models(cluster, runner, load_model, study.reward.scoring_shards, study.text_sources)
    sources = build_text_sources(study, learning.primes, models, folder)
    heads = learner.heads if study.text_algorithm.needs.critic else ()
    shards = _shards(study, policy, prompts, heads=heads, recompute=_needs_log_probs(study, learner, sources))
    join = partial(join_shards, tokenizer=policy.tokenizer)
    collector = run_collector(cluster, runner, TextCollector, shards, join, device=study.policy.device)
    if study.generation.engine == "vllm":
        collector = EvaluatedCollector(collector, heads, _micro(study.text_algorithm))
    learner.shares = {name: source.terms.share for name, source in sources.items() if source.terms.share is not None}
    notes = _notes(study, policy, prompts, sources, alike=learning.alike) + learning.notes

    def show(folder: Path, step: int) -> None:
        if study.agent is not None:  # conversations.jsonl has them
            return
        rollout = collector.show(policy, prompts=SHOWN_PROMPTS, samples=SHOWN_SAMPLES, version=learner.version)
        if rollout is not None:
            rollout = join([rollout])
            rewards = {n: source.measure(rollout, learn=False) for n, source in sources.items() if n != VERIFIER}
            write_answers(folder / f"step_{step:012d}.json", rollout, rewards, step=step)

    def evaluate(episodes: int) -> Mapping[str, float]:
        rollout = collector.show(policy, prompts=episodes, samples=1, greedy=True, version=learner.version)
        if rollout is None or truth is None:
            return evaluation(rollout)
        rewards = sources[truth].measure(join([rollout]), learn=False)
        known = ~rewards.failed_B
        values = rewards.values.sum(axis=1, dtype=np.float64)[known]
        found = {TRUTH: float(values.mean())} if known.any() else {}
        return {**evaluation(rollout), **found, f"{TRUTH}_known": float(known.sum())}

    terms = {name: sources[name].terms for name in _learned(study)}
    truth = None if study.reward.truth == VERIFIER else study.reward.truth
    known = (VERIFIER, ENV, truth)
    stats = EpisodeStats(list(sources), learned=[n for n in sources if n not in known], truth=truth)
    save = partial(save_policy, policy)
    unit, rows = "responses", None
    if study.agent is not None:
        unit, rows = "conversations", partial(_conversations, [*study.text_sources], tokens=study.agent.log_tokens)
    return Parts(collector, sources, terms, learner, stats, unit, show, save, notes, None, models, evaluate, rows)


def _needs_log_probs(
    study: Study, learner: OnPolicyLearner[Any, Any], sources: Mapping[str, RewardSource[Responses]]
) -> bool:
    """Whether the log-probabilities of responses are computed before the update."""
    if learner.kl_in_reward or any(source.needs_log_probs for source in sources.values()):
        return True
    return bool(study.runner.max_staleness)  # for a ratio to older weights than those that learn


def check_text(study: Study) -> None:
    """Refuse what the start of a run refuses of its prompts, its models and the disk; no weights are read.

    Raises:
        ConfigError: there are no prompts, parts do not fit each other, or the disk has too little free space.
        DataError: prompts cannot be read, or the model has no room for one.
        MissingDependencyError: a model or the data are not on this machine.
    """
    check_form(study.text_policy)
    check_estimator(study.text_algorithm)
    data = run_prompts(study.data)
    check_here(data)
    try:
        policy = outline(study.text_policy)
    except MissingDependencyError:
        load_prompts(data)
        raise
    _check_generation(study, policy)
    check_agent_here(study.agent)
    prompts = RunPrompts.read(data, policy.tokenizer, policy.base.positions, study.agent)
    policy.base.reach(prompts.reach(data))
    _check_disk_of(study, study.runner.logger.folder, policy, build_primes(study, policy))


def _check_generation(study: Study, policy: TextPolicy) -> None:
    if isinstance(study.generation, VLLMGenerationSettings):
        check_vllm(policy, study.generation, here=study.engine == "local")


def _check_disk_of(study: Study, folder: Path, policy: TextPolicy, primes: Mapping[str, PrimeReward]) -> None:
    sizes = {f"policy: {what}": size for what, size in written_bytes(policy).items()}
    for name, prime in primes.items() if study.runner.save_reward_models else ():
        sizes |= {f"{name}: {what}": size for what, size in prime.written_bytes().items()}
    check_disk(folder, sizes)


class Learning(NamedTuple):
    """The parts of a run that learn with gradients of a language model: every process that learns has them.

    Attributes:
        policy: acts and learns.
        prompts: of the run.
        alike: whether all prompts have the same system turn.
        primes: implicit reward models, by the name of their source.
        learner: of the policy.
        notes: lines for the start of the log.
    """

    policy: TextPolicy
    prompts: RunPrompts
    alike: bool
    primes: dict[str, PrimeReward]
    learner: OnPolicyLearner[Any, Any]
    notes: list[str]


def build_learning(study: Study, *, fresh: bool) -> Learning:
    """The policy, the models that learn with it, the reference and the learner; arguments, see `text_parts`."""
    assert study.data is not None
    algorithm, runner = study.text_algorithm, study.runner
    check_form(study.text_policy)
    torch.set_num_threads(runner.threads)
    torch.manual_seed(runner.seed)  # of dropout, where a model has any: only gradient steps draw from it
    kl_in_reward, critic = bool(algorithm.kl_coef) and algorithm.kl_in == "reward", algorithm.needs.critic
    heads = (*_learned(study), *((KL,) if kl_in_reward else ()))
    policy = load_policy(study.text_policy, seed=runner.seed, value_heads=len(heads) if critic else 0)
    policy.temperature = study.generation.temperature
    check_agent_here(study.agent)
    prompts = RunPrompts.read(study.data, policy.tokenizer, policy.base.positions, study.agent)
    alike, system_prompt = shared_system_prompt(prompts.train)
    primes = build_primes(study, policy, system_prompt=system_prompt)
    start = _reference(study, policy, primes) if algorithm.kl_coef else None
    longest = prompts.reach(study.data)
    for one in (policy, start, *(model for prime in primes.values() for model in (prime.phi, prime.ref))):
        if one is not None:
            one.base.reach(longest)
    learner = OnPolicyLearner(
        policy,
        AdamW(policy.parameters(), algorithm.learning_rate, algorithm.weight_decay),
        algorithm,
        seed=runner.seed,
        heads=heads,
        reference=start,
        store_reference=bool(runner.resume_dir),
        max_length=study.data.max_response_length if study.agent is None else study.agent.longest(study.data),
    )
    notes = []
    if fresh and runner.resume_dir:
        notes.append(learner.start_from(Path(runner.resume_dir)))
        if start is not None:
            _take_start(start, policy)
    return Learning(policy, prompts, alike, primes, learner, notes)


def _learned(study: Study) -> tuple[str, ...]:
    """The sources that the policy learns from: the verifier, where there is one, and reward models, without a truth."""
    names = (*((ground_truth(study),) if study.verified else ()), *study.text_sources)
    return tuple(name for name in names if name != study.reward.truth)


def ground_truth(study: Study) -> str:
    """The name of the source of ground truth: the verifier, or `env` where an agent says what conversations earn."""
    return VERIFIER if study.agent is None else ENV


def build_primes(study: Study, policy: TextPolicy, *, system_prompt: str | None = None) -> dict[str, PrimeReward]:
    """The implicit reward models of a study, by the name of their source.

    Args:
        study: the resolved configuration.
        policy: of the run, at its start; they share its weights where that is possible.
        system_prompt: of the run's prompts, for a reward model that is saved at the end.

    Raises:
        ConfigError: a model would be equal to its reference for ever.
        CheckpointError: it cannot be read.
    """
    assert study.data is not None
    terms, min_form = text_terms(study.text_reward, study.text_algorithm), _min_form(study)
    return {
        name: PrimeReward(
            terms[name],
            settings.model,
            policy,
            min_form=min_form,
            seed=study.runner.seed,
            length_limit=study.data.max_response_length,
            system_prompt=system_prompt,
        )
        for name, settings in study.text_reward.of(RunSource).items()
        if isinstance(settings.model, PrimeModelSettings)
    }


def _min_form(study: Study) -> float | None:
    """Temperature of min-form credit; None without it."""
    return 0.1 if study.text_algorithm.credit == "min_form" else None


def _conversations(
    learned: Sequence[str],
    rollout: TextRollout,
    rewards: Mapping[str, Rewards],
    episodes: Sequence[Mapping[str, Any]],
    step: int,
    *,
    tokens: bool,
) -> Iterator[dict[str, Any]]:
    """Rows of `conversations.jsonl`; where there are reward models, with what each of them and all together paid."""
    models = {name: rewards[name] for name in learned if name in rewards}
    rows = conversation_rows(rollout, models, step, tokens=tokens)
    for row, episode in zip(rows, episodes, strict=True):
        returns = {key.removeprefix("return/"): value for key, value in episode.items() if key.startswith("return/")}
        yield {**row, "returns": returns} if learned else row


def build_text_sources(
    study: Study, primes: Mapping[str, PrimeReward], models: RewardModels, folder: Path
) -> dict[str, RewardSource[Responses]]:
    """Every source of a study, by name: the verifier, where prompts have answers, then its reward models.

    Args:
        study: the resolved configuration.
        primes: its implicit reward models.
        models: loads the others.
        folder: of the run.

    Raises:
        ConfigError: a model measures something else than its settings ask for.
        CheckpointError: it cannot be read.
    """
    terms = text_terms(study.text_reward, study.text_algorithm)
    sources: dict[str, RewardSource[Responses]] = {}
    if study.verified:
        name = ground_truth(study)
        sources[name] = GroundTruth(replace(terms[VERIFIER], name=name), at_end=True)
    made: dict[str, RewardSource[Responses]] = {**primes}
    for name, one in study.text_reward.of(RunSource).items():
        if isinstance(one.model, ExactModelSettings):
            made[name] = _exact(study, terms[name])
    for name, settings in study.text_reward.of(TextSource).items():
        model = settings.model
        if isinstance(model, JudgeModelSettings) and model.cache_dir is None:
            model = model.model_copy(update={"cache_dir": str(folder / "judge" / name)})
            settings = settings.model_copy(update={"model": model})
        loaded = models.model(name, settings)
        if loaded.info.compares and study.text_algorithm.needs.greedy:
            why = f"reward.sources.{name}: {relative(loaded.info.name)}"
            raise ConfigError(
                f"{why}, and a greedy response stands alone: set adv_estimator to grpo or rloo",
                key="algorithm.adv_estimator",
            )
        made[name] = TextReward(terms[name], loaded, settings, min_form=_min_form(study))
    return sources | {name: made[name] for name in study.text_sources}


def _exact(study: Study, terms: SourceTerms) -> RewardSource[Responses]:
    """The truth about each step; in a run with an agent what the verifier says of each turn."""
    if study.agent is None:
        return ExactReward(terms)
    data = run_prompts(study.data)
    return VerifiedTurns(terms, verifier_from(data), data.unparsable)


def load_model(settings: TextSource) -> RewardModel:
    """The model of a source, loaded from the disk."""
    return load_source_model(settings.model)


def text_terms(reward: RewardSettings, algorithm: TextAlgorithmSettings) -> dict[str, SourceTerms]:
    """How the verifier and every reward model count, by name."""
    verifier = SourceTerms(VERIFIER, algorithm.verifier_gamma, reward.env_weight())
    models = {name: SourceTerms.of(name, one, gamma=algorithm.gamma) for name, one in reward.sources.items()}
    return {VERIFIER: verifier, **models}


def _shards(
    study: Study, policy: TextPolicy, prompts: RunPrompts, *, heads: tuple[str, ...], recompute: bool
) -> list[dict[str, Any]]:
    """The arguments of the collector of every shard."""
    assert study.data is not None
    algorithm, runner, data = study.text_algorithm, study.runner, study.data
    count, most = runner.rollout_shards, algorithm.minibatch_size
    recompute_above = 0 if algorithm.num_epochs > 1 else most
    if count > 1 and recompute_above:  # of the whole rollout, alike in every shard
        recompute_above = 0 if data.train_batch_size * data.n_samples > recompute_above else None
    acting: TextPolicy | TextPolicySettings = study.text_policy
    if study.engine == "local":
        acting = policy
        if runner.max_staleness:  # it acts while the other one learns
            acting = load_policy(study.text_policy, seed=runner.seed, value_heads=len(heads))
            acting.temperature = policy.temperature
    return [
        {
            "data": data.model_copy(update={"train_batch_size": data.train_batch_size // count}),
            "generation": study.generation,
            "policy": acting,
            "seed": runner.seed,
            "heads": heads,
            "greedy": algorithm.needs.greedy,
            "recompute": recompute,
            "recompute_above": recompute_above,
            "micro_batch_size": _micro(algorithm),
            "prompts": prompts.of_shard(shard, count),
            "shard": shard,
            "shares_gpu": 0 < study.cluster.collector_gpus < 1,
            "agent": study.agent,
        }
        for shard in range(count)
    ]


def _micro(algorithm: TextAlgorithmSettings) -> int:
    """Responses that are evaluated at a time."""
    return algorithm.micro_batch_size or algorithm.minibatch_size or 1024


def _notes(
    study: Study, policy: TextPolicy, prompts: RunPrompts, sources: dict[str, RewardSource[Any]], *, alike: bool
) -> list[str]:
    """Lines for the start of the log."""
    assert study.data is not None
    total = len(prompts.train) + prompts.too_long
    notes = [f"{total} prompts to train on, {len(prompts.validation)} to validate on"]
    if prompts.too_long:
        notes.append(
            f"{prompts.too_long} prompts are longer than data.max_prompt_length ({study.data.max_prompt_length}) and "
            "are left out"
        )
    if study.agent is not None:
        notes += agent_notes(policy.tokenizer, with_tools=study.agent.type in ("tools", "command"))
    notes += _dropout_notes(study.text_policy)
    for name, source in study.reward.sources.items():
        use = "shown, never trained on" if name == study.reward.truth else f"weight {source.reward_weight:g}"
        notes.append(f"[{study.reward.group_name}] {name}: text from {source.model.origin}, {use}")
    learning = any(isinstance(s, PrimeReward) and s.settings.learns for s in sources.values())
    added = bool(study.data.shots) or study.data.system_prompt is not None
    if learning and study.runner.save_reward_models and added and not alike:
        notes.append(
            "WARNING: the prompts have several turns, and data.system_prompt or data.shots adds more for the policy; "
            "the saved reward model is not given what they add, so that it gives other values than in this run"
        )
    return notes


def _dropout_notes(policy: TextPolicySettings) -> list[str]:
    """What dropout does in a run, where the policy has any."""
    if policy.dropout:
        return [
            "WARNING: policy.dropout: ratios, clip fractions and KL compare gradient passes with dropout to "
            "log-probabilities without, so they are not 1 and 0 where nothing was learned"
        ]
    if policy.lora is not None and policy.lora.dropout:
        return [
            f"policy.lora.dropout ({policy.lora.dropout:g}) is for training on examples and off here; policy.dropout: "
            "true would draw it"
        ]
    return []


def agent_notes(tokenizer: Any, *, with_tools: bool) -> list[str]:
    """What the chat template does with conversations, and with tools where there are any, if not what one expects."""
    form = tool_form(tokenizer)
    notes = []
    if form.own and with_tools:
        notes.append("the chat template knows no tools: guerdon writes them into the system turn, and results as text")
    if form.appends is False:
        notes.append(
            "the chat template rewrites earlier turns, so that some prompts are contexts of their own (agent/contexts)"
        )
    return notes


# The policy that the KL is measured from.


def _reference(study: Study, policy: TextPolicy, primes: Mapping[str, PrimeReward]) -> TextPolicy:
    """The policy at the start of the run: the weights under its adapter, or a copy of them.

    A run that starts from another one (`runner.resume_dir`) learns from where that run ended: that is its reference,
    in weights of its own that go into its checkpoints. Here it only gets the room for them.
    """
    own, seed = study.text_policy, study.runner.seed
    if study.runner.resume_dir and policy.adapter is not None:
        assert own.lora is not None
        found = add_policy(policy.base, KL_START, own.lora, seed=seed)
    elif study.runner.resume_dir:
        found = TextPolicy(load_policy(own, seed=seed).base)
    elif policy.adapter is not None:
        found = reference(policy.base)
    else:
        models = (model for model in primes.values() if model.starts_at(own.path))
        shared = next((model.ref.base for model in models if model.ref is not None), None)
        found = reference(load_policy(own, seed=seed).base if shared is None else shared)
    found.temperature = policy.temperature
    return found


def _take_start(start: TextPolicy, policy: TextPolicy) -> None:
    """Make the reference what the policy is now.

    Raises:
        CheckpointError: it is a reference of another policy.
    """
    mark = re.compile(rf"\.{policy.adapter}(?=\.|$)")  # adapters of embeddings have it at the end of their names
    start.load_tensors({mark.sub(f".{KL_START}", k): v for k, v in policy.tensors().items()}, critic=False)
