"""`guerdon label`: mine questions, get solutions, label their steps, pay rewards, write the data set.

Everything that is sampled or asked is kept on disk by its content before it is used, so the same command goes on
after a kill, and a second run samples and asks nothing. A spent budget ends the work cleanly: what is labelled is
written, unless the data set that is there has more. This module decides the order of things; what each stage does is
known elsewhere.

    done = label(study)
    done.folder, done.card["solutions"]["labelled"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from guerdon.episodes.solution_files import published_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError, TooManyFailuresError
from guerdon.labels.append_log import Cache
from guerdon.labels.asking import BUDGET, NOT_ASKED, Asker, HttpAsker
from guerdon.labels.card import Labelled, card_of, check_identity, counted, relabel_rewards, write_data_set
from guerdon.labels.chat import HttpModel
from guerdon.labels.completions import Completer, Sampling
from guerdon.labels.judge import JudgeLabeler, judgement_bound
from guerdon.labels.labeler import NO_CONSENSUS, ExactLabeler, Labeler, StepLabels, Written, in_groups
from guerdon.labels.ledger import Ledger, Usage
from guerdon.labels.local_asker import LocalAsker
from guerdon.labels.mining import Mined, mine
from guerdon.labels.monte_carlo import BinarySearchLabeler, ConsensusLabeler, MonteCarloLabeler, PolicySampler
from guerdon.labels.solving import (
    AT_A_TIME,
    FIRST_LOOK,
    LEFT_OUT,
    Solved,
    given_solutions,
    judge_texts,
    policy_texts,
    solve,
)
from guerdon.labels.step_rewards import pay
from guerdon.policies.text_files import load_policy
from guerdon.policies.tokens import prompt_ids
from guerdon.progress import ProgressBar
from guerdon.retry import Clock
from guerdon.settings.data import DataSettings
from guerdon.settings.label import JUDGED, LabelSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.types import Failure
from guerdon.worlds.prompt_files import load_prompts
from guerdon.worlds.prompts import Prompt
from guerdon.worlds.verifier import Verifier, verifier_from


@dataclass
class _Tools:
    """What the stages share, made when first needed and closed at the end."""

    study: Study
    data: DataSettings
    settings: LabelSettings
    cache: Path
    clock: Clock
    stack: ExitStack
    verifier: Verifier
    ledger: Ledger
    _completers: dict[str, Completer] = field(default_factory=dict)
    _asker: Asker | None = None
    _texts: Cache | None = None

    def completer(self, policy: TextPolicySettings | None = None) -> Completer:
        """The study's policy, or another one."""
        chosen = policy or self.study.text_policy
        key = chosen.model_dump_json()
        if key not in self._completers:
            self._texts = self._texts or self.stack.enter_context(closing(Cache(self.cache / "completions.jsonl")))
            torch.set_num_threads(self.study.runner.threads)
            loaded = load_policy(chosen.model_copy(update={"lora": None}), seed=self.study.runner.seed)
            self._completers[key] = Completer(loaded, self.study.generation, self._texts, seed=self.settings.seed)
        return self._completers[key]

    @property
    def asker(self) -> Asker:
        """The judge's model."""
        if self._asker is None:
            judge = self.settings.judge
            if judge.api == "local":
                self._asker = LocalAsker(
                    self.completer(TextPolicySettings(path=judge.model_name)), name=judge.model_name
                )
            else:
                replies = self.stack.enter_context(closing(Cache(self.cache / "replies.jsonl")))
                self._asker = HttpAsker(HttpModel(judge), replies, self.ledger, self.clock)
                if self.settings.method == 2 and self.settings.labeler in JUDGED:
                    most = judgement_bound(self.data, judge)
                    self._asker.later["solve"] = self.ledger.price(Usage(most.most_tokens, most.max_tokens))
        return self._asker

    def only_cached(self) -> bool:
        """Ask nothing any more that is not in the cache; whether there is a cache of replies at all."""
        if isinstance(self._asker, HttpAsker):
            self._asker.only_cached = True
        return isinstance(self._asker, HttpAsker)

    def labeler(self) -> Labeler:
        """The labeler of the settings."""
        s = self.settings
        build: dict[str, Callable[[], Labeler]] = {
            "exact": ExactLabeler,
            "judge": lambda: JudgeLabeler(self.asker, s.judge),
            "monte_carlo": lambda: self._continuations(hard=s.monte_carlo.estimate == "hard"),
            "binary_search": lambda: BinarySearchLabeler(self._sampler(), k=s.monte_carlo.completions),
            "consensus": lambda: ConsensusLabeler(JudgeLabeler(self.asker, s.judge), self._continuations(hard=True)),
        }
        return build[s.labeler]()

    def _sampler(self) -> PolicySampler:
        how = self.settings.monte_carlo
        sampling = Sampling(how.temperature, how.top_p)
        return PolicySampler(self.completer(how.policy), self.verifier, self.data, sampling)

    def _continuations(self, *, hard: bool) -> MonteCarloLabeler:
        return MonteCarloLabeler(self._sampler(), k=self.settings.monte_carlo.completions, hard=hard)

    def counts(self) -> dict[str, int]:
        """What was sampled here, by purpose."""
        return dict(sum((c.counts for c in self._completers.values()), Counter()))


def label(study: Study, *, skip_generation: bool = False, clock: Clock | None = None) -> Labelled:
    """Make the data set of a study's `label` section, or go on making it.

    Args:
        study: with `data`, `label` and a text policy.
        skip_generation: sample and ask nothing: take the labels of the data set that is there, and write its rewards
            and formats anew. HE and SE differ in nothing else, so one can be had from the other.
        clock: time, as judges see it.

    Returns:
        The folder, its card, and why the work ended early, if it did.

    Raises:
        ConfigError: the study lacks a section, the folder holds labels of another labeler or judge, or a
            judge's endpoint refuses the key, the model or the path.
        DataError: no question is kept, no solution can be labelled, or there is nothing to skip to.
        TooManyFailuresError: more than `max_failure_rate` of the labels failed; the others are written.
    """
    if study.label is None or (study.data is None and not study.label.data_paths):
        raise ConfigError(
            "guerdon label needs a label section, and a data section (questions with answers) or solutions in "
            "label.solutions.data_path"
        )
    settings, root = study.label, Path(study.label.save_dir)
    folder = root / settings.dataset
    check_identity(folder, settings)
    if skip_generation:
        return relabel_rewards(root, settings)
    with _tools(study, study.data or DataSettings(), settings, root, clock or Clock()) as tools:
        given = _given(tools) if settings.data_paths else None
        mined, too_long = _questions(tools) if given is None else (Mined((), ()), 0)
        work = _Work(tools, of=len(mined.kept) * settings.num_rollouts if given is None else len(given.written))
        try:
            if given is not None:
                work.take(given)
            for questions in _lots(mined.kept, settings):
                work.do(questions)
        finally:
            work.told.close()
        solved = work.solved
        if given is not None and not solved.written:
            raise DataError(
                f"there is no solution to label in {', '.join(settings.data_paths)}: left out were "
                f"{counted(solved.left_out)}; see label.solutions.min_steps"
            )
        if not solved.written and not work.stopped:
            raise DataError(
                f"there is no solution to label: of {len(mined.kept)} questions x {settings.num_rollouts} rollouts, "
                f"left out were {counted(solved.left_out)}; see label.solutions.min_steps, label.splitter and "
                "data.max_response_length"
            )
        card = card_of(
            study, mined, solved, work.solutions, work.failures, not_asked=work.not_asked, too_long=too_long,
            stopped=work.stopped, ledger=tools.ledger.totals(), sampled=tools.counts(),
        )  # fmt: skip
    done = write_data_set(folder, work.solutions, card, settings, mined.table, partial=bool(work.stopped or work.wrong))
    if work.too_many:
        raise TooManyFailuresError(
            f"{work.wrong} of {work.tried} measurements failed ({work.reasons}), more than label.max_failure_rate "
            f"{settings.max_failure_rate:g} allows; {done.kept_or_written}. Fix the cause and start the same command "
            "again: it goes on"
        )
    return done


@contextmanager
def _tools(study: Study, data: DataSettings, settings: LabelSettings, root: Path, clock: Clock) -> Iterator[_Tools]:
    cache = root / "cache"
    with ExitStack() as stack:
        ledger = Ledger(cache / "calls.jsonl", prices=settings.judge.prices, max_usd=settings.max_usd)
        stack.enter_context(closing(ledger))
        verifier = stack.enter_context(verifier_from(data))
        yield _Tools(study, data, settings, cache, clock, stack, verifier, ledger)


def _questions(tools: _Tools) -> tuple[Mined, int]:
    """The questions to label, and how many prompts are too long."""
    settings, data = tools.settings, tools.data
    prompts, _ = load_prompts(data)
    needs_policy = settings.mining is not None or settings.method == 1
    if needs_policy:
        tokenizer = tools.completer().policy.tokenizer
        fitting = [p for p in prompts if len(prompt_ids(tokenizer, p.messages)) <= data.max_prompt_length]
    else:
        fitting = list(prompts)
    too_long = len(prompts) - len(fitting)
    if settings.mining is None:
        return Mined(tuple(fitting[: settings.num_samples]), ()), too_long
    mined = mine(fitting, tools.completer(), tools.verifier, data, settings.mining, wanted=settings.num_samples)
    if not mined.kept:
        rates = [row["fail_rate"] for row in mined.table if row["fail_rate"] is not None]
        low, high = settings.mining.min_fail_rate, settings.mining.max_fail_rate
        raise DataError(
            f"none of {len(mined.table)} questions has a fail rate from {low:g} to {high:g}: {rates.count(0.0)} were "
            f"always right, {rates.count(1.0)} always wrong, {len(mined.table) - len(rates)} could not be checked; "
            "choose other questions, another policy, or widen label.mining"
        )
    return mined, too_long


def _given(tools: _Tools) -> Solved:
    """The solutions of `solutions.data_path`."""
    left_out: Counter[str] = Counter()
    solutions = published_solutions(tools.settings.data_paths, left_out)
    prompts = [] if tools.study.data is None else [p for part in load_prompts(tools.data) for p in part]
    found = given_solutions(solutions, prompts, tools.data, tools.settings, tools.verifier)
    return replace(found, left_out=dict(left_out + Counter(found.left_out)))


def _lots(questions: Sequence[Prompt], settings: LabelSettings) -> Iterator[Sequence[Prompt]]:
    """Questions whose solutions are written before they are labelled: all of them, or few where money is short."""
    size = max(1, len(questions)) if settings.method == 1 or settings.max_usd is None else AT_A_TIME
    return (questions[start : start + size] for start in range(0, len(questions), size))


class _Work:
    """Solutions that are labelled so far, and why others are not.

    After a spent budget, or when too much fails, nothing more is asked, but what is in the cache is still used.

    Args:
        tools: the stages'.
        of: how many solutions there may be, for progress.
    """

    def __init__(self, tools: _Tools, of: int) -> None:
        self._tools, self._settings = tools, tools.settings
        self.labeler = tools.labeler()
        self.told = ProgressBar(of, what="solutions", lines=20)
        self.solutions: list[Solution] = []
        self.failures: Counter[str] = Counter()
        self.not_asked = 0
        self.stopped: str | None = None
        self._over = False  # nothing is done any more, as nothing that follows could be in the cache of replies
        self._written: list[Written] = []
        self._left_out: Counter[str] = Counter()
        self._unchecked: Counter[str] = Counter()
        self._details: dict[str, str] = {}  # by reason of a failure, what was said of one

    @property
    def solved(self) -> Solved:
        """The solutions, and why others are left out."""
        return Solved(tuple(self._written), dict(self._left_out), dict(self._unchecked))

    @property
    def wrong(self) -> int:
        """Measurements that failed: labels, and solutions that could not be had."""
        return sum(n for reason, n in self._failed.items() if reason != NO_CONSENSUS)

    @property
    def tried(self) -> int:
        """Measurements."""
        return len(self.solutions) + sum(self._failed.values())

    @property
    def too_many(self) -> bool:
        """Whether more failed than the settings allow."""
        return self.wrong > self._settings.max_failure_rate * self.tried

    @property
    def reasons(self) -> str:
        """Failures by reason, each with an example of what was said."""
        parts = [
            f"{n} {reason}" + (f": {self._details[reason]}" if self._details.get(reason) else "")
            for reason, n in sorted(self._failed.items())
        ]
        return "; ".join(parts)

    @property
    def _failed(self) -> Counter[str]:
        missing = {} if self._settings.data_paths else self._left_out
        return self.failures + Counter({r: n for r, n in missing.items() if r not in LEFT_OUT})

    def do(self, questions: Sequence[Prompt]) -> None:
        """Get the solutions to some questions, and label them; a solution that money allows has some for its labels."""
        taken: set[str] = set()
        unpaid: int | None = None
        while True:
            if self._over:
                self.not_asked += len(questions) * self._settings.num_rollouts
                return
            solved = _solutions(self._tools, questions, self.told.write_line)
            self._tools.ledger.release()
            new = [one for one in solved.written if one.solution.id not in taken]
            taken |= {one.solution.id for one in new}
            before, unpaid = unpaid, solved.left_out.get(BUDGET, 0)
            last = not unpaid or bool(self.stopped) or before == unpaid
            if last:  # until then what is left out may still be had
                left_out = Counter(solved.left_out)
                self.not_asked += left_out.pop(BUDGET, 0) + left_out.pop(NOT_ASKED, 0)
                self._left_out += left_out
                self._unchecked.update(solved.unchecked)
                self._details.update(solved.details)
            self._label(new)
            if last:
                break
        if unpaid and not self.stopped:
            self._stop("max_usd")

    def take(self, solved: Solved) -> None:
        """Label solutions that are there."""
        self._left_out.update(solved.left_out)
        self._unchecked.update(solved.unchecked)
        self._label(solved.written)

    def _label(self, written: Sequence[Written]) -> None:
        """Label solutions as the answers come; when too much fails, the rest gets what is in the cache."""
        self._written += written
        begin = len(self.solutions)
        places: list[int] = []  # of those that get labelled here
        rest: Sequence[int] = range(len(written))
        while rest and not self._over:
            stopped, seen = self.stopped, set()
            with closing(self._answers([written[i] for i in rest])) as answers:
                for k, labels in answers:
                    seen.add(rest[k])
                    if self._note(written[rest[k]], labels):
                        places.append(rest[k])
                    if self.tried >= FIRST_LOOK or len(seen) % self.labeler.at_a_time == 0:
                        self._look()
                    if self.stopped != stopped:
                        break
            rest = [i for i in rest if i not in seen]
        self.not_asked += len(rest)
        done = zip(places, self.solutions[begin:], strict=True)
        self.solutions[begin:] = [one for _, one in sorted(done, key=lambda pair: pair[0])]
        self._look()

    def _answers(self, written: Sequence[Written]) -> Generator[tuple[int, StepLabels | Failure]]:
        if isinstance(self.labeler, JudgeLabeler):
            return self.labeler.answers(written)
        return in_groups(self.labeler, written)

    def _note(self, one: Written, labels: StepLabels | Failure) -> bool:
        """Note what became of a solution; whether it has labels."""
        if isinstance(labels, Failure):
            if labels.reason in (BUDGET, NOT_ASKED):
                self.not_asked += 1
            else:
                self.failures[labels.reason] += 1
                self._details[labels.reason] = labels.detail
            if labels.reason == BUDGET and not self.stopped:
                self._stop("max_usd")
        else:
            meta = {**one.solution.meta, "labeler": self.labeler.name, "labels": dict(labels.meta)}
            self.solutions.append(pay(replace(one.solution, labels=labels.values, meta=meta), self._settings.reward))
        spent = self._tools.ledger.spent
        text = f"{self.wrong} failed" + (f", at most ${spent:.2f} spent" if spent else "")
        self.told.advance(self.tried + self.not_asked, text)
        return not isinstance(labels, Failure)

    def _look(self) -> None:
        """Stop when too much fails."""
        if not self.stopped and (self.tried >= FIRST_LOOK or self.wrong == self.tried) and self.too_many:
            self._stop("failures")

    def _stop(self, why: str) -> None:
        self.stopped = why
        self._over = not self._tools.only_cached() or (why == "failures" and self._settings.labeler not in JUDGED)


def _solutions(tools: _Tools, questions: Sequence[Prompt], tell: Callable[[str], None]) -> Solved:
    settings, data = tools.settings, tools.data
    splitter = settings.splitter or ("separator" if data.type == "generated" else "blank_line")
    if settings.method == 1:
        texts = policy_texts(questions, tools.completer(), data, settings)
        model = tools.study.text_policy.path or "made in code"
    else:
        texts = judge_texts(questions, tools.asker, data, settings, tell)
        model = tools.asker.name
    return solve(questions, texts, data, settings, tools.verifier, splitter=splitter, model=model)
