"""`guerdon score` on the logs of trainers: the copy has one more column, in the layout of the log."""

import csv
import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from guerdon.auditing.logs import read_log
from guerdon.errors import ConfigError, DataError
from guerdon.evaluation.scoring.score_logs import check_paths, load_scoring_model, score_path
from guerdon.reading.containers import eval_members, file_rows
from guerdon.types import Failure, RewardInfo, Score
from length_model import Length

DATA = Path(__file__).parent / "data"


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    "log", ["trl/plain", "trl/chat", "verl/rollout", "prime", "inspect/eval", "inspect/json"], ids=str
)
def test_the_copy_of_a_log_is_the_log_with_one_more_reward(tmp_path, log):
    out = tmp_path / "scored"
    said = score_path(DATA / log, Length(), out, name="m")
    assert "with a missing reward" in said
    files = sorted(p.relative_to(DATA / log) for p in (DATA / log).rglob("*") if p.is_file())
    assert sorted(p.relative_to(out) for p in out.rglob("*") if p.is_file()) == files
    before, after = read_log(DATA / log), read_log(out)
    assert after.layout == before.layout
    np.testing.assert_array_equal(after.reward_N, before.reward_N)
    assert after.rewards.keys() - before.rewards.keys() == {"guerdon_reward"}
    assert after.texts.responses == before.texts.responses
    said = [r.rpartition("assistant: ")[2] for r in after.texts.responses]
    lengths = [len(r) if r or "trl" in log else np.nan for r in said]  # a sample of inspect_ai ended without a response
    np.testing.assert_array_equal(after.rewards["guerdon_reward"], lengths)


def test_what_else_a_log_has_is_kept(tmp_path):
    score_path(DATA / "verl" / "rollout" / "2.jsonl", Length(), tmp_path / "2.jsonl", name="m")
    for new, old in zip(lines(tmp_path / "2.jsonl"), lines(DATA / "verl" / "rollout" / "2.jsonl"), strict=True):
        assert new == {**old, "guerdon_reward": float(len(old["output"])), "guerdon_failure": None}
    file = DATA / "trl" / "chat" / "completions" / "completions_00001.parquet"
    score_path(file, Length(), tmp_path / "c.parquet", name="m")
    new, old = pq.read_table(tmp_path / "c.parquet"), pq.read_table(file)
    assert new.select(old.column_names).equals(old)
    assert new.column_names == [*old.column_names, "guerdon_reward", "guerdon_failure"]
    trace = DATA / "prime" / "rollouts" / "step_9" / "train" / "all" / "traces.jsonl"
    score_path(trace, Length(broken="it is 3"), tmp_path / "traces.jsonl", name="m")
    for new, old in zip(lines(tmp_path / "traces.jsonl"), lines(trace), strict=True):
        metrics = new["traces"][0].pop("metrics")
        failed = "it is 3" in str(old)
        assert metrics == {**old["traces"][0].pop("metrics"), "guerdon_reward": None if failed else 7.0}
        assert new.pop("guerdon_failure") == ("late: 30 s" if failed else None)
        assert new == old


@pytest.mark.parametrize("form", ["eval", "json"])
def test_scores_of_inspect_ai(tmp_path, form):
    source, out = DATA / "inspect" / form / f"sums.{form}", tmp_path / f"sums.{form}"
    score_path(source, Length(broken="is 9"), out, name="m")
    before, after = ([r for _, r in file_rows(path)] for path in (source, out))
    for old, new in zip(before, after, strict=True):
        said = old["output"].get("completion", "")
        failed = "late: 30 s" if "is 9" in said else new["guerdon_failure"]
        added = {} if failed else {"guerdon_reward": {"value": float(len(said))}}
        assert new == {**old, "scores": {**old["scores"], **added}, "guerdon_failure": failed}
    assert after[5]["guerdon_failure"].startswith("no_value")
    if form == "eval":
        old, new = dict(eval_members(source)), dict(eval_members(out))
        assert list(new) == list(old)
        assert [k for k in old if old[k] != new[k]] == [k for k in old if k.startswith("samples/")]
    else:
        old, new = json.loads(source.read_text()), json.loads(out.read_text())
        assert {k: v for k, v in new.items() if k != "samples"} == {k: v for k, v in old.items() if k != "samples"}
    again = score_path(out, Length(), out, name="m", only_failed=True)
    assert "rows scored" in again
    assert [r["guerdon_failure"] for _, r in file_rows(out)][:5] == [None] * 5


def test_other_layouts_of_text(tmp_path):
    gym = {
        "responses_create_params": {"input": [{"role": "user", "content": "q"}]},
        "reward": 1.0,
        "response": {
            "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "four"}]}]
        },
    }
    older = {"example_id": 0, "prompt": [{"role": "user", "content": "q"}], "reward": 0.5, "answer": "7",
             "completion": [{"role": "assistant", "content": "sixsix"}]}  # fmt: skip
    function = {"query": "p then r", "prompt": "p ", "label": "7", "reward": 1}
    plain = {"prompt": "p", "response": "abc", "reward": 9.0}
    for row, length in ((gym, 4.0), (older, 6.0), (function, 6.0), (plain, 3.0)):
        out = tmp_path / f"{length}{len(row)}.jsonl"
        score_path(jsonl(tmp_path / "in.jsonl", [row]), Length(), out, name="m")
        assert lines(out) == [{**row, "guerdon_reward": length, "guerdon_failure": None}]
    table = {"columns": ["prompt", "response"], "data": [["p", "abcd"], ["p", "ab"]]}
    (tmp_path / "t.json").write_text(json.dumps(table))
    score_path(tmp_path / "t.json", Length(), tmp_path / "u.json", name="m")
    found = json.loads((tmp_path / "u.json").read_text())
    assert found["columns"] == ["prompt", "response", "reward", "reward_failure"]
    assert found["data"] == [["p", "abcd", 4.0, None], ["p", "ab", 2.0, None]]
    with (tmp_path / "own.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["prompt", "response", "reward"], ["p", "abc", "0.5"]])
    score_path(tmp_path / "own.csv", Length(), tmp_path / "new.csv", name="m")
    assert list(csv.DictReader((tmp_path / "new.csv").open())) == [
        {"prompt": "p", "response": "abc", "reward": "0.5", "guerdon_reward": "3.0", "guerdon_failure": ""}
    ]


def test_the_reference_of_a_log_is_given_to_the_model(tmp_path):
    class Truth(Length):
        def score(self, episodes):
            self.seen += [episode.meta.get("ground_truth") for episode in episodes]
            return [Score(total=0.0) for _ in episodes]

    model = Truth()
    score_path(DATA / "verl" / "rollout" / "2.jsonl", model, tmp_path / "out.jsonl", name="m")
    assert model.seen == ["2"] * 4 + ["3"] * 4


def test_a_folder_continues_after_a_kill(tmp_path):
    out = tmp_path / "scored"
    first = Length(dies_after=11)
    with pytest.raises(KeyboardInterrupt):
        score_path(DATA / "verl" / "rollout", first, out, name="m", batch_size=1)
    assert [p.name for p in out.glob("*.jsonl")] == ["2.jsonl"]
    second = Length()
    said = score_path(DATA / "verl" / "rollout", second, out, name="m", batch_size=1)
    assert "2.jsonl is there already" in said
    assert len(second.seen) == 5
    assert len(lines(out / "10.jsonl")) == 8
    assert score_path(DATA / "verl" / "rollout", Length(), out, name="m").count("there already") == 2


@pytest.mark.hostile("files")
def test_what_cannot_be_scored_is_said_in_one_line(tmp_path):
    with pytest.raises(DataError, match="no file in it has responses to score"):
        score_path(DATA / "sb3", Length(), tmp_path / "out", name="m")
    with pytest.raises(DataError, match="a new folder outside"):
        check_paths(DATA / "verl", DATA / "verl" / "scored", only_failed=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="a new folder outside"):
        check_paths(DATA / "verl", tmp_path / "file", only_failed=False)
    with pytest.raises(ConfigError, match=r"judges text, and .* holds episodes of a robot"):
        score_path(DATA / "lerobot", Length(), tmp_path / "out", name="m")


@pytest.mark.hostile("files")
def test_a_record_that_is_not_like_its_log_is_named(tmp_path):
    log = jsonl(tmp_path / "traces.jsonl", [{"traces": "none"}])
    with pytest.raises(DataError, match=r"traces\.jsonl:1: not like traces of verifiers or prime-rl"):
        score_path(log, Length(), tmp_path / "out.jsonl", name="m")


class Brightness:
    """How bright each frame is; black ones cannot be measured."""

    info = RewardInfo(name="brightness", range=(0.0, 1.0), granularity="step", modality="image", frames_needed=1)

    def __init__(self, dies_after=10**6):
        self.left = dies_after

    def score(self, episodes):
        self.left -= len(episodes)
        if self.left < 0:
            raise KeyboardInterrupt
        values = [float(episode.frames.mean()) / 255 for episode in episodes]
        return [Score(failure=Failure("dark")) if v == 0 else Score.from_values(np.array([v])) for v in values]


def brightness(**params):
    return Brightness(**params)


def test_a_lerobot_data_set_gets_a_column(tmp_path):
    out = tmp_path / "scored"
    with pytest.raises(KeyboardInterrupt):
        score_path(DATA / "lerobot", Brightness(dies_after=10), out, name="m")
    assert not out.exists()
    said = score_path(DATA / "lerobot", Brightness(), out, name="m")
    assert "3 episodes" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["scored"]
    rows = read_log(out)
    wanted = [10 * t / 255 if e and t else np.nan for e, n in enumerate((4, 5, 6)) for t in range(n)]
    np.testing.assert_allclose(rows.rewards["guerdon_reward"], wanted, atol=1e-6)
    described = json.loads((out / "meta" / "info.json").read_text())
    assert described["features"]["guerdon_reward"] == {"dtype": "float32", "shape": [1], "names": None}
    files = {p.relative_to(DATA / "lerobot") for p in (DATA / "lerobot").rglob("*") if p.is_file()}
    assert {p.relative_to(out) for p in out.rglob("*") if p.is_file()} == files
    old, new = (pq.read_table(root / "data" / "chunk-000" / "file-000.parquet") for root in (DATA / "lerobot", out))
    assert new.select(old.column_names).to_pydict() == old.to_pydict()
    with pytest.raises(DataError, match="name a new folder"):
        check_paths(DATA / "lerobot", out, only_failed=False)


class LastWord:
    """Judges whole episodes; it cannot judge the first one."""

    info = RewardInfo(name="last_word", range=(0.0, 1.0), granularity="total", modality="state")

    def __init__(self):
        self.seen = 0

    def score(self, episodes):
        first, self.seen = self.seen, self.seen + len(episodes)
        return [Score(total=0.5) if n else Score(failure=Failure("busy")) for n in range(first, self.seen)]


def test_one_value_of_an_episode_is_that_of_its_last_row(tmp_path):
    score_path(DATA / "lerobot", LastWord(), tmp_path / "scored", name="m")
    table = pq.read_table(tmp_path / "scored" / "data" / "chunk-000" / "file-000.parquet")
    numbers, values = table["episode_index"].to_numpy(), table["guerdon_reward"].to_numpy()
    for number, last in enumerate((np.nan, 0.5, 0.5)):
        rows = values[numbers == number]
        np.testing.assert_array_equal(rows, [np.nan] * (len(rows) - 1) + [last])


def test_models_are_loaded_for_what_is_scored(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    model = load_scoring_model(DATA / "lerobot", "test_score_logs:brightness", {"dies_after": 99})
    assert model.info.name == "brightness"
    assert score_path(DATA / "lerobot", model, tmp_path / "x", name="m", dry_run=True) == "3 episodes would be scored"
    shutil.copy(DATA / "verl" / "rollout" / "2.jsonl", tmp_path)
    assert load_scoring_model(tmp_path / "2.jsonl", "test_score_logs:Length", {"broken": "x"}).info.name == "length"


def test_a_record_without_the_columns_of_the_others_is_a_failure_of_its_own(tmp_path):
    """The others are scored; the record stays as it is, with why it has no reward."""
    samples = [
        {"id": k, "epoch": 1, "input": "q", "target": "4", "scores": {},
         "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a" * (k + 1)}]}
        for k in range(4)
    ]  # fmt: skip
    samples[2] = {"id": 2, "messages": 5}
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    score_path(path, Length(), tmp_path / "out.jsonl", name="length")
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [found[k]["scores"]["guerdon_reward"]["value"] for k in (0, 1, 3)] == [1.0, 2.0, 4.0]
    why = "unlike_the_others: the row has no epoch, input, target, and a log of inspect_ai has them"
    assert found[2] == {**samples[2], "reward": None, "reward_failure": why}
