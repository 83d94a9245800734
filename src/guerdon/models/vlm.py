"""Vision-language models as reward models: frames and a task in, values with their words out.

`qwen_vl` asks whether the task is completed, or how far it is; `primo_r1` lets the model reason over first picture,
video and last picture; `true_logprob` measures how readily the model says "True" to the task; `trend` and `preference`
compare the rows of short windows. What cannot be read as an answer is a `Failure`, counted and masked like any other.
This module does not know where models run or how they were trained.

    model = load_vlm("qwen_vl", settings=VLMSettings(path="Qwen/Qwen2.5-VL-7B-Instruct", question="progress"))
    judged = model.judge([episode], JudgeOptions(nframes=8))[0]
    judged.score.total, judged.text           # 0.72, "72"
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from guerdon.errors import ConfigError
from guerdon.models.explained_score import ExplainedScore, JudgeOptions, ParseStatus, Scale, joined_status
from guerdon.models.verdict_parser import parse_choice, parse_completed, parse_verdict
from guerdon.models.vlm_prompts import Answer, PromptTemplate, find_prompt
from guerdon.models.vlm_questions import NO, TRUE, YES, Backend, Choice, Question, Reply, Writing, make_question
from guerdon.settings.vlm import VLMSettings, VLMType
from guerdon.types import ByteArray, Episode, Failure, RewardInfo, Score

ANSWERS: dict[VLMType, tuple[Answer, ...]] = {
    "qwen_vl": ("completed", "number"),
    "primo_r1": ("number",),
    "true_logprob": ("true",),
    "trend": ("trend",),
    "preference": ("preference",),
}
WIDEST = 200  # longer side of a frame over the shorter: more is refused by the models' image processors
LOWEST_LOG_PROB = -100.0  # below it, the logarithm of a probability is given as this
_WORDS = {
    "trend": ("trend", {"positive": "positive", "negative": "negative", "unclear": "unclear"}),
    "preference": ("nearer", {"second": "positive", "first": "negative", "same": "unclear"}),
}


@dataclass(frozen=True)
class Calibration:
    """What a trained checkpoint says of its values.

    Attributes:
        threshold: probability above which an episode counts as successful.
        horizon: see `RewardInfo.progress_horizon`.
    """

    threshold: float | None = None
    horizon: float | None = None


@dataclass(frozen=True)
class _Plan:
    """How one call of `judge` asks."""

    prompt: PromptTemplate
    nframes: int
    max_pixels: int
    scale: Scale


@dataclass(frozen=True)
class _Read:
    """What an answer is worth, and how it came about."""

    value: float | Failure
    text: str = ""
    tokens: int = 0
    status: ParseStatus | None = None


class VLMRewardModel:
    """A vision-language model that judges episodes; a `RewardModel` and a `Judge`.

    Args:
        kind: what it asks.
        settings: how it asks.
        backend: who answers.
        calibration: of a trained checkpoint.

    Raises:
        ConfigError: a setting that this kind does not have, or a prompt that does not fit.
    """

    def __init__(
        self, kind: VLMType, settings: VLMSettings, backend: Backend, calibration: Calibration | None = None
    ) -> None:
        try:
            settings.check(kind)
        except ValueError as error:
            raise ConfigError(f"reward.model.vlm: {error}") from error
        self.kind, self.settings, self.backend = kind, settings, backend
        self.calibration = calibration or Calibration()
        self._plan = self._planned(JudgeOptions())

    @property
    def info(self) -> RewardInfo:
        """Range and needs; values of videos look back over the whole episode."""
        s, prompt = self.settings, self._plan.prompt
        low, high = 0.0, 1.0
        if self.kind == "true_logprob":
            low, high = LOWEST_LOG_PROB, 0.0
        elif self._windowed:
            rewards = (s.positive_reward, s.negative_reward, s.unclear_reward)
            low, high = min(rewards), max(rewards)
        threshold = self.calibration.threshold
        if threshold is None and prompt.answer == "completed":
            threshold = 0.5
        return RewardInfo(
            name=self.kind,
            range=(low, high),
            granularity="step" if self._all_rows else "total",
            frames_needed=s.window if self._windowed else s.nframes if prompt.sees_video else 1,
            success_threshold=threshold,
            progress_horizon=self.calibration.horizon,
        )

    def score(self, episodes: Sequence[Episode]) -> list[Score]:
        """One Score per episode, in order; what the model did not answer is a `Failure`."""
        return [judged.score for judged in self.judge(episodes, JudgeOptions())]

    def judge(self, episodes: Sequence[Episode], options: JudgeOptions) -> list[ExplainedScore]:
        """One judgement per episode, in order; its text is the answer about the last row that was judged.

        Args:
            episodes: with frames and a task.
            options: see `JudgeOptions`; a prompt must ask for a kind of answer that this model gives.

        Raises:
            ConfigError: an option that this model does not have.
        """
        plan = self._planned(options)
        asked: dict[bytes, Question] = {}
        plans: list[list[bytes | None] | Failure] = []
        for episode in episodes:
            wrong = _unusable(episode)
            plans.append(wrong or self._keys(episode, plan, asked))
        answers = dict(zip(asked, self._ask(list(asked.values()), plan), strict=True))
        return [
            ExplainedScore(Score(failure=keys)) if isinstance(keys, Failure) else self._judged(episode, keys, answers)
            for episode, keys in zip(episodes, plans, strict=True)
        ]

    def values(self, questions: Sequence[Question]) -> list[float | Failure]:
        """What the answers to questions of the model's own prompt are worth, in order."""
        return [read.value for read in self._ask(list(questions), self._plan)]

    @property
    def _windowed(self) -> bool:
        return self.kind in ("trend", "preference")

    @property
    def _all_rows(self) -> bool:
        if self._windowed:
            return True
        rows: Literal["all", "last"] = self.settings.rows or ("last" if self._plan.prompt.sees_video else "all")
        return rows == "all"

    def _planned(self, options: JudgeOptions) -> _Plan:
        s = self.settings
        name = options.prompt or s.prompt
        if name is None:
            plain = s.backend == "transformers"
            default = {"true_logprob": "true_logprob" if plain else "true_logprob_chat"}
            name = s.prompt_name if self.kind == "qwen_vl" else default.get(self.kind, self.kind)
        prompt = find_prompt(name, answers=ANSWERS[self.kind])
        if not prompt.chat and s.backend != "transformers":
            raise ConfigError(f"the prompt {name!r} goes without a chat template, which backend {s.backend} always has")
        if options.prompt is None and prompt.answer != "completed" and "answer" in s.model_fields_set:
            raise ConfigError(f"reward.model.vlm: answer would do nothing with prompt {name}; remove it")
        if options.score_mode not in (None, "auto") and prompt.answer != "number":  # auto leaves it to the prompt
            raise ConfigError(f"score_mode would do nothing with the prompt {name!r}, whose answer is no number")
        nframes = s.window if self._windowed else s.nframes
        return _Plan(
            prompt, options.nframes or nframes, options.max_pixels or s.max_pixels, options.score_mode or s.score_mode
        )

    def _keys(self, episode: Episode, plan: _Plan, asked: dict[bytes, Question]) -> list[bytes | None]:
        """Which question is asked about each row, those new among them added; None where there is nothing to ask."""
        frames = episode.frames
        assert frames is not None
        words = plan.prompt.fill(episode.task)
        keys: list[bytes | None] = []
        for row in range(len(frames)) if self._all_rows else [len(frames) - 1]:
            if self._windowed and row == 0:
                keys.append(None)
                continue
            question = make_question(
                words,
                self._seen(frames, row, plan),
                nframes=plan.nframes,
                max_pixels=plan.max_pixels,
                fps=self.settings.fps,
                video_as=self.settings.video_as or ("video" if self.settings.backend == "transformers" else "images"),
            )
            asked.setdefault(question.key, question)
            keys.append(question.key)
        return keys

    def _seen(self, frames_T: ByteArray, row: int, plan: _Plan) -> ByteArray:
        """The frames that the value of a row may look at."""
        if self._windowed:
            return frames_T[max(row + 1 - self.settings.window, 0) : row + 1]
        return frames_T[: row + 1] if plan.prompt.sees_video else frames_T[row : row + 1]

    def _ask(self, questions: list[Question], plan: _Plan) -> list[_Read]:
        if not questions:
            return []
        s, answer = self.settings, plan.prompt.answer
        if answer == "true":
            return [_true(found) for found in self.backend.choose(questions, (TRUE,))]
        if answer == "completed" and (s.answer or "soft") == "soft":
            return [_yes(found) for found in self.backend.choose(questions, (YES, NO))]
        how = Writing(s.max_tokens or plan.prompt.max_tokens, s.temperature, s.top_p, s.seed)
        return [self._read(found, plan) for found in self.backend.write(questions, how)]

    def _read(self, found: Reply | Failure, plan: _Plan) -> _Read:
        """The value of what the model wrote."""
        if isinstance(found, Failure):
            return _Read(found)
        if not found.whole and plan.prompt.answer != "completed":
            cut = Failure("truncated", f"the answer did not end by itself (max_tokens): {found.text[-80:]!r}")
            return _Read(cut, found.text, found.tokens)
        status: ParseStatus
        if plan.prompt.answer in _WORDS:
            key, words = _WORDS[plan.prompt.answer]
            said = parse_choice(found.text, key, words)
            if isinstance(said, Failure):
                return _Read(said, found.text, found.tokens)
            value, status = self._worth(said[0]), said[1]
        else:
            completed = plan.prompt.answer == "completed"
            verdict = (
                parse_completed(found.text)
                if completed
                else parse_verdict(found.text, scale=plan.scale, prompt_scale=plan.prompt.scale)
            )
            if isinstance(verdict, Failure):
                return _Read(verdict, found.text, found.tokens)
            value, status = verdict.value, verdict.status
        if not found.whole:
            status = "fallback"  # nobody knows how it would have gone on
        if status == "fallback" and not self.settings.allow_fallback:
            how = "from a sentence, not from" if found.whole else "from an answer without its end, not from all of"
            detail = f"{value:g} was read {how} an answer in the form asked for: {found.text[:80]!r}"
            return _Read(Failure("fallback", f"{detail} (vlm.allow_fallback: true takes it)"), found.text, found.tokens)
        return _Read(value, found.text, found.tokens, status)

    def _worth(self, trend: str) -> float:
        s = self.settings
        return {"positive": s.positive_reward, "negative": s.negative_reward}.get(trend, s.unclear_reward)

    def _judged(self, episode: Episode, keys: list[bytes | None], answers: dict[bytes, _Read]) -> ExplainedScore:
        """The judgement of an episode from the answers about its rows."""
        reads = [_Read(self.settings.unclear_reward) if key is None else answers[key] for key in keys]
        text, tokens = reads[-1].text, sum(read.tokens for read in reads)
        failures = [(row, read.value) for row, read in enumerate(reads) if isinstance(read.value, Failure)]
        if failures:
            row, first = failures[0]
            where = f"row {row} ({len(failures)} of {len(reads)} rows): " if len(reads) > 1 else ""
            return ExplainedScore(Score(failure=Failure(first.reason, where + first.detail)), text, tokens)
        values = np.array([read.value for read in reads], dtype=np.float64)
        total = float(values.mean() if self._windowed else values[-1])
        score = Score.from_values(values, total=total) if len(values) == len(episode) else Score(total=total)
        return ExplainedScore(score, text, tokens, parse_status=joined_status(read.status for read in reads))


def _unusable(episode: Episode) -> Failure | None:
    if episode.frames is None or not episode.frames.size:
        return Failure("no_frames", "the episode has no frames to look at")
    high, wide = episode.frames.shape[1:3]
    if max(high, wide) > WIDEST * min(high, wide):
        return Failure("bad_frames", f"frames of {high} x {wide} pixels are too narrow for a vision-language model")
    if not episode.task.strip():
        return Failure("no_task", "the episode does not say what its task was")
    return None


def _yes(found: Choice | Failure) -> _Read:
    """p(yes) / (p(yes) + p(no))."""
    if isinstance(found, Failure):
        return _Read(found)
    yes, no = float(found.log_probs[0]), float(found.log_probs[1])
    if max(yes, no) == -np.inf:
        return _Read(Failure("no_verdict", "neither yes nor no is possible"), tokens=found.tokens)
    value = float(np.exp(yes - np.logaddexp(yes, no)))
    return _Read(value, f"p(yes) {np.exp(yes):.3g}, p(no) {np.exp(no):.3g}", found.tokens)


def _true(found: Choice | Failure) -> _Read:
    """Logarithm of p(True)."""
    if isinstance(found, Failure):
        return _Read(found)
    value = max(float(found.log_probs[0]), LOWEST_LOG_PROB)
    return _Read(value, f"log p(True) {value:.3f}", found.tokens)
