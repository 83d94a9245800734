"""Rewards that are one word: nothing says whether there is a better one, and they are read as it is said."""

from pathlib import Path

import pytest
from layout_files import written

from guerdon.auditing.logs import read_log
from guerdon.errors import DataError
from guerdon.evaluation.benchmarks.labelled import read_labelled
from tables import refuses


def rewards(path, columns=None):
    return read_log(Path(path), columns=columns).reward_N.tolist()


def log(words, **more):
    return [{"prompt": f"p{k}", "response": f"r{k}", "reward": word, **more} for k, word in enumerate(words)]


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".parquet"])
@pytest.mark.parametrize(
    "words", [["good"], ["good"] * 5, ["good", None, "good"], ["pass"] * 3, ["bad"] * 4, ["good", "ok", "good"]]
)
def test_one_word_is_no_reward_until_it_is_said(tmp_path, ending, words):
    path = written(tmp_path, f"rows{ending}", log(words))
    with pytest.raises(DataError, match="no second word to compare it with") as refused:
        rewards(path)
    assert refused.value.field == "reward"
    word = words[0]
    assert f"--columns reward=reward:{word}/other or --columns reward=reward:other/{word}" in str(refused.value)
    for coding, value in ((f"{word}/other", 1.0), (f"other/{word}", 0.0)):
        found = rewards(path, f"reward=reward:{coding}")
        assert {one for one in found if one == one} == {value}


@pytest.mark.parametrize("words", [["good", "bad"], ["true", "true"], [True, True], ["0.5", "1"], [1, 1]])
def test_what_has_a_second_word_or_needs_none_is_read(tmp_path, words):
    wanted = {"good": 1.0, "bad": 0.0, "true": 1.0}
    assert rewards(written(tmp_path, "rows.jsonl", log(words))) == [float(wanted.get(one, one)) for one in words]


def test_scores_of_a_judge_in_one_word_are_no_scores(tmp_path):
    rows = [{"prompt_id": f"p{k}", "judge_score": "good", "oracle_label": k % 2} for k in range(6)]
    with refuses("judge_score"):
        read_labelled(written(tmp_path, "rows.jsonl", rows)).judged()
