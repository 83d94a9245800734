"""The solutions that get labelled: a policy writes them (method 1), the judge's model (method 2), or they are there.

Each is cut into steps and its answer checked. Left out, and counted: those that the length limit cut, that say the
same as another solution of the question, or that have too few steps. This module does not know how steps are judged.

    solved = solve(questions, texts, study.data, study.label, verifier, model="runs/sft")
    solved.written[0].solution.is_correct, solved.left_out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from guerdon.episodes.solutions import Solution
from guerdon.labels.asking import BUDGET, NOT_ASKED, Asker
from guerdon.labels.chat import ChatReply, ChatRequest
from guerdon.labels.completions import Ask, Completer, Sampling
from guerdon.labels.labeler import Written
from guerdon.labels.splitters import split
from guerdon.policies.tokens import prompt_ids
from guerdon.settings.data import DataSettings
from guerdon.settings.label import LabelSettings, Splitter
from guerdon.types import Failure
from guerdon.worlds.prompts import Message, Prompt, insert_system_prompt, question_hash
from guerdon.worlds.reasoning import family_of, is_generated
from guerdon.worlds.verifier import Judgement, Verifier

AT_A_TIME = 16  # questions put to the judge's model, where money is short
FIRST_LOOK = 20  # answers after which failures are counted
LEFT_OUT = ("duplicate", "too_few_steps", "truncated", BUDGET, NOT_ASKED)  # reasons that are no failed measurement
Texts = Sequence[Sequence[str | Failure]]  # per question, its solutions or why one is missing


@dataclass(frozen=True)
class Solved:
    """Solutions to label.

    Attributes:
        written: with steps, and whether the answer is right.
        left_out: why others were left out, and how many.
        unchecked: why answers could not be checked, and how many.
        details: by reason of `left_out`, what was said of one.
    """

    written: tuple[Written, ...]
    left_out: Mapping[str, int]
    unchecked: Mapping[str, int]
    details: Mapping[str, str] = field(default_factory=dict)


def policy_texts(
    questions: Sequence[Prompt], completer: Completer, data: DataSettings, settings: LabelSettings
) -> Texts:
    """Method 1: `num_rollouts` solutions of the policy to each question."""
    asks = [Ask(prompt_ids(completer.policy.tokenizer, prompt.messages)) for prompt in questions]
    sampling = Sampling(settings.solutions.temperature, settings.solutions.top_p)
    drawn = completer.complete(
        asks, n=settings.num_rollouts, limit=data.max_response_length, sampling=sampling, purpose="solve", narrate=True
    )
    return [[d.text if d.finished else Failure("truncated") for d in row] for row in drawn]


def judge_texts(
    questions: Sequence[Prompt],
    asker: Asker,
    data: DataSettings,
    settings: LabelSettings,
    tell: Callable[[str], None] = lambda _: None,
) -> Texts:
    """Method 2: `num_rollouts` solutions of the judge's model to each question.

    Where all of the first answers are failures, nothing more is asked.

    Args:
        questions: as asked.
        asker: reaches the model.
        data: length limit.
        settings: how many, and how they are drawn.
        tell: hears how far it is, where there is much to do.

    Raises:
        ConfigError: the endpoint refuses the key, the model or the path.
    """
    requests = [
        ChatRequest(prompt.messages, data.max_response_length, settings.solutions.temperature, sample)
        for prompt in questions
        for sample in range(settings.num_rollouts)
    ]
    found: dict[int, str | Failure] = {}
    failed = 0
    with closing(asker.answers(requests, [_anything] * len(requests), role="solve")) as answers:
        for i, answer in answers:
            found[i] = answer
            failed += isinstance(answer, Failure) and answer.reason not in LEFT_OUT
            if failed == len(found) == FIRST_LOOK:
                break
            if len(requests) > 10 * FIRST_LOOK and len(found) % (len(requests) // 10) == 0:
                tell(f"solutions written {len(found)}/{len(requests)}")
    texts = iter([found.get(i, Failure(NOT_ASKED)) for i in range(len(requests))])
    return [[next(texts) for _ in range(settings.num_rollouts)] for _ in questions]


def _anything(reply: ChatReply) -> str | Failure:
    return reply.text if reply.text.strip() else Failure("empty", "the reply is blank")


def solve(
    questions: Sequence[Prompt],
    texts: Texts,
    data: DataSettings,
    settings: LabelSettings,
    verifier: Verifier,
    *,
    splitter: Splitter,
    model: str,
) -> Solved:
    """Cut solutions into steps and check their answers.

    Args:
        questions: as asked.
        texts: the solutions of each.
        data: whether an unreadable answer is wrong.
        settings: fewest steps.
        verifier: checks.
        splitter: cuts.
        model: who wrote them, for the record.

    Raises:
        ConfigError: the splitter `separator` for questions that have none.
    """
    left_out: Counter[str] = Counter()
    details: dict[str, str] = {}
    rows: list[tuple[str, Prompt, str, tuple[str, ...]]] = []
    for prompt, own in zip(questions, texts, strict=True):
        separator = family_of(prompt).separator if is_generated(prompt) else ""
        seen: set[str] = set()
        for k, text in enumerate(own):
            if isinstance(text, Failure):
                left_out[text.reason] += 1
                details[text.reason] = text.detail
                continue
            steps = split(text, splitter, separator=separator)
            reason = (
                "duplicate" if text in seen else "too_few_steps" if len(steps) < settings.solutions.min_steps else ""
            )
            seen.add(text)
            if reason:
                left_out[reason] += 1
            else:
                rows.append((f"{prompt.id}-{k}", prompt, text, steps))
    judgements = verifier.check_batch([row[2] for row in rows], [row[1] for row in rows])
    unchecked: Counter[str] = Counter()
    written = []
    for (name, prompt, _, steps), judgement in zip(rows, judgements, strict=True):
        made_by = {"model": model, "method": settings.method, "splitter": splitter}
        solution = checked_solution(name, prompt, steps, judgement, data, made_by)
        if solution.is_correct is None:
            unchecked[judgement.verdict] += 1
        written.append(Written(solution, prompt))
    return Solved(tuple(written), dict(left_out), dict(unchecked), details)


def given_solutions(
    solutions: Sequence[Solution],
    prompts: Sequence[Prompt],
    data: DataSettings,
    settings: LabelSettings,
    verifier: Verifier,
) -> Solved:
    """Solutions that are there already, without their labels; answers that nobody has checked are checked.

    Args:
        solutions: with steps.
        prompts: known questions; a solution to another one gets a prompt of its own.
        data: the system prompt; whether an unreadable answer is wrong.
        settings: fewest steps; how many questions, where that is given.
        verifier: checks answers where the true one is known.
    """
    most = settings.num_samples if "num_samples" in settings.model_fields_set else None
    known = {question_hash(prompt.messages): prompt for prompt in prompts}
    questions: set[str] = set()
    seen: set[tuple[str, str]] = set()
    left_out: Counter[str] = Counter()
    rows: list[Written] = []
    for solution in solutions:
        messages: tuple[Message, ...] = ({"role": "user", "content": solution.question},)
        name = question_hash(messages)
        if most is not None and len(questions | {name}) > most:
            left_out["beyond_num_samples"] += 1
            continue
        questions.add(name)
        if (name, solution.text) in seen or len(solution.steps) < settings.solutions.min_steps:
            left_out["duplicate" if (name, solution.text) in seen else "too_few_steps"] += 1
            continue
        seen.add((name, solution.text))
        source = str(solution.meta.get("data_source") or solution.meta.get("subset") or "")
        messages = insert_system_prompt(messages, data.system_prompt)
        prompt = known.get(name) or Prompt(name, messages, solution.ground_truth or "", source)
        rows.append(Written(solution, prompt))
    open_ = [k for k, w in enumerate(rows) if w.solution.is_correct is None and w.prompt.ground_truth]
    judged = verifier.check_batch([rows[k].solution.text for k in open_], [rows[k].prompt for k in open_])
    found = dict(zip(open_, judged, strict=True))
    unchecked: Counter[str] = Counter()
    times: Counter[str] = Counter()
    written = []
    for k, (solution, prompt) in enumerate((w.solution, w.prompt) for w in rows):
        judgement = found.get(k)
        right = solution.is_correct
        if judgement is not None:
            wrong = data.unparsable == "wrong" and judgement.verdict == "answer_unparsable"
            right = False if wrong else judgement.correct
        if right is None:
            unchecked["no_true_answer" if judgement is None else judgement.verdict] += 1
        times[solution.id] += 1
        again = f"-{times[solution.id]}" if times[solution.id] > 1 else ""
        about = {"ratings", "finish_reason"}  # what PRM800K says of labels that are not these
        meta = {name: value for name, value in solution.meta.items() if name not in about}
        meta |= {"question_id": prompt.id}
        if is_generated(prompt):
            meta["extra_info"] = dict(prompt.extra_info)
        answer = judgement.answer if solution.answer is None and judgement is not None else solution.answer
        plain = replace(
            solution, id=solution.id + again, labels=(), rewards=(), is_correct=right, answer=answer, meta=meta,
            ground_truth=solution.ground_truth or prompt.ground_truth or None,
        )  # fmt: skip
        written.append(Written(plain, prompt))
    return Solved(tuple(written), dict(left_out), dict(unchecked))


def checked_solution(
    name: str, prompt: Prompt, steps: tuple[str, ...], judgement: Judgement, data: DataSettings, made_by: dict[str, Any]
) -> Solution:
    """A solution with what the verifier said of its answer.

    Args:
        name: its id.
        prompt: the question.
        steps: its text in pieces.
        judgement: the verifier's.
        data: whether an unreadable answer is wrong.
        made_by: goes into `meta`; its `splitter` says how steps end.
    """
    wrong = data.unparsable == "wrong" and judgement.verdict == "answer_unparsable"
    meta = {**made_by, "question_id": prompt.id, "data_source": prompt.data_source}
    if is_generated(prompt):
        meta["extra_info"] = dict(prompt.extra_info)
    separator = family_of(prompt).separator if is_generated(prompt) else _SEPARATORS.get(made_by["splitter"], "")
    return Solution(
        id=name, question=prompt.question, steps=steps, is_correct=False if wrong else judgement.correct,
        ground_truth=prompt.ground_truth, answer=judgement.answer, separator=separator, meta=meta,
    )  # fmt: skip


_SEPARATORS = {"blank_line": "\n\n", "newline": "\n"}
