"""Any reward model for text as a source of reward: its values of steps, shaped and paid at tokens.

`per_step` pays each step at its last token, `per_token` at each of its tokens, `terminal` the whole response at its
end. Failed measurements stay failures of their response. This module does not know which model it asks, or what is
learnt from it.

    source = ModelReward("prm", load_text_model("runs/prm/final_checkpoint"), settings, gamma=1.0)
    source.look(Asked(answered)).rewards_B_T
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch

from guerdon.errors import ConfigError
from guerdon.evaluate.aggregate import solution_value
from guerdon.evaluate.scoring import score_episodes
from guerdon.models import implicit_losses as implicit
from guerdon.rl import shape
from guerdon.rl.advantages import last_valid, min_form_rewards
from guerdon.rl.responses import Responses
from guerdon.rl.text_steps import Cut, cut_steps, generated, step_auroc
from guerdon.rl.text_streams import Asked, Facts, FixedReward, Judged, Stream
from guerdon.settings.reward import SourceSettings
from guerdon.types import Episode, Failure, FloatArray, RewardModel, Score

PROBABILITIES = (0.0, 1.0)


class ModelReward(FixedReward):
    """One entry of `reward.sources`.

    Args:
        name: of the source.
        model: judges steps or whole responses.
        settings: how its values become rewards.
        credit: `min_form` makes the rewards of a response add up to about the smallest (per_step only).
        temperature: of that soft minimum.

    Raises:
        ConfigError: the settings ask for what this model does not measure.
    """

    def __init__(
        self,
        name: str,
        model: RewardModel,
        settings: SourceSettings,
        *,
        credit: Literal["sum", "min_form"] = "sum",
        temperature: float = 0.1,
    ) -> None:
        self.name, self.model, self.settings = name, model, settings
        self._temperature = temperature if credit == "min_form" and settings.reward_mode == "per_step" else None
        self._check()

    @property
    def threshold(self) -> float:
        """The one threshold: the configuration's, else the model's own, else a half."""
        own = self.model.info.success_threshold
        given = self.settings.reward_threshold
        return given if given is not None else 0.5 if own is None else own

    def measure(self, asked: Asked, greedy: Asked | None) -> tuple[Stream, Stream | None, Facts]:
        """Score; and how well values tell right from wrong on these responses."""
        stream = self.look(asked)
        return stream, None if greedy is None else self.look(greedy), self._facts(asked.answered, stream)

    def look(self, asked: Asked) -> Stream:
        """Score."""
        answered = asked.answered
        mask = answered.batch.mask_B_T
        cuts = cut_steps(answered, self.settings.splitter)
        scores = self._scores(answered, cuts)
        rewards = np.zeros(mask.shape, dtype=np.float32)
        failures: dict[int, Failure] = {}
        for row, score in scores.items():
            paid = self._paid(score)
            if isinstance(paid, Failure):
                failures[row] = paid
            else:
                self._pay(rewards[row], cuts[row], paid)
        terminal = self.settings.reward_mode == "terminal"
        values = tuple(scores[row].steps if row in scores else None for row in range(len(cuts)))
        judged = Judged(cuts, values, self.threshold) if self.model.info.granularity == "step" else None
        return Stream(rewards, last_valid(mask) if terminal else None, failures, judged)

    def _scores(self, answered: Responses, cuts: tuple[Cut, ...]) -> dict[int, Score]:
        """Of every response that has a token; equal responses to one question are judged once."""
        places: dict[tuple[str, tuple[str, ...]], int] = {}
        episodes: list[Episode] = []
        which: dict[int, int] = {}
        for row, (prompt, cut) in enumerate(zip(answered.prompts, cuts, strict=True)):
            if not cut.texts:
                continue
            key = (prompt.question, cut.texts)
            if key not in places:
                places[key] = len(episodes)
                meta = dict(prompt.extra_info)
                episodes.append(Episode(id=prompt.id, task=prompt.question, texts=cut.texts, meta=meta))
            which[row] = places[key]
        scores = score_episodes(self.model, episodes)
        return {row: scores[place] for row, place in which.items()}

    def _paid(self, score: Score) -> np.ndarray | Failure:
        """(S,) rewards of the steps of a response, or (1,) of the whole; or why there are none."""
        s = self.settings
        if s.reward_mode == "terminal":
            value = _whole(score, s)
            if isinstance(value, Failure):
                return value
            values = np.array([value], dtype=np.float64)
        elif score.failure is not None:
            return score.failure
        elif score.steps is None:
            return Failure("no_step_values", "the model judged the whole response only")
        else:
            values = np.asarray(score.steps, dtype=np.float64)
        match s.shaping:
            case "threshold":
                values = shape.threshold_reward(
                    values, threshold=self.threshold, success=s.success_reward, fail=s.effective_fail_reward
                )
            case "signed":
                values = 2.0 * values - 1.0
            case "relative":
                values = shape.relative_reward(values, previous=0.0)
            case _:
                pass
        values = values * s.reward_coef
        if self._temperature is None:
            return values
        every = np.ones((1, len(values)), dtype=np.bool_)
        return np.asarray(min_form_rewards(values[None], every, temperature=self._temperature)[0])

    def _pay(self, rewards_T: FloatArray, cut: Cut, paid_S: np.ndarray) -> None:
        """Put rewards at tokens, in place. Steps that end in one token are paid there together."""
        match self.settings.reward_mode:
            case "terminal":
                rewards_T[cut.ends[-1]] = paid_S[0]
            case "per_step":
                np.add.at(rewards_T, cut.ends, paid_S.astype(np.float32))
            case "per_token":
                start = 0
                for end, paid in zip(cut.ends, paid_S, strict=True):
                    rewards_T[min(start, end) : end + 1] += paid
                    start = end + 1

    def _facts(self, answered: Responses, stream: Stream) -> Facts:
        known = answered.known_B & ~stream.failed_B
        total_B = torch.from_numpy(stream.rewards_B_T.sum(axis=1, dtype=np.float64))
        pairs = implicit.dpo_acc(
            total_B,
            torch.from_numpy(answered.outcomes_B),
            torch.from_numpy(answered.groups_B),
            known_B=torch.from_numpy(known),
        )
        facts: Facts = {"dpo_acc": pairs.accuracy, "dpo_acc_coverage": pairs.coverage}
        if stream.judged is None:
            return facts
        judged = stream.judged
        found = [values for values in judged.values if values is not None]
        facts["step_value"] = float(np.concatenate(found).mean()) if found else None
        facts["steps_called_right"] = float((np.concatenate(found) >= judged.threshold).mean()) if found else None
        if generated(answered):
            facts["step_auroc"] = step_auroc(answered, judged.cuts, judged.values)
        return facts

    def _check(self) -> None:
        """The settings fit what the model measures."""
        info, s, where = self.model.info, self.settings, f"reward.sources.{self.name}"
        if info.modality != "text":
            raise ConfigError(f"{where}: {info.name} looks at {info.modality}s, not at text")
        steps = info.granularity == "step"
        if not steps and s.reward_mode != "terminal":
            raise ConfigError(f"{where}: {info.name} judges whole responses only, so reward_mode must be terminal")
        if steps and s.reward_mode == "terminal" and s.aggregation is None:
            raise ConfigError(f"{where}: {info.name} judges steps; say by aggregation how their values become one")
        if not steps and s.aggregation is not None:
            raise ConfigError(f"{where}: aggregation would do nothing, {info.name} judges whole responses; remove it")
        bounded = PROBABILITIES[0] <= info.range[0] and info.range[1] <= PROBABILITIES[1]
        if s.shaping == "signed" and not bounded:
            raise ConfigError(f"{where}: shaping signed needs probabilities; {info.name} gives {info.range}")
        if s.shaping == "threshold" and not bounded and s.reward_threshold is None and info.success_threshold is None:
            raise ConfigError(f"{where}: shaping threshold needs reward_threshold; {info.name} gives {info.range}")


def _whole(score: Score, settings: SourceSettings) -> float | Failure:
    """One value of a response: its steps together where they are judged, else its total."""
    if score.failure is not None:
        return score.failure
    if settings.aggregation is not None:
        return solution_value(score, settings.aggregation)
    return Failure("no_total", "the model judged steps only") if score.total is None else float(score.total)
