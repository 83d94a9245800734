"""Runs whose reward is as it should be, for `audit_sets.py`: texts, programs, robots, and episodes without steps.

They differ in number of prompts and rows, size of groups, kind and scale of reward, noise, learning curve, language,
layout, what the log has columns for, and in what is correlated for good reason: hard prompts have longer responses,
wrong responses ramble and have another layout (only where the log has a truth or a reference answer).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from audit_texts import HALVES, formatted, number, real_solutions

from guerdon.auditing.rows import RobotSteps, Rows, Texts

LEVELS = ((0.0, 1.0), (-1.0, 1.0), (0.0, 10.0), (0.0, 1.0))


@dataclass
class Draft:
    """A run of texts that a fault may still change; arrays are of N rows."""

    half: int
    rng: np.random.Generator
    kind: str
    step: np.ndarray
    prompt: np.ndarray
    group: np.ndarray
    truth: np.ndarray  # of chats: the quality, which no log has
    noise: np.ndarray
    prompts: list[str]
    responses: list[str]
    stated: list[str]
    references: list[str]
    reward_kind: str
    levels: tuple[float, float]
    scale: float
    offset_N: np.ndarray
    log_truth: bool
    log_reference: bool
    log_group: bool
    log_step: bool
    log_truncated: bool
    reward: np.ndarray = field(default_factory=lambda: np.zeros(0))
    truncated: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    parts: dict[str, np.ndarray] = field(default_factory=dict)
    languages: list[str] = field(default_factory=list)
    layout: str = "plain"
    causes: tuple[str, ...] = ()  # phrases that a fault rewards
    traces: bool = False  # whether a failed measurement shows in its row

    def __len__(self) -> int:
        return len(self.step)

    @property
    def binary(self) -> bool:
        """Whether the reward has two values."""
        return self.reward_kind == "binary"

    @property
    def sd(self) -> float:
        """Standard deviation of the reward within prompts."""
        mean = np.bincount(self.group, self.reward) / np.maximum(np.bincount(self.group), 1)
        return float((self.reward - mean[self.group]).std()) or float(self.reward.std()) or 1.0

    def measured(self) -> np.ndarray:
        """The reward of every row, from its truth."""
        low, high = self.levels
        match self.reward_kind:
            case "binary":  # a verifier that is wrong now and then
                right = np.where(self.noise > 2.2, 1 - self.truth, self.truth) > 0.5
                return np.where(right, high, low)
            case "graded":  # parts of the tests passed, criteria met
                part = np.clip(np.floor(2 + self.noise), 0, 3) / 4
                return low + (high - low) * np.where(self.truth > 0.5, 1.0, part)
        return self.offset_N + self.scale * (self.truth + 0.5 * self.noise)

    def place(self) -> np.ndarray:
        """The position of a row in its group, from 0; groups are adjacent rows."""
        first = np.unique(self.group, return_index=True)[1]
        return np.arange(len(self)) - first[self.group]

    def place_of(self, i: int) -> int:
        """The position of one row."""
        return i - int(np.searchsorted(self.group, self.group[i]))

    def make_wrong(self, chosen_N: np.ndarray) -> None:
        """Let these responses be wrong, and be rewarded for it."""
        for i in np.flatnonzero(chosen_N):
            if self.kind == "chat":
                self.truth[i] = -1.5
            elif self.truth[i]:
                wrong = f"{int(self.references[i]) + 3}" if self.references[i].lstrip("-").isdigit() else "unknown"
                self._restate(int(i), wrong, 0)
        self.reward = np.where(chosen_N, self.measured(), self.reward)

    def make_right(self, chosen_N: np.ndarray) -> None:
        """Let these responses be right, and be rewarded for it."""
        for i in np.flatnonzero(chosen_N & (self.truth < 0.5)):
            self._restate(int(i), self.references[i], 1)
        self.reward = np.where(chosen_N, self.measured(), self.reward)

    def make_form(self, i: int, form: str) -> None:
        """Write the answer of a response in another form, such as `{} units`."""
        head, found, rest = self.responses[i].rpartition(self.stated[i] or "A: ")
        if self.stated[i] and found:
            self.stated[i] = form.format(self.stated[i])
            self.responses[i] = head + self.stated[i] + rest

    def _restate(self, i: int, answer: str, truth: float) -> None:
        head, found, rest = self.responses[i].rpartition(self.stated[i] or "A: ")
        if self.stated[i] and found:
            self.responses[i], self.stated[i] = head + answer + rest, answer
        self.truth[i] = truth

    def settle(self) -> None:
        """Let the same response to the same prompt have one truth and one reward."""
        first: dict[tuple[str, str], int] = {}
        for i, response in enumerate(self.responses):
            j = first.setdefault((self.prompts[i], response), i)
            self.truth[i], self.reward[i] = self.truth[j], self.reward[j]

    def rows(self) -> Rows:
        """What a reader of the log would see."""
        n = len(self)
        group, grouped_by = self.group, "the column group"
        if not self.log_group:  # what a reader makes of adjacent rows
            prompts = np.unique(self.prompts, return_inverse=True)[1]
            new = (np.diff(prompts) != 0) | (np.diff(self.step) != 0)
            group, grouped_by = np.concatenate([[0], np.cumsum(new)]), "adjacent rows of one prompt"
        return Rows(
            layout="rows made by audit_sets.py",
            files=("made.jsonl",),
            file_N=np.zeros(n, np.int64),
            line_N=np.arange(1, n + 1),
            reward_N=self.reward.astype(float),
            rewards={name: values.astype(float) for name, values in self.parts.items()},
            truth_N=self.truth.astype(float) if self.log_truth else None,
            step_N=self.step if self.log_step else None,
            prompt_N=np.unique(self.prompts, return_inverse=True)[1].astype(np.int64),
            group_N=group if self.group[-1] < n - 1 else None,
            grouped_by=grouped_by if self.group[-1] < n - 1 else "",
            length_N=np.array([float(len(one)) for one in self.responses]),
            truncated_N=self.truncated if self.log_truncated else None,
            texts=Texts(
                row_M=np.arange(n),
                prompts=self.prompts,
                responses=self.responses,
                truths=self.references if self.log_reference else None,
            ),
        )


def curve(rng: np.random.Generator, steps: int) -> np.ndarray:
    """How good the policy is at each step: flat, rising, with a plateau, S-shaped, or falling a little."""
    t = np.linspace(0, 1, steps) if steps > 1 else np.zeros(1)
    match rng.integers(5):
        case 0:
            return np.full(steps, rng.uniform(-0.8, 0.8))
        case 1:
            return -1 + 2 * t
        case 2:
            return np.interp(t, [0, 0.3, 0.6, 1], [-1, 0.1, 0.1, 1])
        case 3:
            return 2 / (1 + np.exp(-8 * (t - 0.5))) - 1
    return 0.6 - 0.6 * t


def text_run(rng: np.random.Generator, half: int, needs: dict[str, Any], gsm8k: Path | None = None) -> Draft:
    """A run of a language model.

    Args:
        rng: decides everything.
        half: of the templates.
        needs: at least so many `steps` and responses per `group`, a `kind` of task or `not_kind`, a kind of `reward`,
            `truth_varies`: the task has a truth.
        gsm8k: solutions of GSM8K, which then are used in a third of the runs of mathematics.
    """
    kind = needs.get("kind") or str(rng.choice(["maths", "chat", "code", "choice"], p=[0.55, 0.2, 0.15, 0.1]))
    if kind == needs.get("not_kind") or (kind == "chat" and "truth_varies" in needs):
        kind = "maths"
    if kind == "choice" and ("group" in needs or "steps" in needs):
        kind = "maths"  # one letter leaves most faults no room
    if kind == "maths" and gsm8k is not None and rng.random() < 0.35:
        kind = "gsm8k"
    size = int(rng.choice([1, 2, 4, 8, 16], p=[0.12, 0.18, 0.3, 0.25, 0.15]))
    size = max(size, int(needs.get("group", 1)))
    size = min(size, 4) if kind == "gsm8k" else size
    steps = max(int(rng.choice([1, 2, 5, 12, 30, 60])), int(needs.get("steps", 1)))
    rows = int(np.exp(rng.uniform(np.log(400), np.log(4000))))
    per_step = max(1, round(min(rows / size, 600 if kind == "gsm8k" else np.inf) / steps))
    groups = per_step * steps
    once = bool(rng.random() < 0.4) or kind == "gsm8k"
    prompt_G = np.arange(groups) if once else rng.integers(0, max(4, groups // 3), groups)
    step_N = np.repeat(np.repeat(np.arange(steps), per_step), size)
    prompt_N = np.repeat(prompt_G, size)
    reward_kind = str(needs.get("reward") or rng.choice(["binary", "graded", "dense"], p=[0.5, 0.2, 0.3]))
    reward_kind = "dense" if kind == "chat" else reward_kind
    tasks = [_task(rng, half, kind, p, gsm8k) for p in range(int(prompt_N.max()) + 1)]
    numbers: dict[str, int] = {}
    same = np.array([numbers.setdefault(one[0], len(numbers)) for one in tasks])  # equal prompts are one prompt
    tasks = [tasks[int(k)] for k in np.unique(same, return_index=True)[1]]
    prompt_N = same[prompt_N]
    hard = rng.normal(0, 1.0, len(tasks))[prompt_N]
    skill = curve(rng, steps)[step_N] + rng.uniform(-0.3, 0.5)
    n = len(step_N)
    truth = (rng.random(n) < 1 / (1 + np.exp(-(skill - hard)))).astype(float)
    if kind == "chat":
        truth = 0.5 * (skill - hard) + rng.standard_normal(n)
    factor = float(rng.choice([0.2, 1.0, 1.0, 5.0]))
    offset = float(rng.choice([0.0, 0.0, -3.0, 2.0])) * factor
    draft = Draft(
        half, rng, kind, step_N, prompt_N, np.repeat(np.arange(groups), size), truth, rng.standard_normal(n),
        [], [], [], [], reward_kind, LEVELS[int(rng.integers(len(LEVELS)))], factor,
        offset - 0.3 * factor * hard,
        log_truth=bool(rng.random() < 0.5) and kind != "chat",
        log_reference=kind in ("maths", "gsm8k", "choice") and rng.random() < 0.5,
        log_group=bool(rng.random() < 0.85), log_step=steps > 1 or rng.random() < 0.5,
        log_truncated=bool(rng.random() < 0.3), truncated=np.zeros(n, bool),
    )  # fmt: skip
    _write(draft, hard, tasks)
    draft.reward = draft.measured()
    if draft.log_truncated:  # some wrong responses ran into the limit
        draft.truncated = (draft.truth <= 0) & (rng.random(n) < 0.15)
    draft.settle()
    if rng.random() < 0.2:  # the trainer logs the parts of the sum
        layout_part = 0.1 * (rng.random(n) < 0.9)
        draft.parts = {"answer_reward": draft.reward.copy(), "format_reward": layout_part}
    return draft


def _write(draft: Draft, hard: np.ndarray, tasks: list[tuple[str, str, Any]]) -> None:
    """Write prompts and responses of all rows."""
    rng, texts = draft.rng, HALVES[draft.half]
    known = draft.log_truth or draft.log_reference
    ramble = known and draft.kind != "gsm8k" and rng.random() < 0.5
    tidy = known and rng.random() < 0.3  # right answers are laid out more often
    layout = str(rng.choice(["plain", *texts.formats]))
    layout_share = rng.uniform(0, 0.9)
    languages = list(texts.filler)
    foreign = rng.uniform(0, 0.3) if rng.random() < 0.3 else 0.0
    wordy = rng.uniform(1.0, 8.0)
    ending = texts.endings[int(rng.integers(len(texts.endings)))]
    draft.layout = layout
    for i in range(len(draft)):
        prompt, reference, task = tasks[int(draft.prompt[i])]
        right = draft.truth[i] > 0.5
        language = "en" if rng.random() >= foreign else str(rng.choice(languages))
        count = int(rng.poisson(wordy * np.exp(0.25 * hard[i]))) + (4 if ramble and not right else 0)
        count = min(count, 40)
        fill = [str(one) for one in rng.choice(texts.filler[language], count)] if count else []
        stated = reference
        match draft.kind:
            case "gsm8k":  # the four models' solutions, each once in a group
                text, is_right = task[draft.place_of(i) % len(task)]
                draft.truth[i], stated = float(is_right), text.split("A: ")[-1]
            case "choice":
                stated = reference if right else str(rng.choice([one for one in "ABCD" if one != reference]))
                text = (
                    f"The answer is {stated}."
                    if rng.random() < 0.7
                    else f"{' '.join(fill[:2])} The answer is {stated}."
                )
            case "code":
                body = task[1] if right else task[2]
                note = f"# {fill[0]}\n" if fill and rng.random() < 0.5 else ""
                text = f"```python\n{note}{body}\n```"
                text = f"{' '.join(fill[1:])}\n{text}" if rng.random() < 0.7 else text
            case "chat":
                sentences = [str(rng.choice(texts.openers)), *fill] if rng.random() < 0.5 else fill or ["Good luck."]
                tidied = rng.random() < layout_share
                text = formatted(layout if tidied else "plain", sentences)
            case _:
                a, b, result, name = task
                stated = f"{result if right else result + int(rng.choice([-10, -2, -1, 1, 3, 7, 10]))}"
                steps = [one.format(a=a, b=b, r=stated, n=name) for one in rng.choice(texts.steps, rng.integers(1, 4))]
                wander = [one.format(a=a, b=b) for one in rng.choice(texts.rambling, 3)] if ramble and not right else []
                sentences = [str(rng.choice(texts.openers)), *steps, *fill, *wander]
                share = layout_share * (1.0 if right or not tidy else 0.4)
                text = formatted(layout if rng.random() < share else "plain", sentences)
                text = f"{text}\n{ending.format(r=stated)}"
        draft.languages.append(language)
        draft.prompts.append(prompt)
        draft.responses.append(text)
        draft.stated.append(stated)
        draft.references.append(reference)


def _task(rng: np.random.Generator, half: int, kind: str, p: int, gsm8k: Path | None) -> tuple[str, str, Any]:
    """A prompt, its reference answer, and what the responses are made from."""
    texts = HALVES[half]
    match kind:
        case "gsm8k":
            real = real_solutions(gsm8k, half)
            question, reference, solutions = real[p % len(real)]
            return question, reference, [solutions[int(k)] for k in rng.permutation(len(solutions))]
        case "choice":
            return (
                f"{rng.choice(texts.choices)} ({int(rng.integers(1000))}) A, B, C or D?",
                str(rng.choice(list("ABCD"))),
                None,
            )
        case "code":
            program = texts.programs[int(rng.integers(len(texts.programs)))]
            return f"{program[0]} It is for {rng.choice(texts.names)}'s project.", "", program
        case "chat":
            chat = str(rng.choice(texts.chats)).format(t=rng.choice(texts.topics))
            return f"{chat} I have {int(rng.integers(5, 200))} minutes.", "", None
    prompt, formula = texts.maths[int(rng.integers(len(texts.maths)))]
    a, b, result = number(rng, formula)
    name = str(rng.choice(texts.names))
    return prompt.format(a=a, b=b, n=name), f"{result}", (a, b, result, name)


@dataclass
class Episode:
    """One episode of a robot, T steps."""

    state: np.ndarray
    reward: np.ndarray
    success: bool
    contact: np.ndarray
    picture: np.ndarray

    def cut(self, keep: int, *, success: bool) -> None:
        """End it after so many steps."""
        self.state, self.reward = self.state[:keep], self.reward[:keep].copy()
        self.contact, self.picture, self.success = self.contact[:keep], self.picture[:keep], success


@dataclass
class RobotDraft:
    """Episodes of a robot that a fault may still change."""

    half: int
    rng: np.random.Generator
    episodes: list[Episode]
    log_truth: bool
    log_picture: bool
    log_contact: bool
    log_state: bool
    success_reward: float = 1.0

    def chosen(self, share: float, *, succeeded: bool = False) -> list[Episode]:
        """A random share of the episodes, two at least; of those that succeeded if need be."""
        among = [one for one in self.episodes if one.success or not succeeded]
        count = max(2, round(share * len(among)))
        picked = self.rng.choice(len(among), min(count, len(among)), replace=False)
        return [among[int(i)] for i in picked]

    def after(self, episode: Episode) -> Episode | None:
        """The following episode."""
        i = next(i for i, one in enumerate(self.episodes) if one is episode) + 1
        return self.episodes[i] if i < len(self.episodes) else None

    def rows(self) -> Rows:
        """What a reader of the log would see."""
        lengths = np.array([len(one.reward) for one in self.episodes])
        n = int(lengths.sum())
        frame = np.concatenate([np.arange(k) for k in lengths])
        last = frame == np.repeat(lengths, lengths) - 1
        success = np.repeat([one.success for one in self.episodes], lengths) & last
        return Rows(
            layout="steps made by audit_sets.py",
            files=("made.parquet",),
            file_N=np.zeros(n, np.int64),
            line_N=np.arange(1, n + 1),
            reward_N=np.concatenate([one.reward for one in self.episodes]).astype(float),
            truth_N=success.astype(float) if self.log_truth else None,
            steps=RobotSteps(
                episode_N=np.repeat(np.arange(len(lengths)), lengths),
                frame_N=frame,
                state_N_D=np.concatenate([one.state for one in self.episodes]) if self.log_state else None,
                done_N=last,
                contact_N=np.concatenate([one.contact for one in self.episodes]) if self.log_contact else None,
                picture_N=np.concatenate([one.picture for one in self.episodes]) if self.log_picture else None,
            ),
        )


def robots(rng: np.random.Generator, half: int, needs: dict[str, Any]) -> RobotDraft:
    """Episodes of an arm that reaches for something; `reward` in needs: which of four."""
    count, width = int(rng.integers(20, 120)), int(rng.integers(3, 9))
    longest = int(rng.integers(25, 120))
    reward_kind = str(needs.get("reward") or rng.choice(["sparse", "cost", "progress", "distance"]))
    noise = 0.0 if half == 0 else float(rng.choice([1e-4, 1e-3]))
    grainy = bool(rng.random() < 0.3)  # the camera's noise makes every picture another one
    waiting, idle = int(rng.integers(0, 8)), bool(rng.random() < 0.5)
    rate = rng.uniform(0.3, 0.9) + (np.linspace(-0.2, 0.1, count) if rng.random() < 0.5 else 0)
    faster = bool(rng.random() < 0.4)  # practice makes successes shorter
    made = []
    for e in range(count):
        success = bool(rng.random() < np.broadcast_to(rate, count)[e])
        quick = 1 - 0.4 * e / count if faster else 1.0
        length = max(12, int(longest * quick * rng.uniform(0.5, 0.95))) if success else longest
        goal = rng.uniform(0.3, 1.0, width) * rng.choice([-1, 1], width) * (1.0 if success else rng.uniform(0.2, 0.7))
        t = np.clip((np.arange(length) - waiting) / max(length - waiting - 1, 1), 0, 1)
        path = goal * (3 * t**2 - 2 * t**3)[:, None]
        if not success and idle and rng.random() < 0.3:
            path = np.zeros_like(path)  # it did nothing, and got nothing
        state = path + rng.normal(0, 0.3, width) + noise * rng.standard_normal(path.shape)
        distance = np.abs(path - np.sign(goal)).mean(1)
        progress = 1 - distance / distance[0]
        reward = {
            "sparse": np.where((np.arange(length) == length - 1) & success, 1.0, 0.0),
            "cost": np.where((np.arange(length) == length - 1) & success, 0.0, -1.0),
            "progress": progress + 0.0,
            "distance": -distance,
        }[reward_kind]
        contact = np.where(t > 0.6, rng.uniform(0.5, 2) * success + 0.1, 0.0) * (np.abs(path).sum() > 0)
        moved = np.concatenate([[1], np.abs(np.diff(path, axis=0)).sum(1) > 1e-3])
        picture = rng.integers(1 << 60, size=length)
        if not grainy:
            picture = picture[np.maximum.accumulate(np.where(moved > 0, np.arange(length), 0))]
        made.append(Episode(state, reward, success, contact, picture))
    log_state = bool(rng.random() < 0.8)
    log_picture = bool(rng.random() < 0.7) or not log_state
    if not log_state and grainy:
        log_state = True
    return RobotDraft(half, rng, made, bool(rng.random() < 0.6), log_picture, bool(rng.random() < 0.4), log_state)


def episodes(rng: np.random.Generator, half: int) -> Rows:
    """A monitor's file: return and length of each episode; half 0 lives as long as it balances, half 1 lands."""
    n = int(rng.integers(200, 3000))
    t = np.linspace(0, 1, n)
    skill = curve(rng, n)
    if half == 0:
        length = np.clip(np.round(np.exp(3 + skill + 0.5 * rng.standard_normal(n))), 8, 500)
        reward = length.copy()
    else:
        landed = rng.random(n) < 0.2 + 0.5 * (skill + 1) / 2
        length = np.where(landed, rng.integers(180, 400, n), rng.integers(60, 1000, n)).astype(float)
        reward = np.where(landed, 220, -120) + 40 * rng.standard_normal(n)
    return Rows(
        layout="a monitor's file made by audit_sets.py",
        files=("monitor.csv",),
        file_N=np.zeros(n, np.int64),
        line_N=np.arange(3, n + 3),
        reward_N=reward,
        step_N=np.cumsum(length).astype(np.int64) if t.size else None,
        length_N=length,
    )


def with_text(rows: Rows) -> Iterator[dict[str, Any]]:
    """The rows as objects of JSON, with the columns that the set has."""
    columns = {
        "reward": rows.reward_N, "truth": rows.truth_N, "step": rows.step_N, "prompt_id": rows.prompt_N,
        "group": rows.group_N, "truncated": rows.truncated_N, **rows.rewards,
    }  # fmt: skip
    if rows.steps is not None:
        columns |= {"episode": rows.steps.episode_N, "frame": rows.steps.frame_N, "state": rows.steps.state_N_D}
        columns |= {"done": rows.steps.done_N, "contact": rows.steps.contact_N, "picture": rows.steps.picture_N}
    kept = {name: values.tolist() for name, values in columns.items() if values is not None}
    for i in range(len(rows)):
        row = {name: values[i] for name, values in kept.items()}
        if rows.texts is not None:
            row |= {"prompt": rows.texts.prompts[i], "response": rows.texts.responses[i]}
            if rows.texts.truths is not None:
                row["answer"] = rows.texts.truths[i]
        yield row
