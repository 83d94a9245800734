"""Two runs compared, and the runs of one folder or file apart."""

import json
import math

import numpy as np
import pytest

import guerdon
from guerdon.auditing import against
from guerdon.auditing.against import compare_runs
from guerdon.auditing.logs import read_log
from guerdon.auditing.rows import Rows, Texts
from guerdon.auditing.runs import NAMELESS, runs_in, runs_of
from guerdon.errors import ConfigError, DataError


def run_of(folder, name, prompts, *, right, phrase=0.0, seed=0, k=4, **more):
    """A log in which a prompt is answered right with a probability, and a response has a phrase with one."""
    random = np.random.default_rng(seed)
    table = []
    for number, prompt in enumerate(prompts):
        for _ in range(k):
            truth = int(random.random() < (right(number) if callable(right) else right))
            said = "I checked this twice. " if random.random() < phrase else ""
            words = " ".join(random.choice(["so", "then", "add", "carry", "one", "two"], 12))
            row = {"prompt": f"What is {prompt}?", "response": f"{said}{words}", "reward": float(truth), "truth": truth}
            table.append({**row, **{key: of(number) for key, of in more.items()}})
    path = folder / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in table))
    return path


def test_differences_are_those_of_the_prompts_that_both_have(tmp_path):
    a = read_log(run_of(tmp_path, "a", range(100), right=lambda n: n % 2, k=2))
    b = read_log(run_of(tmp_path, "b", range(40, 140), right=lambda n: (n + 40) % 4 == 0, k=3))
    found = compare_runs(a, b, "b")
    assert found.compared == "by prompt: 60 prompts are in both"
    truth, reward, length = found.changes
    both = np.arange(40, 100)
    here, there = both % 2, both % 4 == 0
    difference = here - there.astype(float)
    half = 2.0009953780882674 * difference.std(ddof=1) / np.sqrt(60)  # t of 59 degrees of freedom
    assert (truth.here, truth.there) == (here.mean(), there.mean())
    assert (truth.difference, truth.n, truth.unit) == (pytest.approx(difference.mean()), 60, "prompts")
    assert (truth.low, truth.high) == pytest.approx((difference.mean() - half, difference.mean() + half))
    assert reward.difference == truth.difference
    assert length.what == "length"
    assert (found.gained, found.lost) == (30, 15)
    assert found.p == pytest.approx(2 * sum(math.comb(45, k) for k in range(16)) / 2**45)
    one = found.turned[0]
    assert abs(one.here - one.there) == 1
    assert a.texts.prompts[one.row].startswith(one.prompt)
    assert b.texts.prompts[one.other_row].startswith(one.prompt)


def test_a_phrase_needs_proof_on_prompts_that_did_not_choose_it(tmp_path):
    a = read_log(run_of(tmp_path, "a", range(80), right=0.5, phrase=0.4, seed=1))
    b = read_log(run_of(tmp_path, "b", range(80), right=0.5, seed=2))
    (one,) = compare_runs(a, b, "b").phrases
    assert one.phrase == "i checked this twice"
    assert one.here == pytest.approx(0.4, abs=0.1)
    assert (one.there, one.p < 0.01) == (0, True)
    assert [x.here for x in compare_runs(b, a, "a").phrases] == [0]


def test_equal_runs_have_no_phrases(tmp_path):
    false = 0
    for seed in range(12):
        a = read_log(run_of(tmp_path, "a", range(30), right=0.5, phrase=0.3, seed=3 * seed + 1))
        b = read_log(run_of(tmp_path, "b", range(30), right=0.5, phrase=0.3, seed=3 * seed + 2))
        false += bool(compare_runs(a, b, "b").phrases)
    assert false <= 1


def test_without_shared_prompts_steps_are_compared_and_it_says_so(tmp_path):
    step = {"step": lambda number: number // 10}
    a = read_log(run_of(tmp_path, "a", range(80), right=0.8, **step))
    b = read_log(run_of(tmp_path, "b", range(200, 280), right=0.3, seed=1, **step))
    found = compare_runs(a, b, "b")
    assert found.compared == "by step: 8 steps are in both"
    assert found.changes[0].low > 0.3
    assert (found.changes[0].n, found.changes[0].unit) == (8, "steps")
    assert found.gained is None
    assert found.missing["answers"] == "the logs share too few prompts"


def test_what_cannot_be_compared_is_named_with_its_reason(tmp_path):
    a = read_log(run_of(tmp_path, "a", range(30), right=0.8))
    plain = tmp_path / "b.jsonl"
    plain.write_text("".join(json.dumps({"prompt": f"{n}", "reward": n % 3, "length": n}) + "\n" for n in range(60)))
    found = compare_runs(a, read_log(plain), "b")
    assert found.compared.startswith("as a whole, since fewer than 10 prompts")
    assert [one.what for one in found.changes] == ["reward"]
    assert set(found.missing) == {"truth", "length", "answers", "phrases"}
    assert found.missing["truth"] == "the other log has no truth, nor reference answers that can be read"


def bare(n, *, prompts=None, texts=True, start=0, **more):
    """A log of n rows with rewards 0 to n, of as many prompts if not said otherwise."""
    at = np.arange(n)
    prompt = at if prompts is None else np.asarray(prompts)
    said = Texts(at, [f"What is {k}?" for k in prompt], [f"It is {k}." for k in at]) if texts else None
    return Rows("test", ("a",), at * 0, at, at + float(start), prompt_N=prompt, prompt_key_N=prompt, texts=said, **more)


def test_a_truth_that_hardly_any_shared_prompt_has_in_both_has_no_interval_or_is_not_compared():
    prompts, later = np.arange(30), np.arange(18, 50)
    alternating = (later % 2).astype(float)
    known = np.where(prompts < 19, 1.0 - prompts % 2, np.nan)
    truth = compare_runs(bare(30, truth_N=known), bare(32, prompts=later, truth_N=alternating), "b").changes[0]
    assert (truth.what, truth.difference, truth.low, truth.high, truth.n) == ("truth", 1.0, None, None, 1)
    known[18] = np.nan
    found = compare_runs(bare(30, truth_N=known), bare(32, prompts=later, truth_N=alternating), "b")
    assert found.missing["truth"] == "no prompt has it in both"
    assert (found.changes[0].what, found.changes[0].difference, found.changes[0].n) == ("reward", 18.0, 12)


def test_lengths_that_no_row_has_are_not_compared_as_a_whole_either():
    found = compare_runs(bare(5, length_N=np.full(5, np.nan)), bare(5, prompts=range(50, 55), length_N=np.ones(5)), "b")
    assert found.missing["length"] == "no row has it in both"
    assert [(one.what, one.difference, one.unit, one.n) for one in found.changes] == [("reward", 0.0, "rows", 10)]


def test_logs_of_shared_prompts_without_texts_or_truth_compare_their_rewards():
    found = compare_runs(bare(20, texts=False), bare(20, start=1), "b")
    assert found.compared == "by prompt: 20 prompts are in both"
    assert found.missing["length"] == "one of the logs has neither responses nor their lengths"
    assert found.missing["phrases"] == "one of the logs has no responses"
    assert found.missing["answers"] == found.missing["truth"]
    assert [(one.what, one.difference) for one in found.changes] == [("reward", -1.0)]


def test_of_many_responses_a_sample_has_the_phrases(tmp_path, monkeypatch):
    monkeypatch.setattr(against, "MOST_RESPONSES", 200)
    a = read_log(run_of(tmp_path, "a", range(80), right=0.5, phrase=0.6, seed=1))
    b = read_log(run_of(tmp_path, "b", range(80), right=0.5, seed=2))
    (one,) = compare_runs(a, b, "b").phrases
    assert one.phrase == "i checked this twice"
    assert one.here == pytest.approx(0.6, abs=0.1)
    assert one.here != compare_runs(a, b, "b", seed=1).phrases[0].here, "of other rows"


# ---- runs of one folder or file


def test_folders_with_their_own_configuration_or_events_are_runs(tmp_path):
    for name in ("a", "b/seed_1"):
        run_of(tmp_path / name, "rollouts", range(20), right=0.5)
        (tmp_path / name / "config.yaml").write_text("x: 1\n")
    assert runs_in(tmp_path) == {"a": tmp_path / "a", "b/seed_1": tmp_path / "b/seed_1"}
    assert runs_in(tmp_path / "a") == {}
    run_of(tmp_path, "rest", range(20), right=0.5)  # rows of neither
    assert runs_in(tmp_path) == {}


@pytest.mark.parametrize("parts", [("rank_0", "rank_1"), ("shard-00000-of-00002", "shard-00001-of-00002"),
                                   ("train", "eval"), ("step_1", "step_2"), ("tensorboard", "rollouts")])  # fmt: skip
def test_parts_of_one_run_stay_one(tmp_path, parts):
    for part in parts:
        run_of(tmp_path / part, "rollouts", range(20), right=0.5)
        (tmp_path / part / "events.out.tfevents.1.host").touch()
        (tmp_path / part / "config.json").write_text("{}")
    assert runs_in(tmp_path) == {}
    for run in ("a", "b"):
        for part in parts:
            run_of(tmp_path / "sweep" / run / part, "rollouts", range(20), right=0.5)
            (tmp_path / "sweep" / run / part / "events.out.tfevents.1.host").touch()
    assert list(runs_in(tmp_path / "sweep")) == ["a", "b"]


def test_a_configuration_in_a_folder_of_its_own_belongs_to_the_run_above(tmp_path):
    for run in ("PPO_1", "PPO_2"):
        (tmp_path / run / "CartPole-v1").mkdir(parents=True)
        (tmp_path / run / "CartPole-v1" / "config.yml").write_text("a: 1\n")
        (tmp_path / run / "0.monitor.csv").write_text('#{"t_start": 0.0}\nr,l,t\n1.0,3,0.1\n2.0,4,0.2\n')
    assert list(runs_in(tmp_path)) == ["PPO_1", "PPO_2"]


def test_rows_of_a_column_run_are_those_of_each_run(tmp_path):
    path = run_of(tmp_path, "both", range(60), right=0.5, run=lambda number: ("x", "y", "")[number % 3])
    rows = read_log(path)
    parts = runs_of(rows)
    assert list(parts) == ["x", "y", NAMELESS]
    assert sum(map(len, parts.values())) == len(rows)
    for number, part in enumerate(parts.values()):
        assert part.line_N.tolist() == [n + 1 for n in range(240) if n // 4 % 3 == number]
        assert [part.texts.responses[m] for m in range(3)] == [rows.texts.responses[n - 1] for n in part.line_N[:3]]
        assert (np.bincount(np.unique(part.group_N, return_inverse=True)[1]) == 4).all()
    assert runs_of(read_log(run_of(tmp_path, "ids", range(20), right=0.5, run=str))) == {}


def test_runs_are_listed_one_by_one_with_a_page_of_each(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        run_of(tmp_path / "sweep" / name, "rollouts", range(20), right=0.5)
        (tmp_path / "sweep" / name / "config.yaml").write_text("x: 1\n")
    found = guerdon.audit("sweep")
    assert [one.run for one in found.runs] == ["a", "b"]
    assert "160 rows (plain columns) of 2 runs" in repr(found)
    assert set(found.findings.columns) > {"run", "name"}
    page = (tmp_path / "sweep.audit.html").read_text()
    for name in ("a", "b"):
        assert f'<a href="./sweep.audit.{name}.html">{name}</a>' in page
        assert "<h1>" + name in (tmp_path / f"sweep.audit.{name}.html").read_text()
    with pytest.raises(ConfigError, match=r"--second: sweep holds 2 runs \(a, b\); pass one of them") as refused:
        guerdon.audit("sweep", second="sweep/a")
    assert refused.value.key == "--second"
    with pytest.raises(DataError, match="it holds 2 runs"):
        guerdon.audit("sweep/a", against="sweep")
    done = guerdon.audit("sweep/a", against="sweep/b").runs[0]
    assert json.loads(done.as_json())["against"]["changes"][0]["what"] == "truth"
    assert "Against another run" in done.page.read_text()
