"""Prompts from files and data sets: PRIME's and verl's schema, questions and answers, multiple choice, GSM8K.

A row that cannot be understood is an error with its file and line. A row whose true answer is missing or cannot be read
is skipped, and a line says how many were; a file where these are more than 5 % is refused.

    train, validation = load_prompts(GSM8KDataSettings(path="data/gsm8k"))
    prompts = read_prompts("train.parquet")
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from guerdon.episodes.preferences import is_preference, responses_in
from guerdon.errors import DataError, MissingDependencyError, boundary, needs
from guerdon.network.hub import check_data_set
from guerdon.processes.progress import log_once
from guerdon.reading.chats import ChatError, chat_messages, question_of, tool_schemas
from guerdon.reading.containers import good_rows, has_rows
from guerdon.reading.data_sets import data_parts
from guerdon.settings.data import VERIFIERS, DataSettings, FilesDataSettings, GSM8KDataSettings, HubDataSettings
from guerdon.tasks.answers import final_answer, last_boxed
from guerdon.tasks.choices import is_blank, read_choices
from guerdon.tasks.code.code_forms import tests_of_row
from guerdon.tasks.code.code_tests import check_isolation, is_code
from guerdon.tasks.prompts import (
    Prompt,
    UnreadableGoldError,
    check_contamination,
    hold_out,
    insert_examples,
    insert_system_prompt,
    question_hash,
    with_unique_ids,
    without_system,
)
from guerdon.tasks.quantities import numbers_of
from guerdon.tasks.reasoning import generate
from guerdon.tasks.verifier import Verifier, verifier_from
from guerdon.types import Failure, Message, Tool

ReadDataSettings = FilesDataSettings | GSM8KDataSettings | HubDataSettings

_QUESTIONS = ("question", "problem", "query", "prompt")
_TASKS = {"test_list": "text", "public_test_cases": "question_content"}  # of MBPP and LiveCodeBench, by their tests
_ANSWERS = ("ground_truth", "answer", "final_answer", "expected_answer", "target", "reference_answer")
_SOLUTIONS = ("solution", "rationale", "generated_solution")
MOST_SKIPPED = 0.05  # of a file's rows
MOST_PARSED = 256  # of a file
_MOST_TIMEOUTS = 8  # of the parser, after which no more true answers of a file are tried
_PROBE = r"\boxed{0}"  # a response: only what the verifier says of the true answer counts
_PLAIN = re.compile(r"[A-Z]|-?[0-9]+(?:\.[0-9]+)?")  # the letter of an option, a number


def load_prompts(settings: DataSettings) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """The prompts that the `data` section describes: to train on and to validate on.

    The system prompt and the worked examples are in place, ids are unique, and no question is in both.

    Raises:
        DataError: a file is missing, a row cannot be understood, or too few prompts have a solution to show.
        MissingDependencyError: the `datasets` library is needed and not installed.
    """
    if settings.type == "generated":
        train, validation = generate(settings.task, settings.train_size, settings.val_size)
    else:
        train, separate = (_asked(settings.path), None) if settings.type == "prompts" else _sources(settings)
        if separate is None:
            train, validation = hold_out(train, settings.val_size)
        else:
            validation = separate
    check_contamination(train, validation)
    examples = [prompt for prompt in train if prompt.solution][: settings.shots]
    if len(examples) < settings.shots or len(train) <= settings.shots:
        raise DataError(
            f"data.shots is {settings.shots}, and {len(examples)} of the {len(train)} training prompts can be shown as "
            "worked examples, of which at least one more must remain to train on; give rows a `solution`"
        )
    shown = {example.id for example in examples}
    train = tuple(prompted(prompt, settings, examples) for prompt in train if prompt.id not in shown)
    return train, tuple(prompted(prompt, settings, examples) for prompt in validation)


def check_here(data: DataSettings) -> None:
    """Report prompts that are not on this machine, which may not be the one that runs the study.

    Raises:
        MissingDependencyError: `data.path` does not exist here.
    """
    if data.type == "files" or data.type == "generated" or has_rows(Path(data.path)):
        return
    if not Path(data.path).exists():
        raise MissingDependencyError(f"data.path {data.path} does not exist on this machine; the run reads its rows")


def check_prompts(data: DataSettings | None) -> None:
    """Refuse prompts of files that the start of a command refuses, before any model is loaded.

    Raises:
        DataError: as `load_prompts`.
        MissingDependencyError: as `check_here`.
    """
    if data is not None and data.type != "generated":
        check_here(data)
        load_prompts(data)


def prompted(prompt: Prompt, settings: DataSettings, examples: Sequence[Prompt] = ()) -> Prompt:
    """A prompt with the system prompt and the worked examples, which are for the policy alone."""
    own = prompt.messages if settings.system_prompt is None else without_system(prompt.messages)
    messages = insert_examples(insert_system_prompt(prompt.messages, settings.system_prompt), examples)
    return replace(prompt, messages=messages, given=() if messages == own else own)


def _check_code_rows(settings: ReadDataSettings, prompts: Iterable[Prompt]) -> None:
    """Refuse programming tasks that would not be judged by their tests.

    Raises:
        DataError: the settings name another verifier.
        MissingDependencyError: programs cannot be run in isolation on this machine.
    """
    if VERIFIERS.is_own(settings.verifier):
        return
    rows = [prompt for prompt in prompts if is_code(prompt.ability, prompt.ground_truth)]
    if rows and settings.verifier not in ("auto", "code"):
        raise DataError(
            f"{len(rows)} rows are programming tasks, the first is {rows[0].id}: {rows[0].question[:80]!r}; "
            f"data.verifier {settings.verifier} cannot judge them: remove it, or leave them out"
        )
    if rows or settings.verifier == "code":
        check_isolation()


def _sources(settings: ReadDataSettings) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...] | None]:
    """Training prompts, and validation prompts where the settings name a place for them."""
    if settings.type == "files":
        train, validation = (
            with_unique_ids(prompt for name in names for prompt in read_prompts(name, data=settings))
            for names in (settings.train_files, settings.val_files)
        )
        return train, validation if settings.val_files else None

    def split(name: str) -> tuple[Prompt, ...]:
        if settings.type == "datasets":
            return read_dataset(settings.path, name, settings.name, data=settings)
        return read_gsm8k(settings.path, name, data=settings)

    return split(settings.train_split), split(settings.val_split) if settings.val_split else None


def _asked(path: str) -> tuple[Prompt, ...]:
    """The prompts of a file, or of a folder or data set: of its split `train` where it has one.

    Of a row of preferences without a prompt of its own it is what the responses answer.
    """
    rows = [pair for part in data_parts(path, train=True) for pair in part.good_rows()]

    def asked(where: str, row: Any) -> Any:
        if not is_preference(row) or any(row.get(key) for key in _QUESTIONS):
            return row
        one = responses_in(row, where, "")[0][0]
        if isinstance(one, Failure):
            return row
        return {"prompt": [*one.context, {"role": "user", "content": one.question}], "tools": list(one.tools)}

    return _prompts(((where, asked(where, row)) for where, row in rows), Path(path).stem, path, answered=False)


def read_prompts(
    path: Path | str, *, answered: bool = True, data: ReadDataSettings | None = None
) -> tuple[Prompt, ...]:
    """The prompts of a JSONL, JSON (a list of rows), Parquet, CSV or TSV file.

    Args:
        path: the file.
        answered: every row must have a true answer; otherwise those without one get an empty `ground_truth`.
        data: names the verifier; rows whose true answer it cannot read are skipped too.

    Raises:
        DataError: the file is missing or of another kind, a row cannot be understood, or more than 5 % are skipped.
    """
    path = Path(path)
    return _prompts(good_rows(path), path.stem, path, answered=answered, data=data)


def read_gsm8k(folder: Path | str, split: str = "train", *, data: ReadDataSettings | None = None) -> tuple[Prompt, ...]:
    """The problems of GSM8K's own files (Cobbe et al. 2021, 2110.14168): `train.jsonl` and `test.jsonl`.

    Raises:
        DataError: the folder has no such file, or a row lacks the `####` in front of its answer.
    """
    path = Path(folder) / f"{split}.jsonl"
    if not path.is_file():
        there = ", ".join(sorted(p.name for p in Path(folder).glob("*.jsonl"))) or "no .jsonl file at all"
        raise DataError(f"there is no such file; the folder of GSM8K has {there}", where=path)
    rows = list(good_rows(path))
    for where, row in rows:
        if isinstance(row, Mapping) and not is_blank(row.get("answer")) and "####" not in str(row.get("answer")):
            raise DataError("a row of GSM8K has an answer that ends in '#### <number>'; this one has none", where=where)
    return _prompts(rows, "openai/gsm8k", path, ability="math", data=data)


def read_dataset(
    path: str, split: str, name: str | None = None, *, data: ReadDataSettings | None = None
) -> tuple[Prompt, ...]:
    """The prompts of a folder of the `datasets` library, or of a data set on the hub.

    Args:
        path: a folder that `save_to_disk` wrote, a folder of data files, or a hub id.
        split: which split.
        name: the configuration, where there are several.
        data: as for `read_prompts`.

    Raises:
        DataError: it cannot be loaded, has no such split, or its rows cannot be understood (see `read_prompts`).
        MissingDependencyError: `datasets` is not installed.
    """
    with needs("data.type datasets needs the package datasets: pip install 'guerdon[text]'"):
        import datasets
    check_data_set(DataError, "data.path", path)
    folder = Path(path)
    with boundary(DataError, f"data.path {path}: the split {split!r} cannot be loaded"):
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            loaded = datasets.load_from_disk(path)
            if isinstance(loaded, datasets.DatasetDict):
                if split not in loaded:
                    raise DataError(f"data.path {path} has no split {split!r}, only {', '.join(loaded)}")
                loaded = loaded[split]
            elif split != "train":
                raise DataError(f"data.path {path} is a single data set without splits; {split!r} is not in it")
        else:
            loaded = datasets.load_dataset(path, name, split=split, trust_remote_code=False)
        rows = [(f"{path}[{split}] row {i}", row) for i, row in enumerate(loaded)]
    return _prompts(rows, path if "/" in path and not folder.exists() else folder.name, f"{path}[{split}]", data=data)


def _prompts(
    rows: Iterable[tuple[str, Any]],
    source: str,
    read: Path | str,
    ability: str = "",
    *,
    answered: bool = True,
    data: ReadDataSettings | None = None,
) -> tuple[Prompt, ...]:
    """The prompts of one file or split, without those whose true answer cannot be read."""
    prompts: list[Prompt] = []
    places: list[str] = []
    skipped: list[tuple[str, str]] = []  # place and reason
    for where, row in rows:
        try:
            prompts.append(prompt_from_row(row, where, source, ability, answered=answered))
            places.append(where)
        except UnreadableGoldError as error:
            skipped.append((where, str(error)))
    total = len(prompts) + len(skipped)
    share = len(skipped) / max(total, 1)
    if data is not None:
        _check_code_rows(data, prompts)
        found = unreadable_golds(prompts, data)
        skipped += [(places[i], f"{places[i]}: {reason}") for i, reason in found.reasons.items()]
        share += found.share * len(prompts) / max(total, 1)
        prompts = [prompt for i, prompt in enumerate(prompts) if i not in found.reasons]
    if share > MOST_SKIPPED:
        raise DataError(
            f"{skipped[0][1]}; {len(skipped)} of {total} rows have no true answer that can be read, and more than "
            f"{MOST_SKIPPED:.0%} of a file are not skipped: correct each or leave it out"
        )
    if skipped:
        numbers = ", ".join(re.findall(r"\d+$", where)[-1] for where, _ in skipped[:5])
        more = ", ..." if len(skipped) > 5 else ""
        log_once(
            f"{read}: skipped {len(skipped)} of {total} rows whose true answer cannot be read (rows {numbers}{more}); "
            f"the first: {skipped[0][1]}"
        )
    if not prompts:
        raise DataError(f"{read}: there is no prompt in it; give a file with a row per question")
    return with_unique_ids(prompts)


def prompt_from_row(row: Any, where: str, data_source: str, ability: str = "", *, answered: bool = True) -> Prompt:
    r"""One row as a prompt.

    The question is `prompt` (chat messages or a string), `question`, `problem` or `query`, with the functions of a
    column `tools` (JSON schemas), if there is one; of programming tasks also MBPP's `text` and LiveCodeBench's
    `question_content`, and `query` before LeetCodeDataset's `prompt`, which is code. The tests of a programming task
    have any of the forms of `code_forms`. Another true answer is
    `reward_model.ground_truth`, or one of `ground_truth`, `answer`, `final_answer`, `expected_answer`, `target`; of
    an `answer` with `####` or `\boxed{}` the part these mark, and the whole is the worked solution. With a
    `solution` alone, the answer is what it marks. Of a multiple-choice question (see `choices.py`) the options follow
    the question as lettered lines, and the answer is the letter.

    Args:
        row: a mapping.
        where: file and line, for errors.
        data_source: where the row names none.
        ability: where the row names none.
        answered: a row must have a true answer.

    Raises:
        UnreadableGoldError: with `where`; its true answer is missing.
        DataError: with `where` and what is missing.
    """
    if not isinstance(row, Mapping):
        raise DataError(f"a row must be a map of keys, this is {type(row).__name__}", where=where)
    row = {key: None if isinstance(value, float) and is_blank(value) else value for key, value in row.items()}  # NaN
    choices, tools = read_choices(row, where, answered=answered), _tools(row, where)
    if choices is None:
        messages = _messages(row, where)
        gold, solution = _gold(row, where, answered=answered)
    else:
        messages = _messages(row if choices.question is None else {"question": choices.question}, where)
        messages = (*messages[:-1], {"role": "user", "content": choices.asked(messages[-1]["content"])})
        gold, solution = choices.answer, None if choices.shuffled else _solution(row)
    info = row.get("extra_info") or {}
    if not isinstance(info, Mapping):
        raise DataError(
            f"extra_info must be a map of keys, this is {type(info).__name__}", where=where, field="extra_info"
        )
    return Prompt(
        id=str(row["id"]) if isinstance(row.get("id"), str | int) else question_hash(messages, tools),
        messages=messages,
        ground_truth=gold,
        data_source=str(row.get("data_source") or data_source),
        ability=str(row.get("ability") or ability),
        extra_info=dict(info) | {key: row[key] for key in ("rubric",) if row.get(key)},
        solution=solution,
        tools=tools,
    )


def _messages(row: Mapping[str, Any], where: str) -> tuple[Message, ...]:
    keys = [key for key in _QUESTIONS if key != "prompt" or not (row.get("entry_point") and row.get("query"))]
    keys = [*(key for name, key in _TASKS.items() if name in row), *keys]
    given = next((row[key] for key in reversed(keys) if row.get(key)), None)
    if isinstance(given, str) and re.match(r"\s*\[\s*\{.{0,40}['\"](?:role|content)['\"]\s*:", given, re.DOTALL):
        raise DataError(
            "the question is chat messages written as text; write rows of JSON lines or Parquet", where=where
        )
    if isinstance(given, str) and given.strip():
        return ({"role": "user", "content": given},)
    if not isinstance(given, list | tuple):
        raise DataError(
            f"no question; expected one of {', '.join(_QUESTIONS)}, found {', '.join(map(str, row))}", where=where
        )
    try:
        messages = chat_messages(given)
        question_of(messages)
    except ChatError as error:
        raise DataError(str(error), where=where) from error
    return messages


def _tools(row: Mapping[str, Any], where: str) -> tuple[Tool, ...]:
    try:
        return tool_schemas(row.get("tools"))
    except ChatError as error:
        raise DataError(f"tools: {error}", where=where, field="tools") from error


def _solution(row: Mapping[str, Any]) -> str | None:
    """The worked solution of a row: a column of its own, or an answer that marks its result."""
    solution = next((row[key] for key in _SOLUTIONS if isinstance(row.get(key), str) and row[key].strip()), None)
    answer = next((row[key] for key in _ANSWERS if not is_blank(row.get(key))), None)
    return solution or (answer if isinstance(answer, str) and _marks(answer) else None)


def _marks(text: str) -> bool:
    return "####" in text or last_boxed(text) is not None


def _gold(row: Mapping[str, Any], where: str, *, answered: bool) -> tuple[str, str | None]:
    """True answer and worked solution of a row."""
    solution = _solution(row)
    tests = tests_of_row(row)
    if tests is not None:
        return tests, solution
    model = row.get("reward_model")
    try:
        if isinstance(model, Mapping):
            return _as_text(model.get("ground_truth"), f"{where}: reward_model.ground_truth"), solution
        key = next((key for key in _ANSWERS if not is_blank(row.get(key))), None)
        if key is not None:
            text = _as_text(row[key], f"{where}: {key}")
            gold = final_answer(text) if _marks(text) else text
            if gold is None or is_blank(gold):
                raise UnreadableGoldError(f"{key} marks no answer: {text[-80:]!r}", where=where, field=key)
            return gold, solution
        stated = final_answer(solution) if solution else None
        if stated is None:
            wanted = f"reward_model.ground_truth, one of {', '.join(_ANSWERS)}, or a solution that marks its answer"
            raise UnreadableGoldError(
                f"no true answer; expected {wanted}; found {', '.join(map(str, row))}", where=where
            )
        return stated, solution
    except UnreadableGoldError:
        if answered:
            raise
        return "", solution


def _as_text(value: Any, where: str) -> str:
    missing = is_blank(value) or (isinstance(value, float) and not math.isfinite(value))
    if missing or isinstance(value, bool) or not isinstance(value, str | int | float):
        kind = UnreadableGoldError if missing else DataError
        raise kind(f"{where} must be text or a number, this is {str(value)[:80]!r}")
    return str(value).strip()


# true answers that the verifier of a run cannot read


class UnreadableGolds(NamedTuple):
    """What `unreadable_golds` found.

    Attributes:
        reasons: of each prompt whose true answer cannot be read, by its place.
        share: of all prompts, estimated where not every true answer was parsed.
    """

    reasons: dict[int, str]
    share: float


def unreadable_golds(prompts: Sequence[Prompt], settings: ReadDataSettings) -> UnreadableGolds:
    """The prompts whose true answer the verifier cannot read; those without one are not tried.

    Numbers and the tests of programs are read here, all of them. Other mathematics is parsed in the verifier's
    processes, about 10 ms each, so at most `MOST_PARSED` different true answers of a file are tried, spread evenly over
    it; their share stands for the rest. One that is met later is a failed measurement (`gold_unparsable`).

    Nothing is known of a user's own verifier.

    Raises:
        MissingDependencyError: answers are compared as mathematics, and math-verify is not installed.
    """
    if VERIFIERS.is_own(settings.verifier):
        return UnreadableGolds({}, 0.0)
    reasons: dict[int, str] = {}
    rows_of: dict[str, list[int]] = {}  # true answers that need the parser
    with verifier_from(settings) as verifier:
        for i, prompt in enumerate(prompts):
            gold, kind = prompt.ground_truth, verifier.kind_for(prompt)
            if not gold or kind == "generated":
                continue
            if kind != "math":
                result = verifier.check(_PROBE if kind != "code" else "", prompt)
                if result.verdict == "gold_unparsable":
                    reasons[i] = (
                        f"it is a programming task, but {result.detail}" if kind == "code" else _reason(gold, kind)
                    )
            elif not _PLAIN.fullmatch(gold) and not numbers_of(gold, prompt.question):
                rows_of.setdefault(gold, []).append(i)
    golds = tuple(rows_of)[:: max(1, -(-len(rows_of) // MOST_PARSED))]
    bad = _unparsable(golds, settings.verifier_timeout, settings.verifier_workers, settings.verifier_tolerance)
    reasons |= {i: _reason(gold, "math") for gold in bad for i in rows_of[gold]}
    parsed, symbolic = (sum(len(rows_of[gold]) for gold in some) for some in (golds, rows_of))
    unread = sum(len(rows_of[gold]) for gold in bad)
    share = (len(reasons) - unread + unread * symbolic / max(parsed, 1)) / max(len(prompts), 1)
    return UnreadableGolds(dict(sorted(reasons.items())), share)


def _reason(gold: str, kind: str) -> str:
    return f"the true answer {gold[:80]!r} cannot be read ({kind})"


@functools.lru_cache(maxsize=64)
def _unparsable(golds: tuple[str, ...], timeout: float, workers: int, tolerance: float) -> tuple[str, ...]:
    """Those of these true answers that the math verifier cannot read; kept, because commands read a file repeatedly."""
    bad: list[str] = []
    timeouts = 0
    if not golds:
        return ()
    with Verifier("math", timeout=timeout, workers=workers, tolerance=tolerance) as verifier:
        for start in range(0, len(golds), 4 * workers):
            some = golds[start : start + 4 * workers]
            prompts = [Prompt("", ({"role": "user", "content": ""},), gold, "") for gold in some]
            verdicts = [result.verdict for result in verifier.check_batch([_PROBE] * len(some), prompts)]
            bad += [gold for gold, verdict in zip(some, verdicts, strict=True) if verdict == "gold_unparsable"]
            timeouts += verdicts.count("timeout")
            if timeouts >= _MOST_TIMEOUTS:
                break
    return tuple(bad)
