"""Sampled responses of language models with the reward of each token, against the truth of each step.

A run writes `films/step_*.json`: responses with their tokens, one reward per token and source, the outcome, and
where the task knows them the ends and the truth of the steps; a model that scores steps also left its value of each.
A step's label, its value and the two first errors (by truth, by the model) stand side by side. One run per task and
arm is shown, the one whose final success is the median. Colours have eleven levels around 0 whose scale is shared by
all shown steps of a run, so that growing rewards look larger.

    panels, notes = answer_panels(study.runs, budget=900_000)
    print(panels[0].run.name, panels[0].moments[0].step, panels[0].sources)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, BeforeValidator, FiniteFloat, ValidationError, model_validator

from guerdon.comparison.results import RunRecord, finite, measure_curve
from guerdon.errors import DataError
from guerdon.files.json_files import read_json
from guerdon.pages import formats as fmt
from guerdon.pages.charts import spread

LEVELS = 5
"""Levels of colour on either side of 0."""
QUANTILE = 0.98
MAX_TOKENS = 400
MAX_PROMPT = 600
NO_SOURCE = ""

# (moments of training, prompts, answers per prompt), best first
SIZES = ((4, 4, 2), (3, 3, 2), (2, 2, 2), (1, 2, 2), (1, 1, 2), (1, 1, 1))


class Judged(BaseModel):
    """A model's values of the steps of a response, where these end, and the value below which it calls one wrong."""

    ends: list[int]
    values: list[FiniteFloat]
    threshold: FiniteFloat

    @model_validator(mode="after")
    def _fits(self) -> Judged:
        if len(self.ends) != len(self.values):
            raise ValueError("a model's values of steps need as many ends of steps")
        return self

    @property
    def right(self) -> list[bool]:
        """Whether the model calls each step right."""
        return [value >= self.threshold for value in self.values]


class Response(BaseModel):
    """One sampled response, as a run writes it: a reward per token and source, and the truth of the steps if known."""

    tokens: list[Any]
    rewards: dict[str, list[Annotated[float | None, BeforeValidator(finite)]]]
    prompt: Any = ""
    answer: Any = ""
    outcome: Annotated[bool | None, BeforeValidator(lambda value: value if isinstance(value, bool) else None)] = None
    step_ends: list[int] | None = None
    steps_true: list[bool] | None = None
    judged: dict[str, Judged] = {}

    @model_validator(mode="after")
    def _fits(self) -> Response:
        if any(len(paid) != len(self.tokens) for paid in self.rewards.values()):
            raise ValueError("a source has another number of rewards than the response has tokens")
        ends, true = self.step_ends, self.steps_true
        if (ends is None) != (true is None) or len(ends or ()) != len(true or ()):
            raise ValueError("a response needs as many truths of steps as it has steps")
        return self

    def paid(self, source: str) -> list[float | None]:
        """One reward per token; None for all where the source has none for this response."""
        return self.rewards.get(source) or [None] * len(self.tokens)


class AnswerFile(BaseModel):
    """The responses of one moment of training."""

    step: Annotated[int, BeforeValidator(finite)]
    responses: list[Response]


@dataclass(frozen=True)
class Token:
    """One token as it is shown.

    Attributes:
        level: -5 to 5 for its colour, None where there is no reward.
        value: its reward in words, empty where there is none.
        quiet: whether it is a mark that the reader would not see (a space, a line break, an end token).
    """

    text: str
    level: int | None
    value: str
    quiet: bool


@dataclass(frozen=True)
class StepOfAnswer:
    """One step as it is shown.

    Attributes:
        tokens: its tokens.
        paid: their summed reward in words.
        true: whether it is true; None: not known.
        first_error: whether it is the first false one.
        value: that of the reward model, in words; empty where there is none.
        level: -5 to 5 for the colour of that, 0 at the model's threshold.
        blamed: whether it is the first one that the model calls wrong.
    """

    tokens: tuple[Token, ...]
    paid: str
    true: bool | None
    first_error: bool = False
    value: str = ""
    level: int | None = None
    blamed: bool = False


@dataclass(frozen=True)
class ShownAnswer:
    """One response.

    Attributes:
        by_source: by source the same tokens in other colours.
        first_errors: by source that scores steps, where the first error is, in words: by truth and by the model.
        cut: tokens at the end that are not shown.
    """

    prompt: str
    expected: str
    outcome: bool | None
    by_source: Mapping[str, tuple[StepOfAnswer, ...]]
    first_errors: Mapping[str, str]
    cut: int


@dataclass(frozen=True)
class AnswersAtStep:
    """The answers of one step of a run."""

    step: int
    answers: tuple[ShownAnswer, ...]


@dataclass(frozen=True)
class AnswerPanel:
    """One run's answers, the newest moment first.

    Attributes:
        sources: names of the reward sources; one empty name for an arm without token rewards.
        scales: source to the reward that has the fullest colour.
    """

    run: RunRecord
    sources: tuple[str, ...]
    scales: Mapping[str, float]
    moments: tuple[AnswersAtStep, ...]

    @property
    def n_bytes(self) -> int:
        """About what it takes in the page."""
        return 1500 + sum(
            700
            + len(answer.prompt)
            + sum(
                110 + 100 * bool(step.value) + 52 * len(step.tokens)
                for steps in answer.by_source.values()
                for step in steps
            )
            for moment in self.moments
            for answer in moment.answers
        )


def answer_panels(runs: Iterable[RunRecord], *, budget: int) -> tuple[list[AnswerPanel], list[str]]:
    """One panel per task and arm with stored answers, shrunk together until they fit into `budget` bytes.

    Returns:
        The panels in the order of the runs, and a line for each file that could not be read or shown.
    """
    notes: list[str] = []
    found = []
    for run in median_runs(list(runs)):
        read: dict[int, list[Response]] = {}
        for path in sorted((run.path / "films").glob("step_*.json")):
            try:
                one = load_answers(path)
                read[one.step] = one.responses
            except DataError as error:
                notes.append(str(error))
        if read:
            found.append((run, read))
    panels: list[AnswerPanel] = []
    for size in SIZES:
        panels = [_panel(run, read, size) for run, read in found]
        if sum(panel.n_bytes for panel in panels) <= budget:
            return panels, notes
    shown = []
    for panel in panels:
        if panel.n_bytes <= budget:
            budget -= panel.n_bytes
            shown.append(panel)
        else:
            notes.append(f"{panel.run.name}: its answers are left out to keep this file small")
    return shown, notes


def has_answers(run: RunRecord) -> bool:
    """Whether a run stored answers."""
    return any((run.path / "films").glob("step_*.json"))


def median_runs(runs: Sequence[RunRecord], stored: Callable[[RunRecord], bool] = has_answers) -> list[RunRecord]:
    """For each task and arm the run whose final success is the (lower) median; complete runs first.

    Args:
        runs: of a study.
        stored: whether a run has what is shown of it.
    """
    chosen = []
    for task, arm in dict.fromkeys((run.task, run.arm) for run in runs):
        found = [run for run in runs if (run.task, run.arm) == (task, arm) and stored(run)]
        complete = [run for run in found if run.status == "complete"] or found
        ordered = sorted(complete, key=lambda run: (measure_curve(run)[1] or [-1.0])[-1])
        if ordered:
            chosen.append(ordered[(len(ordered) - 1) // 2])
    return chosen


def load_answers(path: Path) -> AnswerFile:
    """Answers that a run stored at one of its steps.

    Raises:
        DataError: the file is truncated, or a response lacks its tokens or has another number of rewards.
    """
    try:
        return AnswerFile.model_validate(read_json(path) or {})
    except ValidationError as error:
        first = error.errors()[0]
        what = ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
        raise DataError(f"answers {path.name} of {path.parent.parent.name} cannot be read: {what}") from error


def colour_level(value: float | None, scale: float) -> int | None:
    """-5 to 5: the nearest level of a reward, the outermost for all that lies beyond the scale."""
    if value is None:
        return None
    return int(np.clip(np.round(LEVELS * value / scale), -LEVELS, LEVELS)) if scale > 0 else 0


def steps_of(response: Response, source: str, scale: float) -> tuple[StepOfAnswer, ...]:
    """A response cut at the ends of its steps; what follows the last end is a step without truth.

    Steps end where the task ends them, else where the model that scored them does. Values of a model that found another
    number of steps than the task has are not shown.
    """
    tokens = [str(token) for token in response.tokens[:MAX_TOKENS]]
    paid = response.paid(source)[: len(tokens)]
    digits = fmt.digits_for(scale)
    drawn = tuple(_token(text, value, scale) for text, value in zip(tokens, paid, strict=True))
    judged = response.judged.get(source)
    ends = response.step_ends or ([] if response.steps_true is not None or judged is None else judged.ends)
    labels: Sequence[bool | None] = response.steps_true or [None] * len(ends)
    if judged is not None and len(judged.values) != len(ends):
        judged = None
    wrong, blamed = _first_wrong(labels), _first_wrong(judged.right if judged else ())
    steps = []
    start = 0
    for k, (end, true) in enumerate(zip(ends, labels, strict=True)):
        if start >= len(tokens):
            break
        stop = min(end + 1, len(tokens))
        step = StepOfAnswer(drawn[start:stop], _sum(paid[start:stop], digits), true, first_error=k == wrong)
        if judged is not None:
            value, threshold = judged.values[k], judged.threshold
            level = colour_level(value - threshold, max(threshold, 1.0 - threshold))
            step = replace(step, value=fmt.decimal(value, 2), level=level, blamed=k == blamed)
        steps.append(step)
        start = max(start, stop)
    if start < len(tokens):
        steps.append(StepOfAnswer(drawn[start:], "" if steps else _sum(paid, digits), None))
    return tuple(steps)


def first_errors_in_words(response: Response, source: str) -> str:
    """`first error: step 3 by truth, step 2 by prm`; empty where the source scored no step of it."""
    judged = response.judged.get(source)
    if judged is None or not judged.values:
        return ""
    said = {} if response.steps_true is None else {"truth": _first_wrong(response.steps_true)}
    said[source] = _first_wrong(judged.right)
    places = (f"{'none' if k is None else f'step {k + 1}'} by {who}" for who, k in said.items())
    return "first error: " + ", ".join(places)


def _first_wrong(right: Sequence[bool | None]) -> int | None:
    """The place of the first False."""
    return next((k for k, value in enumerate(right) if value is False), None)


def _panel(run: RunRecord, answers: Mapping[int, list[Response]], size: tuple[int, int, int]) -> AnswerPanel:
    n_moments, n_prompts, n_samples = size
    steps = sorted(answers, reverse=True)
    shown = [steps[i] for i in spread(len(steps), n_moments)]
    chosen = {step: _pick(answers[step], n_prompts, n_samples) for step in shown}
    everything = [response for responses in chosen.values() for response in responses]
    sources = tuple(dict.fromkeys(name for response in everything for name in response.rewards)) or (NO_SOURCE,)
    scales = {source: _scale(everything, source) for source in sources}
    moments = tuple(
        AnswersAtStep(step, tuple(_answer(response, scales) for response in responses))
        for step, responses in chosen.items()
    )
    return AnswerPanel(run, sources, scales, moments)


def _pick(responses: Sequence[Response], n_prompts: int, n_samples: int) -> list[Response]:
    """The first prompts, of each a right and a wrong answer where there are both."""
    by_prompt: dict[str, list[Response]] = {}
    for response in responses:
        by_prompt.setdefault(str(response.prompt), []).append(response)
    picked = []
    for group in list(by_prompt.values())[:n_prompts]:
        first_of = {response.outcome: response for response in reversed(group)}
        best = [first_of[kind] for kind in (True, False, None) if kind in first_of]
        rest = [response for response in group if all(response is not other for other in best)]
        picked += [*best, *rest][:n_samples]
    return picked


def _scale(responses: Sequence[Response], source: str) -> float:
    """The 98th percentile of the absolute rewards of all shown tokens, rounded to two digits."""
    values = [abs(value) for response in responses for value in response.paid(source) if value is not None]
    if not any(values):
        return 0.0
    cut = float(np.quantile(values, QUANTILE)) or max(values)
    return float(f"{cut:.2g}")


def _answer(response: Response, scales: Mapping[str, float]) -> ShownAnswer:
    return ShownAnswer(
        prompt=clean_text(str(response.prompt))[:MAX_PROMPT],
        expected=clean_text(str(response.answer))[:MAX_PROMPT],
        outcome=response.outcome,
        by_source={source: steps_of(response, source, scale) for source, scale in scales.items()},
        first_errors={source: first_errors_in_words(response, source) for source in scales},
        cut=max(0, len(response.tokens) - MAX_TOKENS),
    )


def _token(text: str, value: float | None, scale: float) -> Token:
    clean = clean_text(text)
    special = clean.startswith("<|") and clean.endswith("|>")
    shown = clean[2:-2] if special else clean.replace("\n", "↵\n").replace("\t", "⇥")
    blank = not clean.strip()
    shown = shown.replace(" ", "␣") if blank else shown
    words = "" if value is None else fmt.signed(value, fmt.digits_for(scale) + 1)
    return Token(shown or "∅", colour_level(value, scale), words, quiet=blank or special)


def clean_text(text: str) -> str:
    """Without what no page can hold: halves of characters and control codes other than tab and line break."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in whole)


def _sum(paid: Sequence[float | None], digits: int) -> str:
    known = [value for value in paid if value is not None]
    return fmt.signed(float(sum(known)), digits) if known else ""
