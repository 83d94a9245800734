"""Folders of a run: a configuration beside the rows, shards with further columns, and files whose roles conflict."""

import json

import pytest
from layout_files import written

from guerdon.auditing.logs import read_log
from guerdon.episodes.preferences import read_preferences
from guerdon.errors import DataError
from guerdon.reading.reader import read
from guerdon.tasks.prompt_files import read_prompts
from tables import refuses

CONFIG = {"lr": 1e-5, "model": {"name": "m"}, "betas": [0.9, 0.99]}


def rollouts(start, **more):
    return [{"input": f"p{k}", "output": f"o{k}", "score": float(k % 2), **more} for k in range(start, start + 4)]


def test_a_configuration_beside_the_rows_is_named_and_not_read(tmp_path, capsys):
    pairs = [{"prompt": f"p{k}", "chosen": f"a{k}", "rejected": f"b{k}"} for k in range(4)]
    written(tmp_path, "train.jsonl", pairs)
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    assert len(read_preferences(str(tmp_path)).comparisons) == 4
    assert len(read_prompts(tmp_path, answered=False)) == 4
    assert "without a list of rows, and not read: config.json" in capsys.readouterr().err


def test_a_folder_of_configurations_alone_says_what_is_wrong(tmp_path):
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_text(json.dumps(CONFIG))
    with pytest.raises(DataError, match="without a list of rows"):
        read(str(tmp_path))


@pytest.mark.parametrize("order", [("1", "2"), ("2", "1")])
def test_shards_of_a_tool_that_lack_a_column_or_have_another_are_one_log(tmp_path, order):
    written(tmp_path, f"{order[0]}.jsonl", rollouts(0))
    written(tmp_path, f"{order[1]}.jsonl", rollouts(4, step=7, acc=1.0, note="n"))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    rows = read_log(tmp_path)
    assert rows.layout == "a dump of verl"
    by_prompt = dict(
        zip(rows.texts.prompts, zip(rows.texts.responses, rows.reward_N.tolist(), strict=True), strict=True)
    )
    assert by_prompt == {f"p{k}": (f"o{k}", float(k % 2)) for k in range(8)}


def test_a_further_column_of_later_shards_is_a_further_reward(tmp_path):
    first = [{"prompt": f"p{k}", "response": f"r{k}", "reward": 1.0} for k in range(3)]
    written(tmp_path, "1.jsonl", first)
    written(tmp_path, "2.jsonl", [{**row, "format_reward": 0.5} for row in first])
    rows = read_log(tmp_path)
    assert rows.reward_N.tolist() == [1.0] * 6
    assert [value for value in rows.rewards["format_reward"].tolist() if value == value] == [0.5] * 3


def test_rewards_in_other_columns_are_refused_by_their_files(tmp_path):
    written(tmp_path, "a.jsonl", [{"prompt": f"p{k}", "response": f"r{k}", "reward": 1.0} for k in range(3)])
    written(tmp_path, "b.jsonl", [{"prompt": f"p{k}", "response": f"r{k}", "score": 7.0} for k in range(3)])
    with refuses("reward"):
        read_log(tmp_path)


def test_a_sum_of_rewards_is_not_changed_by_files_of_another_kind(tmp_path):
    of_trl = [
        {"step": 1, "prompt": f"p{k}", "completion": f"r{k}", "accuracy": 1.0, "advantage": 0.0} for k in range(3)
    ]
    written(tmp_path, "a.jsonl", of_trl)
    written(tmp_path, "b.jsonl", [{"prompt": f"p{k}", "completion": f"r{k}", "reward": 7.0} for k in range(3)])
    with pytest.raises(DataError, match="files of several kinds"):
        read_log(tmp_path)
