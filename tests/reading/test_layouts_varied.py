"""Every layout in another order, with columns beside it, in other containers and under other names is read the same.

What it should be read as is written by hand in `layout_meanings`; the readers are those that the commands call.
"""

import json
import random
from collections import Counter
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from layout_files import written
from layout_meanings import BY_NAME, NO_COLUMN_ASKS, NO_QUESTION, TRUTHS, asked, commands_of, taught
from layout_rows import REFUSED

from guerdon.auditing.logs import read_log
from guerdon.episodes.preferences import read_preferences
from guerdon.episodes.solution_files import published_solutions, read_solutions
from guerdon.errors import DataError
from guerdon.evaluation.scoring.responses import scored_responses
from guerdon.reading.reader import USUAL_NAMES, read
from guerdon.reading.roles import ALL_ROLES, UNREAD, roles_of
from guerdon.tasks.prompt_files import read_prompts
from tables import sample

SUMMED = ("TRL", "ragas")  # logs whose reward is the sum of all columns of numbers
NAMES = sorted(BY_NAME)
IN_A_FILE = [name for name, layout in BY_NAME.items() if layout.case.whole is None]  # others need their own container


def turns(messages):
    return [[one["role"], one["content"]] for one in messages]


def asked_of(solution):
    return turns(solution.context) or [["user", solution.question]]


def judgements(path, columns):
    """What each comparison says: what was asked, responses with ranks, label, ratings."""
    return [
        [asked_of(one.responses[0]), [[r.text, rank] for r, rank in zip(one.responses, one.ranks, strict=True)],
         one.label, dict(one.attributes)]
        for one in read_preferences(path, columns=columns).comparisons
    ]  # fmt: skip


def solutions(path, columns):
    """What each solution says: what was asked, steps and labels."""
    found = read_solutions(path, columns=columns)
    return [[asked_of(one), [step.strip() for step in one.steps], list(one.labels)] for one in found]


def prompts(path, columns, *, answered):
    """What was asked in each row; of options, which have an order of their own, the question."""
    found = [turns(one.messages) for one in read_prompts(path, answered=answered, columns=columns)]
    return [[[role, text.partition("\n\n(A)")[0]] for role, text in one] for one in found]


def logged(path, columns):
    """Question, response, reward and true answer of each row."""
    rows = read_log(Path(path), columns=columns)
    truths = rows.texts.truths or [""] * len(rows)
    values = zip(rows.texts.prompts, rows.texts.responses, rows.reward_N.tolist(), truths, strict=True)
    return [list(one) for one in values]


READERS = {"pairs": judgements, "labels": judgements, "steps": solutions, "logs": logged,
           "answered": partial(prompts, answered=True), "asked": partial(prompts, answered=False)}  # fmt: skip


def meant(layout):
    """What its reader should give, in the order of the rows."""
    if layout.kind in ("answered", "asked"):
        return [asked(layout, *one) for one in layout.values]
    if layout.kind != "logs":
        return taught(layout)
    found = []
    for prompt, said, reward, truth in layout.values:
        question = f"c\n\n{prompt}" if layout.name == "ragas" else prompt
        found.append([question, said, reward, truth if layout.name in TRUTHS else ""])
        found += [[question, "other", -1.0, ""]] * (layout.name == "Atropos")
    return found


def understood(layout, path, columns=None):
    return READERS[layout.kind](path, columns)


@pytest.mark.parametrize("name", NAMES)
def test_a_layout_is_read_as_it_is_meant(tmp_path, name):
    layout = BY_NAME[name]
    assert understood(layout, layout.file(tmp_path)) == meant(layout)


@pytest.mark.parametrize("name", [name for name in NAMES if BY_NAME[name].kind not in ("answered", "asked")])
def test_what_was_asked_is_a_prompt(tmp_path, name):
    layout = BY_NAME[name]
    if name in [f"steps-{one}" for one in NO_QUESTION]:
        pytest.skip("it stands in the first step")
    null_asks_nothing = layout.name in NO_COLUMN_ASKS[:3]
    found = prompts(layout.file(tmp_path), None, answered=False)
    assert found == [asked(layout, *one) for one in layout.values if one[-1] is not None or not null_asks_nothing]


@pytest.mark.parametrize("name", sample(IN_A_FILE, *IN_A_FILE[::4]))
def test_order_and_columns_beside_it_change_nothing(tmp_path, name):
    layout = BY_NAME[name]
    rows, wanted = layout.rows(), meant(layout)
    number = {} if layout.name in SUMMED else {"zz": 7}
    beside = [{"notes": f"n{k}", **row, **number, "seen at": None} for k, row in enumerate(rows)]
    order = random.Random(3).sample(range(len(rows)), len(rows))
    found = understood(layout, written(tmp_path, "rows.jsonl", [beside[k] for k in order]))
    assert sorted(found, key=str) == sorted(wanted, key=str)
    backwards = understood(layout, written(tmp_path, "back.jsonl", rows[::-1]))
    assert sorted(backwards, key=str) == sorted(wanted, key=str)


@pytest.mark.parametrize("name", sample(IN_A_FILE, *IN_A_FILE[::4]))
def test_containers_are_read_the_same(tmp_path, name):
    """JSON holds any cell; Arrow holds those of one type, and Parquet no empty map."""
    layout = BY_NAME[name]
    rows, wanted = layout.rows(), meant(layout)
    read_so = []
    for ending in (".jsonl.gz", ".json", ".parquet", ".arrow"):
        try:
            path = written(tmp_path / ending, f"rows{ending}", rows)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            continue
        assert understood(layout, path) == wanted, ending
        read_so.append(ending)
    assert read_so[:2] == [".jsonl.gz", ".json"]


def nameable(name):
    """Whether `--columns` takes the name of a column in the place of a role."""
    return name in ALL_ROLES or name in USUAL_NAMES or bool(roles_of(name))


@pytest.mark.parametrize("name", sample(IN_A_FILE, *IN_A_FILE[::4]))
def test_all_columns_under_other_names_are_read_once_they_are_said(tmp_path, name):
    layout = BY_NAME[name]
    rows = layout.rows()
    new = {column: f"x{k}" for k, column in enumerate(dict.fromkeys(key for row in rows for key in row))}
    path = written(tmp_path, "rows.jsonl", [{new[key]: cell for key, cell in row.items()} for row in rows])
    said = ",".join(f"{column}={other}" for column, other in new.items() if nameable(column) and column not in UNREAD)
    if layout.case.columns:
        pairs = [one.partition("=")[::2] for one in layout.case.columns.split(",")]
        said = ",".join(
            f"{role}={new[name.partition(':')[0]]}{name[len(name.partition(':')[0]) :]}" for role, name in pairs
        )
    assert understood(layout, path, said) == meant(layout)


MAY_BE_NULL = {  # columns without which a row says less, and the same of everything else
    "pairs": ("system", "history"),
    "labels": ("helpfulness", "correctness", "coherence", "complexity", "verbosity"),
    "steps": ("step_labels",),  # a solution that nobody judged
    "asked": ("system", "history", "context"),
    "logs": (  # what is true, a passage, and rewards, which are missing then
        "gts", "label", "answer", "target", "expected_answer", "gt", "reference", "retrieved_contexts", "accuracy",
        "score", "reward", "scores", "rewards", "resolved", "exact_match", "eval.Correctness.score",
        "answer_correctness",
    ),
}  # fmt: skip
LEAVE_TWO_OUT = ("logs-Atropos",)  # a record is a group of responses


def counted(found):
    """What was read, how often each; numbers of a column with a null are floats."""

    def plain(one):
        if isinstance(one, list | tuple):
            return [plain(part) for part in one]
        if isinstance(one, dict):
            return {key: plain(part) for key, part in one.items()}
        is_number = isinstance(one, int | float) and not isinstance(one, bool)
        return float(one) if is_number else one

    return Counter(json.dumps(plain(one)) for one in found)


def read_in_part(layout, path):
    """As `understood`, with the rows left out that have no value, as the commands do."""
    if layout.kind != "steps":
        return understood(layout, path)
    found = published_solutions([str(path)], Counter())
    return [[asked_of(one), [step.strip() for step in one.steps], list(one.labels)] for one in found]


OF_EACH_KIND = ("pairs-MT-Bench, human", "labels-HelpSteer2", "steps-PRM800K", "answered-GSM8K", "asked-history",
                "logs-TRL")  # fmt: skip


@pytest.mark.parametrize(
    "name", [name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.slow) for name in IN_A_FILE]
)
def test_a_null_in_any_column_leaves_its_row_out_or_changes_nothing(tmp_path, name):
    """No other row is read otherwise, and none is made up."""
    layout = BY_NAME[name]
    rows = json.loads(json.dumps(layout.rows() * 12))
    wanted = counted(meant(layout) * 12)
    wrong = {}
    for column in dict.fromkeys(key for row in rows for key in row):
        there = [k for k, row in enumerate(rows) if row.get(column) is not None]
        if not there:
            continue
        changed = [dict(row) for row in rows]
        changed[there[len(there) // 2]][column] = None
        found = counted(read_in_part(layout, written(tmp_path, "rows.jsonl", changed)))
        lost, new = (wanted - found).total(), (found - wanted).total()
        most_lost = 2 if name in LEAVE_TWO_OUT else 1
        most_new = 1 if column in MAY_BE_NULL.get(layout.kind, ()) else 0
        if lost > most_lost or new > most_new:
            wrong[column] = (lost, new)
    assert not wrong


def succeeds(call):
    try:
        call()
    except DataError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_audit_and_score_read_the_layouts_that_they_should(tmp_path, name):
    """What has a reward is read by both; what has responses and no reward is scored; nothing else is read by either."""
    layout = BY_NAME[name]
    path = layout.file(tmp_path)
    audited, scored = succeeds(lambda: read_log(Path(path))), succeeds(lambda: scored_responses(read(path)))
    assert [audited, scored] == [command in commands_of(layout) for command in ("audit", "score")]
    assert scored or not audited


@pytest.mark.parametrize("name", REFUSED)
def test_what_lacks_something_is_refused_by_both(tmp_path, name):
    path = written(tmp_path, "rows.jsonl", [REFUSED[name]] * 4)
    for call in (lambda: read_log(Path(path)), lambda: scored_responses(read(path)), lambda: read_prompts(path)):
        with pytest.raises(DataError, match=rf"{name}: it has no (prompt|response): join it with"):
            call()
