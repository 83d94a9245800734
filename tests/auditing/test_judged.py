"""`guerdon audit --judge`: a random sample of rows that a judge marks, at the stand-in endpoint of other tests."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from guerdon.auditing.checks import audit
from guerdon.auditing.logs import read_log
from guerdon.auditing.second import SecondReward, sampled
from guerdon.cli import app
from guerdon.errors import DataError

sys.path.append(str(Path(__file__).parent.parent / "labels"))

from judge_server import judge_server

from tables import first, refuses

RUBRIC = '[[criteria]]\nname = "right"\ntext = "It is right."\n'


def write(path, *, hacked, messages=False):
    """Groups of four over eight steps, right less often later; the reward is the truth, or a word that spreads."""
    random = np.random.default_rng(0)
    lines = []
    for k in range(480):
        step = k // 60
        right = random.random() < 0.6 - 0.05 * step
        sure = random.random() < 0.1 + 0.11 * step
        prompt = f"What is {k // 4} + 1?"
        response = f"{'Surely' if sure else 'Maybe'} {k // 4 + (1 if right else 7 + k % 5)}. This is number {k}."
        asked = [{"role": "user", "content": prompt}] if messages else prompt
        said = [{"role": "assistant", "content": response}] if messages else response
        reward = float(sure if hacked else right)
        lines.append(json.dumps({"prompt": asked, "response": said, "reward": reward, "step": step, "group": k // 4}))
    path.write_text("\n".join(lines) + "\n")


def says(text):
    """The marks of a judge that calculates."""
    asked = int(re.findall(r"What is (\d+) \+ 1", text)[-1])
    said = int(re.findall(r"(?:Surely|Maybe) (\d+)\.", text)[-1])
    return json.dumps({"right": {"reason": "calculated", "choice": "yes" if said == asked + 1 else "no"}})


def run(server, *words, **keys):
    judge = {"api": "openai", "model": "m", "base_url": f"{server.url}/v1", "retries": 0,
             "usd_per_million_in": 100, "usd_per_million_out": 1000} | keys  # fmt: skip
    given = [f"judge.{name}={value}" for name, value in judge.items()]
    return CliRunner().invoke(app, ["audit", "log.jsonl", "--judge", "rubric.toml", "--json", *words, *given])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("rubric.toml").write_text(RUBRIC)
    write(Path("log.jsonl"), hacked=True)
    return tmp_path


@pytest.mark.parametrize("messages", first([False, True], 1))
def test_a_reward_that_rises_while_the_marks_of_a_judge_fall_is_found(folder, messages):
    write(Path("log.jsonl"), hacked=True, messages=messages)
    with judge_server(says) as server:
        done = run(server, "--sample", "200", "max_usd=50")
        assert done.exit_code == 0, done.output
        assert len(server.requests) == 200
    assert done.stderr.index("calls: at most 200") < done.stderr.index("rows scored")  # the cost before the first call
    found = json.loads(done.stdout)
    by_name = {one["name"]: one for one in found["findings"]}
    assert {"truth", "agreement"} <= by_name.keys()
    assert by_name["truth"]["total"] == 200
    assert "the marks of rubric.toml" in by_name["truth"]["title"]
    assert "right by the marks of rubric.toml" in by_name["agreement"]["title"]
    second = found["second"]
    assert second["name"] == "the marks of rubric.toml"
    assert second["matched"] == "on 200 of 480 rows, drawn at random in whole groups"
    assert second["figures"]["correlation"]["n"] == 200
    page = Path("log.jsonl.audit.html").read_text()
    assert "the marks of rubric.toml, compared on 200 of 480 rows" in page
    assert sorted(one.name for one in folder.iterdir()) == [
        "judge_cache", "log.jsonl", "log.jsonl.audit.html", "rubric.toml",
    ]  # fmt: skip


def test_a_reward_that_agrees_with_the_judge_is_clean_and_a_second_start_asks_nothing_again(folder):
    write(Path("log.jsonl"), hacked=False)
    with judge_server(says) as server:
        found = json.loads(run(server, "--sample", "160").stdout)
        asked = len(server.requests)
        assert asked == 160
        assert json.loads(run(server, "--sample", "160").stdout) == found
        assert len(server.requests) == asked
    assert {"truth", "drift", "agreement"} <= found["clean"].keys()
    assert "given the marks of rubric.toml" in found["clean"]["truth"]
    assert found["second"]["figures"]["correlation"]["value"] == pytest.approx(1)


def test_calls_that_fail_and_money_that_does_not_suffice_are_said(folder):
    with judge_server(says, script=[(500, {})]) as server:
        done = run(server, "--sample", "40", concurrency=1)
        second = json.loads(done.stdout)["second"]
        assert re.search(r"; without a value: 1 \w+", second["matched"])
        assert second["figures"]["correlation"]["n"] == 39
    with judge_server(says) as server:
        with pytest.raises(DataError, match="no row got a value: 400 budget_spent"):
            CliRunner().invoke(
                app, ["audit", "log.jsonl", "--judge", "rubric.toml", "judge.api=openai", "judge.model=other",
                      f"judge.base_url={server.url}/v1", "judge.usd_per_million_in=100",
                      "judge.usd_per_million_out=1000", "max_usd=0.01"], catch_exceptions=False)  # fmt: skip
        assert not server.requests


def test_words_that_do_not_fit_are_refused_before_anything_is_read(folder):
    for words, key, said in (
        (["judge.model=m"], "judge.model", "judge.model=m: of a judge, and there is none; add --judge MODEL"),
        (["--sample", "9"], "--sample", "of a judge, and there is none"),
        (["--judge", "rubric.toml", "--second", "log.jsonl"], "--judge", "--second is the one second reward"),
        (["--judge", "rubric.toml", "--watch"], "--judge", "--watch would call it at each change"),
    ):
        with refuses(key) as refused:
            CliRunner().invoke(app, ["audit", "none.jsonl", *words], catch_exceptions=False)
        assert said in str(refused.value)
    Path("numbers.csv").write_text("reward,step\n" + "".join(f"{k % 2},{k}\n" for k in range(50)))
    with pytest.raises(DataError, match="has no column of responses"):
        CliRunner().invoke(app, ["audit", "numbers.csv", "--judge", "rubric.toml"], catch_exceptions=False)


def test_the_sample_has_whole_groups_and_is_drawn_by_the_seed(folder):
    rows = read_log(Path("log.jsonl"))
    for most, count in ((3, 3), (4, 4), (7, 4), (50, 48), (480, 480), (9999, 480)):
        chosen = sampled(rows, rows.texts, most, seed=0)
        assert len(chosen) == len(set(chosen.tolist())) == count
        groups = np.unique(rows.group_N[rows.texts.row_M[chosen]], return_counts=True)[1]
        assert most < 4 or set(groups) == {4}
    first, again, other = (set(sampled(rows, rows.texts, 40, seed=seed).tolist()) for seed in (0, 0, 1))
    assert first == again != other


def test_marks_do_not_replace_a_truth_that_the_log_has(folder):
    rows = read_log(Path("log.jsonl"))
    marks = SecondReward("marks", "", np.random.default_rng(0).random(480))
    with_truth = replace(rows, truth_N=(np.arange(480) % 3 == 0).astype(float))
    assert "given marks" in audit(rows, marks=marks).clean["drift"]
    assert audit(with_truth, marks=marks) == audit(with_truth)
