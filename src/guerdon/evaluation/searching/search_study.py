"""`guerdon search`: answers to a file of questions, chosen by a reward model, a JSON line each.

A line has the question, the chosen `response` with its `answer` and `value`, and how the search went. Where nothing
could be chosen, `response` and `value` are null and `failure` has the reason. `correct` is null where no true answer
is known. Questions are searched in batches with random numbers of their own: a run that was killed goes on with the
first batch that is not complete, and gives the same bytes.

    done = search(load(Study, "studies/search.yaml"))
    done.path, done.answered, done.right
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel

from guerdon.collect.text import chat_lengths
from guerdon.endpoints.completions import weights_hash
from guerdon.errors import ConfigError, TooManyFailuresError
from guerdon.evaluation.benchmarks.best_of_n import NO_ANSWER, Same, answer_classes, same_by
from guerdon.evaluation.searching.search import Beam, PolicyWriter, SearchPlan, SearchResult, beam_search, dvts
from guerdon.files.append_log import AppendLog
from guerdon.files.atomic import sha256, write_json
from guerdon.models.load import load_source_model
from guerdon.plan.stages import section
from guerdon.policies.language.generate import Engine, check_room
from guerdon.policies.language.generate_vllm import build_engine
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import load_policy, outline
from guerdon.processes.progress import ProgressBar
from guerdon.settings.data import DataSettings
from guerdon.settings.reward_models import relative
from guerdon.settings.search import SearchSettings
from guerdon.settings.study import Study
from guerdon.tasks.answers import final_answer
from guerdon.tasks.prompt_files import load_prompts, prompted, read_prompts
from guerdon.tasks.prompts import Prompt, question_hash, system_prompt_of
from guerdon.tasks.reasoning import family_of, is_generated
from guerdon.tasks.verifier import OwnVerifier, Verifier, VerifierResult, outcome, verifier_from
from guerdon.types import Failure, RewardModel

FIRST_LOOK = 20  # measurements; fewer count as so many while a search goes on
BLANK_LINE = "\n\n"
AT_A_TIME = 8  # questions searched together, and written together
NEEDED = "guerdon search needs a search section, and a data section: lengths, and how answers compare"


@dataclass(frozen=True)
class SearchDone:
    """What a search wrote.

    Attributes:
        path: answers.jsonl.
        questions: lines in it.
        answered: those with a response.
        failures: reason to how many have none.
        right: responses with the true answer.
        known: responses of which it is known whether they are right.
    """

    path: Path
    questions: int
    answered: int
    failures: dict[str, int]
    right: int
    known: int

    @property
    def line(self) -> str:
        """For people."""
        return f"wrote {self.path}: {self.summary}"

    @property
    def summary(self) -> str:
        """One line for a person."""
        lost = ", ".join(f"{count} {reason}" for reason, count in self.failures.items())
        right = f"; {self.right} of {self.known} with a known true answer are right" if self.known else ""
        return f"{self.answered} of {self.questions} questions answered" + (f" ({lost})" if lost else "") + right


def search(study: Study) -> SearchDone:
    """Answer the questions of a study's `search` section, or go on with it.

    Args:
        study: with `data`, `search` and a text policy.

    Raises:
        StudyError: the study has no `search` section.
        ConfigError: it has no `data` section, a question has more than one turn, or the folder holds answers of
            another search.
        DataError: a question does not fit the model.
        TooManyFailuresError: more than `max_failure_rate` of the measurements so far failed; the batch at which it
            happens is not written.
    """
    settings, data = _sections(study)
    prompts, system_prompt = questions_of(settings, data)
    folder = Path(settings.save_dir)
    batches = [prompts[k : k + AT_A_TIME] for k in range(0, len(prompts), AT_A_TIME)]
    with ExitStack() as stack:
        torch.set_num_threads(study.runner.threads)
        log = stack.enter_context(closing(AppendLog(folder / "answers.jsonl")))
        policy = load_policy(study.text_policy.model_copy(update={"lora": None}), seed=study.runner.seed)
        check_lengths(prompts, data, policy.tokenizer, policy.base.positions)
        check_identity(folder, study, prompts, policy, written=bool(log.rows))
        known = {row["id"] for row in log.rows}
        if not all(prompt.id in known for prompt in prompts):
            searcher = _Searcher(study, settings, data, policy, system_prompt)
            stack.callback(searcher.verifier.close)
            progress = stack.enter_context(closing(ProgressBar(len(prompts), what="questions", lines=10)))
            for number, batch in enumerate(batches):
                rows = searcher.rows(batch, number) if any(prompt.id not in known for prompt in batch) else []
                _write(rows, log, known, searcher, questions=len(prompts))
                progress.advance(min((number + 1) * AT_A_TIME, len(prompts)), "")
    done = _done(folder / "answers.jsonl", log.rows)
    record = json.loads((folder / "search.json").read_text(encoding="utf-8"))
    write_json(folder / "search.json", {**record, "result": {k: v for k, v in asdict(done).items() if k != "path"}})
    return done


def _write(
    rows: Sequence[dict[str, Any]], log: AppendLog, known: set[str], searcher: _Searcher, *, questions: int
) -> None:
    """Write the answers of a batch that were not known when the search began, unless too many failed by now."""
    again = {row["id"] for row in rows}
    everything = [*rows, *(row for row in log.rows if row["id"] not in again)]
    searcher.refuse_failures(everything, at_end=len(everything) == questions)
    for row in rows:
        if row["id"] not in known:
            log.append(row)
            log.rows.append(row)


def _sections(study: Study) -> tuple[SearchSettings, DataSettings]:
    settings: SearchSettings = section(study, "search")
    if study.data is None:
        raise ConfigError(NEEDED, key="data")
    return settings, study.data


def check_search(study: Study) -> None:
    """Refuse what the start of a search refuses of its questions; no weights are read.

    Raises:
        StudyError: as `search`.
        ConfigError: as `search`.
        DataError: as `search`.
        MissingDependencyError: the policy is not on this machine.
    """
    settings, data = _sections(study)
    prompts, _ = questions_of(settings, data)
    policy = outline(study.text_policy)
    check_lengths(prompts, data, policy.tokenizer, policy.base.positions)


def check_lengths(prompts: Sequence[Prompt], data: DataSettings, tokenizer: Any, room: int | None) -> None:
    """Check that every question and its answer fit into the positions of the policy.

    Raises:
        DataError: one does not fit.
    """
    for prompt, length in zip(prompts, chat_lengths(tokenizer, prompts, data), strict=True):
        check_room(length, data.max_response_length, room, f"the question {prompt.id}")


def questions_of(settings: SearchSettings, data: DataSettings) -> tuple[tuple[Prompt, ...], str | None]:
    """The questions of a `search` section with their system prompt, and the system prompt that they share.

    Raises:
        ConfigError: a question has more than one turn, or tools; or answers are not known (data.type prompts).
        DataError: the file is missing, or a row cannot be understood.
    """
    verifier_from(data).close()
    if settings.questions is None:
        prompts = load_prompts(data)[1][: settings.limit]
    else:
        readable = None if data.type == "generated" or data.type == "prompts" else data
        rows = read_prompts(settings.questions, answered=False, data=readable, columns=settings.columns)
        rows = rows[: settings.limit]
        prompts = tuple(prompted(row, data) for row in rows)
    return prompts, system_prompt_of(prompts)


def check_identity(folder: Path, study: Study, prompts: Sequence[Prompt], policy: TextPolicy, *, written: bool) -> None:
    """Note what a search depends on, or refuse a folder with answers of another one.

    Raises:
        ConfigError: the folder has answers of other settings, questions or weights.
    """
    settings = study.search
    assert settings is not None
    kept = Path(settings.model.checkpoint or "")
    weights = sorted(kept.rglob("*.safetensors")) if settings.model.checkpoint else []
    identity = {
        "search": settings.model_dump(mode="json", exclude={"save_dir", "batch_size", "max_failure_rate"}),
        "data": None if study.data is None else study.data.model_dump(mode="json"),
        "generation": study.generation.model_dump(mode="json", include={"engine", "temperature", "top_p", "top_k"}),
        "seed": study.runner.seed,
        "questions": [[prompt.id, question_hash(prompt.messages), prompt.ground_truth] for prompt in prompts],
        "policy": weights_hash(policy),
        "reward model": [sha256(path) for path in weights],
    }
    path = folder / "search.json"
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))["identity"]
        given = {"search": settings, "data": study.data}
        changed = [key for key in identity if not _is_same(before.get(key), identity[key], given.get(key))]
        if changed and written:
            raise ConfigError(
                f"{folder} holds answers of another search: {', '.join(changed)} differ; choose another "
                "search.save_dir, or remove the folder"
            )
        if not changed:
            return
    elif written:
        raise ConfigError(f"{folder}/answers.jsonl is there without search.json: choose another search.save_dir")
    write_json(path, {"identity": identity})


def _is_same(before: Any, now: Any, section: BaseModel | None) -> bool:
    """Whether a part of an identity is as it was; a key that there was none of is, where it has its default."""
    if section is None or not isinstance(before, Mapping):
        return bool(before == now)
    set_now = section.model_dump(mode="json", exclude_defaults=True)
    return bool(before == {key: value for key, value in now.items() if key in before or key in set_now})


class _Searcher:
    """Searches batches of questions.

    Args:
        study: the configuration.
        settings: its `search` section.
        data: its `data` section.
        policy: writes.
        system_prompt: of all questions.
    """

    def __init__(
        self, study: Study, settings: SearchSettings, data: DataSettings, policy: TextPolicy, system_prompt: str | None
    ) -> None:
        self._settings, self._data, self._policy, self._seed = settings, data, policy, study.runner.seed
        self._system_prompt = system_prompt
        self._engine: Engine = build_engine(policy, study.generation)
        self._model: RewardModel = load_source_model(settings.model)
        if self._model.info.compares:
            raise ConfigError.about(
                "search.model", f": {relative(self._model.info.name)}, and search scores solutions one by one"
            )
        self.verifier: Verifier = verifier_from(data)
        self._same: Same = same_by(self.verifier)

    def rows(self, batch: Sequence[Prompt], number: int) -> list[dict[str, Any]]:
        """The lines of a batch of questions.

        Args:
            batch: the questions.
            number: of the batch; its random numbers depend on it.
        """
        settings, first = self._settings, batch[0]
        by_task = family_of(first).separator if is_generated(first) else BLANK_LINE
        beam_width, rounds = settings.beam_width, settings.rounds
        if settings.method == "best_of_n":
            beam_width = rounds = 1
        plan = SearchPlan(
            settings.n,
            settings.aggregation,
            settings.separator or by_task,
            beam_width=beam_width,
            rounds=rounds,
            batch_size=settings.batch_size,
            system_prompt=str(first.context[0]["content"]) if first.context else None,
        )
        writer = PolicyWriter(
            self._engine,
            self._policy.tokenizer,
            max_new_tokens=self._data.max_response_length,
            rng=np.random.default_rng([self._seed, number]),
            system_prompt=self._system_prompt,
        )
        questions = [prompt.question for prompt in batch]
        search = dvts if settings.method == "dvts" else beam_search
        found = search(writer, self._model, questions, plan)
        return [self._row(prompt, result) for prompt, result in zip(batch, found, strict=True)]

    def refuse_failures(self, rows: Sequence[Mapping[str, Any]], *, at_end: bool) -> None:
        """Stop where too many measurements failed, of all questions so far.

        Before the end, fewer than `FIRST_LOOK` measurements count as that many: a failure among the first few says
        little. What is written never exceeds the limit, so that a search goes on once the cause is fixed.

        Args:
            rows: the lines so far, those that are not written yet included.
            at_end: whether they are all.

        Raises:
            TooManyFailuresError: more failed than `max_failure_rate` allows.
        """
        made = sum(row["written"] for row in rows)
        reasons = sum((Counter(row["unmeasured"]) for row in rows), Counter[str]())
        lost, most = reasons.total(), self._settings.max_failure_rate
        if lost > most * (made if at_end else max(made, FIRST_LOOK)):
            why = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
            raise TooManyFailuresError(
                f"{lost} of {made} measurements of {self._model.info.name} failed ({why}), more than "
                f"search.max_failure_rate {most:g} allows; what was answered before is written. Fix the cause and "
                "start the same command again: it resumes"
            )

    def _row(self, prompt: Prompt, result: SearchResult) -> dict[str, Any]:
        """The line of a question."""
        complete = list(result.complete)
        checked = self._checked([beam.text for beam in complete], prompt)
        chosen, failure, extra = result.best, result.failure, dict[str, Any]()
        if self._settings.choose == "weighted_vote" and failure is None:
            chosen, failure, extra = weighted_vote(complete, [one.answer for one in checked], self._same)
        response = answer = value = correct = None
        if chosen is not None:
            verdict = checked[complete.index(chosen)]
            response, answer, value = chosen.text, verdict.answer, chosen.value
            truth = outcome(verdict, self._data.unparsable) if prompt.ground_truth else None
            if truth is not None and not isinstance(truth, Failure):
                correct = truth == 1.0
        return {
            "id": prompt.id,
            "question": prompt.question,
            "response": response,
            "answer": answer,
            "value": value,
            "failure": None if failure is None else {"reason": failure.reason, "detail": failure.detail},
            "correct": correct,
            **extra,
            "complete": len(complete),
            "written": result.written,
            "unmeasured": result.unmeasured,
        }

    def _checked(self, texts: Sequence[str], prompt: Prompt) -> list[VerifierResult]:
        """The verdict on each text; where no true answer is known, the answer alone."""
        read = not isinstance(self.verifier, OwnVerifier) and self.verifier.kind_for(prompt) != "code"
        if prompt.ground_truth or read:
            return self.verifier.check_batch(texts, [prompt] * len(texts))
        return [VerifierResult("answer_unparsable", final_answer(text)) for text in texts]


def weighted_vote(
    complete: Sequence[Beam], answers: Sequence[str | None], same: Same
) -> tuple[Beam | None, Failure | None, dict[str, Any]]:
    """The best solution of the answer whose solutions have the largest sum of values; the first of equal ones.

    A solution without an answer, or without a value, casts no vote.

    Args:
        complete: solutions.
        answers: of each.
        same: whether two answers are the same.

    Returns:
        The solution, or why there is none; and `votes` (how many had a say) with `weight` (its answer's share).
    """
    voters = [k for k, beam in enumerate(complete) if beam.value is not None]
    values = np.array([complete[k].value for k in voters], dtype=np.float64)
    classes = np.array(answer_classes([answers[k] for k in voters], same), dtype=np.int64)
    says = classes != NO_ANSWER
    if not says.any():
        return None, Failure("no_answer", "no measured solution states an answer"), {}
    if (values[says] < 0).any():
        return None, Failure("negative_values", "votes need values of at least 0: take choose best"), {}
    sums = np.bincount(classes[says], weights=values[says])
    winner = int(sums.argmax())
    members = [(complete[voters[i]], values[i]) for i in np.flatnonzero(classes == winner)]
    best = max(members, key=lambda pair: pair[1])[0]
    share = float(sums[winner] / sums.sum()) if sums.sum() else None
    return best, None, {"votes": int(says.sum()), "weight": share}


def _done(path: Path, rows: Sequence[dict[str, Any]]) -> SearchDone:
    reasons = Counter(row["failure"]["reason"] for row in rows if row["failure"] is not None)
    truths = [row["correct"] for row in rows if row["correct"] is not None]
    answered = sum(row["response"] is not None for row in rows)
    return SearchDone(path, len(rows), answered, dict(reasons.most_common()), sum(truths), len(truths))
