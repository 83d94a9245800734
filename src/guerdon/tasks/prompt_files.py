"""Prompts from files and data sets: PRIME's and verl's schema, questions and answers, multiple choice, conversations.

What a column is for is decided by `guerdon.reading` over the whole data; `columns` says what differs. A row that cannot
be understood is an error with its file and line. A row whose true answer is missing or cannot be read is skipped, and a
line says how many were; a file where more than 5 % are there and cannot be read is refused. Rows without a question,
and those with pictures, sound or video, are left out and counted.

    train, validation = load_prompts(GSM8KDataSettings(path="data/gsm8k"))
    prompts = read_prompts("train.parquet")
    prompts = read_prompts("exam.csv", columns="prompt=task,reference=key")
"""

from __future__ import annotations

import functools
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from guerdon.episodes.preferences import LeftOut, is_preference, responses_in
from guerdon.errors import DataError, MissingDependencyError, boundary, needs
from guerdon.network.hub import check_data_set
from guerdon.processes.progress import log_once
from guerdon.reading.chats import (
    ChatError,
    answer_text,
    asked_of,
    chat_messages,
    media_in,
    question_of,
    split_answer,
    tool_schemas,
    turns_of,
)
from guerdon.reading.containers import has_rows
from guerdon.reading.data_sets import DataPart, Rows, split_and_subset
from guerdon.reading.plan import Plan
from guerdon.reading.reader import DataReading, NoValueError, Record, read
from guerdon.reading.roles import ASKED, ROLES, Role, named
from guerdon.reading.shown import ReadAs, log_reading
from guerdon.reading.values import is_empty
from guerdon.settings.data import (
    VERIFIERS,
    DataSettings,
    FilesDataSettings,
    GSM8KDataSettings,
    HubDataSettings,
    PromptsDataSettings,
)
from guerdon.tasks.answers import final_answer, last_boxed
from guerdon.tasks.choices import MultipleChoice, is_blank, read_choices
from guerdon.tasks.code.code_forms import tests_of_row
from guerdon.tasks.code.code_tests import check_isolation, is_code
from guerdon.tasks.prompts import (
    NoGoldError,
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

_Said = str | Mapping[str, str] | None  # `columns`
MOST_SKIPPED = 0.05  # of a file's rows
MOST_PARSED = 256  # of a file
_MOST_TIMEOUTS = 8  # of the parser, after which no more true answers of a file are tried
_JUDGES: tuple[Role, ...] = (  # roles that say how good a response is
    "reward", "reference", "truth", "label", "rating", "scores", "advantage", "token_rewards", "truncated", "failed",
)  # fmt: skip
_PROBE = r"\boxed{0}"  # a response: only what the verifier says of the true answer counts
_PLAIN = re.compile(r"[A-Z]|-?[0-9]+(?:\.[0-9]+)?")  # the letter of an option, a number


def load_prompts(
    settings: DataSettings, *, answered: bool = True, read_as: list[ReadAs] | None = None
) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...]]:
    """The prompts that the `data` section describes: to train on and to validate on.

    The system prompt and the worked examples are in place, ids are unique, and no question is in both.

    Args:
        settings: the section.
        answered: rows need a true answer that the verifier can read.
        read_as: receives what each data set was read as.

    Raises:
        DataError: a file is missing, a row cannot be understood, or too few prompts have a solution to show.
        MissingDependencyError: the `datasets` library is needed and not installed.
    """
    if settings.type == "generated":
        train, validation = generate(settings.task, settings.train_size, settings.val_size)
    else:
        train, separate = _sources(settings, [] if read_as is None else read_as, answered=answered)
        if separate is None:
            train, validation = hold_out(train, settings.val_size)
        else:
            validation = separate
    check_contamination(train, validation)
    examples = [prompt for prompt in train if prompt.solution and not prompt.worked][: settings.shots]
    if len(examples) < settings.shots or len(train) <= settings.shots:
        raise DataError(
            f"data.shots is {settings.shots}, and {len(examples)} of the {len(train)} training prompts can be shown as "
            "worked examples, of which at least one more must remain to train on; give rows a `solution`",
            field="data.shots",
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
            f"data.verifier {settings.verifier} cannot judge them: remove it, or leave them out",
            field="data.verifier",
        )
    if rows or settings.verifier == "code":
        check_isolation()


def _sources(
    settings: ReadDataSettings | PromptsDataSettings, read_as: list[ReadAs], *, answered: bool
) -> tuple[tuple[Prompt, ...], tuple[Prompt, ...] | None]:
    """Training prompts, and validation prompts where the settings name a place for them."""
    if settings.type == "prompts":
        asked = read_prompts(settings.path, answered=False, columns=settings.columns, train=True, read_as=read_as)
        return asked, None
    judged = settings if answered else None
    if settings.type == "files":
        one = partial(read_prompts, answered=answered, data=judged, columns=settings.columns, read_as=read_as)
        train = [one(name, train=True) for name in settings.train_files]
        validation = [one(name) for name in settings.val_files]
        held_out = with_unique_ids(chain.from_iterable(validation)) if validation else None
        return with_unique_ids(chain.from_iterable(train)), held_out

    def split(name: str) -> tuple[Prompt, ...]:
        if settings.type == "datasets":
            given = (settings.path, name, settings.name)
            return read_dataset(*given, answered=answered, data=judged, columns=settings.columns, read_as=read_as)
        return read_gsm8k(settings.path, name, data=judged, read_as=read_as)

    return split(settings.train_split), split(settings.val_split) if settings.val_split else None


def read_prompts(
    path: Path | str,
    *,
    answered: bool = True,
    data: ReadDataSettings | None = None,
    columns: _Said = None,
    train: bool = False,
    read_as: list[ReadAs] | None = None,
) -> tuple[Prompt, ...]:
    """The prompts of a file, a folder, PATH:SPLIT or a hub id.

    Args:
        path: see `guerdon.reading.reader.read`.
        answered: every row must have a true answer; otherwise those without one get an empty `ground_truth`, and a row
            of preferences without a prompt of its own asks what its responses answer.
        data: names the verifier; rows whose true answer it cannot read are skipped too.
        columns: see `guerdon.reading.reader.read`.
        train: without the rows of other splits than `train`.
        read_as: receives what the data was read as.

    Raises:
        DataError: the file is missing or of another kind, a row cannot be understood, or more than 5 % of the true
            answers cannot be read.
    """
    reading = read(str(path), columns=columns, train=train)
    source = reading.parts[0].name if Path(path).is_file() else Path(path).stem
    return prompts_in(reading, source, answered=answered, data=data, read_as=read_as)


def read_gsm8k(
    folder: Path | str,
    split: str = "train",
    *,
    data: ReadDataSettings | None = None,
    read_as: list[ReadAs] | None = None,
) -> tuple[Prompt, ...]:
    """The problems of GSM8K's own files (Cobbe et al. 2021, 2110.14168): `train.jsonl` and `test.jsonl`.

    Raises:
        DataError: the folder has no such file, or a row lacks the `####` in front of its answer.
    """
    path = Path(folder) / f"{split}.jsonl"
    if not path.is_file():
        there = ", ".join(sorted(p.name for p in Path(folder).glob("*.jsonl"))) or "no .jsonl file at all"
        raise DataError(f"there is no such file; the folder of GSM8K has {there}", where=path)
    reading = read(str(path))
    for record in reading.records():
        answer = record.roles.get("reference")
        if not is_blank(answer) and "####" not in str(answer):
            raise DataError(
                "a row of GSM8K has an answer that ends in '#### <number>'; this one has none",
                where=record.where,
                field="answer",
            )
    return prompts_in(reading, "openai/gsm8k", ability="math", data=data, read_as=read_as)


def read_dataset(
    path: str,
    split: str,
    name: str | None = None,
    *,
    answered: bool = True,
    data: ReadDataSettings | None = None,
    columns: _Said = None,
    read_as: list[ReadAs] | None = None,
) -> tuple[Prompt, ...]:
    """The prompts of a folder of the `datasets` library, or of a data set on the hub.

    Args:
        path: a folder that `save_to_disk` wrote, a folder of data files, or a hub id.
        split: which split.
        name: the configuration, where there are several.
        answered: as for `read_prompts`.
        data: as for `read_prompts`.
        columns: as for `read_prompts`.
        read_as: as for `read_prompts`.

    Raises:
        DataError: it cannot be loaded, has no such split, or its rows cannot be understood (see `read_prompts`).
        MissingDependencyError: `datasets` is not installed.
    """
    with needs("data.type datasets needs the package datasets: pip install 'guerdon[text]'"):
        import datasets
    check_data_set(DataError, "data.path", path)
    folder = Path(path)
    with boundary(DataError, f"data.path {path}: the split {split!r} cannot be loaded", field="data.path"):
        if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
            loaded = datasets.load_from_disk(path)
            if isinstance(loaded, datasets.DatasetDict):
                if split not in loaded:
                    raise DataError(
                        f"data.path {path} has no split {split!r}, only {', '.join(loaded)}", field="data.path"
                    )
                loaded = loaded[split]
            elif split != "train":
                raise DataError(
                    f"data.path {path} is a single data set without splits; {split!r} is not in it", field="data.path"
                )
        else:
            loaded = datasets.load_dataset(path, name, split=split, trust_remote_code=False)

    def rows(kept: bool) -> Rows:
        return ((f"{path}[{split}] row {i}", row) for i, row in enumerate(loaded))

    source = path if "/" in path and not folder.exists() else folder.name
    said = f"{path}[{split}]"
    parts = [DataPart(said, split, split_and_subset(split)[0], split, rows)]
    reading = read(said, columns=columns, parts=parts)
    return prompts_in(reading, source, answered=answered, data=data, read_as=read_as)


def prompts_in(
    reading: DataReading,
    source: str,
    ability: str = "",
    *,
    answered: bool = True,
    data: ReadDataSettings | None = None,
    read_as: list[ReadAs] | None = None,
) -> tuple[Prompt, ...]:
    """The prompts of one data set, without those whose true answer cannot be read.

    Args:
        reading: of the data set.
        source: where a row names none.
        ability: where a row names none.
        answered: as for `read_prompts`.
        data: as for `read_prompts`.
        read_as: as for `read_prompts`.

    Raises:
        DataError: as `read_prompts`.
    """
    found = prompts_of_rows(reading, source, ability, answered=answered, data=data)
    if found.skipped:
        _say_skipped(reading.data, found)
    if reading.rows:
        known = log_reading(reading, used=len(found.prompts), left_out=found.left_out)
        if read_as is not None:
            read_as.append(known)
    found.check(reading.data)
    return with_unique_ids(found.prompts)


class PromptRows(NamedTuple):
    """What the rows of a data set ask.

    Attributes:
        prompts: in order.
        left_out: rows without one, by reason.
        skipped: of each row whose true answer is missing or cannot be read, why, with its place.
        rows: those with a prompt, and these.
    """

    prompts: list[Prompt]
    left_out: Counter[str]
    skipped: list[UnreadableGoldError]
    rows: int

    def check(self, data: str) -> None:
        """Refuse data without a prompt.

        Raises:
            DataError: it has none.
        """
        if self.prompts:
            return
        if self.skipped:
            raise _refused(self.skipped[0], "no row has a true answer that can be read")
        why = ", ".join(f"{n} {reason}" for reason, n in sorted(self.left_out.items()))
        why = f": left out were {why}" if why else "; give a file with a row per question"
        raise DataError(f"there is no prompt in it{why}", where=data)


def prompts_of_rows(
    reading: DataReading, source: str, ability: str = "", *, answered: bool = True, data: ReadDataSettings | None = None
) -> PromptRows:
    """The prompts of one data set, and what is left out of them.

    Args: see `prompts_in`.

    Raises:
        DataError: as `read_prompts`, but for data without a prompt.
    """
    prompts: list[Prompt] = []
    places: list[str] = []
    skipped: list[UnreadableGoldError] = []
    left_out: Counter[str] = Counter()
    unread = 0
    last: tuple[str, Any] | None = None
    reading.need(*ASKED, "tools", "rubric")
    for record in reading.records(bad=True):
        if record.error is not None:
            raise record.error
        kind = media_in(record.roles)
        asked = record.name, record.roles.get("prompt", record.name)
        if asked == last:
            left_out["same_prompt"] += 1  # another response to the prompt of a row that holds several
            continue
        last = asked
        if kind:
            left_out[f"has_{kind}"] += 1
            continue
        try:
            prompts.append(prompt_of(record, reading.plan, source, ability, answered=answered))
            places.append(record.where)
        except UnreadableGoldError as error:
            skipped.append(error)
            unread += not isinstance(error, NoGoldError)
        except LeftOut as error:
            left_out[str(error)] += 1
        except NoValueError:
            if not any(map(reading.plan.has, ASKED)):
                raise
            left_out["no_prompt"] += 1
    total = len(prompts) + len(skipped)
    share = unread / max(total, 1)
    if data is not None:
        _check_code_rows(data, prompts)
        found = unreadable_golds(prompts, data)
        share += found.share * len(prompts) / max(total, 1)
        skipped += [UnreadableGoldError(reason, where=places[i]) for i, reason in found.reasons.items()]
        prompts = [prompt for i, prompt in enumerate(prompts) if i not in found.reasons]
    if skipped:
        left_out["no_true_answer"] = len(skipped)
    if share > MOST_SKIPPED:
        raise _refused(
            skipped[0],
            f"{len(skipped)} of {total} rows have no true answer that can be read, and more than {MOST_SKIPPED:.0%} of "
            "a file are not skipped: correct each or leave it out",
        )
    return PromptRows(prompts, left_out, skipped, total)


def _refused(first: UnreadableGoldError, why: str) -> DataError:
    """An error about a data set whose rows are skipped, at the place of the first of them."""
    reason = str(first).removeprefix(f"{first.where}: ")
    return DataError(f"{reason}; {why}", where=first.where, field=first.field)


def _say_skipped(data: str, found: PromptRows) -> None:
    """Log how many of all rows are skipped, with the places of the first and why."""
    places = [str(one.where) for one in found.skipped[:5]]
    numbers = ", ".join((re.findall(r"\d+$", place) or [place])[-1] for place in places)
    more = ", ..." if len(found.skipped) > 5 else ""
    log_once(
        f"{data}: skipped {len(found.skipped)} of {found.rows} rows whose true answer cannot be read "
        f"(rows {numbers}{more}); the first: {found.skipped[0]}"
    )


def prompt_of(record: Record, plan: Plan, data_source: str, ability: str = "", *, answered: bool = True) -> Prompt:
    r"""One row as a prompt.

    The question is the role `prompt`, or `messages` up to the last answer in them, with the turns before it, passage,
    system prompt and tools that the row has. The tests of a programming task have any of the forms of `code_forms`.
    Another true answer is `reward_model.ground_truth`, or the role `reference`; of one with `####` or `\boxed{}` the
    part these mark, and the whole is the worked solution. With a `solution` alone, the answer is what it marks. Of a
    multiple-choice question (see `choices.py`) the options follow the question as lettered lines, and the answer is the
    letter.

    Args:
        record: of a reading.
        plan: of the same.
        data_source: where the row names none.
        ability: where the row names none.
        answered: a row must have a true answer.

    Raises:
        UnreadableGoldError: with its place; its true answer is missing, or cannot be read.
        NoValueError: with its place; it has no question.
        DataError: with its place and what is missing.
    """
    where = record.where
    roles = _without_nan(record.roles) | _answer_of_steps(record, plan)
    row = _with_said(record, plan, roles)
    asked = _asked(roles, where)
    if asked is None and not answered and is_preference(plan):
        return _of_responses(record, plan, data_source, ability)
    choices = read_choices(row, where, answered=answered)
    tools = _tools(roles, where)
    plan.need(where, "solution")
    solution = _solution(row, roles, plan)
    worked: tuple[Message, ...] | None = None
    if choices is None:
        messages, answer = _messages(asked, roles, row, where)
        gold = _gold(row, roles, plan, solution, where, answered=answered)
        if solution is None and answer is None:
            worked, answer = _response(roles, plan, answered=answered)
        solution = solution or answer
    else:
        messages = _with_options(choices, asked, roles, row, where)
        gold = choices.answer
        if choices.shuffled:
            solution = None  # it speaks of the options in the row's order
    return Prompt(
        id=_id(row, roles, plan) or question_hash(messages, tools),
        messages=messages,
        ground_truth=gold,
        data_source=str(row.get("data_source") or data_source),
        ability=str(row.get("ability") or ability),
        extra_info=_extra_info(row, roles, where),
        solution=solution,
        tools=tools,
        worked=worked,
    )


def _without_nan(cells: Mapping[Any, Any]) -> dict[Any, Any]:
    """Cells, with nothing where pandas wrote NaN."""
    return {key: None if cell != cell else cell for key, cell in cells.items()}


def _with_options(
    choices: MultipleChoice, asked: Any, roles: Mapping[str, Any], row: Mapping[str, Any], where: str
) -> tuple[Message, ...]:
    """The conversation that asks a multiple-choice question, with the options as lettered lines at its end."""
    if choices.question is not None:
        asked, roles = choices.question, {}
    messages, _ = _messages(asked, roles, row, where)
    return (*messages[:-1], {"role": "user", "content": choices.asked(messages[-1]["content"])})


def _extra_info(row: Mapping[str, Any], roles: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What a row says besides, and the rubric of its answer.

    Raises:
        DataError: `extra_info` is no map of keys.
    """
    info = row.get("extra_info") or {}
    if not isinstance(info, Mapping):
        raise DataError(
            f"extra_info must be a map of keys, this is {type(info).__name__}", where=where, field="extra_info"
        )
    return {**info, "rubric": roles["rubric"]} if roles.get("rubric") else dict(info)


def _answer_of_steps(record: Record, plan: Plan) -> dict[str, Any]:
    """The answer beside the steps of a worked solution, which is the true one where no step is judged."""
    if not plan.has("steps") or plan.has("step_labels") or plan.has("reference"):
        return {}
    used = {use.column for use in plan.uses.values()}
    found = (record.row.get(name) for name in named("reference", record.row) if name not in used)
    return {"reference": next((one for one in found if not is_blank(one)), None)}


def _is_said(role: Role, plan: Plan) -> bool:
    """Whether the user, or a model's training, says which column a role has."""
    return role in plan.uses and plan.uses[role].source in ("given", "model")


def _with_said(record: Record, plan: Plan, roles: Mapping[str, Any]) -> dict[str, Any]:
    """A row in which columns that were said have the names that tests and options are looked for by."""
    said = {use.column: role for role, use in plan.uses.items() if _is_said(role, plan)}
    row = _without_nan({name: cell for name, cell in record.row.items() if name not in said})
    return row | {"answer" if role == "reference" else role: roles[role] for role in said.values()}


def _id(row: Mapping[str, Any], roles: Mapping[str, Any], plan: Plan) -> str:
    """The row's own name, where it has one."""
    given = roles["id"] if _is_said("id", plan) else row.get("id")
    return str(given) if isinstance(given, str | int) else ""


def _of_responses(record: Record, plan: Plan, data_source: str, ability: str) -> Prompt:
    """What the responses of a row of preferences answer."""
    one = responses_in(record, plan)[0][0]
    if isinstance(one, Failure):
        raise LeftOut(one.reason)
    messages = one.context or ({"role": "user", "content": one.question},)
    return Prompt(
        id=_id(record.row, record.roles, plan) or question_hash(messages, one.tools),
        messages=messages,
        ground_truth="",
        data_source=data_source,
        ability=ability,
        tools=one.tools,
    )


def _asked(roles: Mapping[str, Any], where: str) -> Any:
    """What was asked: a text, messages, or None; messages that repeat the prompt are left out."""
    prompt, messages = roles.get("prompt"), roles.get("messages")
    turns = messages if isinstance(messages, list | tuple) else ()
    said = [turn.get("content", turn.get("value")) for turn in turns if isinstance(turn, Mapping)]
    repeated = isinstance(prompt, str) and prompt in said
    try:
        return turns_of(asked_of({**roles, "messages": None} if repeated else roles))
    except ChatError as error:
        raise DataError(str(error), where=where) from error


def _messages(
    asked: Any, roles: Mapping[str, Any], row: Mapping[str, Any], where: str
) -> tuple[tuple[Message, ...], str | None]:
    """The conversation up to what is asked, and the answer that follows it in the data."""
    if isinstance(asked, str) and re.match(r"\s*\[\s*\{.{0,40}['\"](?:role|content)['\"]\s*:", asked, re.DOTALL):
        raise DataError(
            "the question is chat messages written as text, and that of other rows is not; write rows of JSON lines or "
            "Parquet",
            where=where,
        )
    if isinstance(asked, str) and asked.strip():
        asked = [{"role": "user", "content": asked}]
    if not isinstance(asked, list | tuple):
        names, found = ", ".join((*ROLES["prompt"], *ROLES["messages"][:1])), ", ".join(map(str, row))
        kind = NoValueError if is_empty(asked) else DataError
        raise kind(
            f"no question; expected one of {names}, or columns: prompt=NAME; found {found}", where=where, field="prompt"
        )
    answer: str | None = None
    try:
        messages = chat_messages(asked)
        if roles.get("prompt") is None and len(messages) > 1 and messages[-1]["role"] == "assistant":
            messages, answer = split_answer(messages)
        question_of(messages)
    except ChatError as error:
        raise DataError(str(error), where=where) from error
    system = roles.get("system")
    if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
        messages = ({"role": "system", "content": system}, *messages)
    return messages, answer


def _tools(roles: Mapping[str, Any], where: str) -> tuple[Tool, ...]:
    try:
        return tool_schemas(roles.get("tools"))
    except ChatError as error:
        raise DataError(f"tools: {error}", where=where, field="tools") from error


def _solution(row: Mapping[str, Any], roles: Mapping[str, Any], plan: Plan) -> str | None:
    """The worked solution of a row: a column of its own, or an answer that marks its result."""
    own = [roles.get("solution"), *(row.get(name) for name in plan.instead.get("solution", ()))]
    solution = next((one for one in own if isinstance(one, str) and one.strip()), None)
    answers = [roles.get("reference"), *(row.get(name) for name in plan.instead.get("reference", ()))]
    marked = next((one for one in answers if isinstance(one, str) and _marks(one)), None)
    return solution or marked


def _response(roles: Mapping[str, Any], plan: Plan, *, answered: bool) -> tuple[tuple[Message, ...] | None, str | None]:
    """The response of a row, if nothing says how good it is: the turns before its last one, and that.

    That of a log counts only where no true answers are asked for, as for a supervised start: it may be wrong.
    """
    said = roles.get("response")
    judged = is_preference(plan) or any(map(plan.has, _JUDGES))
    shown = plan.layout.kind == "prompts" or (plan.layout.kind == "log" and not answered)
    if not shown or judged or is_blank(said):
        return None, None
    if isinstance(said, str):
        return (), said
    try:
        turns = chat_messages(said)
        return turns[:-1], answer_text(turns[-1])
    except ChatError:  # it is no list of messages, or ends in a call
        return None, None


def _marks(text: str) -> bool:
    return "####" in text or last_boxed(text) is not None


def _gold(
    row: Mapping[str, Any],
    roles: Mapping[str, Any],
    plan: Plan,
    solution: str | None,
    where: str,
    *,
    answered: bool,
) -> str:
    """The true answer of a row; empty where none is needed."""
    tests = tests_of_row(row)
    if tests is not None:
        return tests
    model, said = row.get("reward_model"), _is_said("reference", plan)
    try:
        if isinstance(model, Mapping) and not said:
            return _as_text(model.get("ground_truth"), where, "reward_model.ground_truth")
        if answered:
            plan.need(where, "reference")
        if not is_blank(roles.get("reference")) and "reference" not in plan.unclear:
            use = plan.uses.get("reference")
            return _stated(roles["reference"], where, "answer" if use is None else use.column)
        stated = final_answer(solution) if solution else None
        if stated is None:
            kind = UnreadableGoldError if solution or "reference" in plan.unclear else NoGoldError
            raise kind(_no_answer(row, plan), where=where, field="reference")
        return stated
    except UnreadableGoldError:
        if answered:
            raise
        return ""


def _stated(reference: Any, where: str, column: str) -> str:
    """The answer that a cell is, or that a text in it marks."""
    text = _as_text(reference, where, column)
    gold = final_answer(text) if _marks(text) else text
    if gold is None or is_blank(gold):
        raise UnreadableGoldError(f"{column} marks no answer: {text[-80:]!r}", where=where, field=column)
    return gold


def _no_answer(row: Mapping[str, Any], plan: Plan) -> str:
    """Why a row has no true answer, in words."""
    found = f"found {', '.join(map(str, row))}"
    if plan.layout.name == "IFEval":
        return (
            "no true answer: the instructions of IFEval are checked by a program of its own; name one as "
            f"data.verifier: package.module:Class with rows that have an answer, or use data.type: prompts; {found}"
        )
    wanted = f"reward_model.ground_truth, one of {', '.join(ROLES['reference'])}, or a solution that marks its answer"
    return f"no true answer; expected {wanted}, or columns: reference=NAME; {found}"


def _as_text(value: Any, where: str, column: str) -> str:
    said = f"{column} must be text or a number, this is {str(value)[:80]!r}"
    if is_blank(value):
        raise NoGoldError(said, where=where, field=column)
    if isinstance(value, float) and not math.isfinite(value):
        raise UnreadableGoldError(said, where=where, field=column)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(said, where=where, field=column)
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
                if reason := _why_unreadable(verifier, prompt, kind):
                    reasons[i] = reason
            elif not _PLAIN.fullmatch(gold) and not numbers_of(gold, prompt.question):
                rows_of.setdefault(gold, []).append(i)
    golds = tuple(rows_of)[:: max(1, -(-len(rows_of) // MOST_PARSED))]
    bad = _unparsable(golds, settings.verifier_timeout, settings.verifier_workers, settings.verifier_tolerance)
    reasons |= {i: _reason(gold, "math") for gold in bad for i in rows_of[gold]}
    counts = {gold: len(rows) for gold, rows in rows_of.items()}
    parsed = sum(counts[gold] for gold in golds)
    unread = sum(counts[gold] for gold in bad)
    estimated = unread * sum(counts.values()) / max(parsed, 1)
    share = (len(reasons) - unread + estimated) / max(len(prompts), 1)
    return UnreadableGolds(dict(sorted(reasons.items())), share)


def _why_unreadable(verifier: Verifier, prompt: Prompt, kind: str) -> str:
    """Why the true answer of a task that is not mathematics cannot be read; empty where it can."""
    result = verifier.check("" if kind == "code" else _PROBE, prompt)
    if result.verdict != "gold_unparsable":
        return ""
    return f"it is a programming task, but {result.detail}" if kind == "code" else _reason(prompt.ground_truth, kind)


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
