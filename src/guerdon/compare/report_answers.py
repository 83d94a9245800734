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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.compare import report_format as fmt
from guerdon.compare.read_runs import RunRecord, finite, number, outcome_curve, read_json
from guerdon.errors import DataError
from guerdon.evaluate.charts import spread

LEVELS = 5
"""Levels of colour on either side of 0."""
QUANTILE = 0.98
MAX_TOKENS = 400
MAX_PROMPT = 600
NO_SOURCE = ""

# (moments of training, prompts, answers per prompt), best first
SIZES = ((4, 4, 2), (3, 3, 2), (2, 2, 2), (1, 2, 2), (1, 1, 2), (1, 1, 1))


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
    """The answers of one film."""

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
    """One panel per task and arm that filmed answers, shrunk together until they fit into `budget` bytes.

    Returns:
        The panels in the order of the runs, and a line for each file that could not be read or shown.
    """
    notes: list[str] = []
    films = []
    for run in median_runs(list(runs)):
        read: dict[int, list[dict[str, Any]]] = {}
        for path in sorted((run.path / "films").glob("step_*.json")):
            try:
                step, responses = load_answers(path)
                read[step] = responses
            except DataError as error:
                notes.append(str(error))
        if read:
            films.append((run, read))
    panels: list[AnswerPanel] = []
    for size in SIZES:
        panels = [_panel(run, read, size) for run, read in films]
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


def median_runs(runs: Sequence[RunRecord]) -> list[RunRecord]:
    """For each task and arm the run with answers whose final success is the (lower) median; complete runs first."""
    chosen = []
    for task, arm in dict.fromkeys((run.task, run.arm) for run in runs):
        filmed = [r for r in runs if (r.task, r.arm) == (task, arm) and any((r.path / "films").glob("step_*.json"))]
        complete = [run for run in filmed if run.status == "complete"] or filmed
        ordered = sorted(complete, key=lambda run: (outcome_curve(run)[1] or [-1.0])[-1])
        if ordered:
            chosen.append(ordered[(len(ordered) - 1) // 2])
    return chosen


def load_answers(path: Path) -> tuple[int, list[dict[str, Any]]]:
    """The step and the responses of a film of answers.

    Raises:
        DataError: the file is truncated, or a response lacks its tokens or has another number of rewards.
    """
    content = read_json(path)
    where = f"answers {path.name} of {path.parent.parent.name}"
    step = None if content is None else number(content, "step")
    if content is None or step is None or not isinstance(content.get("responses"), list):
        raise DataError(f"{where} cannot be read: no step or no list of responses")
    responses: list[dict[str, Any]] = content["responses"]
    for response in responses:
        tokens = response.get("tokens") if isinstance(response, dict) else None
        rewards = response.get("rewards") if isinstance(response, dict) else None
        if not isinstance(tokens, list) or not isinstance(rewards, dict):
            raise DataError(f"{where}: a response without tokens and rewards")
        if any(not isinstance(paid, list) or len(paid) != len(tokens) for paid in rewards.values()):
            raise DataError(f"{where}: a source has another number of rewards than the response has tokens")
        ends, true = (response.get(key) for key in ("step_ends", "steps_true"))
        known = isinstance(ends, list) and isinstance(true, list) and len(ends) == len(true)
        if not known and not (ends is None and true is None):
            raise DataError(f"{where}: a response needs as many truths of steps as it has steps")
        judged = response.get("judged", {})
        if not isinstance(judged, dict) or any(_values(one) is None for one in judged.values()):
            raise DataError(f"{where}: a model's values of steps need as many ends of steps, and a threshold")
    return int(step), responses


def colour_level(value: float | None, scale: float) -> int | None:
    """-5 to 5: the nearest level of a reward, the outermost for all that lies beyond the scale."""
    if value is None:
        return None
    return int(np.clip(np.round(LEVELS * value / scale), -LEVELS, LEVELS)) if scale > 0 else 0


def steps_of(response: Mapping[str, Any], source: str, scale: float) -> tuple[StepOfAnswer, ...]:
    """A response cut at the ends of its steps; what follows the last end is a step without truth.

    Steps end where the task ends them, else where the model that scored them does. Values of a model that found another
    number of steps than the task has are not shown.
    """
    tokens = [str(token) for token in response["tokens"]][:MAX_TOKENS]
    paid = _paid(response, source)[: len(tokens)]
    digits = fmt.digits_for(scale)
    drawn = [_token(text, value, scale) for text, value in zip(tokens, paid, strict=True)]
    truth = response.get("steps_true")
    judged = response.get("judged", {}).get(source)
    ends = response.get("step_ends") or ([] if truth is not None or judged is None else judged["ends"])
    labels = [None] * len(ends) if truth is None else [bool(true) for true in truth]
    values = judged["values"] if judged is not None and len(judged["values"]) == len(ends) else [None] * len(ends)
    threshold = 0.5 if judged is None else float(judged["threshold"])
    wrong, blamed = _first(labels, False), _first([None if v is None else v >= threshold for v in values], False)
    steps = []
    start = 0
    for k, (end, true, value) in enumerate(zip(ends, labels, values, strict=True)):
        if start >= len(tokens):
            break
        stop = min(int(end) + 1, len(tokens))
        steps.append(
            StepOfAnswer(
                tuple(drawn[start:stop]),
                _sum(paid[start:stop], digits),
                true,
                first_error=k == wrong,
                value="" if value is None else fmt.decimal(value, 2),
                level=None if value is None else colour_level(value - threshold, max(threshold, 1.0 - threshold)),
                blamed=k == blamed,
            )
        )
        start = max(start, stop)
    if start < len(tokens):
        steps.append(StepOfAnswer(tuple(drawn[start:]), "" if steps else _sum(paid, digits), None))
    return tuple(steps)


def first_errors_in_words(response: Mapping[str, Any], source: str) -> str:
    """`first error: step 3 by truth, step 2 by prm`; empty where the source scored no step of it."""
    judged = _values(response.get("judged", {}).get(source))
    if not judged:
        return ""
    threshold = float(response["judged"][source]["threshold"])
    said = [(_first([value >= threshold for value in judged], False), source)]
    truth = response.get("steps_true")
    if truth is not None:
        said.insert(0, (_first([bool(true) for true in truth], False), "truth"))
    return "first error: " + ", ".join(f"{'none' if k is None else f'step {k + 1}'} by {who}" for k, who in said)


def _first(values: Sequence[bool | None], wanted: bool) -> int | None:
    """The place of the first value that is the wanted one."""
    return next((k for k, value in enumerate(values) if value is wanted), None)


def _values(judged: Any) -> list[float] | None:
    """A model's values of steps; None where there are not as many ends, or no threshold."""
    if not isinstance(judged, dict) or number(judged, "threshold") is None:
        return None
    ends, values = judged.get("ends"), judged.get("values")
    if not isinstance(ends, list) or not isinstance(values, list) or len(ends) != len(values):
        return None
    known = [finite(value) for value in values]
    return None if None in known else [float(value) for value in known if value is not None]


def _panel(run: RunRecord, films: Mapping[int, list[dict[str, Any]]], size: tuple[int, int, int]) -> AnswerPanel:
    n_moments, n_prompts, n_samples = size
    steps = sorted(films, reverse=True)
    shown = [steps[i] for i in spread(len(steps), n_moments)]
    chosen = {step: _pick(films[step], n_prompts, n_samples) for step in shown}
    everything = [response for responses in chosen.values() for response in responses]
    sources = tuple(dict.fromkeys(name for response in everything for name in response["rewards"])) or (NO_SOURCE,)
    scales = {source: _scale(everything, source) for source in sources}
    moments = tuple(
        AnswersAtStep(step, tuple(_answer(response, scales) for response in responses))
        for step, responses in chosen.items()
    )
    return AnswerPanel(run, sources, scales, moments)


def _pick(responses: Sequence[dict[str, Any]], n_prompts: int, n_samples: int) -> list[dict[str, Any]]:
    """The first prompts, of each a right and a wrong answer where there are both."""
    by_prompt: dict[str, list[dict[str, Any]]] = {}
    for response in responses:
        by_prompt.setdefault(str(response.get("prompt")), []).append(response)
    picked = []
    for group in list(by_prompt.values())[:n_prompts]:
        first_of = {response.get("outcome"): response for response in reversed(group)}
        best = [first_of[kind] for kind in (True, False, None) if kind in first_of]
        rest = [response for response in group if all(response is not other for other in best)]
        picked += [*best, *rest][:n_samples]
    return picked


def _scale(responses: Sequence[Mapping[str, Any]], source: str) -> float:
    """The 98th percentile of the absolute rewards of all shown tokens, rounded to two digits."""
    values = [abs(value) for response in responses for value in _paid(response, source) if value is not None]
    if not any(values):
        return 0.0
    cut = float(np.quantile(values, QUANTILE)) or max(values)
    return float(f"{cut:.2g}")


def _paid(response: Mapping[str, Any], source: str) -> list[float | None]:
    """One reward per token; None for all where the source has none for this response."""
    paid = response["rewards"].get(source) or [None] * len(response["tokens"])
    return [finite(value) for value in paid]


def _answer(response: Mapping[str, Any], scales: Mapping[str, float]) -> ShownAnswer:
    outcome = response.get("outcome")
    return ShownAnswer(
        prompt=_clean(str(response.get("prompt", "")))[:MAX_PROMPT],
        expected=_clean(str(response.get("answer", "")))[:MAX_PROMPT],
        outcome=outcome if isinstance(outcome, bool) else None,
        by_source={source: steps_of(response, source, scale) for source, scale in scales.items()},
        first_errors={source: first_errors_in_words(response, source) for source in scales},
        cut=max(0, len(response["tokens"]) - MAX_TOKENS),
    )


def _token(text: str, value: float | None, scale: float) -> Token:
    clean = _clean(text)
    special = clean.startswith("<|") and clean.endswith("|>")
    shown = clean[2:-2] if special else clean.replace("\n", "↵\n").replace("\t", "⇥")
    blank = not clean.strip()
    shown = shown.replace(" ", "␣") if blank else shown
    token = Token(
        shown or "∅",
        colour_level(value, scale),
        "" if value is None else fmt.signed(value, fmt.digits_for(scale) + 1),
        blank or special,
    )
    return token if text else replace(token, quiet=True)


def _clean(text: str) -> str:
    """Without what no page can hold: halves of characters and control codes other than tab and line break."""
    whole = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() or c in "\n\t" else "�" for c in whole)


def _sum(paid: Sequence[float | None], digits: int) -> str:
    known = [value for value in paid if value is not None]
    return fmt.signed(float(sum(known)), digits) if known else ""
