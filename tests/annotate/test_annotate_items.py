"""What is read of each kind of data, and that nothing of it tells the answer."""

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from judged import episodes_of, judging, lines, log_of, pairs_of, steps_of

from guerdon.annotate.items import read_items
from guerdon.annotate.session import AnnotateSettings, open_session
from guerdon.errors import ConfigError, DataError, GuerdonError
from tables import cases, refuses


def test_responses_of_a_log(tmp_path):
    items = read_items(str(log_of(tmp_path / "log.jsonl")), None)
    assert (items.kind, len(items), items.rows[:3]) == ("responses", 40, [0, 1, 2])
    assert items.shown(0).keys() == {"prompt", "messages", "response", "reference"}
    assert set(items.rewards) == {"reward", "judge_score"}
    assert set(items.truth) == {0.0, 1.0}


def test_conversations_references_and_equal_rows(tmp_path):
    turns = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "1+1?"}]
    row = {"prompt": turns, "response": "2", "reward": 1.0, "ground_truth": "2"}
    items = read_items(str(lines(tmp_path / "log.jsonl", [row, row, {**row, "response": " "}])), None)
    assert items.shown(0)["messages"] == [("system", "Be short."), ("user", "1+1?")]
    assert items.shown(0)["reference"] is None
    assert items.shown(0, with_reference=True)["reference"] == "2"
    assert items.ids[1] == f"{items.ids[0]}-2"
    assert items.left_out == {"empty_response": 1}


def test_rows_without_a_reward(tmp_path):
    items = read_items(str(lines(tmp_path / "rows.jsonl", [{"prompt": "1+1?", "response": "2"}])), None)
    assert (items.kind, items.shows[0]["response"], items.rewards) == ("responses", "2", {})
    labelled = [{"prompt": f"{k}?", "completion": "2", "label": k == 0} for k in range(4)]
    items = read_items(str(lines(tmp_path / "kto.jsonl", labelled)), None)
    assert (items.kind, items.truth) == ("responses", [1.0, 0.0, 0.0, 0.0])


def test_pairs_of_rows_and_of_groups(tmp_path):
    items = read_items(str(pairs_of(tmp_path / "pairs.jsonl")), None)
    assert (items.kind, len(items), set(items.truth)) == ("pairs", 12, {1.0})
    swapped = items.shown(0, swapped=True)
    assert (swapped["first"], swapped["second"]) == ("Bad answer 0.", "Good answer 0.")
    groups = read_items(str(log_of(tmp_path / "log.jsonl")), "pairs")
    assert len(groups) == 20  # ten groups of four
    used = [*groups.rows, *groups.partners]
    assert len(set(used)) == len(used)
    assert all(a // 4 == b // 4 for a, b in zip(groups.rows, groups.partners, strict=True))


def test_steps(tmp_path):
    items = read_items(str(steps_of(tmp_path / "bench.jsonl")), None)
    assert (items.kind, items.truth[:2]) == ("steps", [-1.0, 1.0])
    assert len(items.shown(0)["steps"]) == 3
    own = [{"question": "1+1?", "steps": ["1+1=2."], "solution": "1+1=2.", "step_labels": None}]
    assert len(read_items(str(lines(tmp_path / "own.jsonl", own)), "steps")) == 1


def test_episodes(tmp_path):
    root = episodes_of(tmp_path / "episodes")
    items = read_items(str(root), None)
    assert (items.kind, items.rows, items.truth) == ("episodes", [0, 1, 2, 3], [0.0, 1.0, 0.0, 1.0])
    assert items.shown(0) == {"episode": 0, "task": "close the window", "rows": 6, "cameras": ["front"], "fps": 10}
    changed = read_items(str(episodes_of(tmp_path / "other", states=np.ones((6, 3), np.float32))), None)
    assert not set(items.ids) & set(changed.ids)


@pytest.mark.parametrize("make", [log_of, pairs_of, steps_of], ids=["responses", "pairs", "steps"])
def test_nothing_that_is_sent_tells_the_answer(make, tmp_path):
    data = make(tmp_path / "data.jsonl")
    with judging(data, tmp_path / "out", overlap=0.0) as (session, people):
        items = people[""].next(50)
        sent = json.dumps([items, people[""].get("/api/setup").json()])
        told = people[""].judge(items[0]["item"], session.words[0], step=0 if "steps" in items[0]["show"] else None)
    for word in ("reward", "truth", "judge_score", "chosen", "rejected", "label", "generator", "0.25"):
        assert word not in sent, word
    assert told.keys() == {"stored", "done", "left"}


@cases(
    ("data", "wanted", "key", "said"),
    [
        ("log", {"kind": "episodes"}, "--as", "is no LeRobot data set; leave out --as"),
        ("log", {"kind": "response"}, "--as", "did you mean responses"),
        ("episodes", {"kind": "pairs"}, "--as", "holds episodes of a robot; leave out --as"),
        ("episodes", {"columns": "response=x"}, "--columns", "is for rows of text"),
        ("pairs", {"kind": "steps"}, None, "nothing to judge"),
        ("prompts", {}, None, "nothing to judge"),
        ("prompts", {"kind": "pairs"}, "--as", "no rows with several responses"),
        ("empty", {}, None, "there is no row"),
        ("missing", {}, None, "no such file"),
        ("log", {"choose": "best"}, "--choose", "choose one of random, uncertain, disagreement"),
        ("log", {"random_share": 0.5}, "--random-share", "would do nothing"),
        ("log", {"overlap": 2.0}, "--overlap", "a share is a number from 0 to 1"),
        ("log", {"scale": 12}, "--scale", "a scale has 2 to 9 numbers"),
        ("pairs", {"scale": 5}, "--scale", "of responses"),
        ("log", {"rows": "1-x"}, "--rows", "is no row; write numbers and ranges"),
        ("log", {"rows": "40"}, "--rows", "nothing to judge in row 40; rows are numbered from 0"),
        ("log", {"rows": "1", "finding": "length"}, "--rows", "leave out one of them"),
        ("log", {"finding": "lenght"}, "--finding", "did you mean length"),
        ("log", {"reference": True}, "--show", "has no reference answers"),
        ("pairs", {"choose": "uncertain"}, "--choose", "the data has none; name a --model"),
    ],
)  # fmt: skip
def test_what_is_refused_leaves_no_folder(data, wanted, key, said):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make = {"log": log_of, "pairs": pairs_of, "episodes": lambda path: episodes_of(path, 1)}
        made = {
            "prompts": lambda path: lines(path, [{"question": "1+1?"}]),
            "empty": lambda path: lines(path, []), "missing": lambda path: path,
        }  # fmt: skip
        path = (make | made)[data](root / ("data" if data == "episodes" else "data.jsonl"))
        wanted = AnnotateSettings(str(path), root / "out", **wanted)
        with pytest.raises(GuerdonError, match=said) as refused, open_session(wanted):
            pass
        assert getattr(refused.value, "key", None) == key
        assert not (root / "out").exists()


def test_rows_and_findings(tmp_path):
    data = log_of(tmp_path / "log.jsonl")
    with judging(data, tmp_path / "out", rows="3,5-7") as (session, people):
        assert sorted(session.items.rows[ask.place] for ask in session.judgements.asks) == [3, 5, 6, 7]
        assert people[""].get("/api/setup").json()["choose"] == "rows"
        assert "about the rows 3,5-7 alone" in people[""].get("/api/summary").json()["tables"][0]["note"]
    with (
        pytest.raises(ConfigError, match=r"--rows 3: .* was begun with 3,5-7") as refused,
        judging(data, tmp_path / "out", rows="3"),
    ):
        pass
    assert refused.value.key == "--rows"
    with (
        pytest.raises(ConfigError, match=r"the audit of .* does not find it") as refused,
        judging(data, tmp_path / "more", finding="nan"),
    ):
        pass
    assert refused.value.key == "--finding"


def test_a_folder_is_of_one_data_set_and_one_kind(tmp_path):
    data, out = log_of(tmp_path / "log.jsonl"), tmp_path / "out"
    with judging(data, out, seed=3) as (_, people):
        first = [one["item"] for one in people[""].next(10)]
        with pytest.raises(GuerdonError, match="another guerdon annotate works on"), judging(data, out):
            pass
    with judging(data, out) as (_, people):
        assert [one["item"] for one in people[""].next(10)] == first
    for wanted, key in (({"kind": "pairs"}, "--as"), ({"seed": 4}, "--seed"), ({"scale": 5}, "--scale")):
        with refuses(key), judging(data, out, **wanted):
            pass
    with pytest.raises(ConfigError, match="has judgements of"), judging(pairs_of(tmp_path / "pairs.jsonl"), out):
        pass
    with pytest.raises(ConfigError, match="is inside of") as refused, judging(tmp_path, tmp_path / "out"):
        pass
    assert refused.value.key == "--output"
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="holds something else than judgements"), judging(data, tmp_path / "full"):
        pass


def test_a_changed_row_loses_its_judgement_and_no_other_gets_it(tmp_path):
    data, out = log_of(tmp_path / "log.jsonl", 6), tmp_path / "out"
    with judging(data, out, overlap=0.0) as (session, people):
        for one in people[""].next(6):
            people[""].judge(one["item"], "right")
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    rows[2]["response"] = "another answer"
    lines(data, rows)
    with judging(data, out) as (session, people):
        assert sum(session.judgements.orphans.values()) == 1
        assert session.judgements.done("") == 5
    lines(data, [{"prompt": "q", "response": "other", "reward": 1.0}])
    with pytest.raises(ConfigError, match="has judgements of other data"), judging(data, out):
        pass


def test_nothing_that_can_be_judged(tmp_path):
    with pytest.raises(DataError, match="nothing to judge: 2 x empty_response"):
        read_items(str(lines(tmp_path / "log.jsonl", [{"prompt": "q", "response": "", "reward": 1.0}] * 2)), None)


def test_values_of_a_model_choose_and_stay(tmp_path):
    """A model is asked once, when the folder is begun: its values are those of `guerdon score`."""
    data, out = log_of(tmp_path / "log.jsonl", 6), tmp_path / "out"
    with judging(data, out, choose="disagreement", models=("length_model:Length",)) as (session, people):
        (values,) = session.models.values()
        by_length = [len(show["response"]) for show in session.items.shows]
        assert np.argsort(values, kind="stable").tolist() == np.argsort(by_length, kind="stable").tolist()
        one = people[""].next(1)[0]
        assert "length" not in json.dumps(one)
    with judging(data, out) as (session, _):
        np.testing.assert_array_equal(session.models["length_model:Length"], values)
    with (
        pytest.raises(ConfigError, match="does not judge episodes") as refused,
        judging(episodes_of(tmp_path / "episodes", 1), tmp_path / "more", models=("length_model:Length",)),
    ):
        pass
    assert refused.value.key == "--model"
