"""The language models' side of the loop: prompts, responses, a verifier, a reward model beside it.

`runner.total_steps` counts responses: every one that was written, those that the filters left out and those that a
reward model warmed up on included. This module does not know when anything is logged, evaluated or stored.

    side = TextSide(study, fresh=True)
    side.begin()
    happened = side.roll_out(phase)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from guerdon.policies.text import TextPolicy, reference
from guerdon.policies.text_files import load_policy, save_policy
from guerdon.rl.baselines import last_valid
from guerdon.rl.learner import scheduled
from guerdon.rl.prime import adam_tensors, load_adam
from guerdon.rl.records import EpisodeBook
from guerdon.rl.responses import Drawn, Responses, Sampler
from guerdon.rl.side import Refits, Times
from guerdon.rl.sources import Measured
from guerdon.rl.text_advantages import advise
from guerdon.rl.text_evaluation import evaluate_text, film_text
from guerdon.rl.text_learner import Told, log_probs_of, steps_per_update, update_text_policy
from guerdon.rl.text_records import build_engine, measured_by, outcome_stream, response_rows
from guerdon.rl.text_rewards import PrimeReward, Stream, build_process_reward
from guerdon.settings.study import Study
from guerdon.types import Rollout
from guerdon.worlds.prompt_files import load_prompts
from guerdon.worlds.verifier import verifier_from

VERIFIER = "verifier"


@dataclass(eq=False)
class Happened:
    """One batch on its way through the loop.

    Attributes:
        drawn: the responses.
        greedy: one greedy response per prompt, for ReMax.
        warm: responses that a reward model warmed up on before.
        old: (B, T) log-probabilities of the policy that acted, as training computes them, where somebody needs them.
        streams: rewards by source, once scored.
        greedy_streams: the same for the greedy responses.
        scored: metrics of the reward model.
    """

    drawn: Drawn
    greedy: Responses | None
    warm: int
    old: Tensor | None
    streams: dict[str, Stream]
    greedy_streams: dict[str, Stream]
    scored: dict[str, float | None]

    @property
    def answered(self) -> Responses:
        """The responses to learn from."""
        return self.drawn.kept


class TextSide:
    """Policy, prompts, verifier, reward model and their memory.

    Args:
        study: the resolved configuration.
        fresh: whether the run starts from nothing; off where a checkpoint of this run follows.
    """

    unit = "responses"

    def __init__(self, study: Study, *, fresh: bool) -> None:
        assert study.data is not None
        self.study, self.data = study, study.data
        algorithm, seed = study.text_algorithm, study.runner.seed
        self.section = study.reward_model
        with_model = self.section is not None
        critic = algorithm.adv_estimator == "gae"
        self.policy = load_policy(study.text_policy, seed=seed, value_heads=(1 + with_model) if critic else 0)
        self.engine = build_engine(self.policy, study.generation)
        self.verifier = verifier_from(self.data)
        train, self.validation = load_prompts(self.data)
        tokenizer = self.policy.tokenizer
        self.sampler = Sampler(self.data, self.engine, self.verifier, train, tokenizer, seed=seed)
        self.process = build_process_reward(study, self.policy)
        self.learned: tuple[str, ...] = () if self.process is None else (self.process.name,)
        self.on_failure: Mapping[str, str] = {} if self.section is None else {self.learned[0]: self.section.on_failure}
        self.kl_ref = self._reference() if algorithm.kl_coef else None
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=algorithm.learning_rate,
            betas=algorithm.betas,
            weight_decay=algorithm.weight_decay,
        )
        self.rng = np.random.default_rng([seed, 1])
        self.book = EpisodeBook(0, [VERIFIER, *self.learned])
        self.weights = {VERIFIER: 1.0}
        self.facts: dict[str, float | None] = {}
        self.warmed = not self._warm_up_size
        self.notes = [f"{len(train)} prompts to train on, {len(self.validation)} to validate on"]
        if self.sampler.too_long:
            self.notes.append(
                f"{self.sampler.too_long} prompts are longer than data.max_prompt_length "
                f"({self.data.max_prompt_length}) and are left out"
            )

    def begin(self) -> None:
        """Nothing to begin: every response is an episode of its own."""

    def roll_out(self, phase: Times) -> Happened:
        """Answer prompts until enough survive the filters."""
        warm = 0
        if not self.warmed:
            warm = self._warm_up(phase)
            self.warmed = True
        with phase("generate"):
            drawn = self.sampler.draw()
            greedy = None
            if self.study.text_algorithm.adv_estimator == "remax":
                prompts = [drawn.kept.prompts[i] for i in _firsts(drawn.kept.groups_B)]
                greedy = self.sampler.answer(prompts, 1, greedy=True)
        old = self._old_log_probs(drawn.kept, phase)
        return Happened(drawn, greedy, warm, old, {}, {}, {})

    def steps(self, happened: Happened) -> int:
        """Responses that were written."""
        greedy = 0 if happened.greedy is None else len(happened.greedy)
        return happened.drawn.generated + greedy + happened.warm

    def refit(self, when: Literal["before", "after"], happened: Happened, phase: Times) -> Refits:
        """An implicit reward model learns while it scores (`score`); what it said of itself belongs here."""
        return {} if when == "before" or self.process is None else {self.process.name: happened.scored}

    def score(self, happened: Happened, phase: Times) -> dict[str, Measured]:
        """The verifier's outcomes and the reward model's process rewards."""
        answered = happened.answered
        happened.streams[VERIFIER] = outcome_stream(answered)
        failed = [(0, 0, f) for f in happened.drawn.failed]
        measured = {VERIFIER: measured_by(happened.streams[VERIFIER], happened.drawn.generated, failed)}
        if happened.greedy is not None:
            happened.greedy_streams[VERIFIER] = outcome_stream(happened.greedy)
        if self.process is not None:
            name = self.process.name
            with phase("reward model"):
                if happened.greedy is not None:
                    happened.greedy_streams[name] = self.process.look(happened.greedy, self._greedy_old(happened))
                stream, happened.scored = self.process.measure(answered, happened.old)
            reasons = [(row, 0, f) for row, f in stream.failures.items()]
            happened.streams[name] = stream
            measured[name] = measured_by(stream, len(answered), reasons)
        return measured

    def update(
        self, happened: Happened, measured: Mapping[str, Measured], *, progress: float, phase: Times
    ) -> tuple[Rollout, dict[str, float | None]]:
        """Advantages of every source, and gradient steps on the policy."""
        algorithm, answered = self.study.text_algorithm, happened.answered
        with phase("update"):
            ref = None
            if self.kl_ref is not None:
                ref = log_probs_of(self.kl_ref, answered.batch, micro=self._micro, temperature=self._temperature)
            self.weights = self._weights(progress)
            values = None
            if algorithm.adv_estimator == "gae":
                values = self._values(answered)
            found = advise(self.study, happened, self.weights, ref, values)
            needs_old = steps_per_update(algorithm, len(answered)) > 1
            told = Told(
                torch.from_numpy(found.advantages_B_T),
                happened.old if needs_old else None,
                ref if algorithm.kl_in == "loss" else None,
                {k: torch.from_numpy(v) for k, v in found.value_targets.items()},
                {k: torch.from_numpy(v) for k, v in found.taught.items()},
            )
            rate = scheduled(algorithm.learning_rate, algorithm.lr_schedule, progress)
            learned = update_text_policy(
                self.policy, self.optimizer, answered.batch, told, algorithm, self.rng,
                learning_rate=rate, temperature=self._temperature, max_length=self.data.max_response_length,
            )  # fmt: skip
            self.engine.sync()
        facts = dict(happened.drawn.facts)
        facts |= {f"silent_groups/{k}": float(v) for k, v in found.silent_groups.items()}
        facts |= {f"flat_groups/{k}": float(v) for k, v in found.flat_groups.items()}
        facts |= {f"reward_weight/{k}": v for k, v in self.weights.items()}
        facts |= self._more_facts(happened)
        return self._rollout(happened), {**learned, **facts, "learning_rate": rate}

    def record(self, rollout: Rollout, step: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """One row per response that was learnt from."""
        rows = self.book.keep(response_rows(rollout, self.weights, step))
        return rows, self.book.summary(rows, self.learned)

    def alarm(self) -> bool:
        """Whether the reward model's return rises while true success does not."""
        return self.book.alarm(self.learned)

    def evaluate(self, step: int) -> dict[str, float]:
        """Greedy answers to validation prompts."""
        return evaluate_text(
            self.engine, self.verifier, self.data, self.validation[: self.study.runner.eval_episodes],
            self.policy.tokenizer,
        )  # fmt: skip

    def film(self, folder: Path, step: int) -> None:
        """A few sampled answers with what every source says of each token."""
        film_text(self, folder / f"step_{step:012d}.json", step)

    def save(self, folder: Path) -> None:
        """The policy, and the implicit reward model as the run left it."""
        save_policy(self.policy, folder / "policy")
        if self.study.runner.save_reward_models and isinstance(self.process, PrimeReward):
            save_policy(self.process.model.phi, folder / "reward_models" / self.process.name)

    def close(self) -> None:
        """End the verifier's processes."""
        self.verifier.close()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Policy, reward model, both optimisers, random numbers, place in the data."""
        tensors = {f"policy.{k}": v for k, v in self.policy.tensors().items()}
        tensors |= {f"optimizer.{k}": v for k, v in adam_tensors(self.optimizer).items()}
        process: dict[str, Any] = {}
        if self.process is not None:
            more, process = self.process.state_dict()
            tensors |= {f"process.{k}": v for k, v in more.items()}
        return tensors, {
            "sources": [VERIFIER, *self.learned],
            "rng": self.rng.bit_generator.state,
            "sampler": self.sampler.state_dict(),
            "process": process,
            "book": self.book.state_dict(),
            "warmed": self.warmed,
        }

    def restore(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        """Return to a stored state."""
        self.policy.load_tensors(_under("policy.", tensors))
        load_adam(self.optimizer, _under("optimizer.", tensors))
        if self.process is not None:
            self.process.load_state_dict(_under("process.", tensors), values["process"])
        self.rng.bit_generator.state = values["rng"]
        self.sampler.load_state_dict(values["sampler"])
        self.book.load_state_dict(values["book"])
        self.warmed = bool(values["warmed"])
        self.engine.sync()

    def log_probs(self, answered: Responses) -> Tensor | None:
        """(B, T) of the policy as it is, where the reward model compares with it."""
        by_policy = isinstance(self.process, PrimeReward) and self.process.model.ref is None
        return self._needed_old(answered) if by_policy else None

    # Parts of an update.

    @property
    def _temperature(self) -> float:
        return self.study.generation.temperature

    @property
    def _micro(self) -> int:
        algorithm = self.study.text_algorithm
        return algorithm.micro_batch_size or algorithm.minibatch_size or 1024

    @property
    def _warm_up_size(self) -> int:
        return (
            0 if self.section is None or self.section.rm_type != "prime" else self.section.prime_model.warm_up.rollouts
        )

    def _reference(self) -> TextPolicy:
        """The policy at the start of the run: the weights under its adapter, or a copy of them."""
        if self.policy.adapter is not None:
            return reference(self.policy.base)
        frozen = load_policy(self.study.text_policy, seed=self.study.runner.seed)
        return reference(frozen.base)

    def _warm_up(self, phase: Times) -> int:
        """Let an implicit reward model learn from rollouts of the starting policy; how many were written?"""
        assert isinstance(self.process, PrimeReward)
        assert self.section is not None
        written = 0
        with phase("warm up"):
            parts = []
            while written < self._warm_up_size:
                parts.append(self.sampler.draw())
                written += parts[-1].generated
            for _ in range(self.section.prime_model.warm_up.epochs):
                for part in parts:
                    kept = part.kept
                    old = self._needed_old(kept) if self.process.model.ref is None else None
                    self.process.model.learn(
                        kept.batch, torch.from_numpy(kept.outcomes_B), torch.from_numpy(kept.known_B),
                        torch.from_numpy(kept.groups_B), old,
                    )  # fmt: skip
        return written

    def _needed_old(self, answered: Responses) -> Tensor:
        return log_probs_of(self.policy, answered.batch, micro=self._micro, temperature=self._temperature)

    def _old_log_probs(self, answered: Responses, phase: Times) -> Tensor | None:
        """Log-probabilities of the policy that acted, where they decide anything."""
        algorithm = self.study.text_algorithm
        by_policy = isinstance(self.process, PrimeReward) and self.process.model.ref is None
        in_reward = bool(algorithm.kl_coef) and algorithm.kl_in == "reward"
        if not (by_policy or in_reward or steps_per_update(algorithm, len(answered)) > 1):
            return None
        with phase("old log-probs"):
            return self._needed_old(answered)

    def _greedy_old(self, happened: Happened) -> Tensor | None:
        return None if happened.old is None or happened.greedy is None else self._needed_old(happened.greedy)

    def _values(self, answered: Responses) -> dict[str, np.ndarray]:
        """(B, T) value before each token, of every source."""
        found = np.zeros((*answered.batch.mask_B_T.shape, 1 + len(self.learned)), dtype=np.float32)
        with torch.no_grad():
            for start in range(0, len(answered), self._micro):
                rows = np.arange(start, min(start + self._micro, len(answered)))
                part = answered.batch.take(rows)
                values = self.policy.evaluate(part, temperature=self._temperature).values_B_T_K
                assert values is not None
                found[rows, : part.mask_B_T.shape[1]] = values.cpu().numpy()
        return {name: found[..., k] for k, name in enumerate([VERIFIER, *self.learned])}

    def _weights(self, progress: float) -> dict[str, float]:
        """Weight of each source in the advantage at this point of the run."""
        if self.section is None:
            return {VERIFIER: 1.0}
        scale = {"constant": 1.0, "linear_decay": 1.0 - progress, "linear_warmup": progress}
        factor = max(0.0, scale[self.section.rm_coef_schedule])
        return {VERIFIER: self.section.verifier_coef, self.learned[0]: self.section.rm_coef * factor}

    def _more_facts(self, happened: Happened) -> dict[str, float | None]:
        """How far training and rollout disagree; lengths; steps."""
        answered = happened.answered
        mask = answered.batch.mask_B_T
        facts: dict[str, float | None] = {
            "response_length": float(mask.sum(axis=1).mean()) if len(answered) else None,
            "separators": float(np.mean([t.count(";") + t.count("\n") for t in answered.texts]))
            if len(answered)
            else None,
        }
        if happened.old is not None and mask.any():
            gap = np.abs(happened.old.numpy() - answered.behaviour_B_T)[mask]
            facts |= {"rollout_gap_mean": float(gap.mean()), "rollout_gap_max": float(gap.max())}
        return facts

    def _rollout(self, happened: Happened) -> Rollout:
        """The batch as the arrays that every reader of rollouts knows."""
        answered = happened.answered
        batch = answered.batch
        last = last_valid(batch.mask_B_T)
        shape = batch.mask_B_T.shape
        before = np.zeros(shape, dtype=np.int64)
        before[:, 1:] = batch.responses_B_T[:, :-1]
        right = (answered.outcomes_B > 0.5) & answered.known_B
        return Rollout(
            observations=before,
            actions=batch.responses_B_T.astype(np.float32),
            log_probs=answered.behaviour_B_T,
            mask=batch.mask_B_T,
            terminated=last & batch.finished_B[:, None],
            truncated=last & ~batch.finished_B[:, None],
            success=last & right[:, None],
            rewards={name: s.rewards_B_T for name, s in happened.streams.items()},
            failed={n: s.failed_B[:, None] & batch.mask_B_T for n, s in happened.streams.items()},
            group_ids=np.repeat(answered.groups_B[:, None], shape[1], axis=1),
        )


def _firsts(groups_B: np.ndarray) -> list[int]:
    """The first row of each group, in order."""
    return sorted(int(i) for i in np.unique(groups_B, return_index=True)[1])


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
