"""`guerdon label`: mine questions, get solutions, label their steps, compute rewards, write the data set.

Everything that is sampled or received is kept on disk by its content before it is used, so the same command continues
after a kill, and a second run samples and sends nothing. A spent budget ends the work cleanly: what is labelled is
written, unless the data set that is there has more.

    done = label(study)
    done.folder, done.card["solutions"]["labelled"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from guerdon import __version__
from guerdon.collect.text import chat_lengths
from guerdon.config.loading import to_plain
from guerdon.endpoints.clients import open_client
from guerdon.endpoints.completions import Completer, Sample, SamplingParams, weights_hash
from guerdon.endpoints.llm_client import BUDGET, NOT_ASKED, HttpLLMClient, LLMClient
from guerdon.episodes.solution_files import published_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError, DataError, TooManyFailuresError
from guerdon.files.append_log import Cache, Ledger
from guerdon.labels import candidates, data_set, labelers
from guerdon.labels.candidates import Candidates
from guerdon.labels.data_set import with_rewards
from guerdon.labels.labelers import JudgeLabeler, Labeler, PromptedSolution, StepLabels, longest_judgement_request
from guerdon.network.retry import Clock
from guerdon.plan.stages import section
from guerdon.policies.language.generate import check_room
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import load_policy, outline
from guerdon.processes.attempts import attempt_each
from guerdon.processes.progress import ProgressBar
from guerdon.reading.shown import ReadAs
from guerdon.settings.data import DataSettings, GeneratedDataSettings
from guerdon.settings.label import JUDGED, LABELERS, LabelSettings
from guerdon.settings.study import Study
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.tasks.prompt_files import check_here, load_prompts
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.verifier import verifier_from
from guerdon.types import Failure

QUESTIONS_AT_A_TIME = 16  # sent to the judge's model where there is a budget


SampleWith = Callable[[TextPolicySettings, str], Sample]
"""From the settings of a policy and the hash of its weights to what samples with it, on other machines."""


def check_label(study: Study) -> None:
    """Refuse what `label` refuses of its questions, solutions and folder; no weights are read, nothing is sent.

    Raises:
        StudyError: the study has no `label` section.
        ConfigError: the folder holds labels of another labeler or judge.
        DataError: solutions or questions cannot be read, or every question is too long.
        MissingDependencyError: the policy or the data are not on this machine.
    """
    settings: LabelSettings = section(study, "label")
    data = study.data
    data_set.check_identity(Path(settings.save_dir) / settings.dataset, settings)
    if data is not None:
        verifier_from(data).close()
    if settings.data_paths:
        if all(Path(path).exists() for path in settings.data_paths):
            published_solutions(settings.data_paths, Counter(), columns=settings.solutions.columns)
    elif data is not None:
        check_here(data)
        prompts, _ = load_prompts(data)
        if settings.mining is not None or settings.method == 1:
            _short_enough(prompts, outline(study.text_policy), data)


def label(
    study: Study, *, skip_generation: bool = False, clock: Clock | None = None, sample_with: SampleWith | None = None
) -> data_set.LabelledDataSet:
    """Make the data set of a study's `label` section, or continue making it.

    Args:
        study: with `data`, `label` and a text policy.
        skip_generation: sample and send nothing: take the labels of the data set that is there, and write its rewards
            and formats anew. HE and SE differ in nothing else, so one can be had from the other.
        clock: time, as the client of the judge uses it.
        sample_with: where policies and local judges sample, with the same results; None: in this process.

    Returns:
        The folder, its card, and why the work ended early, if it did.

    Raises:
        StudyError: the study has no `label` section.
        ConfigError: it has nothing to label, the folder holds labels of another labeler or judge, or a
            judge's endpoint refuses the key, the model or the path.
        DataError: no question is kept, no solution can be labelled, or there is nothing to skip to.
        TooManyFailuresError: more than `max_failure_rate` of the labels failed; the others are written.
    """
    settings: LabelSettings = section(study, "label")
    if study.data is None and not settings.data_paths:
        raise ConfigError(
            "guerdon label needs a label section, and a data section (questions with answers) or solutions in "
            "label.solutions.data_path",
            key="data",
        )
    root = Path(settings.save_dir)
    folder = root / settings.dataset
    data_set.check_identity(folder, settings)
    if skip_generation:
        return data_set.relabel_rewards(root, settings)
    with ExitStack() as stack:
        run = _LabelRun(study, settings, root / "cache", clock or Clock(), stack, sample_with)
        if settings.data_paths:
            run.label_given_solutions()
        else:
            run.label_new_solutions()
        card = run.card()
    partial = bool(run.stopped or run.failed)
    done = data_set.write(folder, run.solutions, card, settings, run.fail_rates, partial=partial)
    if run.too_many_failures:
        raise TooManyFailuresError(
            f"{run.failed} of {run.measured} measurements failed ({run.reasons}), more than label.max_failure_rate "
            f"{settings.max_failure_rate:g} allows; {done.kept_or_written}. Fix the cause and start the same command "
            "again: it resumes"
        )
    return done


def _short_enough(prompts: Sequence[Prompt], policy: TextPolicy, data: DataSettings) -> list[Prompt]:
    lengths, most = chat_lengths(policy.tokenizer, prompts, data), data.max_prompt_length
    fitting = [(p, length) for p, length in zip(prompts, lengths, strict=True) if length <= most]
    if not fitting:
        raise DataError(
            f"all {len(prompts)} questions are longer than data.max_prompt_length ({most})",
            field="data.max_prompt_length",
        )
    for prompt, length in fitting:
        check_room(length, data.max_response_length, policy.base.positions, f"the question {prompt.id}")
    return [p for p, _ in fitting]


@dataclass
class _LabelRun:
    """Solutions that are labelled so far, and why others are not; models and files are opened when first needed.

    After a spent budget, or when too much fails, nothing more is sent, but what is in the cache is still used.

    Attributes:
        study: with a text policy where one is needed.
        settings: its `label` section.
        cache: folder of what is kept on disk.
        clock: time.
        stack: closes what is opened.
        sample_with: as for `label`.
        fail_rates: of questions that were tried.
        kept: questions.
        over: nothing is done any more, as nothing that follows could be in the cache of replies.
        too_long: number of questions.
        details: by reason of a failure, the detail of one.
        read_as: of questions and solutions: what their columns are for.
    """

    study: Study
    settings: LabelSettings
    cache: Path
    clock: Clock
    stack: ExitStack
    sample_with: SampleWith | None
    fail_rates: list[dict[str, Any]] = field(default_factory=list)
    kept: Sequence[Prompt] = ()
    solutions: list[Solution] = field(default_factory=list)
    stopped: str | None = None
    over: bool = False
    too_long: int = 0
    written: int = 0
    not_asked: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    unchecked: Counter[str] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)
    read_as: list[ReadAs] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._data, judge = self.study.data or GeneratedDataSettings(), self.settings.judge
        ledger = Ledger(self.cache / "calls.jsonl", prices=judge.prices, max_usd=self.settings.max_usd)
        self._ledger = self.stack.enter_context(closing(ledger))
        self._verifier = self.stack.enter_context(verifier_from(self._data))
        self._completers: dict[str, Completer] = {}
        self._http_client: HttpLLMClient | None = None  # once it is needed
        self._progress: ProgressBar

    def _completer(self, policy: TextPolicySettings | None = None) -> Completer:
        """Of the study's policy, or of another one."""
        chosen = policy or self.study.text_policy
        key = chosen.model_dump_json()
        if key not in self._completers:
            torch.set_num_threads(self.study.runner.threads)
            without = chosen.model_copy(update={"lora": None})
            loaded = load_policy(without, seed=self.study.runner.seed)
            sample = None if self.sample_with is None else self.sample_with(without, weights_hash(loaded))
            self._completers[key] = Completer(
                loaded, self.study.generation, self._completions, seed=self.settings.seed, sample=sample
            )
        return self._completers[key]

    @cached_property
    def _completions(self) -> Cache:
        return self.stack.enter_context(closing(Cache(self.cache / "completions.jsonl")))

    @cached_property
    def _client(self) -> LLMClient:
        """Of the judge's model."""
        judge = self.settings.judge
        client = open_client(judge, self.cache, self._ledger, self.stack, clock=self.clock, completer=self._completer)
        if not isinstance(client, HttpLLMClient):
            return client
        if self.settings.method == 2 and self.settings.labeler in JUDGED:
            longest = longest_judgement_request(self._data, judge)
            client.reserve_later["solve"] = self._ledger.price(client.most(longest))
        self._http_client = client
        return client

    @cached_property
    def _labeler(self) -> Labeler:
        name, how = self.settings.labeler, self.settings.monte_carlo
        if LABELERS.is_own(name):
            own: Labeler = LABELERS.build(name, self.settings.labeler_params, Labeler, seed=self.settings.seed)
            return own
        if name == "exact":
            return labelers.ExactLabeler()
        judge = JudgeLabeler(self._client, self.settings.judge) if name in JUDGED else None
        if judge is not None and name == "judge":
            return judge
        sampling = SamplingParams(how.temperature)
        sampler = labelers.ContinuationSampler(self._completer(), self._verifier, self._data, sampling)
        if name == "binary_search":
            return labelers.BinarySearchLabeler(sampler, k=how.completions)
        hard = judge is not None or how.estimate == "hard"
        continuations = labelers.MonteCarloLabeler(sampler, k=how.completions, hard=hard)
        return continuations if judge is None else labelers.ConsensusLabeler(judge, continuations)

    @property
    def failed(self) -> int:
        """Measurements that failed: labels, and solutions that could not be had."""
        return sum(n for reason, n in self._all_failures.items() if reason != labelers.NO_CONSENSUS)

    @property
    def measured(self) -> int:
        """Measurements, those that failed included."""
        return len(self.solutions) + sum(self._all_failures.values())

    @property
    def too_many_failures(self) -> bool:
        """Whether more failed than the settings allow."""
        return self.failed > self.settings.max_failure_rate * self.measured

    @property
    def reasons(self) -> str:
        """Failures by reason, each with an example of its details."""
        parts = [
            f"{n} {reason}" + (f": {self.details[reason]}" if self.details.get(reason) else "")
            for reason, n in sorted(self._all_failures.items())
        ]
        return "; ".join(parts)

    @property
    def _all_failures(self) -> Counter[str]:
        missing = {} if self.settings.data_paths else self.left_out
        return self.failures + Counter({r: n for r, n in missing.items() if r not in candidates.LEFT_OUT})

    def label_given_solutions(self) -> None:
        """Label the solutions of `solutions.data_path`.

        Raises:
            DataError: none of them can be labelled.
        """
        solutions = published_solutions(
            self.settings.data_paths,
            self.left_out,
            columns=self.settings.solutions.columns,
            read_as=self.read_as,
        )
        parts = ((), ()) if self.study.data is None else load_prompts(self._data, read_as=self.read_as)
        prompts = [prompt for part in parts for prompt in part]
        found = candidates.given_solutions(solutions, prompts, self._data, self.settings, self._verifier)
        self.left_out.update(found.left_out)
        self.unchecked.update(found.unchecked)
        with self._bar(len(found.solutions)):
            self._label(found.solutions)
        if not found.solutions:
            raise DataError(
                f"there is no solution to label in {', '.join(self.settings.data_paths)}: left out were "
                f"{data_set.format_counts(self.left_out)}; see label.solutions.min_steps"
            )

    def label_new_solutions(self) -> None:
        """Get questions, the solutions to them, and label these.

        Raises:
            DataError: no question is kept, or no solution can be labelled.
        """
        self.kept = questions = self._questions()
        n = self.settings.num_rollouts
        # where there is a budget, few solutions are written before they are labelled
        whole = self.settings.method == 1 or self.settings.max_usd is None
        size = max(1, len(questions)) if whole else QUESTIONS_AT_A_TIME
        with self._bar(len(questions) * n):
            for start in range(0, len(questions), size):
                self._solve_and_label(questions[start : start + size])
        if not self.written and not self.stopped:
            raise DataError(
                f"there is no solution to label: of {len(questions)} questions x {n} rollouts, left out were "
                f"{data_set.format_counts(self.left_out)}; see label.solutions.min_steps, label.splitter and "
                "data.max_response_length"
            )

    def _bar(self, total: int) -> closing[ProgressBar]:
        self._labeler  # noqa: B018 (what it lacks is reported before there is a bar)
        self._progress = ProgressBar(total, what="solutions", lines=20)
        return closing(self._progress)

    def _questions(self) -> Sequence[Prompt]:
        settings, data = self.settings, self._data
        prompts, _ = load_prompts(data, read_as=self.read_as)
        fitting = list(prompts)
        if settings.mining is not None or settings.method == 1:
            fitting = _short_enough(prompts, self._completer().policy, data)
        self.too_long = len(prompts) - len(fitting)
        if settings.mining is None:
            return fitting[: settings.num_samples]
        kept, self.fail_rates = candidates.mine(
            fitting, self._completer(), self._verifier, data, settings.mining, wanted=settings.num_samples
        )
        if not kept:
            rates = [row["fail_rate"] for row in self.fail_rates if row["fail_rate"] is not None]
            low, high = settings.mining.min_fail_rate, settings.mining.max_fail_rate
            raise DataError(
                f"none of {len(self.fail_rates)} questions has a fail rate from {low:g} to {high:g}: "
                f"{rates.count(0.0)} were always right, {rates.count(1.0)} always wrong, "
                f"{len(self.fail_rates) - len(rates)} could not be checked; choose other questions, another policy, "
                "or widen label.mining"
            )
        return kept

    def _solve_and_label(self, questions: Sequence[Prompt]) -> None:
        """Get the solutions to some questions, and label them: a budget that allows a solution allows its labels."""
        taken: set[str] = set()
        unpaid: int | None = None
        while True:
            if self.over:
                self.not_asked += len(questions) * self.settings.num_rollouts
                return
            found = self._solutions(questions)
            self._ledger.release()
            new = [one for one in found.solutions if one.solution.id not in taken]
            taken |= {one.solution.id for one in new}
            before, unpaid = unpaid, found.left_out.get(BUDGET, 0)
            last = not unpaid or bool(self.stopped) or before == unpaid
            if last:  # until then what is left out may still be had
                left_out = Counter(found.left_out)
                self.not_asked += left_out.pop(BUDGET, 0) + left_out.pop(NOT_ASKED, 0)
                self.left_out += left_out
                self.unchecked.update(found.unchecked)
                self.details.update(found.details)
            self._label(new)
            if last:
                break
        if unpaid and not self.stopped:
            self._stop("max_usd")

    def _solutions(self, questions: Sequence[Prompt]) -> Candidates:
        settings, data = self.settings, self._data
        splitter = settings.splitter or ("separator" if data.type == "generated" else "blank_line")
        if settings.method == 1:
            texts = candidates.policy_texts(questions, self._completer(), data, settings)
            model = self.study.text_policy.path or "made in code"
        else:
            texts = candidates.judge_texts(questions, self._client, data, settings, self._progress.write_line)
            model = self._client.name
        return candidates.split_and_check(
            questions, texts, data, settings, self._verifier, splitter=splitter, model=model
        )

    def _label(self, solutions: Sequence[PromptedSolution]) -> None:
        """Label solutions as the answers arrive; when too much fails, the rest gets what is in the cache."""
        self.written += len(solutions)
        labelled: dict[int, Solution] = {}
        rest: Sequence[int] = range(len(solutions))
        begin = len(self.solutions)
        while rest and not self.over:
            stopped, done = self.stopped, set()
            with closing(self._labels([solutions[i] for i in rest])) as answers:
                for k, labels in answers:
                    done.add(rest[k])
                    self._record(solutions[rest[k]].solution, labels)
                    if not isinstance(labels, Failure):
                        labelled[rest[k]] = self.solutions[-1]
                    if self.measured >= candidates.FIRST_LOOK or len(done) % self._labeler.at_a_time == 0:
                        self._check_failures()
                    if self.stopped != stopped:
                        break
            rest = [i for i in rest if i not in done]
        self.not_asked += len(rest)
        self.solutions[begin:] = [labelled[i] for i in sorted(labelled)]
        self._check_failures()

    def _labels(self, solutions: Sequence[PromptedSolution]) -> Generator[tuple[int, StepLabels | Failure]]:
        labeler = self._labeler
        if isinstance(labeler, JudgeLabeler):
            yield from labeler.stream(solutions)
            return
        name, own = self.settings.labeler, LABELERS.is_own(self.settings.labeler)
        for start in range(0, len(solutions), labeler.at_a_time):
            part = solutions[start : start + labeler.at_a_time]
            if own:
                labels = attempt_each(f"the labeler {name}", "labeler_error", labeler.label, part)
            else:
                labels = labeler.label(part)
            yield from enumerate(labels, start)

    def _record(self, solution: Solution, labels: StepLabels | Failure) -> None:
        if not isinstance(labels, Failure):
            meta = {**solution.meta, "labeler": self._labeler.name, "labels": dict(labels.meta)}
            solution = replace(solution, labels=labels.values, meta=meta)
            self.solutions.append(with_rewards(solution, self.settings.reward))
        elif labels.reason in (BUDGET, NOT_ASKED):
            self.not_asked += 1
            if labels.reason == BUDGET and not self.stopped:
                self._stop("max_usd")
        else:
            self.failures[labels.reason] += 1
            self.details[labels.reason] = labels.detail
        spent = self._ledger.spent
        text = f"{self.failed} failed" + (f", at most ${spent:.2f} spent" if spent else "")
        self._progress.advance(self.measured + self.not_asked, text)

    def _check_failures(self) -> None:
        """Stop when too much fails."""
        if (
            not self.stopped
            and (self.measured >= candidates.FIRST_LOOK or self.failed == self.measured)
            and self.too_many_failures
        ):
            self._stop("failures")

    def _stop(self, why: str) -> None:
        self.stopped = why
        if self._http_client is not None:
            self._http_client.only_cached = True
        self.over = self._http_client is None or (why == "failures" and self.settings.labeler not in JUDGED)

    def card(self) -> dict[str, Any]:
        """The contents of `card.json`."""
        rates = [row["fail_rate"] for row in self.fail_rates]
        sampled: Counter[str] = sum((c.counts for c in self._completers.values()), Counter())
        return {
            "made_by": f"guerdon {__version__}",
            "method": None if self.settings.data_paths else self.settings.method,
            "reward": self.settings.reward,
            **data_set.identity(self.settings),
            "stopped": self.stopped,
            "questions": {
                "tried": len(rates), "kept": len(self.kept), "not_checkable": rates.count(None),
                "too_long": self.too_long,
            },
            "solutions": {
                "written": self.written, "labelled": len(self.solutions), "not_asked": self.not_asked,
                "failed": dict(sorted(self.failures.items())), "left_out": dict(sorted(self.left_out.items())),
                "answer_not_checked": dict(sorted(self.unchecked.items())),
            },
            **data_set.step_counts(self.solutions),
            "ledger": self._ledger.totals(),
            "judge_models": dict(sorted(self._http_client.models.counts.items())) if self._http_client else {},
            "sampled": dict(sorted(sampled.items())),
            "read_as": [one.record for one in self.read_as],
            "settings": {
                key: None if part is None else to_plain(part)
                for key, part in (("label", self.settings), ("data", self.study.data), ("policy", self.study.policy))
            },
        }  # fmt: skip
