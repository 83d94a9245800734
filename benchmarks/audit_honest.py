"""Honest runs of twenty shapes, for `audit_proof.py`: their reward is as it should be, and what is odd is a fact.

    from audit_honest import SHAPES, honest_set
    honest = honest_set("curriculum", 17)        # rows and facts; any number is another run

A run has 60 to 5,000 rows: prompts with difficulties, groups of responses, a policy whose skill, length and wording
move over the run, a limit that cuts the longest responses off, and the columns that logs have or lack. Longer responses
are those to harder prompts; in some runs wrong responses ramble. A finding is false where no fact allows its name
(`ALLOWED`), and where a fact does, it is a fact to know: at most an `info`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from audit_runs import LEVELS, Draft, curve, episodes, robots
from audit_texts import FIRST, HALVES, SECOND, formatted, number, real_solutions

from guerdon.auditing.rows import Rows

# fact -> names of the findings that state it
ALLOWED: dict[str, frozenset[str]] = {
    "groups of equal rewards": frozenset({"no_variance"}),
    "late rewards are equal": frozenset({"saturation"}),
    "many rewards at an end": frozenset({"clipping"}),
    "copies": frozenset({"duplicates"}),
    "truncated": frozenset({"truncated", "length"}),
    "answers missing": frozenset({"failures"}),
    "length is priced": frozenset({"length"}),
    "layout is priced": frozenset({"format"}),
    "wrong responses are longer, and the log has no truth": frozenset({"length"}),
    "the level moves": frozenset({"jump"}),
    "the truth is the reward": frozenset({"truth_copy"}),
    "success is constant": frozenset({"constant_success"}),
}

SUBJECTS = (
    "the total", "this quantity", "the second term", "what remains", "the first value", "our estimate", "the ratio",
    "each part", "the difference", "the whole expression", "that count", "the unknown", "the larger number",
    "the given amount", "one side", "the intermediate value", "the sum so far", "the smaller share",
)  # fmt: skip
VERBS = (
    "depends on", "is found from", "follows directly from", "can be compared with", "has to match",
    "goes together with",
    "stays below", "was already part of", "is not changed by", "comes before", "is easier to see than", "replaces",
    "adds up with", "must be kept apart from", "does not exceed", "is measured like",
)  # fmt: skip
OBJECTS = (
    "the numbers in the question", "what was asked", "the previous line", "the rest of the statement",
    "the unit that is used",
    "the amount on the left", "a value that we know", "the condition at the start", "the other operand",
    "the case with zero", "the rounded figure", "everything before it", "the expected size", "a simple sketch",
    "the order of the steps", "the rule for such sums",
)  # fmt: skip
LINKS = (
    "",
    "",
    "",
    "Next, ",
    "Now ",
    "Here ",
    "So ",
    "Also, ",
    "Since we know this, ",
    "In other words, ",
    "Then ",
    "At this point ",
)
SYSTEMS = (
    "You are a helpful assistant.",
    "Reason step by step, then give the final answer.",
    "You are a careful tutor. Keep answers brief.",
    "Think inside <think> tags and answer inside <answer> tags.",
)
TOOLS = ("search", "calculator", "read_file", "run_query", "list_orders", "get_weather")


@dataclass(frozen=True)
class Honest:
    """A set of rows and what is true of it."""

    rows: Rows
    facts: frozenset[str]

    def allows(self, finding: str, severity: str) -> bool:
        """Whether a finding says a fact, as a fact."""
        return severity == "info" and any(finding in ALLOWED[one] for one in self.facts)


@dataclass
class Style:
    """How a policy writes: weights of openers and endings at the start and at the end of the run, and its habits."""

    talk: random.Random
    openers: tuple[list[float], list[float]]
    endings: tuple[list[float], list[float]]
    layout: str
    layout_share: tuple[float, float]
    sentences: float
    growth: float
    ramble: float

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Style:
        """The habits of one run."""

        def weights(count: int) -> tuple[list[float], list[float]]:
            first, last = (list(rng.dirichlet(np.full(count, 0.7))) for _ in range(2))
            return first, last if rng.random() < 0.5 else first

        return cls(
            random.Random(int(rng.integers(1 << 60))),
            weights(len(OPENERS)), weights(len(ENDINGS)),
            str(rng.choice(["plain", *FIRST.formats, *SECOND.formats])),
            (float(rng.uniform(0, 0.6)), float(rng.uniform(0, 0.9))),
            sentences=float(rng.uniform(1.5, 9)),
            growth=float(rng.choice([0.0, 0.0, 0.5, -0.3])),
            ramble=float(rng.choice([0.0, 0.0, 0.0, 0.3, 0.8])),
        )  # fmt: skip

    def pick(self, options: tuple[str, ...], weights: tuple[list[float], list[float]], late: float) -> str:
        """One of the options, by the weights of that time of the run."""
        return self.talk.choices(options, weights[self.talk.random() < late])[0]

    def sentence(self, language: str) -> str:
        """A sentence that explains something."""
        if language == "en" and self.talk.random() < 0.75:
            link, subject = self.talk.choice(LINKS), self.talk.choice(SUBJECTS)
            text = f"{link}{subject} {self.talk.choice(VERBS)} {self.talk.choice(OBJECTS)}."
            return text[0].upper() + text[1:]
        return self.talk.choice(FILLER[language])

    def count(self, hard: float, late: float, *, wrong: bool) -> int:
        """How many sentences: more for harder prompts, and for wrong responses of a policy that rambles."""
        mean = self.sentences * math.exp(0.25 * hard + self.growth * late + self.ramble * wrong)
        return min(60, round(self.talk.gammavariate(4, mean / 4)))


OPENERS = FIRST.openers + SECOND.openers
ENDINGS = (*FIRST.endings, *SECOND.endings, "**{r}**", "This leaves {r}.", "The final answer is ${r}$.")
FILLER = {**FIRST.filler, **SECOND.filler, "en": FIRST.filler["en"] + SECOND.filler["en"]}


# ---------------------------------------------------------------------------------------------------------- a run


def text_run(
    rng: np.random.Generator,
    gsm8k: Path | None,
    kind: str = "maths",
    *,
    reward: str = "binary",
    order: str = "any",
    languages: bool = False,
    systems: bool = False,
    least: Mapping[str, int] | None = None,
) -> Draft:
    """A run of a language model whose reward is as it should be.

    Args:
        rng: decides everything.
        gsm8k: solutions of GSM8K, which then are used in some runs of mathematics.
        kind: of the tasks: "maths", "chat", "code", "choice" or "tools".
        reward: "binary", "graded" or "dense", see `Draft.measured`.
        order: of the prompts: "any", "once", "rising" (harder and harder), "stages" (of difficulty), "epochs" (two).
        languages: prompts are in several languages, and responses in that of their prompt.
        systems: from some step on the prompts have another system prompt.
        least: `rows`, `steps` and responses per `group` that the run must have, which a fault may need.
    """
    if kind == "maths" and gsm8k is not None and not languages and rng.random() < 0.4:
        kind = "gsm8k"
    step_N, prompt_N, group_N = _schedule(rng, kind, order, least or {})
    tasks, prompt_N = _tasks(rng, kind, gsm8k, prompt_N)
    hard_P = rng.normal(0, 1, len(tasks))
    if order in ("rising", "stages"):
        hard_P = (
            np.sort(hard_P) * 1.3
            if order == "rising"
            else np.repeat([-1.0, 0.2, 1.2, 2.0], -(-len(tasks) // 4))[: len(tasks)]
        )
    hard_N = hard_P[prompt_N]
    steps, n = int(step_N[-1]) + 1, len(step_N)
    late_N = step_N / max(steps - 1, 1)
    skill_N = curve(rng, steps)[step_N] + rng.uniform(-0.3, 0.8)
    if order == "epochs":
        skill_N = skill_N + rng.uniform(0, 1) * (late_N >= 0.5)  # what was seen before is known better
    truth_N = (rng.random(n) < 1 / (1 + np.exp(-1.5 * (skill_N - hard_N)))).astype(float)
    if kind == "chat":
        truth_N = 0.5 * (skill_N - hard_N) + rng.standard_normal(n)
    noise_N = rng.standard_normal(n)
    if rng.random() < 0.6:
        noise_N = np.minimum(noise_N, 2.2)  # an exact verifier
    scale = float(rng.choice([0.2, 1.0, 1.0, 5.0]))
    offset = float(rng.choice([0.0, -3.0, 2.0])) * scale
    checked = kind in ("maths", "gsm8k", "choice", "tools")
    draft = Draft(
        int(rng.integers(2)), rng, kind, step_N, prompt_N, group_N, truth_N, noise_N, [], [], [], [],
        reward, LEVELS[int(rng.integers(len(LEVELS)))], scale, offset - 0.3 * scale * hard_N,
        log_truth=bool(rng.random() < 0.45) and kind != "chat", log_reference=checked and bool(rng.random() < 0.5),
        log_group=bool(rng.random() < 0.8), log_step=steps > 1, log_truncated=bool(rng.random() < 0.5),
        truncated=np.zeros(n, bool),
    )  # fmt: skip
    style = Style.draw(rng)
    _write(draft, style, hard_N, late_N, tasks, languages)
    if systems:
        _change_system(draft, style, late_N)
    _cut(draft)
    draft.reward = np.zeros(n)
    draft.settle()
    draft.reward = draft.measured()
    return draft


def _schedule(
    rng: np.random.Generator, kind: str, order: str, least: Mapping[str, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Step, prompt and group of every row."""
    size = int(rng.choice([1, 4, 8, 16], p=[0.1, 0.35, 0.4, 0.15]))
    size = max(size, least.get("group", 1))
    size = min(size, 4) if kind == "gsm8k" else size
    rows = max(math.exp(rng.uniform(math.log(60), math.log(5000))), least.get("rows", 0))
    steps = max(int(rng.choice([1, 3, 8, 20, 60])), least.get("steps", 1))
    steps = max(steps, 4) if order != "any" else steps
    groups = max(4, round(rows / size))
    steps = min(steps, groups)
    groups -= groups % steps
    match order:
        case "epochs":
            half = -(-groups // 2)
            prompt_G = np.concatenate([rng.permutation(half), rng.permutation(half)])[:groups]
        case "rising" | "stages" | "once":
            prompt_G = np.arange(groups)
        case _:
            prompt_G = np.arange(groups) if rng.random() < 0.4 else rng.integers(0, max(4, groups // 4), groups)
    step_G = np.arange(groups) * steps // groups
    return np.repeat(step_G, size), np.repeat(prompt_G, size), np.repeat(np.arange(groups), size)


def _tasks(
    rng: np.random.Generator, kind: str, gsm8k: Path | None, prompt_N: np.ndarray
) -> tuple[list[tuple[str, str, Any]], np.ndarray]:
    """The tasks, and which one each row has; equal prompts are one task."""
    made = [_task(rng, kind, gsm8k, p) for p in range(int(prompt_N.max()) + 1)]
    first: dict[str, int] = {}
    number_P = np.array([first.setdefault(one[0], len(first)) for one in made])
    return [made[int(p)] for p in np.unique(number_P, return_index=True)[1]], number_P[prompt_N]


def _task(rng: np.random.Generator, kind: str, gsm8k: Path | None, p: int) -> tuple[str, str, Any]:
    """A prompt, its reference answer, and what responses are made from."""
    texts = HALVES[int(rng.integers(2))]
    detail = int(rng.integers(10_000))
    match kind:
        case "gsm8k":
            real = real_solutions(gsm8k, 0) + real_solutions(gsm8k, 1)
            question, reference, solutions = real[int(rng.integers(len(real)))]
            return question, reference, [solutions[int(k)] for k in rng.permutation(len(solutions))]
        case "choice":
            return f"{rng.choice(texts.choices)} (Item {detail}) A, B, C or D?", str(rng.choice(list("ABCD"))), None
        case "code":
            program = texts.programs[int(rng.integers(len(texts.programs)))]
            return f"{program[0]} It is for {rng.choice(texts.names)}'s project {detail % 97}.", "", program
        case "chat":
            chat = str(rng.choice(texts.chats)).format(t=rng.choice(texts.topics))
            return f"{chat} I have {detail % 195 + 5} minutes.", "", None
        case "tools":
            value = int(rng.integers(3, 4000))
            return f"How many units of item {detail} are in stock? Use the tools.", f"{value}", (value, detail)
    prompt, formula = texts.maths[int(rng.integers(len(texts.maths)))]
    a, b, result = number(rng, formula)
    name = str(rng.choice(texts.names))
    return prompt.format(a=a, b=b, n=name), f"{result}", (a, b, result, name)


def _write(
    draft: Draft, style: Style, hard_N: np.ndarray, late_N: np.ndarray, tasks: list[tuple[str, str, Any]], foreign: bool
) -> None:
    """Write prompts and responses of all rows."""
    speaks = [style.talk.choice(list(FILLER)) if foreign else "en" for _ in tasks]
    writers = {"gsm8k": _solution, "choice": _choice, "code": _program, "chat": _chat, "tools": _calls}
    writer = writers.get(draft.kind, _derivation)
    for i in range(len(draft)):
        prompt, reference, task = tasks[int(draft.prompt[i])]
        language, late = speaks[int(draft.prompt[i])], float(late_N[i])
        wrong = bool(draft.truth[i] < 0.5) and draft.kind != "chat"
        count = style.count(float(hard_N[i]), late, wrong=wrong)
        fill = list(dict.fromkeys(style.sentence(language) for _ in range(count)))
        share = style.layout_share[0] * (1 - late) + style.layout_share[1] * late
        layout = style.layout if style.talk.random() < share else "plain"
        text, stated = writer(draft, i, style, reference, task, fill, layout, late)
        draft.languages.append(language)
        draft.prompts.append(prompt if language == "en" else f"[{language}] {FILLER[language][0]} {prompt}")
        draft.responses.append(text)
        draft.stated.append(stated)
        draft.references.append(reference)
    draft.layout = style.layout


def _solution(
    draft: Draft, i: int, _style: Style, _reference: str, task: Any, _fill: list[str], _layout: str, _late: float
) -> tuple[str, str]:
    """A real solution of GSM8K: those of four models, each once in a group."""
    text, right = task[draft.place_of(i) % len(task)]
    draft.truth[i] = float(right)
    return text, text.split("A: ")[-1]


def _choice(
    draft: Draft, i: int, style: Style, reference: str, _task: Any, fill: list[str], _layout: str, _late: float
) -> tuple[str, str]:
    """A letter, or a short sentence with it."""
    stated = reference if draft.truth[i] > 0.5 else style.talk.choice([one for one in "ABCD" if one != reference])
    way = style.talk.choice(("{r}", "The answer is {r}.", "Answer: {r}", "{f} The answer is {r}."))
    return way.format(r=stated, f=fill[0] if fill else "Well,"), stated


def _program(
    draft: Draft, i: int, style: Style, _reference: str, task: Any, fill: list[str], _layout: str, _late: float
) -> tuple[str, str]:
    """A program with or without comments and an explanation."""
    body = task[1] if draft.truth[i] > 0.5 else task[2]
    note = f"# {fill[0]}\n" if fill and style.talk.random() < 0.5 else ""
    text = f"```python\n{note}{body}\n```"
    return (f"{' '.join(fill[1:])}\n{text}" if style.talk.random() < 0.7 else text), ""


def _chat(
    _draft: Draft, _i: int, style: Style, _reference: str, _task: Any, fill: list[str], layout: str, late: float
) -> tuple[str, str]:
    """An answer to an open question."""
    opener = [style.pick(OPENERS, style.openers, late)] if style.talk.random() < 0.5 else []
    return formatted(layout, [*opener, *fill] or ["Good luck."]), ""


def _calls(
    draft: Draft, i: int, style: Style, reference: str, task: Any, fill: list[str], _layout: str, _late: float
) -> tuple[str, str]:
    """Calls of tools with their results, then the answer; wrong ones misread a result or ask the wrong tool."""
    value, item = task
    talk, right = style.talk, draft.truth[i] > 0.5
    stated = reference if right else f"{value + talk.choice((-20, -3, -1, 1, 2, 9, 40))}"
    pages = 1 + talk.randrange(4)
    lines = []
    for k in range(pages):
        units = stated if k == pages - 1 and (right or talk.random() < 0.5) else talk.randrange(3, 4000)
        call = f'{{"name": "{talk.choice(TOOLS)}", "arguments": {{"item": {item}, "page": {k + 1}}}}}'
        result = f'{{"rows": {talk.randrange(40)}, "units": {units}}}'
        lines.append(fill[k] if k < len(fill) else "")
        lines.append(f"<tool_call>{call}</tool_call>\n<tool_response>{result}</tool_response>")
    return "\n".join(one for one in lines if one) + f"\nThe answer is {stated}.", stated


def _derivation(
    draft: Draft, i: int, style: Style, _reference: str, task: Any, fill: list[str], layout: str, late: float
) -> tuple[str, str]:
    """Steps to a number; a few wrong responses state none."""
    a, b, result, name = task
    talk, right = style.talk, draft.truth[i] > 0.5
    stated = f"{result if right else result + talk.choice((-10, -2, -1, 1, 3, 7, 10))}"
    texts = HALVES[talk.random() < 0.5]
    steps = [one.format(a=a, b=b, r=stated, n=name) for one in talk.sample(texts.steps, talk.randrange(1, 4))]
    if style.ramble and not right:
        fill = [*fill, *(one.format(a=a, b=b) for one in talk.sample(texts.rambling, talk.randrange(0, 3)))]
    body = [*steps, *fill]
    talk.shuffle(body)
    text = formatted(layout, [style.pick(OPENERS, style.openers, late), *body])
    if not right and talk.random() < 0.03:
        return f"{text}\nI could not find it.", ""
    shown = f"{int(stated):,}" if talk.random() < 0.1 else stated
    return f"{text}\n{style.pick(ENDINGS, style.endings, late).format(r=shown)}", shown


def _change_system(draft: Draft, style: Style, late_N: np.ndarray) -> None:
    """From some step on the system prompt is another one, and some responses are laid out as it asks."""
    before, after = style.talk.sample(SYSTEMS, 2)
    change = draft.rng.uniform(0.3, 0.7)
    for i in range(len(draft)):
        system = after if late_N[i] > change else before
        draft.prompts[i] = f"{system}\n\n{draft.prompts[i]}"
        if "<think>" in system and style.talk.random() < 0.8:
            head, _, last = draft.responses[i].rpartition("\n")
            draft.responses[i] = f"<think>{head}</think>\n{last}"


def _cut(draft: Draft) -> None:
    """Cut responses at the limit of tokens: what had no room for its answer is wrong."""
    if draft.kind in ("gsm8k", "choice") or draft.rng.random() < 0.3:
        return
    lengths = np.array([len(one) for one in draft.responses])
    limit = int(np.quantile(lengths, 1 - draft.rng.choice([0.01, 0.03, 0.1, 0.2])))
    draft.truncated = lengths > max(limit, 40)
    for i in np.flatnonzero(draft.truncated):
        draft.responses[i], draft.stated[i] = draft.responses[i][: max(limit, 40)], ""
    worse = draft.truth - 0.7 if draft.kind == "chat" else np.zeros(len(draft))
    draft.truth = np.where(draft.truncated, worse, draft.truth)


# ---------------------------------------------------------------------------------------------------------- shapes

Make = Callable[..., Draft]


def _accuracy_format(make: Make, rng: np.random.Generator) -> tuple[Draft, set[str]]:
    draft = make(reward="binary")
    weight, share = float(rng.choice([0.1, 0.2, 0.5])), rng.uniform(0.5, 0.95)
    late_N = draft.step / max(int(draft.step[-1]), 1)
    wrapped = rng.random(len(draft)) < share + (0.99 - share) * late_N
    for i in np.flatnonzero(wrapped & ~draft.truncated):
        head, _, last = draft.responses[i].rpartition("\n")
        draft.responses[i] = f"<think>\n{head}\n</think>\n<answer>{last}</answer>"
    accuracy, layout = draft.truth.copy(), (wrapped & ~draft.truncated).astype(float)
    draft.reward = accuracy + weight * layout
    if rng.random() < 0.5:
        draft.parts = {"accuracy_reward": accuracy, "format_reward": weight * layout}
    return draft, {"layout is priced"}


def _accuracy_cost(make: Make, rng: np.random.Generator) -> tuple[Draft, set[str]]:
    draft = make(reward="binary")
    accuracy = draft.truth.copy()
    lengths = np.array([len(one) for one in draft.responses], float)
    by_length = bool(rng.random() < 0.6)
    cost = lengths / lengths.max() if by_length else rng.gamma(2, 0.2, len(draft))  # of tokens, or the KL of a response
    draft.reward = float(rng.choice([0.05, 0.1, 0.2])) * cost
    draft.settle()
    cost, draft.reward = draft.reward, accuracy - draft.reward
    if rng.random() < 0.5:
        draft.parts = {"accuracy": accuracy, "length_penalty" if by_length else "kl_penalty": -cost}
    return draft, {"length is priced"} if by_length else set()


def _heavy_tailed(make: Make, rng: np.random.Generator) -> tuple[Draft, set[str]]:
    draft = make("chat" if rng.random() < 0.5 else "maths", reward="dense")
    noise = rng.standard_t(2.5, len(draft)) if rng.random() < 0.5 else rng.lognormal(0, 1.1, len(draft)) - 1.8
    draft.reward = draft.offset_N + draft.scale * (draft.truth + 0.6 * noise)
    return draft, set()


def _negative(make: Make, rng: np.random.Generator) -> tuple[Draft, set[str]]:
    if rng.random() < 0.4:
        draft = make(reward="binary")
        draft.reward = draft.truth - 1
        return draft, set()
    draft = make("chat" if rng.random() < 0.5 else "maths", reward="dense")  # a log-probability
    draft.reward = -np.log1p(np.exp(-1.5 * (draft.truth + 0.5 * draft.noise))) * draft.scale
    return draft, set()


def _replay(make: Make, rng: np.random.Generator) -> tuple[Draft, set[str]]:
    """Whole groups come again in later steps, as they were, with the reward that they had."""
    draft = make(reward=str(rng.choice(["binary", "dense"])), order="once")
    groups = int(draft.group[-1]) + 1
    first_G = np.unique(draft.group, return_index=True)[1]
    size = int(np.bincount(draft.group)[0])
    step_G = draft.step[first_G]
    for g in np.flatnonzero(rng.random(groups) < rng.uniform(0.1, 0.5)):
        earlier = np.flatnonzero(step_G < step_G[g])
        if len(earlier):
            source = int(first_G[rng.choice(earlier)])
            _copy(draft, source, int(first_G[g]), size)
    return draft, set()


def _copy(draft: Draft, source: int, target: int, size: int) -> None:
    for k in range(size):
        i, j = target + k, source + k
        for texts in (draft.prompts, draft.responses, draft.stated, draft.references):
            texts[i] = texts[j]
        for values in (draft.truth, draft.reward, draft.prompt, draft.truncated, draft.noise):
            values[i] = values[j]


def _sigmoid(make: Make, rng: np.random.Generator) -> tuple[Draft, set[str]]:
    """The probability that a classifier gives, to three digits in some logs."""
    draft = make("chat" if rng.random() < 0.5 else "maths", reward="dense")
    margin = float(rng.choice([1.5, 3.0, 6.0])) * (draft.truth - draft.truth.mean() + 0.5 * draft.noise)
    draft.reward = 1 / (1 + np.exp(-margin))
    if rng.random() < 0.6:
        draft.reward = np.round(draft.reward, 3)
    return draft, set()


def _code_partial(make: Make, rng: np.random.Generator) -> tuple[Draft, set[str]]:
    draft = make("code", reward="graded")
    tests = int(rng.choice([4, 10, 20]))
    passed = np.floor(rng.beta(1.2, 1.5, len(draft)) * tests) / tests
    draft.reward = np.where(draft.truth > 0.5, 1.0, np.where(draft.truncated, 0.0, passed))
    return draft, set()


def _tools(make: Make, rng: np.random.Generator) -> tuple[Draft, set[str]]:
    draft = make("tools", reward=str(rng.choice(["binary", "graded"])))
    return draft, set()


def _plain(make: Make, _rng: np.random.Generator, **how: Any) -> tuple[Draft, set[str]]:
    return make(**how), set()


def _any_reward(make: Make, rng: np.random.Generator, **how: Any) -> tuple[Draft, set[str]]:
    return make(reward=str(rng.choice(["binary", "graded", "dense"])), **how), set()


TEXT_SHAPES: dict[str, Callable[[Make, np.random.Generator], tuple[Draft, set[str]]]] = {
    "binary": _plain,
    "graded": partial(_plain, reward="graded"),
    "accuracy_format": _accuracy_format,
    "accuracy_cost": _accuracy_cost,
    "reward_model": partial(_plain, kind="chat", reward="dense"),
    "heavy_tailed": _heavy_tailed,
    "negative": _negative,
    "rising_difficulty": partial(_any_reward, order="rising"),
    "curriculum": partial(_any_reward, order="stages"),
    "changed_system_prompt": partial(_any_reward, order="once", systems=True),
    "replay": _replay,
    "sigmoid": _sigmoid,
    "languages": partial(_any_reward, languages=True),
    "short_answers": partial(_plain, kind="choice"),
    "code_partial": _code_partial,
    "tool_agents": _tools,
    "two_epochs": partial(_any_reward, order="epochs"),
}
ROBOT_SHAPES = ("robots_dense", "robots_sparse", "robots_cost")
SHAPES = (*TEXT_SHAPES, *ROBOT_SHAPES)


def honest_draft(shape: str, seed: int, gsm8k: Path | None = None) -> tuple[Draft, set[str]]:
    """A run of texts of one shape, and the facts that follow from how its reward is made."""
    rng = np.random.default_rng([64, SHAPES.index(shape), seed])
    draft, facts = TEXT_SHAPES[shape](partial(text_run, rng, gsm8k), rng)
    draft.settle()
    return draft, facts


def honest_set(shape: str, seed: int, gsm8k: Path | None = None) -> Honest:
    """The rows of a run, and its facts."""
    if shape in ROBOT_SHAPES:
        rows = _robots(shape, np.random.default_rng([64, SHAPES.index(shape), seed]))
        return Honest(rows, frozenset(_facts(rows)))
    draft, facts = honest_draft(shape, seed, gsm8k)
    rows = draft.rows()
    return Honest(rows, frozenset(facts | _facts(rows) | _hidden_facts(draft)))


def _robots(shape: str, rng: np.random.Generator) -> Rows:
    """Episodes of an arm; of dense rewards also the file of a monitor, which has returns alone."""
    half = int(rng.integers(2))
    if shape == "robots_dense" and rng.random() < 0.4:
        return episodes(rng, half)
    kind = {"robots_dense": str(rng.choice(["progress", "distance"])), "robots_sparse": "sparse", "robots_cost": "cost"}
    draft = robots(rng, half, {"reward": kind[shape]})
    if rng.random() < 0.15:  # recorded by people, who kept the successes
        draft = replace(draft, episodes=[one for one in draft.episodes if one.success] or draft.episodes)
    return draft.rows()


# ----------------------------------------------------------------------------------------------------------- facts


def _facts(rows: Rows) -> set[str]:
    """What is true of the rows themselves."""
    facts = set()
    reward_N = rows.reward_N
    values, counts = np.unique(reward_N, return_counts=True)
    if rows.group_N is not None:
        first_G, inverse_N = np.unique(rows.group_N, return_index=True, return_inverse=True)[1:]
        several_G = np.bincount(inverse_N) > 1
        spread_G = np.zeros(len(first_G), bool)
        np.logical_or.at(spread_G, inverse_N, reward_N != reward_N[first_G][inverse_N])
        if several_G.any() and (~spread_G[several_G]).mean() >= 0.1:
            facts.add("groups of equal rewards")
    if rows.steps is None:
        last = np.arange(len(rows)) >= 0.5 * len(rows)
        if max(np.unique(reward_N[last], return_counts=True)[1]) >= 0.75 * last.sum():
            facts.add("late rewards are equal")
        if len(values) > 4 and max(counts[0], counts[-1]) >= 0.02 * len(rows):
            facts.add("many rewards at an end")
        if rows.step_N is not None and _moves(reward_N, rows.step_N):
            facts.add("the level moves")
    if rows.texts is not None and len(set(zip(rows.texts.responses, rows.texts.prompts, strict=True))) < 0.95 * len(
        rows
    ):
        facts.add("copies")
    if rows.texts is not None and len(set(rows.texts.responses)) < 0.95 * len(rows):
        facts.add("copies")
    if rows.truth_N is not None:
        if rows.steps is not None and len(np.unique(_succeeded(rows))) == 1:
            facts.add("success is constant")
        if rows.steps is None and _threshold(rows.truth_N, reward_N):
            facts.add("the truth is the reward")
    return facts


def _succeeded(rows: Rows) -> np.ndarray:
    """Whether each episode succeeded."""
    assert rows.steps is not None
    assert rows.truth_N is not None
    return np.bincount(rows.steps.episode_N, rows.truth_N) > 0


def _threshold(truth_N: np.ndarray, reward_N: np.ndarray) -> bool:
    """Whether all right rows have more than all wrong ones."""
    right = truth_N > 0.5
    return bool(right.any() and (~right).any() and reward_N[right].min() > reward_N[~right].max())


def _moves(reward_N: np.ndarray, step_N: np.ndarray) -> bool:
    """Whether the mean of one tenth of the run differs from that of the next by a third of a standard deviation."""
    parts = [reward_N[part].mean() for part in np.array_split(np.argsort(step_N, kind="stable"), 10) if len(part)]
    return bool(np.abs(np.diff(parts)).max() > 0.33 * (reward_N.std() or 1.0))


def _hidden_facts(draft: Draft) -> set[str]:
    """What is true of a run although its log may not show it."""
    facts = set()
    if draft.truncated.mean() >= 0.02:
        facts.add("truncated")
    missing = np.array([not one for one in draft.stated])
    if draft.kind in ("maths", "tools") and missing.mean() >= 0.02:
        facts.add("answers missing")
    shown = draft.log_truth or draft.log_reference
    if draft.kind == "chat" or shown:
        return facts
    lengths = np.log([max(len(one), 1) for one in draft.responses])
    count = np.maximum(np.bincount(draft.prompt), 1)
    centred = lengths - (np.bincount(draft.prompt, lengths) / count)[draft.prompt]
    truth = draft.truth - (np.bincount(draft.prompt, draft.truth) / count)[draft.prompt]
    if centred.std() and truth.std() and abs(np.corrcoef(centred, truth)[0, 1]) > 0.05:
        facts.add("wrong responses are longer, and the log has no truth")
    return facts
