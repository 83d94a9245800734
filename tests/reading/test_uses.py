"""`guerdon read` names the commands that read a file, and says of the others why they refuse it."""

from pathlib import Path

import pytest
from layout_files import written
from layout_meanings import BY_NAME, commands_of, refusal
from layout_rows import REFUSED

from guerdon.auditing.logs import read_log
from guerdon.auditing.uses import uses_of
from guerdon.episodes.preferences import read_preferences, refuse_test_sets
from guerdon.episodes.solution_files import published_solutions
from guerdon.errors import DataError, GuerdonError
from guerdon.evaluation.benchmarks.labelled import read_labelled
from guerdon.evaluation.benchmarks.reward_bench import read_choices
from guerdon.evaluation.by_path import kind_of
from guerdon.evaluation.scoring.score_file import score_file
from guerdon.reading.reader import read
from guerdon.tasks.prompt_files import read_prompts
from guerdon.tasks.prompts import system_prompt_of
from guerdon.types import RewardInfo, Score

NAMES = sorted(BY_NAME)


def uses(path, columns=None):
    return uses_of(path, read(path, columns=columns), columns)


class Length:
    info = RewardInfo(name="length", range=(0.0, 1e9), granularity="total", modality="text")

    def score(self, episodes):
        return [Score(total=float(sum(map(len, one.texts)))) for one in episodes]


def evaluated(path):
    kind = kind_of(path)
    if kind == "pairs":
        return read_choices(path)
    return read_labelled(path) if kind == "labels" else published_solutions([path], {})


def trained(path):
    if kind_of(path) in ("pairs", "labels"):
        refuse_test_sets(read_preferences(path, train=True).benchmarks)
    else:
        published_solutions([path], {}, train=True)


def labelled(path):
    try:
        return published_solutions([path], {})
    except DataError:
        return read_prompts(path, answered=True)


def scored(path):
    file = Path(path)
    return score_file(file, Length(), file.with_name(f"scored{''.join(file.suffixes)}"), name="length")


READERS = {
    "audit": lambda path: read_log(Path(path)), "score": scored, "evaluate": evaluated, "train": trained,
    "run": lambda path: read_prompts(path, answered=False),
    "search": lambda path: system_prompt_of(read_prompts(path, answered=False)), "label": labelled,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_is_named_reads_the_file_and_nothing_else_does(tmp_path, name):
    layout = BY_NAME[name]
    path = layout.file(tmp_path)
    found = uses(path)
    assert found.keys() == READERS.keys()
    for command, reader in READERS.items():
        if found[command].what:
            reader(path)
            continue
        with pytest.raises(GuerdonError):
            reader(path)
        assert found[command].why_not
    wanted = [command for command in commands_of(layout) if command != "read" and refusal(layout, command) is None]
    assert sorted(command for command, use in found.items() if use.what) == sorted(wanted)


@pytest.mark.parametrize("name", NAMES)
def test_a_test_set_or_a_conversation_is_refused_with_its_reason(tmp_path, name):
    layout = BY_NAME[name]
    found = uses(layout.file(tmp_path))
    for command in READERS:
        why = refusal(layout, command)
        if why is not None:
            assert why in found[command].why_not


@pytest.mark.parametrize("name", REFUSED)
def test_what_lacks_something_is_read_by_no_command(tmp_path, name):
    with pytest.raises(DataError, match="join it with"):
        uses(written(tmp_path, "rows.jsonl", [REFUSED[name]] * 4))


def test_a_column_with_two_readings_is_the_reason_until_it_is_said(tmp_path):
    rows = [{"prompt": f"p{k}", "response_a": f"x{k}", "response_b": f"y{k}", "winner": k % 2} for k in range(6)]
    path = written(tmp_path, "rows.jsonl", rows)
    assert "winner=winner:0/1 or --columns winner=winner:1/0" in uses(path)["train"].why_not
    assert uses(path, "winner=winner:0/1")["train"].what == "preferences"


def test_steps_whose_labels_have_two_readings_are_scored(tmp_path):
    rows = [{"question": f"q{k}", "steps": ["a", "b"], "labels": [1, 1]} for k in range(3)]
    path = written(tmp_path, "rows.jsonl", rows)
    found = uses(path)
    assert found["score"].what == "its responses"
    assert "step_labels=labels:1/0" in found["train"].why_not
    assert "3 of 3 rows scored, 0 with a missing reward" in scored(path)


def test_a_folder_of_test_rows_is_evaluated_and_not_trained_on(tmp_path):
    rows = [{"prompt": f"p{k}", "chosen": f"x{k}", "rejected": f"y{k}"} for k in range(4)]
    written(tmp_path, "test-00000-of-00001.parquet", rows)
    found = uses(str(tmp_path))
    assert found["evaluate"].what == "preferences"
    assert "it has no split to train on" in found["train"].why_not
    assert "it has no split to train on" in found["run"].why_not
    assert found["score"].what == "its responses"


def test_rows_that_cannot_be_read_are_refused_where_all_are_needed(tmp_path):
    path = tmp_path / "rows.jsonl"
    good = ['{"prompt": "p", "response": "r", "reward": 1}', '{"prompt": "s", "response": "t", "reward": 0}']
    path.write_text(f'{good[0]}\n{{"prompt": "q"\n{good[1]}\n')
    found = uses(str(path))
    assert found["audit"].what == "the rewards of a log"
    assert "rows.jsonl:2" in found["score"].why_not
