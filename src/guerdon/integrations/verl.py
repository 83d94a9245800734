"""Guerdon's reward models in verl: a score function, a reward manager with rewards at tokens, advantage estimators.

verl has no place for a missing reward, so a measurement that failed raises `RewardFailure`; `RetriedModel` tries it
again first. `register_sources` computes the advantages itself, where a missing reward stays out of the baselines.

    compute_score = score_function(scorer)                          # my_reward.py, for custom_reward_function
    class PrmManager(TokenRewardManager): source = step_source("prm", model)      # for reward.reward_manager
    register_estimator("guerdon_rloo", {"adv_estimator": "rloo"})   # then algorithm.adv_estimator: guerdon_rloo
    register_sources(lambda: [prime_source("prime", policy, length_limit=1024)], {"adv_estimator": "rloo"}, tokenizer)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, register_adv_est

from guerdon.collect.text import Responses, TextRollout
from guerdon.config.loading import validate
from guerdon.errors import ConfigError, RewardFailure
from guerdon.integrations import text
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import load_policy
from guerdon.policies.pretrained.reading import read_tokenizer
from guerdon.processes.call_queue import in_thread
from guerdon.rewards.prime import PrimeReward
from guerdon.rewards.source import RewardSource, SourceTerms, response_rewards
from guerdon.rl.advantages import SourceRewards, Steps, estimate_advantages, named_estimator
from guerdon.rl.learner import KL
from guerdon.settings.reward_models import PrimeModelSettings
from guerdon.settings.reward_source import RunSource
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.types import Failure, Metrics, Rewards

VERIFIER = "verifier"


def score_function(scorer: text.TextScorer, *, question_key: str = "question") -> Callable[..., float | list[float]]:
    """A `compute_score` for `reward.custom_reward_function`.

    verl gives it no prompt: the question is read from the row's `extra_info`. It is called with one row, or by verl's
    `batch` reward manager with all of them (`solution_strs`, `extra_infos`, ...), and then scores them at once.

    Args:
        scorer: a reward model, and how responses are read for it.
        question_key: where in `extra_info` the question is, as text or chat messages.

    Returns:
        A function that raises `RewardFailure` where a reward could not be measured, and `ConfigError` where a row has
        no question.
    """

    def question(data_source: Any, extra_info: Any) -> text.Text:
        found = extra_info.get(question_key) if isinstance(extra_info, Mapping) else None
        if found is None:
            raise ConfigError(
                f"a row of {data_source} has no extra_info.{question_key}: put the question there, or take "
                "TokenRewardManager, which reads the prompt"
            )
        return found  # type: ignore[no-any-return]

    def compute_score(
        data_source: Any = None,
        solution_str: str | None = None,
        ground_truth: Any = None,
        extra_info: Any = None,
        *,
        data_sources: Sequence[Any] | None = None,
        solution_strs: Sequence[str] | None = None,
        extra_infos: Sequence[Any] | None = None,
        **_: Any,
    ) -> float | list[float]:
        if solution_strs is None:
            if solution_str is None:
                raise ConfigError("verl gave neither solution_str nor solution_strs")
            return scorer.numbers([question(data_source, extra_info)], [solution_str])[0]
        rows = len(solution_strs)
        sources, infos = (given if given is not None else [None] * rows for given in (data_sources, extra_infos))
        asked = [question(source, info) for source, info in zip(sources, infos, strict=True)]
        return scorer.numbers(asked, list(solution_strs))

    return compute_score


class TokenRewardManager(RewardManagerBase):  # type: ignore[misc]
    """A reward manager whose rewards stand at the tokens where steps end.

    Subclass it with a `source`, and name the class in `reward.reward_manager` (`source: importlib`). `run_single` gives
    the sum of a response's rewards; rewards at tokens reach the trainer through `assemble_rm_scores`, which scores the
    batch at once. verl calls it where it computes rewards for a batch, not where each agent loop asks for its own.

    Attributes:
        source: of rewards at tokens (`guerdon.integrations.text.step_source`).
    """

    source: ClassVar[RewardSource[Responses]]
    _tokenizer: ClassVar[Any] = None

    @classmethod
    def init_class(cls, config: Any, tokenizer: Any) -> None:
        """Keep the tokenizer, which `assemble_rm_scores` needs."""
        cls._tokenizer = tokenizer
        super().init_class(config, tokenizer)

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        """The sum of the rewards of a response.

        Raises:
            RewardFailure: it could not be measured.
        """
        rewards = await in_thread(self.measure, data[-1:])
        return {"reward_score": float(rewards.values.sum()), "reward_extra_info": {}}

    @classmethod
    def measure(cls, data: DataProto) -> Rewards:
        """Rewards of a batch at its tokens.

        Raises:
            RewardFailure: one could not be measured.
        """
        given = data.non_tensor_batch.get("raw_prompt")
        rewards = cls.source.measure(text.rollout_of(*_parts(data.batch, given, cls._tokenizer), cls._tokenizer))
        if rewards.failures:
            missing = {row: str(why) for row, _, why in rewards.failures}
            values = np.where(rewards.failed, np.nan, rewards.values)
            raise RewardFailure(f"{len(missing)} of {len(values)} rewards", missing, result=values)
        return rewards

    @classmethod
    def assemble_rm_scores(cls, data: DataProto, scores: Sequence[float]) -> Tensor:
        """(B, T) rewards at the tokens of the responses.

        Args:
            data: the batch.
            scores: sums that `run_single` gave; the batch is scored again, because verl hands over no more than these.

        Raises:
            RewardFailure: one could not be measured.
        """
        return _widened(cls.measure(data).values, data.batch["responses"])


def register_estimator(name: str, algorithm: Mapping[str, Any], *, gamma: float = 1.0) -> Callable[..., Any]:
    """Register one of guerdon's estimators for dense rewards under a name for `algorithm.adv_estimator`.

    verl adds all rewards of a token before it calls an estimator, so they are one source here; the baseline is over
    the tokens that pay.

    Args:
        name: in verl's configuration.
        algorithm: the estimator; see `guerdon.integrations.text.token_advantages`.
        gamma: discount per token.

    Raises:
        ConfigError: a key of `algorithm` that would do nothing, or an estimator that needs a critic.
    """
    settings = text.checked_algorithm(algorithm)

    def compute_advantage(
        token_level_rewards: Tensor, response_mask: Tensor, index: np.ndarray | None = None, **_: Any
    ) -> tuple[Tensor, Tensor]:
        mask = response_mask.bool().cpu().numpy()
        groups_B = None if index is None else np.unique(index, return_inverse=True)[1]
        rewards = token_level_rewards.detach().float().cpu().numpy()
        found = estimate_advantages(
            {"verl": SourceRewards(rewards, gamma=gamma)},
            Steps(mask, groups_B=groups_B),
            estimator=named_estimator(settings),
            form=settings.rloo_form,
            whitened=settings.whiten_batch,
        )
        device = token_level_rewards.device
        return torch.from_numpy(found.advantages).to(device), torch.from_numpy(found.returns).to(device)

    registered: Callable[..., Any] = register_adv_est(name)(compute_advantage)
    return registered


def register_sources(
    sources: Callable[[], Sequence[RewardSource[Responses]]],
    algorithm: Mapping[str, Any],
    tokenizer: Any,
    *,
    outcome_weight: float = 1.0,
) -> Callable[..., Any]:
    """Let guerdon compute verl's advantages from several sources, reward models that learn among them (PRIME).

    verl hands the whole batch to one estimator only, the one called `gdpo`; this takes its place, so set
    `algorithm.adv_estimator: gdpo`. The rewards that verl computed are the source `verifier` (their sum is the outcome
    of a response, from 0 to 1), its KL penalty, if any, is the source `kl`, and `sources` measure in the process that
    computes the advantages. A measurement that failed stays out of the baseline of its source and gets no advantage.

    Args:
        sources: makes the sources when the first batch comes, since verl imports modules in every process.
        algorithm: the estimator; see `guerdon.integrations.text.token_advantages`.
        tokenizer: of the policy, or its folder, which is then read when the first batch comes.
        outcome_weight: of the advantages of `verifier`.

    Returns:
        The registered function; its attribute `metrics` holds the numbers of the last batch, by source.

    Raises:
        ConfigError: a key of `algorithm` that would do nothing, or an estimator that needs a critic.
    """
    text.checked_algorithm(algorithm)
    made: list[RewardSource[Responses]] = []
    read: list[Any] = []

    def compute_advantage(
        token_level_rewards: Tensor,
        response_mask: Tensor,
        index: np.ndarray,
        batch: Any = None,
        non_tensor_batch: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        if batch is None:
            raise ConfigError(
                "verl gave no batch: set algorithm.adv_estimator: gdpo, the one that it gives the batch",
                key="algorithm.adv_estimator",
            )
        if not read:
            made.extend(sources())
            _check_names([source.name for source in made])
            read.append(read_tokenizer(tokenizer) if isinstance(tokenizer, str) else tokenizer)
        rollout = _rollout(batch, non_tensor_batch or {}, index, read[0])
        width = rollout.mask.shape[1]
        penalty = (token_level_rewards - batch["token_level_scores"]).float().cpu().numpy()[:, :width]
        outcomes = SourceTerms(VERIFIER, coefficient=outcome_weight)
        values = np.where(rollout.known_B, rollout.outcomes_B, np.nan).tolist()
        measured = {VERIFIER: (text.outcome_rewards(values, rollout.mask), outcomes)}
        missing = {int(row): Failure("no_reward") for row in np.flatnonzero(~np.isfinite(penalty).all(axis=1))}
        penalty = np.where(rollout.mask & np.isfinite(penalty), penalty, 0.0)
        if penalty.any():  # what a response without a reward was to pay is not known either
            measured[KL] = response_rewards(penalty, rollout.mask, missing), SourceTerms(KL)
        metrics: dict[str, Metrics] = {}
        for source in made:
            learned = source.learn(rollout) if source.learn_before else {}
            found = source.measure(rollout)
            learned |= {} if source.learn_before else source.learn(rollout)
            measured[source.name] = found, source.terms
            metrics[source.name] = {**found.metrics, **learned, "failed": float(found.failed_B.mean())}
        registered.metrics = metrics  # type: ignore[attr-defined]
        found_all = text.token_advantages(rollout, measured, algorithm)
        return _widened(found_all.advantages, token_level_rewards), _widened(found_all.returns, token_level_rewards)

    registered: Callable[..., Any] = compute_advantage
    ADV_ESTIMATOR_REGISTRY["gdpo"] = registered
    return registered


def prime_source(
    name: str, policy: TextPolicy | str, *, length_limit: int, seed: int = 0, **settings: Any
) -> PrimeReward:
    """PRIME's reward model, which starts from a policy and learns from outcomes while it is used (2502.01456).

    Args:
        name: in logs.
        policy: where it starts: the folder of a language model, or a policy at the sampling temperature of the run.
        length_limit: tokens that a response may have.
        seed: of a fresh adapter and of the replay.
        **settings: keys of a source with `model_type: prime`: `reward_weight`, `gamma`, and under `model` those of
            PRIME, such as `prime_granularity` and `prime_model`.

    Raises:
        ConfigError: a key that does not exist, or that would do nothing.
    """
    if isinstance(policy, str):
        policy = load_policy(TextPolicySettings(path=policy), seed=seed)
    where = f"the source {name!r}"
    model = validate(PrimeModelSettings, settings.get("model", {}), origin=f"{where}: model")
    section = validate(RunSource, {**settings, "model": model}, origin=where)
    terms = SourceTerms.of(name, section, gamma=1.0)
    return PrimeReward(terms, model, policy, seed=seed, length_limit=length_limit)


def _rollout(batch: Any, non_tensor_batch: Mapping[str, Any], index: np.ndarray, tokenizer: Any) -> TextRollout:
    """A batch of verl with its outcomes and the log-probabilities of the policy that wrote."""
    parts = _parts(batch, non_tensor_batch.get("raw_prompt"), tokenizer)
    rollout = text.rollout_of(*parts, tokenizer, groups_B=np.unique(np.asarray(index), return_inverse=True)[1])
    outcomes_B = batch["token_level_scores"].float().sum(dim=1).cpu().numpy()
    known_B = np.isfinite(outcomes_B)
    if not ((outcomes_B[known_B] >= 0) & (outcomes_B[known_B] <= 1)).all():
        raise ConfigError("verl's own rewards are outcomes here: their sum over a response must lie between 0 and 1")
    last = rollout.terminated
    log_probs = np.zeros(last.shape, dtype=np.float32)
    if "old_log_probs" in batch.keys():  # noqa: SIM118  (a TensorDict is not a mapping)
        given_B_T = batch["old_log_probs"].float().cpu().numpy()[:, : last.shape[1]]
        log_probs = np.where(rollout.mask, given_B_T, np.float32(0.0))
    paid = np.where(last & known_B[:, None], np.nan_to_num(outcomes_B)[:, None], 0.0).astype(np.float32)
    return replace(
        rollout,
        log_probs=log_probs,
        rewards=paid,
        failed=rollout.mask & ~known_B[:, None],
        success=last & (outcomes_B == 1)[:, None],
        success_known=last & known_B[:, None],
    )


def _parts(batch: Any, given: Any, tokenizer: Any) -> tuple[list[text.Text], list[np.ndarray], list[np.ndarray]]:
    """Prompts, and the tokens of prompts and responses, of a batch of verl with these prompts as messages, if any."""
    width, valid = batch["prompts"].size(1), batch["attention_mask"]
    prompts = text.ragged(batch["prompts"], valid[:, :width])
    asked = [tokenizer.decode(ids) for ids in prompts] if given is None else list(map(text.plain, given))
    return asked, prompts, text.ragged(batch["responses"], valid[:, width:])


def _widened(values_B_T: np.ndarray, like: Tensor) -> Tensor:
    """The values, padded to the width of verl's batch."""
    wide = torch.zeros_like(like, dtype=torch.float32)
    wide[:, : values_B_T.shape[1]] = torch.from_numpy(values_B_T)
    return wide


def _check_names(names: Sequence[str]) -> None:
    if len({*names, VERIFIER, KL}) != len(names) + 2:
        raise ConfigError(f"sources need distinct names, none of them {VERIFIER} or {KL}; got {', '.join(names)}")
