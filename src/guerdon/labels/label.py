"""`guerdon label`: mine questions, get solutions, label their steps, pay rewards, write the data set.

Everything that is sampled or asked is kept on disk by its content before it is used, so the same command goes on
after a kill, and a second run samples and asks nothing. A spent budget ends the work cleanly: what is labelled is
written. This module decides the order of things; what each stage does is known elsewhere.

    done = label(study)
    done.folder, done.card["solutions"]["labelled"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError, TooManyFailuresError
from guerdon.labels.append_log import Cache
from guerdon.labels.asking import BUDGET, Asker, Clock, HttpAsker
from guerdon.labels.card import Labelled, card_of, relabel_rewards, write_data_set
from guerdon.labels.chat import HttpModel
from guerdon.labels.completions import Completer, Sampling
from guerdon.labels.judge import JudgeLabeler
from guerdon.labels.labeler import NO_CONSENSUS, ExactLabeler, Labeler, Written
from guerdon.labels.ledger import Ledger
from guerdon.labels.local_asker import LocalAsker
from guerdon.labels.mining import Mined, mine
from guerdon.labels.monte_carlo import BinarySearchLabeler, ConsensusLabeler, MonteCarloLabeler, PolicySampler
from guerdon.labels.solving import Solved, judge_texts, policy_texts, solve
from guerdon.labels.step_rewards import pay
from guerdon.narrator import Narrator
from guerdon.policies.text_files import load_policy
from guerdon.policies.tokens import prompt_ids
from guerdon.settings.data import DataSettings
from guerdon.settings.label import LabelSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.types import Failure
from guerdon.worlds.prompt_files import load_prompts
from guerdon.worlds.prompts import Prompt
from guerdon.worlds.verifier import Verifier, verifier_from

FIRST_LOOK = 20  # labels after which failures are counted


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
        return self._asker

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
        ConfigError: the study lacks a section, or a judge's endpoint refuses the key, the model or the path.
        DataError: no question is kept, no solution can be labelled, or there is nothing to skip to.
        TooManyFailuresError: more than `max_failure_rate` of the labels failed; the others are written.
    """
    if study.data is None or study.label is None:
        raise ConfigError("guerdon label needs a data section (questions with answers) and a label section")
    settings, root = study.label, Path(study.label.save_dir)
    if skip_generation:
        return relabel_rewards(root, settings)
    with _tools(study, study.data, settings, root, clock or Clock()) as tools:
        mined, too_long = _questions(tools)
        solved = _solutions(tools, mined.kept)
        if not solved.written and solved.asked_all:
            raise DataError(
                f"there is no solution to label: of {len(mined.kept)} questions x {settings.num_rollouts} rollouts, "
                f"left out were {_counts(solved.left_out)}; see label.solutions.min_steps, label.splitter and "
                "data.max_response_length"
            )
        solutions, failures, rest, stopped = _labelled(tools, solved.written)
        stopped = stopped or (None if solved.asked_all else "max_usd")
        card = card_of(
            study, mined, solved, solutions, failures, not_asked=rest, too_long=too_long, stopped=stopped,
            ledger=tools.ledger.totals(), sampled=tools.counts(),
        )  # fmt: skip
    done = write_data_set(root / settings.dataset, solutions, card, settings, mined.table)
    wrong = _wrong(failures)
    if _too_many(wrong, len(solutions) + sum(failures.values()), settings):
        raise TooManyFailuresError(
            f"{wrong} labels failed ({_counts(failures)}), more than label.max_failure_rate "
            f"{settings.max_failure_rate:g} allows; the {len(solutions)} that did not are in {done.folder}. Mend the "
            "cause and start the same command again: it goes on"
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


def _solutions(tools: _Tools, questions: Sequence[Prompt]) -> Solved:
    settings, data = tools.settings, tools.data
    splitter = settings.splitter or ("separator" if data.type == "generated" else "blank_line")
    if settings.method == 1:
        texts = policy_texts(questions, tools.completer(), data, settings)
        model = tools.study.text_policy.path or "made in code"
    else:
        texts = judge_texts(questions, tools.asker, data, settings)
        model = tools.asker.name
    return solve(questions, texts, data, settings, tools.verifier, splitter=splitter, model=model)


def _labelled(tools: _Tools, written: Sequence[Written]) -> tuple[list[Solution], Counter[str], int, str | None]:
    """Labelled solutions with their rewards, failures by reason, how many were not asked about, and why not."""
    settings, labeler = tools.settings, tools.labeler()
    solutions: list[Solution] = []
    failures: Counter[str] = Counter()
    told = Narrator(len(written), what="solutions", lines=20)
    try:
        for start in range(0, len(written), labeler.at_a_time):
            group = written[start : start + labeler.at_a_time]
            unasked = 0
            for one, labels in zip(group, labeler.label(group), strict=True):
                if not isinstance(labels, Failure):
                    meta = {**one.solution.meta, "labeler": labeler.name, "labels": dict(labels.meta)}
                    solutions.append(pay(replace(one.solution, labels=labels.values, meta=meta), settings.reward))
                elif labels.reason == BUDGET:
                    unasked += 1
                else:
                    failures[labels.reason] += 1
            rest = len(written) - start - len(group)
            if unasked:
                return solutions, failures, unasked + rest, "max_usd"
            wrong = _wrong(failures)
            told.advance(start + len(group), f"{wrong} failed" + _dollars(tools.ledger))
            tried = len(solutions) + sum(failures.values())
            if (tried >= FIRST_LOOK or wrong == tried) and _too_many(wrong, tried, settings):
                return solutions, failures, rest, "failures"
    finally:
        told.close()
    return solutions, failures, 0, None


def _wrong(failures: Counter[str]) -> int:
    """Failed measurements; what two labelers disagree on is left out on purpose."""
    return sum(n for reason, n in failures.items() if reason != NO_CONSENSUS)


def _too_many(failed: int, of: int, settings: LabelSettings) -> bool:
    return failed > settings.max_failure_rate * of


def _dollars(ledger: Ledger) -> str:
    return f", ${ledger.spent:.2f}" if ledger.spent else ""


def _counts(counts: Any) -> str:
    return ", ".join(f"{n} {reason}" for reason, n in sorted(counts.items())) or "none"
