"""Every layout of labels and of logs: what was asked, answered and rewarded, in any order and under any name."""

import random
from pathlib import Path

import pytest
from layout_files import written
from layout_rows import GOOD, LABELS, LOGS, REFUSED, RESPONSES

from guerdon.auditing.logs import read_log
from guerdon.episodes.preferences import read_preferences
from guerdon.errors import DataError
from guerdon.reading.chats import asked_of, chat_messages, text_of
from guerdon.reading.reader import read
from guerdon.reading.values import number_of


def named(cases, name):
    return next(one for one in cases if one.name == name)


def last_text(value):
    """The text of a response: a text, or the last of some messages."""
    if isinstance(value, str) or value is None:
        return value
    return text_of(chat_messages([value] if isinstance(value, dict) else value)[-1]["content"])


def understood(path, columns=None):
    """Question, response, reward and reference of each row."""
    reading = read(path, columns=columns)
    reading.need("prompt", "response", "reward")
    found = []
    for record in reading.records():
        asked, said = asked_of(record.roles), record.roles.get("response")
        if said is None and record.roles.get("messages"):
            *asked, said = record.roles["messages"]
        found.append(
            (last_text(asked), last_text(said), number_of(record.roles.get("reward")), record.roles.get("reference"))
        )
    return found, reading


@pytest.mark.parametrize("name", [case.name for case in LOGS])
def test_an_audit_reads_them_as_they_are_meant(tmp_path, name):
    case = named(LOGS, name)
    rows = read_log(
        Path(written(tmp_path, f"rows{case.container}", [case.make(*one) for one in RESPONSES], case.whole))
    )
    every = 2 if name == "Atropos" else 1  # a group has another response
    assert rows.reward_N[::every].tolist() == [reward for _, _, reward, _ in RESPONSES]
    assert rows.texts.responses[::every] == [said for _, said, _, _ in RESPONSES]
    for prompt, (asked, _, _, _) in zip(rows.texts.prompts[::every], RESPONSES, strict=True):
        assert prompt.endswith(asked)
    truths = rows.texts.truths or [""] * len(rows)
    assert all(truth in ("", reference) for truth, (*_, reference) in zip(truths[::every], RESPONSES, strict=True))
    assert rows.bad == {}


@pytest.mark.parametrize("name", [case.name for case in LOGS])
def test_logs_are_read_as_they_are_meant(tmp_path, name):
    case = named(LOGS, name)
    rows = [case.make(*one) for one in RESPONSES]
    found, reading = understood(written(tmp_path, f"rows{case.container}", rows, case.whole))
    if case.name == "Atropos":
        found = found[::2]
    summed = reading.plan.layout.parts == "sum" or "reward" not in reading.plan.uses or name.startswith("rewards as")
    for (asked, said, reward, reference), row in zip(RESPONSES, found, strict=True):
        assert row[0].endswith(asked)
        assert row[1] == said
        assert summed or row[2] == reward
        assert row[3] in (None, reference)
    if case.whole is None and isinstance(rows[0], dict):
        beside = [{**row, "notes": "n", "zz": k} for k, row in enumerate(rows)]
        shuffled = random.Random(1).sample(beside, len(beside))
        again, _ = understood(written(tmp_path / "other", "rows.jsonl", shuffled))
        again = again[::2] if case.name == "Atropos" else again
        assert sorted(map(str, again)) == sorted(map(str, found))


@pytest.mark.parametrize("name", [case.name for case in (*LOGS, *LABELS) if case.columns])
def test_columns_under_other_names(tmp_path, name):
    logs = name in [case.name for case in LOGS]
    case = named((*LOGS, *LABELS), name)
    pairs = dict(part.split("=") for part in case.columns.split(","))
    new = {column.partition(":")[0]: f"x{k}" for k, column in enumerate(pairs.values())}
    rows = [{new[key]: cell for key, cell in case.make(*one).items() if key in new}
            for one in (RESPONSES if logs else [one for one in GOOD if one[2] is not None])]  # fmt: skip
    said = ",".join(f"{role}={new[column.partition(':')[0]]}{column[len(column.partition(':')[0]):]}"
                    for role, column in pairs.items())  # fmt: skip
    path = written(tmp_path, f"rows{case.container}", rows)
    if logs:
        found, _ = understood(path, said)
        assert [row[:3] for row in found] == [one[:3] for one in RESPONSES]
    else:
        found = read_preferences(path, columns=said).comparisons
        assert [(one.prompt, one.responses[0].text, one.label) for one in found] == [
            g for g in GOOD if g[2] is not None
        ]


@pytest.mark.parametrize("name", [case.name for case in LABELS])
def test_labels_are_read_as_they_are_meant(tmp_path, name):
    case = named(LABELS, name)
    given = [one for one in GOOD if case.nulls or one[2] is not None]
    rows = [case.make(*one) for one in given]
    for number, some in enumerate((rows, random.Random(0).sample(rows, len(rows)))):
        found = read_preferences(written(tmp_path / str(number), f"rows{case.container}", some))
        labels = {(one.responses[0].question, one.responses[0].text): one.label for one in found.comparisons}
        assert labels == {(asked, said): good for asked, said, good in given if good is not None}
        assert sum(found.left_out.values()) == sum(good is None for *_, good in given)


@pytest.mark.parametrize("name", REFUSED)
def test_layouts_that_lack_something_say_what(tmp_path, name):
    with pytest.raises(DataError, match=rf"{name}: it has no (prompt|response): join it with"):
        read(written(tmp_path, "rows.jsonl", [REFUSED[name]] * 4))
