"""Candidates for labels: questions by their fail rate, and solutions of a policy, of the judge's model, or from files.

Questions: each is tried k times; its fail rate is the share of wrong answers among those that can be checked, with
Wilson's interval, which is wide for few attempts. Those that a policy fails on often, but not always, are kept. (The
seed's own script kept only questions that were always wrong, then demanded at most 0.8, and so kept none.)

Solutions: a policy writes them (method 1), the judge's model (method 2), or they are read from files. Each is cut into
steps and its answer checked. Left out, and counted: those that the length limit cut, that repeat another solution of
the question, or that have too few steps.

    kept, table = mine(prompts, completer, verifier, study.data, MiningSettings(), wanted=1000)
    table[0]                        # {"id": ..., "fail_rate": 0.375, "low": 0.137, "high": 0.694, "kept": True}
    found = split_and_check(kept, texts, study.data, study.label, verifier, splitter="blank_line", model="sft")
    found.solutions[0].solution.is_correct, found.left_out
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Any

from guerdon.endpoints.completions import Completer, CompletionRequest, SamplingParams
from guerdon.endpoints.llm_client import BUDGET, NOT_ASKED, LLMClient, LLMReply, LLMRequest
from guerdon.episodes.solutions import Solution
from guerdon.labels.labelers import ContinuationSampler, PromptedSolution
from guerdon.policies.batches.step_splitters import split
from guerdon.policies.batches.tokens import prompt_ids
from guerdon.processes.progress import ProgressBar
from guerdon.reading.chats import ChatError
from guerdon.settings.data import DataSettings
from guerdon.settings.label import LabelSettings, MiningSettings, Splitter
from guerdon.statistics.proportion import wilson_bounds
from guerdon.tasks.prompt_files import prompted
from guerdon.tasks.prompts import Prompt, conversation_hash
from guerdon.tasks.reasoning import family_of, is_generated
from guerdon.tasks.trained_questions import question_name
from guerdon.tasks.verifier import Verifier, outcome
from guerdon.types import Failure

MINED_AT_A_TIME = 64  # questions
MINING_TEMPERATURE = 0.7
FIRST_LOOK = 20  # answers after which failures are counted
LEFT_OUT = ("duplicate", "too_few_steps", "truncated", BUDGET, NOT_ASKED)  # reasons that are not failed measurements
_SEPARATORS = {"blank_line": "\n\n", "newline": "\n"}

Texts = Sequence[Sequence[str | Failure]]
"""Per question, its solutions or why one is missing."""


@dataclass(frozen=True)
class Candidates:
    """Solutions to label.

    Attributes:
        solutions: with steps, and whether the answer is right.
        unchecked: why answers could not be checked, and how many.
        left_out: why others were left out, and how many.
        details: by reason of `left_out`, the detail of one.
    """

    solutions: tuple[PromptedSolution, ...]
    unchecked: Mapping[str, int]
    left_out: Mapping[str, int]
    details: Mapping[str, str] = field(default_factory=dict)


def mine(
    prompts: Sequence[Prompt],
    completer: Completer,
    verifier: Verifier,
    data: DataSettings,
    settings: MiningSettings,
    *,
    wanted: int,
) -> tuple[list[Prompt], list[dict[str, Any]]]:
    """Try questions in order until `wanted` are kept, or `max_questions` were tried.

    Args:
        prompts: questions with known answers.
        completer: writes the attempts.
        verifier: checks them.
        data: length limit; whether an unreadable answer is wrong.
        settings: attempts, and which fail rates are kept.
        wanted: how many questions are enough.

    Returns:
        Questions to label, in the order of the data; and a row per question that was tried.
    """
    kept: list[Prompt] = []
    table: list[dict[str, Any]] = []
    prompts = prompts[: settings.max_questions]
    k = settings.attempts
    sampler = ContinuationSampler(completer, verifier, data, SamplingParams(MINING_TEMPERATURE))
    with closing(ProgressBar(len(prompts), what="questions", lines=10)) as progress:
        for start in range(0, len(prompts), MINED_AT_A_TIME):
            if len(kept) >= wanted:
                break
            batch = prompts[start : start + MINED_AT_A_TIME]
            for prompt, outcomes in zip(batch, sampler.outcomes([(p, "") for p in batch], k, "mine"), strict=True):
                row = fail_rate_row(prompt, outcomes, settings)
                row["kept"] = row["kept"] and len(kept) < wanted
                kept += [prompt] if row["kept"] else []
                table.append(row)
            progress.advance(len(table), f"{len(kept)} kept")
    return kept, table


def fail_rate_row(prompt: Prompt, outcomes: Sequence[float | Failure], settings: MiningSettings) -> dict[str, Any]:
    """The row of a question in the table; its fail rate is null where no answer could be checked."""
    known = [v for v in outcomes if not isinstance(v, Failure)]
    fails = sum(v < 1.0 for v in known)
    rate = fails / len(known) if known else None
    low, high = wilson_bounds(fails, len(known)) if known else (None, None)
    kept = rate is not None and settings.min_fail_rate <= rate <= settings.max_fail_rate
    return {
        "id": prompt.id, "question": prompt.question, "attempts": len(outcomes), "checked": len(known),
        "fails": fails, "fail_rate": rate, "low": low, "high": high, "kept": kept,
    }  # fmt: skip


def policy_texts(
    questions: Sequence[Prompt], completer: Completer, data: DataSettings, settings: LabelSettings
) -> Texts:
    """Method 1: `num_rollouts` solutions of the policy to each question."""
    tokenizer = completer.policy.tokenizer
    requests = [CompletionRequest(prompt_ids(tokenizer, prompt.messages, prompt.tools)) for prompt in questions]
    completions = completer.complete(
        requests, n=settings.num_rollouts, limit=data.max_response_length, purpose="solve", show_progress=True,
        sampling=SamplingParams(settings.solutions.temperature, settings.solutions.top_p),
    )  # fmt: skip
    return [[one.text if one.finished else Failure("truncated") for one in row] for row in completions]


def judge_texts(
    questions: Sequence[Prompt],
    client: LLMClient,
    data: DataSettings,
    settings: LabelSettings,
    write_line: Callable[[str], None] = lambda _: None,
) -> Texts:
    """Method 2: `num_rollouts` solutions of the judge's model to each question.

    Where all of the first answers are failures, nothing more is sent.

    Args:
        questions: prompts.
        client: of the model.
        data: length limit.
        settings: how many, and how they are sampled.
        write_line: shows progress, where there is much to do.

    Raises:
        ConfigError: the endpoint refuses the key, the model or the path.
    """
    n = settings.num_rollouts
    found: dict[int, str | Failure] = {}  # by place: sample s of question k is at k * n + s
    for k, prompt in enumerate(questions):
        why = _unsendable(prompt)
        if why is not None:
            found |= dict.fromkeys(range(k * n, (k + 1) * n), why)
    places = [place for place in range(n * len(questions)) if place not in found]
    messages = [_texts_only(prompt) for prompt in questions]
    limit, temperature = data.max_response_length, settings.solutions.temperature
    requests = [LLMRequest(messages[place // n], limit, temperature, place % n) for place in places]
    unsent, failed = len(found), 0
    with closing(client.complete(requests, [_not_blank] * len(requests), role="solve")) as answers:
        for i, answer in answers:
            found[places[i]] = answer
            failed += isinstance(answer, Failure) and answer.reason not in LEFT_OUT
            done = len(found) - unsent
            if failed == done == FIRST_LOOK:
                break
            if len(requests) > 10 * FIRST_LOOK and done % (len(requests) // 10) == 0:
                write_line(f"solutions written {done}/{len(requests)}")
    texts = [found.get(i, Failure(NOT_ASKED)) for i in range(n * len(questions))]
    return [texts[i * n : (i + 1) * n] for i in range(len(questions))]


def _texts_only(prompt: Prompt) -> tuple[dict[str, Any], ...]:
    """The messages of a prompt without calls of tools."""
    return tuple({"role": message["role"], "content": message["content"]} for message in prompt.messages)


def _unsendable(prompt: Prompt) -> Failure | None:
    """Why a prompt cannot be put to the judge's model, which writes text only."""
    calls = any(m["role"] == "tool" or m.get("tool_calls") for m in prompt.messages)
    if not prompt.tools and not calls:
        return None
    return Failure(ChatError.reason, f"the judge's model is given no tools, and prompt {prompt.id} has some")


def _not_blank(reply: LLMReply) -> str | Failure:
    return reply.text if reply.text.strip() else Failure("empty", "the reply is blank")


def split_and_check(
    questions: Sequence[Prompt],
    texts: Texts,
    data: DataSettings,
    settings: LabelSettings,
    verifier: Verifier,
    *,
    splitter: Splitter,
    model: str,
) -> Candidates:
    """Cut solutions into steps and check their answers.

    Args:
        questions: prompts.
        texts: the solutions of each.
        data: whether an unreadable answer is wrong.
        settings: fewest steps.
        verifier: checks the answers.
        splitter: cuts the steps.
        model: who wrote the solutions, for the record.

    Raises:
        ConfigError: the splitter `separator` for questions that have none.
    """
    left_out: Counter[str] = Counter()
    details: dict[str, str] = {}
    solutions: list[PromptedSolution] = []
    made_by = {"model": model, "method": settings.method, "splitter": splitter}
    for prompt, own in zip(questions, texts, strict=True):
        known: set[str] = set()
        for k, text in enumerate(own):
            if isinstance(text, Failure):
                left_out[text.reason] += 1
                details[text.reason] = text.detail
                continue
            one = split_solution(f"{prompt.id}-{k}", prompt, text, splitter, made_by)
            if text in known or len(one.solution.steps) < settings.solutions.min_steps:
                left_out["duplicate" if text in known else "too_few_steps"] += 1
            else:
                solutions.append(one)
            known.add(text)
    return Candidates(*check_answers(solutions, data, verifier), dict(left_out), details)


def split_solution(
    name: str, prompt: Prompt, text: str, splitter: Splitter, made_by: Mapping[str, Any]
) -> PromptedSolution:
    """A solution in steps; whether its answer is right is not known yet.

    Args:
        name: its id.
        prompt: the question.
        text: the solution.
        splitter: cuts the steps.
        made_by: goes into `meta`.

    Raises:
        ConfigError: the splitter `separator` for a question that has none.
    """
    own = family_of(prompt).separator if is_generated(prompt) else ""
    meta = {**made_by, "question_id": prompt.id, "data_source": prompt.data_source, **_extra_info(prompt)}
    solution = Solution(
        id=name, question=prompt.question, steps=split(text, splitter, separator=own), ground_truth=prompt.ground_truth,
        separator=own or _SEPARATORS.get(splitter, ""), meta=meta, context=prompt.context, tools=prompt.tools,
    )  # fmt: skip
    return PromptedSolution(solution, prompt)


def check_answers(
    solutions: Sequence[PromptedSolution], data: DataSettings, verifier: Verifier
) -> tuple[tuple[PromptedSolution, ...], dict[str, int]]:
    """Solutions with the verifier's result of their answers, where it is not known yet.

    Args:
        solutions: those without a true answer stay as they are.
        data: whether an unreadable answer is wrong.
        verifier: checks.

    Returns:
        The solutions, and why answers could not be checked, and how many.
    """
    open_ = [k for k, one in enumerate(solutions) if one.solution.is_correct is None and one.prompt.ground_truth]
    results = verifier.check_batch([solutions[k].solution.text for k in open_], [solutions[k].prompt for k in open_])
    found = dict(zip(open_, results, strict=True))
    unchecked: Counter[str] = Counter()
    checked = []
    for k, one in enumerate(solutions):
        solution, result = one.solution, found.get(k)
        if result is not None:
            value = outcome(result, data.unparsable)
            right = None if isinstance(value, Failure) else value == 1.0
            answer = result.answer if solution.answer is None else solution.answer
            solution = replace(solution, is_correct=right, answer=answer)
        if solution.is_correct is None:
            unchecked["no_true_answer" if result is None else result.verdict] += 1
        checked.append(PromptedSolution(solution, one.prompt))
    return tuple(checked), dict(unchecked)


def _extra_info(prompt: Prompt) -> dict[str, Any]:
    return {"extra_info": dict(prompt.extra_info)} if is_generated(prompt) else {}


def _by_name(prompts: Sequence[Prompt]) -> dict[str, Prompt]:
    """Prompts by the `conversation_hash` of what they ask; those of one user's turn by that of this turn, too."""
    known: dict[str, Prompt] = {}
    for prompt in prompts:
        known[conversation_hash(prompt.question, prompt.context, prompt.tools)] = prompt
        if not prompt.tools and all(m["role"] == "system" for m in prompt.context[:-1]):
            known[conversation_hash(prompt.question)] = prompt
    return known


def given_solutions(
    solutions: Sequence[Solution],
    prompts: Sequence[Prompt],
    data: DataSettings,
    settings: LabelSettings,
    verifier: Verifier,
) -> Candidates:
    """Solutions from files, without their labels; answers that are not checked yet are checked.

    Args:
        solutions: with steps.
        prompts: known questions; a solution to another one gets a prompt of its own.
        data: the system prompt; whether an unreadable answer is wrong.
        settings: fewest steps; how many questions, where that is given.
        verifier: checks answers where the true one is known.
    """
    known = _by_name(prompts)
    left_out: Counter[str] = Counter()
    times: Counter[str] = Counter()
    rows: list[PromptedSolution] = []
    for name, solution in _usable(solutions, settings, left_out):
        data_source = str(solution.meta.get("data_source") or solution.meta.get("subset") or "")
        messages = solution.context or ({"role": "user", "content": solution.question},)
        asked = Prompt(name, messages, solution.ground_truth or "", data_source, tools=solution.tools)
        prompt = known.get(name) or prompted(asked, data)
        times[solution.id] += 1
        rows.append(PromptedSolution(_unlabelled(solution, prompt, times[solution.id]), prompt))
    return Candidates(*check_answers(rows, data, verifier), dict(left_out))


def _usable(
    solutions: Sequence[Solution], settings: LabelSettings, left_out: Counter[str]
) -> list[tuple[str, Solution]]:
    """The solutions that can be labelled, each with the name of its conversation; `left_out` counts why others not."""
    most = settings.num_samples if "num_samples" in settings.model_fields_set else None
    questions: set[str] = set()
    texts: set[tuple[str, str]] = set()
    usable = []
    for solution in solutions:
        name = question_name(solution)
        if most is not None and len(questions | {name}) > most:
            left_out["beyond_num_samples"] += 1
            continue
        questions.add(name)
        if (name, solution.text) in texts:
            left_out["duplicate"] += 1
            continue
        if len(solution.steps) < settings.solutions.min_steps:
            left_out["too_few_steps"] += 1
            continue
        texts.add((name, solution.text))
        usable.append((name, solution))
    return usable


def _unlabelled(solution: Solution, prompt: Prompt, time: int) -> Solution:
    """A solution without its labels, with what its prompt says; the second one of an id gets `-2`, and so on."""
    about_labels = {"ratings", "finish_reason"}  # what PRM800K says of labels that are not these
    meta = {name: value for name, value in solution.meta.items() if name not in about_labels}
    meta |= {"question_id": prompt.id, **_extra_info(prompt)}
    again = f"-{time}" if time > 1 else ""
    return replace(
        solution, id=solution.id + again, labels=(), rewards=(), meta=meta,
        ground_truth=solution.ground_truth or prompt.ground_truth or None,
    )  # fmt: skip
