"""Every layout of preferences: what is better, on both sides, ties and nulls, in any order and under any name."""

import random

import pytest
from layout_files import written
from layout_rows import ASKED, PAIRS, TEXTS

from guerdon.episodes.preferences import read_preferences
from guerdon.errors import DataError

NAMES = [case.name for case in PAIRS]


def verdicts(case):
    """The rows of a case: each verdict that it can express."""
    skipped = {None} - ({None} if case.nulls else set()) | (set() if case.ties else {"tie"})
    skipped |= set() if case.nulls else {None}
    return [(prompt, *TEXTS[prompt], verdict) for prompt, verdict in ASKED if verdict not in skipped]


def wanted(rows):
    """What should be understood: question, texts and ranks; a row without a verdict is left out."""
    ranks = {"first": (0, 1), "second": (1, 0), "tie": (0, 0)}
    return [(prompt, {(a, ranks[v][0]), (b, ranks[v][1])}) for prompt, a, b, v in rows if v]


def understood(path, **how):
    found = read_preferences(path, **how)
    return [(one.responses[0].question, {(r.text, rank) for r, rank in zip(one.responses, one.ranks, strict=True)})
            for one in found.comparisons], found.left_out  # fmt: skip


def rows_of(case, given):
    made = [row for row in (case.make(*one) for one in given) if row is not None]
    return case.whole(made) if case.whole else made


@pytest.mark.parametrize("name", NAMES)
def test_pairs_are_read_as_they_are_meant(tmp_path, name):
    case = next(one for one in PAIRS if one.name == name)
    given = verdicts(case)
    rows, want = rows_of(case, given), wanted(given)
    assert {v for *_, v in given} >= {"first", "second"}
    ending = case.container[case.container.rfind(".") :]
    files = {f"rows{case.container if ending in ('.gz', '.bz2') else ending}": rows}
    files["other.jsonl" if ending != ".jsonl" else "other.json"] = rows
    for number, (file, some) in enumerate(files.items()):
        found, left_out = understood(written(tmp_path / str(number), file, some))
        assert found == want, file
        assert sum(left_out.values()) == sum(v is None for *_, v in given), left_out
    beside = [{**row, "notes": f"n{k}", "zz": k} for k, row in enumerate(rows)]
    shuffled = random.Random(0).sample(beside, len(beside))
    found, _ = understood(written(tmp_path / "shuffled", "rows.jsonl", shuffled))
    assert sorted(found, key=str) == sorted(want, key=str)


@pytest.mark.parametrize("name", [case.name for case in PAIRS if case.columns])
def test_pairs_under_other_names(tmp_path, name):
    case = next(one for one in PAIRS if one.name == name)
    given = verdicts(case)
    pairs = dict(part.split("=") for part in case.columns.split(","))
    new = {column.partition(":")[0]: f"x{k}" for k, column in enumerate(pairs.values())}
    rows = [{new[key]: cell for key, cell in row.items() if key in new} for row in rows_of(case, given)]
    said = ",".join(f"{role}={new[column.partition(':')[0]]}{column[len(column.partition(':')[0]):]}"
                    for role, column in pairs.items())  # fmt: skip
    path = written(tmp_path, "rows.jsonl", rows)
    with pytest.raises(DataError, match="no preferences are recognised"):
        read_preferences(path)
    assert understood(path, columns=said)[0] == wanted(given)
