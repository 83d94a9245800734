"""Verifier: whether a response is right, or the reason why that is not known; never a made-up 0.

Four ways to compare with the true answer: `math` (as numbers, else symbolically, in processes with a time limit),
`numeric` (exact fractions), `exact` (normalised strings) and `code` (a program is run on tests, in isolation; its
outcome is the share that it passes). Generated problems have their own check: a response without an answer is wrong
there, because the format is part of the task, so their verdict is always `equal` or `different`. Elsewhere a response
without a readable answer is `answer_unparsable`, a failed measurement, unless the caller declares it wrong.

    with Verifier("auto") as verifier:
        results = verifier.check_batch(responses, prompts)
    rewards = [outcome(result) for result in results]      # 1.0, 0.0 or a Failure
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol, cast, runtime_checkable

from guerdon.errors import ConfigError, DataError, MissingDependencyError
from guerdon.processes.attempts import attempt
from guerdon.processes.subprocess_worker import SubprocessPool, WorkerDiedError, WorkerTimeoutError
from guerdon.settings.data import VERIFIERS, DataSettings
from guerdon.tasks.answer_text import as_read, normalized, prose, typographic, undecorated
from guerdon.tasks.answer_words import (
    ambiguous,
    by_name,
    compare_choices,
    compare_words,
    in_figures,
    plain_maths,
    renamed,
    without_approximation,
    without_e,
)
from guerdon.tasks.answers import answered, concluded, final_answer, final_answers, is_list, without_html
from guerdon.tasks.code.code_tests import Sandbox, check_isolation, is_code, program_of, read_tests, run_tests
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.quantities import Pair, in_unit, pair
from guerdon.tasks.reasoning import is_generated, step_truth
from guerdon.tasks.rounding import Rounding, rounding_of
from guerdon.tasks.units import is_rounded
from guerdon.types import Failure

Kind = Literal["auto", "math", "numeric", "exact", "code"]
Verdict = Literal["equal", "different", "gold_unparsable", "answer_unparsable", "timeout", "raised"]

_START_SECONDS = 120.0  # for a process to import its libraries, on a machine that is busy
_MAX_CHARACTERS = 2000  # of an answer that is parsed
_MAX_WORDS = 300  # characters of a true answer in words; a longer one is a text that marks no answer


@dataclass(frozen=True)
class VerifierResult:
    """The verdict on one response.

    Attributes:
        verdict: `equal` and `different` are measurements, the others say why there is none.
        answer: what the response states as its answer.
        detail: one line of explanation.
        passed: of a program, the share of its tests; `equal` is all of them.
    """

    verdict: Verdict
    answer: str | None = None
    detail: str = ""
    passed: float | None = None

    @property
    def correct(self) -> bool | None:
        """Whether the response is right; None where that is not known."""
        return {"equal": True, "different": False}.get(self.verdict)

    @property
    def failure(self) -> Failure | None:
        """Why there is no measurement; None where there is one."""
        return Failure(self.verdict, self.detail) if self.correct is None else None


def outcome(result: VerifierResult, unparsable: Literal["failure", "wrong"] = "failure") -> float | Failure:
    """The outcome reward: 1, 0, for a program the share of tests that it passes, or the failure.

    Args:
        result: a verifier's.
        unparsable: what a response without a readable answer is: a failed measurement, or wrong by declaration
            (the setting `data.unparsable`). An unreadable gold answer and a timeout are failures either way.
    """
    if result.verdict == "answer_unparsable" and unparsable == "wrong":
        return 0.0
    return result.failure or (float(result.verdict == "equal") if result.passed is None else result.passed)


class MathPool(SubprocessPool):
    """Processes that compare answers as mathematics, started when first needed. Usable from any number of threads.

    `math-verify` limits its time with signals, which fail in threads and do nothing inside a long multiplication;
    here a process that takes too long is killed.

    Args:
        workers: how many, at most.
        timeout: seconds of wall-clock per pair.
        tolerance: relative difference at which two numbers count as equal.
        command: what a process runs instead of the module `verifier_worker`, with the same protocol.
    """

    def __init__(
        self, *, workers: int = 2, timeout: float = 10.0, tolerance: float = 0.0, command: Sequence[str] | None = None
    ) -> None:
        module = [sys.executable, "-m", "guerdon.tasks.verifier_worker", str(timeout), str(tolerance)]
        super().__init__(
            command or module, workers=workers, start_seconds=_START_SECONDS, description="answer-checking process"
        )
        self.timeout = timeout
        self._needs_math_verify = command is None

    def check_installed(self) -> None:
        """Raise an error where math-verify is missing.

        Raises:
            MissingDependencyError: math-verify is not installed.
        """
        if self._needs_math_verify and importlib.util.find_spec("math_verify") is None:
            raise MissingDependencyError("comparing answers needs the package math-verify: pip install 'guerdon[text]'")

    def compare(self, gold: str, answer: str, rounding: Rounding | None = None) -> tuple[Verdict, str]:
        """Verdict on an answer and, where there is none, why.

        `timeout` stands for no verdict in time, for a comparison that no bounded amount of work decides, and for two
        processes that ended on the same pair (out of memory, killed).

        Args:
            gold: the true answer, without what marks it.
            answer: the stated one, likewise.
            rounding: what the question allows (`rounding.rounding_of`).

        Raises:
            MissingDependencyError: math-verify is not installed, or no process can be started.
        """
        self.check_installed()
        if gold.strip() and gold.strip() == answer.strip():
            return "equal", ""
        for text, verdict in ((gold, "gold_unparsable"), (answer, "answer_unparsable")):
            if len(text) > _MAX_CHARACTERS:
                return cast(Verdict, verdict), f"longer than {_MAX_CHARACTERS} characters"
        try:
            reply = self.request({"gold": gold, "answer": answer, "rounding": rounding}, self.timeout)
        except WorkerTimeoutError:
            return "timeout", f"no verdict within {self.timeout:g} s"
        except WorkerDiedError:
            return "timeout", "the comparing process ended twice"
        return reply["verdict"], reply["detail"]


class Verifier:
    """Checks responses against the true answers of their prompts. Usable from any thread.

    Args:
        kind: which comparison; `auto` uses the check of generated problems, runs the tests of programming tasks,
            compares answers of GSM8K as numbers and all others by math.
        timeout: seconds of wall-clock per answer (math), of computing time per test (code).
        workers: processes at a time (math, code), started when the first answer needs one.
        tolerance: relative difference at which two numbers count as equal (math, numeric).
        command: what a process runs, see `MathPool`.
    """

    def __init__(
        self,
        kind: Kind = "auto",
        *,
        timeout: float = 10.0,
        workers: int = 2,
        tolerance: float = 0.0,
        command: Sequence[str] | None = None,
    ) -> None:
        self.kind = kind
        self.tolerance = tolerance
        self.workers = workers
        self._timeout = timeout
        self._pool = MathPool(workers=workers, timeout=timeout, tolerance=tolerance, command=command)
        if kind == "math":
            self._pool.check_installed()  # report it before the first rollout
        if kind == "code":
            check_isolation()

    def check(self, response: str, prompt: Prompt) -> VerifierResult:
        """Check one response.

        Raises:
            DataError: a generated prompt whose question was changed.
            MissingDependencyError: math-verify is needed and not installed.
        """
        kind = self.kind_for(prompt)
        if kind == "generated":
            truth = step_truth(prompt, response)
            return VerifierResult("equal" if truth.outcome else "different", truth.answer)
        if kind == "exact":
            return check_exact(response, prompt.ground_truth)
        if kind == "numeric":
            return check_numeric(response, prompt.ground_truth, self.tolerance, prompt.question)
        if kind == "code":
            return check_code(response, prompt.ground_truth, self._timeout)
        return self._check_math(response, prompt)

    def check_batch(self, responses: Sequence[str], prompts: Sequence[Prompt]) -> list[VerifierResult]:
        """Check B responses, each against its own prompt; in order."""
        pairs = list(zip(responses, prompts, strict=True))
        slow = [i for i, (_, prompt) in enumerate(pairs) if self.kind_for(prompt) in ("math", "code")]
        late: dict[int, VerifierResult] = {}
        if slow:
            with ThreadPoolExecutor(self.workers) as threads:
                late = dict(zip(slow, threads.map(lambda i: self.check(*pairs[i]), slow), strict=True))
        return [late[i] if i in late else self.check(*pair) for i, pair in enumerate(pairs)]

    def kind_for(self, prompt: Prompt) -> Literal["generated", "math", "numeric", "exact", "code"]:
        """Which comparison is used for this prompt."""
        if self.kind != "auto":
            return self.kind
        if is_generated(prompt):
            return "generated"
        if is_code(prompt.ability, prompt.ground_truth):
            return "code"
        return "numeric" if "gsm8k" in prompt.data_source.lower() else "math"

    def _check_math(self, response: str, prompt: Prompt) -> VerifierResult:
        response = without_html(answered(response))
        golds = final_answers(prompt.ground_truth) or [undecorated(prompt.ground_truth)]
        gold = ", ".join(golds)
        many = len(golds) > 1 or is_list(gold)
        answers = _answers(response, gold)
        answer = ", ".join(answers) if many else next(reversed(answers), None)
        problem = _problem_of_gold(gold)
        if problem:
            return VerifierResult("gold_unparsable", answer, problem)
        if not answer:
            return VerifierResult("answer_unparsable", None, "no final answer in the response")
        if len(answer) > _MAX_CHARACTERS:
            return VerifierResult("answer_unparsable", answer, f"longer than {_MAX_CHARACTERS} characters")
        if len(answers) > 1 and not many:
            return VerifierResult("answer_unparsable", answer, f"one sentence has {len(answers)} different boxes")
        verdict, detail = self._compare(gold, answer, prompt.question)
        if verdict == "equal" and renamed(gold, answer, prompt.question):
            return VerifierResult("answer_unparsable", answer, "the values of other names")
        if verdict != "different":
            return VerifierResult(verdict, answer, detail)
        if _ends_as_exclamation(answer, response):
            return VerifierResult("answer_unparsable", answer, "a factorial, or the end of an exclamation")
        if many and self._equals_more_boxes(gold, response, len(answers), prompt.question):
            return VerifierResult("answer_unparsable", answer, "boxes in several sentences")
        return VerifierResult(verdict, answer, detail)

    def _equals_more_boxes(self, gold: str, response: str, fewer: int, question: str) -> bool:
        """Whether the boxes of all sentences, if they are more than so many, are the true answer."""
        every = final_answers(response, every=True)
        return len(every) > fewer and self._compare(gold, ", ".join(every), question)[0] == "equal"

    def _compare(self, gold: str, answer: str, question: str) -> tuple[Verdict, str]:
        """Verdict on an answer and, where there is none, why."""
        chosen, stated = compare_choices(gold, answer, question)
        if chosen is not None:
            return chosen, stated
        parts = by_name(gold, stated)
        if parts is not None:
            return self._compare_parts(*parts, question)
        gold, stated = plain_maths(gold), plain_maths(stated)
        unread = ambiguous(gold, stated)
        if unread is not None:
            return unread
        both = pair(gold, without_approximation(stated, gold), question)
        return (
            self._compare_numbers(both, question)
            or self._compare_texts(both.gold.text, both.answer.text, both.ratio == 1, question)
            or self._compare_maths(both, question)
        )

    def _compare_numbers(self, both: Pair, question: str) -> tuple[Verdict, str] | None:
        """Verdict on answers of which each is one number; None where one is not, or may be rounded."""
        if both.conflict:
            return "answer_unparsable", both.conflict
        same = both.same_number(self.tolerance)
        if same:
            return "equal", ""
        if same is False:
            return ("different", "") if rounding_of(question) is None else None
        if both.gold.number is not None and both.answer.number is not None:
            return "answer_unparsable", "a number whose unit the true answer does not name, or a rounded conversion"
        return None

    def _compare_texts(self, gold: str, stated: str, one_unit: bool, question: str) -> tuple[Verdict, str] | None:
        """Verdict on answers that are the same text, numbers in words, or other words; None where both are maths."""
        if one_unit and as_read(gold) == as_read(stated):
            return "equal", ""
        figures = [in_figures(text, question) for text in (gold, stated)]
        if any(figures):
            left, right = (number or text for number, text in zip(figures, (gold, stated), strict=True))
            if self._pool.compare(typographic(left), typographic(right))[0] == "equal":
                return "equal", ""
            if not all(figures):
                return "answer_unparsable", "a number in words, which may be one in figures"
        return compare_words(gold, stated)

    def _compare_maths(self, both: Pair, question: str) -> tuple[Verdict, str]:
        """Verdict of the processes; none on an equation that does not state an answer."""
        gold, stated = both.gold.text, both.answer.text
        sides = _EQUALS.split(stated)
        if len(sides) > 1 and not _EQUALS.search(gold) and "Poly(" not in stated and not _is_asked(sides[0], question):
            return "answer_unparsable", f"{sides[0].strip()[:80]!r} is not a name, nor in the question"
        if len(sides) > 1 and not re.search("[A-Za-z]", _COMMAND.sub("", sides[0])):
            verdict, _ = self._pool.compare(typographic(sides[-1]), typographic(sides[0]))
            if verdict != "equal":
                return "answer_unparsable", "the sides of its equation are not equal"
        scaled = in_unit(stated, both.ratio)
        if scaled is None:
            return "answer_unparsable", "a unit that is not the true answer's, behind an equation or a list"
        gold, scaled = without_e(gold, scaled), without_e(scaled, gold)
        verdict, detail = self._pool.compare(typographic(gold), typographic(scaled), rounding_of(question))
        if verdict == "different" and is_rounded(both.ratio):
            return "answer_unparsable", "not exactly equal in the unit of the true answer"
        return verdict, detail

    def _compare_parts(self, parts: Sequence[tuple[str, str]], ordered: bool, question: str) -> tuple[Verdict, str]:
        """Verdict on answers that are compared part by part; the first that is not equal decides."""
        found = [self._compare(gold, answer, question) for gold, answer in parts]
        wrong = next((one for one in found if one[0] != "equal"), None)
        if wrong is None:
            return "equal", ""
        if not ordered and sorted(normalized(g) for g, _ in parts) == sorted(normalized(a) for _, a in parts):
            return "answer_unparsable", "the values without their names, in another order"
        return wrong

    def close(self) -> None:
        """End the processes, if any run."""
        self._pool.close()

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_exact(response: str, ground_truth: str) -> VerifierResult:
    """Compare as normalised strings; a response that marks no answer is the answer as a whole."""
    gold, response = normalized(final_answer(ground_truth) or ground_truth), answered(response)
    answer = final_answer(response) or response.strip()
    stated = normalized(answer)
    if not gold:
        return VerifierResult("gold_unparsable", answer or None, "the true answer is empty")
    if not stated:
        return VerifierResult("answer_unparsable", None, "no final answer in the response")
    return VerifierResult("equal" if stated == gold else "different", answer)


@lru_cache(maxsize=64)  # several responses have one true answer
def _marked_or_whole(ground_truth: str) -> str:
    return final_answer(ground_truth) or ground_truth.strip()


def check_numeric(response: str, ground_truth: str, tolerance: float = 0.0, question: str = "") -> VerifierResult:
    """Compare as exact fractions, or with a relative tolerance where one is declared (see `quantities.numbers_of`).

    Args:
        response: of a model.
        ground_truth: the true answer.
        tolerance: relative difference at which two numbers count as equal.
        question: whose words count as units.
    """
    gold, response = _marked_or_whole(ground_truth), without_html(answered(response))
    answers = final_answers(response)
    answer = answers[-1] if answers else concluded(response, gold)
    both = pair(gold, answer or "", question)
    if both.gold.number is None:
        return VerifierResult("gold_unparsable", answer, f"not a number: {gold[:80]!r}")
    if len(answers) > 1:
        return VerifierResult("answer_unparsable", answer, f"one sentence has {len(answers)} different boxes")
    if answer is None:
        return VerifierResult("answer_unparsable", None, "no final answer in the response")
    same = both.same_number(tolerance)
    if same is None:
        return VerifierResult(
            "answer_unparsable", answer, f"not a number in the unit of the true answer: {answer[:80]!r}"
        )
    return VerifierResult("equal" if same else "different", answer)


def check_code(response: str, ground_truth: str, cpu_seconds: float = 10.0) -> VerifierResult:
    """Run the program in a response on the tests of its row, in isolation (see `code_tests.py`).

    Args:
        response: of a model; its last closed Python block is the program.
        ground_truth: the tests.
        cpu_seconds: per test.

    Raises:
        MissingDependencyError: programs cannot be isolated on this machine.
    """
    program = program_of(response)
    try:
        tests = read_tests(ground_truth)
        if program is None:
            return VerifierResult("answer_unparsable", None, "no closed block of Python in the response")
        with Sandbox() as sandbox:
            passed = run_tests(tests, program, sandbox, cpu_seconds=cpu_seconds)
    except DataError as error:
        return VerifierResult("gold_unparsable", program, str(error))
    if passed is None:
        return VerifierResult("timeout", program, "the process that runs the tests ended")
    return VerifierResult(
        "equal" if passed == 1 else "different", program, f"{passed:.0%} of {len(tests)} tests", passed
    )


_COMMAND = re.compile(r"\\[A-Za-z]+")
_NO_GOLD = re.compile(  # what stands where a true answer is missing
    r"(?i)\W*(?:n/?a|tbd|not available|omitted|proof"
    r"|see (?:the )?(?:solution|explanation|above|below|attached|figure)s?)"
    r"\W*"
)
_EQUALS = re.compile(r"(?<![<>!=])=(?!=)")
_NAME = re.compile(  # x, AB, area, \theta, |AB|
    r"\\?[A-Za-z]|[A-Z]+|(?!log|ln|sin|cos|tan|sqrt|exp|abs|floor|ceil)[A-Za-z]{3,}|\\[A-Za-z]+|\|[A-Z]{2}\|"
    r"|\\(?:overline|vec|hat|bar|angle|triangle|Delta|mathbf|mathcal|mathrm|text)\{?[A-Za-z ]+\}?"
)


def _answers(response: str, gold: str) -> list[str]:
    """The answers that a response marks, or the one that it concludes with."""
    marked = final_answers(response)
    stated = None if marked else concluded(response, gold)
    return [stated] if stated else marked


def _problem_of_gold(gold: str) -> str:
    """Why nothing can be compared with a true answer; "" where something can."""
    if _NO_GOLD.fullmatch(gold):
        return f"the true answer is {gold!r}"
    if not gold:
        return "the true answer is empty"
    in_words = prose(gold) and not final_answer(gold)
    most = _MAX_WORDS if in_words else _MAX_CHARACTERS
    return "the true answer is too long" if len(gold) > most else ""


def _ends_as_exclamation(answer: str, response: str) -> bool:
    """Whether `7!` ends an answer and the response, so that it may be a factorial or not."""
    return re.search(r"[0-9]!\Z", answer) is not None and response.rstrip("*_ \n").endswith(f" {answer}")


def _is_asked(left: str, question: str) -> bool:
    """Whether the text in front of `=` is a name, the question's own expression, or has no letters (a sum)."""
    plain, asked = (re.sub(r"[\s$]|\\[,!;: ]", "", typographic(text)) for text in (left, question))
    bare = re.sub(r"'+|\^\*|_(?:\{[^{}]*\}|\w)|\([^()=]*\)$", "", plain)
    return not re.search("[A-Za-z]", _COMMAND.sub("", plain)) or plain in asked or _NAME.fullmatch(bare) is not None


@runtime_checkable
class ResponseChecker(Protocol):
    """A user's verifier."""

    def check(self, response: str, prompt: Prompt) -> VerifierResult:
        """Check one response."""


class OwnVerifier(Verifier):
    """A user's verifier behind the interface of `Verifier`.

    Args:
        name: what configurations call it.
        checker: checks one response.
    """

    def __init__(self, name: str, checker: ResponseChecker) -> None:
        super().__init__("exact")
        self._name, self._checker = name, checker

    def check(self, response: str, prompt: Prompt) -> VerifierResult:
        """Check one response; where the checker raises, the verdict is `raised`.

        Raises:
            ConfigError: the checker returned something else.
        """
        what = f"the verifier {self._name}"
        result = attempt(what, "raised", lambda: self._checker.check(response, prompt))
        if isinstance(result, Failure):
            return VerifierResult("raised", detail=result.detail)
        if not isinstance(result, VerifierResult):
            raise ConfigError(
                f"the verifier {self._name} returned a {type(result).__name__}, not a VerifierResult",
                key="data.verifier",
            )
        return result


def verifier_from(settings: DataSettings) -> Verifier:
    """The verifier that the `data` section describes.

    Raises:
        ConfigError: the data has no answers; or a user's own factory raised, or returned something else.
    """
    if settings.type == "prompts":
        raise ConfigError.about(
            "data.type",
            "prompts has no true answers, and this command compares with them: give a file with answers by "
            "data.type files",
        )
    if settings.type == "generated":
        return Verifier(settings.verifier)
    if VERIFIERS.is_own(settings.verifier):
        checker = VERIFIERS.build(settings.verifier, settings.verifier_params, ResponseChecker)
        return OwnVerifier(settings.verifier, checker)
    return Verifier(
        cast(Kind, settings.verifier),
        timeout=settings.verifier_timeout,
        workers=settings.verifier_workers,
        tolerance=settings.verifier_tolerance,
    )
