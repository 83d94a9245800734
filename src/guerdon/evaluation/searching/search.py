"""Search at inference: best-of-n, step beam search and DVTS, with any reward model and any writer of text.

Best-of-n is a beam search of one round with `beam_width` 1: n whole solutions. Beam search keeps the n / M best of n
extensions by one step and extends each M ways; DVTS (diverse verifier tree search, Beeching et al. 2024) runs n / M
separate trees and keeps the best of M in each. A beam that ends is complete and leaves; in the last round all others
are written to their end. The answer is the complete beam with the largest value. Where none is complete, or none could
be measured, the result is a `Failure`. All questions advance together, one call of the writer per round. `PolicyWriter`
lets a language model write; `sampled_solutions` samples whole solutions to a study's validation questions.

    found = beam_search(writer, model, ["3+5=?;?*2=?;"], SearchPlan(n=8, aggregation="last", separator=";"))
    print(found[0].best.text if found[0].failure is None else found[0].failure)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from guerdon.endpoints.completions import Completer, CompletionRequest, SamplingParams
from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError
from guerdon.files.append_log import Cache
from guerdon.labels.candidates import check_answers, split_solution
from guerdon.labels.labelers import ExactLabeler, StepLabels
from guerdon.models.scores import score_solutions, solution_value
from guerdon.policies.batches.tokens import prompt_ids, response_ids, response_texts, sequence, split_steps
from guerdon.policies.language.generate import Engine, check_room
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import load_policy
from guerdon.reading.chats import context_of
from guerdon.settings.evaluate import Aggregation
from guerdon.settings.label import Splitter
from guerdon.settings.study import Study
from guerdon.tasks.prompt_files import load_prompts
from guerdon.tasks.prompts import Prompt, insert_system_prompt
from guerdon.tasks.reasoning import is_generated
from guerdon.tasks.verifier import verifier_from
from guerdon.types import Failure, IntArray, RewardModel

MOST_ROUNDS = 40


class Piece(NamedTuple):
    """Text that goes on from a prefix.

    Attributes:
        text: what is added.
        finished: whether the writer ended the whole solution with it; False where a stop or the length limit did.
    """

    text: str
    finished: bool


class Writer(Protocol):
    """Anything that goes on with unfinished solutions."""

    def continue_(self, contexts: Sequence[tuple[str, str]], n: int, stop: str | None) -> list[list[Piece]]:
        """Go on n ways from each context.

        Args:
            contexts: (question, what is written so far).
            n: pieces per context.
            stop: a piece ends with the first occurrence of this, included; None: goes on to the end.
        """
        ...


@dataclass(frozen=True)
class Beam:
    """A solution under way.

    Attributes:
        steps: what is written.
        finished: whether the writer ended it.
        value: of the reward model; None where the measurement failed, or is still to be made.
    """

    steps: tuple[str, ...] = ()
    finished: bool = False
    value: float | None = None

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.steps)


@dataclass(frozen=True)
class SearchResult:
    """The result of a search for one question.

    Attributes:
        best: the complete beam with the largest value (the first of equal ones).
        failure: why there is none: `none_finished`, `none_measured`.
        complete: all complete beams, for votes.
        written: pieces that the writer wrote.
        unmeasured: failed measurements by reason.
    """

    best: Beam | None
    failure: Failure | None
    complete: tuple[Beam, ...]
    written: int
    unmeasured: dict[str, int]


@dataclass(frozen=True)
class SearchPlan:
    """How wide a search by steps is, how long, and how its beams are valued.

    Attributes:
        n: beams, a multiple of `beam_width`.
        aggregation: how values of steps become one.
        separator: what ends a step.
        beam_width: ways in which each survivor (each tree) goes on.
        rounds: at most; in the last one all beams are written to their end.
        batch_size: solutions per call of the model.
        system_prompt: a system turn before each question, which the reward model is given too.

    Raises:
        ConfigError: n is not a multiple of `beam_width`, a number is below 1, or nothing ends a step.
    """

    n: int
    aggregation: Aggregation
    separator: str
    beam_width: int = 4
    rounds: int = MOST_ROUNDS
    batch_size: int = 64
    system_prompt: str | None = None

    def __post_init__(self) -> None:
        small = [name for name in ("n", "beam_width", "rounds", "batch_size") if getattr(self, name) < 1]
        if small or self.n % self.beam_width:
            raise ConfigError(
                "a search needs n of at least 1, a multiple of beam_width, at least one round and a batch of one; "
                f"got n {self.n}, beam_width {self.beam_width}, rounds {self.rounds}, batch_size {self.batch_size}",
                key=small[0] if small else "n",
            )
        if not self.separator:
            raise ConfigError("a search by steps needs a separator: the text that ends a step", key="separator")


def beam_search(writer: Writer, model: RewardModel, questions: Sequence[str], plan: SearchPlan) -> list[SearchResult]:
    """Step beam search: of n extensions by a step the n / beam_width best go on, beam_width ways each.

    Args:
        writer: extends solutions.
        model: the reward model, for unfinished solutions.
        questions: in words.
        plan: how wide, how long, how valued.
    """

    def keep(groups: Sequence[Sequence[Beam]]) -> list[Beam]:
        beams = [beam for group in groups for beam in group]
        going = _best([beam for beam in beams if not beam.finished], plan.n // plan.beam_width)
        return [beam for beam in beams if beam.finished] + going

    return _Search(writer, model, questions, plan).run(1, plan.n, keep)


def dvts(writer: Writer, model: RewardModel, questions: Sequence[str], plan: SearchPlan) -> list[SearchResult]:
    """Diverse verifier tree search: n / beam_width trees, each goes on with the best of beam_width steps.

    A tree whose best extension is complete is done; complete extensions that were not the best are dropped.

    Args:
        writer: extends solutions.
        model: the reward model, for unfinished solutions.
        questions: in words.
        plan: how many trees, how long, how valued.
    """

    def keep(groups: Sequence[Sequence[Beam]]) -> list[Beam]:
        return [beam for group in groups for beam in _best(group, 1)]

    return _Search(writer, model, questions, plan).run(plan.n // plan.beam_width, plan.beam_width, keep)


class _Search:
    """Writes, measures, and keeps what is complete."""

    def __init__(self, writer: Writer, model: RewardModel, questions: Sequence[str], plan: SearchPlan) -> None:
        self.writer, self.model, self.questions, self.plan = writer, model, list(questions), plan
        self.complete: list[list[Beam]] = [[] for _ in questions]
        self._written = [0 for _ in questions]
        self._unmeasured: list[Counter[str]] = [Counter() for _ in questions]

    def run(self, trees: int, first: int, keep: Callable[[Sequence[Sequence[Beam]]], list[Beam]]) -> list[SearchResult]:
        """Search all questions to their end.

        Args:
            trees: beams to start from.
            first: ways in which each of these goes on.
            keep: from the extensions of each beam to those that are complete or go on.
        """
        active = [[Beam()] * trees for _ in self.questions]
        for number in range(self.plan.rounds):
            if not any(active):
                break
            ways = self.plan.beam_width if number else first
            extended = self._write(active, ways, to_end=number == self.plan.rounds - 1)
            for q, groups in enumerate(extended):
                kept = keep(groups)
                self.complete[q] += [beam for beam in kept if beam.finished]
                done = len(self.complete[q]) >= self.plan.n
                active[q] = [] if done else [beam for beam in kept if not beam.finished]
        return [self._found(q) for q in range(len(self.questions))]

    def _write(self, active: Sequence[Sequence[Beam]], n: int, *, to_end: bool) -> list[list[list[Beam]]]:
        """Every beam extended n ways and measured: per question and beam, its extensions.

        A beam to which the writer adds nothing without ending it has no room left: it is given up.
        """
        where = [(q, k, beam) for q, row in enumerate(active) for k, beam in enumerate(row)]
        contexts = [(self.questions[q], beam.text) for q, _, beam in where]
        pieces = self.writer.continue_(contexts, n, None if to_end else self.plan.separator)
        drafts: list[tuple[int, int, Beam]] = []
        for (q, k, beam), row in zip(where, pieces, strict=True):
            self._written[q] += len(row)
            for piece in row:
                text = beam.text + piece.text  # a step that the length limit cut goes on
                steps = tuple(split_steps(text, self.plan.separator)) if text else ()
                if piece.text or piece.finished:
                    drafts.append((q, k, Beam(steps, piece.finished)))
        extended: list[list[list[Beam]]] = []
        for beams in active:
            extended.append([[] for _ in beams])
        scores = score_solutions(self.model, self._solutions(drafts), batch_size=self.plan.batch_size)
        for (q, k, beam), score in zip(drafts, scores, strict=True):
            value = solution_value(score, self.plan.aggregation)
            if isinstance(value, Failure):
                self._unmeasured[q][value.reason] += 1
                extended[q][k].append(beam)
            else:
                extended[q][k].append(replace(beam, value=value))
        return extended

    def _solutions(self, drafts: Sequence[tuple[int, int, Beam]]) -> list[Solution]:
        """What is scored of beams, each with the number of its question."""
        contexts = []
        for question in self.questions:
            asked = insert_system_prompt(({"role": "user", "content": question},), self.plan.system_prompt)
            contexts.append(context_of(asked))
        return [
            Solution(f"beam-{i}", self.questions[q], beam.steps, context=contexts[q])
            for i, (q, _, beam) in enumerate(drafts)
        ]

    def _found(self, q: int) -> SearchResult:
        """The result of a question."""
        complete, lost = self.complete[q], dict(self._unmeasured[q].most_common())
        best, failure = next(iter(_best(complete, 1)), None), None
        if best is None and not complete and sum(lost.values()) < self._written[q]:
            failure = Failure("none_finished", "no beam came to its end: allow longer solutions or more rounds")
        elif best is None:
            failure = Failure("none_measured", f"the reward model measured no complete beam: {lost}")
        return SearchResult(best, failure, tuple(complete), self._written[q], lost)


def _best(beams: Sequence[Beam], n: int) -> list[Beam]:
    """The n measured beams with the largest values, the earlier of equal ones first."""
    measured = [beam for beam in beams if beam.value is not None]
    return sorted(measured, key=lambda beam: -(beam.value or 0.0))[:n]


class PolicyWriter:
    """Samples from a language model.

    Args:
        engine: for generation.
        tokenizer: its tokenizer.
        max_new_tokens: tokens of a whole solution; one that has them all gets an empty, unfinished piece.
        rng: draws the samples.
        step_tokens: where a piece is cut that ends at a separator; None: where the solution's tokens are used up.
            With it, solutions of different lengths go on in one call; give it where steps are short.
        system_prompt: stands in front of each question.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Any,
        *,
        max_new_tokens: int,
        rng: np.random.Generator,
        step_tokens: int | None = None,
        system_prompt: str | None = None,
    ) -> None:
        self.engine, self.tokenizer, self.rng = engine, tokenizer, rng
        self.max_new_tokens = max_new_tokens
        self.step_tokens = max_new_tokens if step_tokens is None else step_tokens
        self.system_prompt = system_prompt

    def continue_(self, contexts: Sequence[tuple[str, str]], n: int, stop: str | None) -> list[list[Piece]]:
        """See `Writer.continue_`.

        Raises:
            DataError: a character that the tokenizer does not know, or no room for question, prefix and piece.
        """
        pieces: list[list[Piece]] = [[Piece("", False)] * n for _ in contexts]
        ids = []
        calls: dict[int, list[int]] = {}  # tokens to write: contexts that get so many
        for k, (question, written) in enumerate(contexts):
            prompt, prefix = self._ids(question, written)
            ids.append(sequence(prompt, prefix))
            room = self.max_new_tokens - len(prefix)
            if room > 0:
                calls.setdefault(room if stop is None else min(room, self.step_tokens), []).append(k)
        for limit, members in sorted(calls.items()):
            batch = self.engine.generate([ids[k] for k in members], n, max_new_tokens=limit, rng=self.rng).batch
            found = [
                _cut(text, bool(finished), stop)
                for text, finished in zip(response_texts(self.tokenizer, batch), batch.finished_B, strict=True)
            ]
            for i, k in enumerate(members):
                pieces[k] = found[i * n : (i + 1) * n]
        return pieces

    def _ids(self, question: str, written: str) -> tuple[IntArray, IntArray]:
        messages = insert_system_prompt(({"role": "user", "content": question},), self.system_prompt)
        prefix = response_ids(self.tokenizer, written)[:-1] if written else np.zeros(0, dtype=np.int64)
        return prompt_ids(self.tokenizer, messages), prefix


def _cut(text: str, finished: bool, stop: str | None) -> Piece:
    """The text up to and with the stop; what is cut off behind it was not written, so the piece goes on.

    A text that ends with its first stop and was ended by the writer is finished.
    """
    end = -1 if stop is None else text.find(stop)
    if stop is None or end < 0:
        return Piece(text, finished)
    end += len(stop)
    return Piece(text[:end], finished and not text[end:].strip())


def sampled_requests(
    study: Study, policy: TextPolicy, questions: int
) -> tuple[Sequence[Prompt], list[CompletionRequest]]:
    """The questions of `sampled_solutions` and what the policy is given, which must fit into its positions.

    Raises:
        ConfigError: the study has no prompts.
        DataError: a question does not fit the model.
    """
    if study.data is None:
        raise ConfigError(
            "best_of_n without samples needs a data section: which questions the policy answers", key="data"
        )
    prompts = load_prompts(study.data)[1][:questions]
    requests = [CompletionRequest(prompt_ids(policy.tokenizer, p.messages, p.tools)) for p in prompts]
    for prompt, request in zip(prompts, requests, strict=True):
        length, most = len(request.prompt), study.data.max_response_length
        check_room(length, most, policy.base.positions, f"the question {prompt.id}")
    return prompts, requests


def sampled_solutions(
    study: Study, *, questions: int, n: int, folder: Path, temperature: float = 1.0
) -> list[Solution]:
    """`n` solutions to each of the first validation questions, with checked answers where there is a verifier.

    Steps end where they do for `guerdon label`: at the task's own separator, or at blank lines.

    Args:
        study: a language study.
        questions: how many.
        n: solutions per question.
        folder: keeps the texts.
        temperature: of the samples.

    Raises:
        ConfigError: the study has no prompts.
        DataError: a question does not fit the model.
    """
    policy = load_policy(study.text_policy.model_copy(update={"lora": None}), seed=study.runner.seed)
    prompts, requests = sampled_requests(study, policy, questions)
    assert study.data is not None
    with closing(Cache(folder / "completions.jsonl")) as cache:
        completer = Completer(policy, study.generation, cache, seed=study.runner.seed)
        completions = completer.complete(
            requests, n=n, limit=study.data.max_response_length, sampling=SamplingParams(temperature),
            purpose="choose from", show_progress=True,
        )  # fmt: skip
    solutions = []
    for prompt, row in zip(prompts, completions, strict=True):
        cut: Splitter = "separator" if is_generated(prompt) else "blank_line"
        made_by = {"model": study.text_policy.path, "splitter": cut}
        solutions += [split_solution(f"{prompt.id}-{k}", prompt, one.text, cut, made_by) for k, one in enumerate(row)]
    if not study.verified:
        return [one.solution for one in solutions]
    with verifier_from(study.data) as verifier:
        checked, _ = check_answers(solutions, study.data, verifier)
    found = []
    for one, labels in zip(checked, ExactLabeler().label(checked), strict=True):
        known = labels.values if isinstance(labels, StepLabels) else ()
        found.append(replace(one.solution, labels=known, meta={**one.solution.meta, "subset": "samples"}))
    return found
