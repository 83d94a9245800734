"""Prompts without known answers: success is unknown everywhere; a gold reward is shown and never trained on."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml

from guerdon.comparison.report import write_single_report
from guerdon.comparison.results import comparison_rows, read_study
from guerdon.comparison.study import plan_study, run_study
from guerdon.config.loading import validate
from guerdon.errors import ConfigError, DataError
from guerdon.plan.stages import stage
from guerdon.rl.episode_stats import EpisodeStats
from guerdon.rl.reward_warnings import reward_warnings
from guerdon.rl.run import run_folder
from guerdon.settings.data import PromptsDataSettings
from guerdon.settings.study import Study
from guerdon.tasks.prompt_files import load_prompts
from guerdon.tasks.verifier import verifier_from
from guerdon.types import Failure, RewardInfo, Score
from tables import refuses
from text_rl import interrupted, letter_study, lines, result, start

torch.set_num_threads(1)


class Counts:
    """The share of a digit in a response; it fails on responses with the letter `f`."""

    info = RewardInfo("counts", (0.0, 1.0), granularity="total", modality="text", frames_needed=0)

    def __init__(self, digit, fails=""):
        self.digit, self.fails = digit, fails

    def score(self, episodes):
        texts = ["".join(one.texts) for one in episodes]
        return [
            Score(failure=Failure("unreadable"))
            if self.fails and self.fails in t
            else Score(total=t.count(self.digit) / 3)
            for t in texts
        ]


def make_proxy():
    return Counts("0")


def make_gold(fails=""):
    return Counts("1", fails)


def own(factory, **params):
    return {"model": {"model_type": f"test_unverified_prompts:make_{factory}", "modality": "text", "params": params},
            "shaping": "raw"}  # fmt: skip


def rewards(truth="gold", **given):
    sources = {"proxy": own("proxy"), **({"gold": own("gold")} if truth == "gold" else {})}
    return {"use_reward_model": True, "sources": sources, **({"truth": truth} if truth else {}), **given}


def prompts(folder, **given):
    """Questions alone."""
    path = folder / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{i + 2:b}".replace("0", "a").replace("1", "b")}) + "\n"
                            for i in range(8)))  # fmt: skip
    return {"type": "prompts", "path": str(path), "val_size": 2, "max_response_length": 3, "train_batch_size": 4,
            "n_samples": 4, "filter_truncated": False, **given}  # fmt: skip


def unverified(folder, name="run", **given):
    study = letter_study(folder, name=name).model_dump(exclude_unset=True) | {"data": prompts(folder)}
    return Study.model_validate(study | given)


def test_success_is_unknown_in_every_file_and_no_verifier_is_a_source(tmp_path):
    study = unverified(tmp_path, reward=rewards(truth=None))
    loop = start(study)
    assert list(loop.sources) == list(loop.parts.terms) == ["proxy"]
    loop.run()
    assert {row["success"] for row in lines(study, "episodes")} == {None}
    for row in lines(study):
        assert row.get("success") is None
        assert row.get("hacking_alarm") is None
        assert "return/verifier" not in row
        assert row["success_known"] == 0
        assert row.get("failure_rate", 0) == 0
    assert "success" not in json.loads((run_folder(study) / "COMPLETE").read_text())["final"]
    video = next((run_folder(study) / "films").glob("*.json"))
    assert {row["outcome"] for row in json.loads(video.read_text())["responses"]} == {None}


def test_a_truth_is_measured_everywhere_and_changes_nothing_that_learns(tmp_path):
    plain = unverified(tmp_path, "plain", reward=rewards(truth=None))
    shown = unverified(tmp_path, "shown", reward=rewards())
    for study in (plain, shown):
        start(study).run()
    weights = [{k: v for k, v in result(one).items() if k.endswith("safetensors")} for one in (plain, shown)]
    assert weights[0] == weights[1]
    assert weights[0]
    for one, other in zip(lines(plain), lines(shown), strict=True):
        if one["kind"] == "train":
            assert other["truth"] == other["return/gold"] is not None
            assert other["return/combined"] == one["return/combined"] == one["return/proxy"]
        else:
            assert 0 <= other["truth"] <= 1
            assert other["truth_known"] == other["episodes"] == 2
        assert other.get("success") is None
    video = next((run_folder(shown) / "films").glob("*.json"))
    assert all(set(row["rewards"]) == {"proxy", "gold"} for row in json.loads(video.read_text())["responses"])


def test_a_run_with_a_truth_that_is_killed_goes_on_to_the_same_bytes(tmp_path):
    whole, cut = (unverified(tmp_path, name, reward=rewards()) for name in ("whole", "cut"))
    start(whole).run()
    interrupted(cut, "update", 3)
    start(cut, resume=True).run()
    assert result(cut) == result(whole)


def test_where_a_truth_fails_it_is_unknown_and_never_a_number(tmp_path):
    section = rewards()
    section["sources"]["gold"] = own("gold", fails="")
    failing = rewards(max_failure_rate=1.0)
    failing["sources"]["gold"] = own("gold", fails="0")
    whole, some = (unverified(tmp_path, n, reward=r) for n, r in (("whole", section), ("some", failing)))
    for study in (whole, some):
        start(study).run()
    for one, other in zip(lines(whole, "episodes"), lines(some, "episodes"), strict=True):
        failed = one["return/proxy"] > 0  # where there is a 0 in the response
        assert other["return/gold"] == (None if failed else one["return/gold"])
        assert other["return/proxy"] == one["return/proxy"]
    assert any(row["undefined_returns/proxy"] == 0 for row in lines(some) if row["kind"] == "train")
    evals = [row for row in lines(some) if row["kind"] == "eval"]
    assert all((row.get("truth") is None) == (row["truth_known"] == 0) for row in evals)


def test_the_verifier_can_be_the_truth_and_then_trains_nothing(tmp_path):
    study = letter_study(tmp_path, reward=rewards("verifier"), algorithm={"adv_estimator": "gae"})
    loop = start(study)
    assert list(loop.sources) == ["verifier", "proxy"]
    assert list(loop.parts.terms) == ["proxy"]
    assert loop.learner.heads == ("proxy",)
    loop.run()
    assert any(row["success"] is not None for row in lines(study))
    assert "truth" not in lines(study)[-1]
    assert all("reward_weight/verifier" not in row for row in lines(study))


def test_the_alarm_is_about_the_truth_where_success_is_unknown():
    mask = np.ones((1, 1), dtype=np.bool_)
    none, stats = np.zeros_like(mask), EpisodeStats(["proxy", "gold"], ["proxy"], truth="gold")

    def row(**returns):
        happened = SimpleNamespace(mask=mask, success=none, known_B=np.zeros(1, dtype=np.bool_), conversations=False)
        paid = {n: SimpleNamespace(values=np.full((1, 1), v), failed=none) for n, v in returns.items()}
        return stats.add(happened, paid, {"proxy": 1.0}, step=0)

    rng = np.random.default_rng(0)
    for k in range(100):
        found = row(proxy=k / 10 + rng.normal(), gold=7 - k / 50 + rng.normal())
    assert "the learned return rises, truth does not: proxy" in stats.alarm()
    summary = stats.summary(found)
    assert summary["hacking_alarm"] == 1
    assert summary["truth"] == summary["return/gold"]
    assert summary["reward_truth_correlation/proxy"] < 0
    assert "reward_success_correlation" not in summary
    for k in range(200):
        row(proxy=10 + k / 10 + rng.normal(), gold=5 + k / 10 + rng.normal())
    assert stats.alarm() == "", "both rise"


@pytest.mark.parametrize(
    ("data", "section", "key"),
    [
        ({}, {}, "reward.sources"),
        ({}, {"reward": rewards(truth=None, combine_mode="add")}, "reward.combine_mode"),
        ({}, {"reward": rewards(truth=None, combine_mode="weighted", env_reward_weight=1)}, "reward.combine_mode"),
        ({}, {"reward": rewards("verifier")}, "reward.truth"),
        ({}, {"reward": rewards("golden")}, "reward.truth"),
        ({}, {"reward": {**rewards(), "sources": {"gold": own("gold")}}}, "reward.sources"),
        ({}, {"reward": {**rewards(), "sources": {"proxy": own("proxy"), "gold": own("gold") | {"reward_weight": 2}}}},
         "reward.sources.gold.reward_weight"),
        ({}, {"reward_model": {}}, "reward.sources.prime"),
        ({}, {"reward_model": {"rm_type": "value", "path": "x", "verifier_coef": 1}}, "reward_model.verifier_coef"),
        ({}, {"reward_model": {"rm_type": "exact"}}, "data.type"),
        ({"filter_accuracy": True}, {"reward": rewards(truth=None)}, "data.filter_accuracy"),
        ({"verifier": "math"}, {"reward": rewards(truth=None)}, "data.verifier"),
        ({}, {"reward": rewards(truth=None), "algorithm": {"adv_params": {"verifier_gamma": 0.9}}},
         "algorithm.adv_params.verifier_gamma"),
    ],
)  # fmt: skip
def test_what_needs_success_is_refused_in_one_line(tmp_path, data, section, key):
    given = {"policy": letter_study(tmp_path).policy.model_dump(exclude_unset=True), "data": prompts(tmp_path, **data)}
    with refuses(key):
        validate(Study, given | section, origin="study")


def test_a_truth_that_learns_compares_or_is_trained_on_is_refused(tmp_path):
    def refused(said, **given):
        with refuses("reward.truth", said):
            validate(Study, letter_study(tmp_path).model_dump(exclude_unset=True) | given, origin="study")

    judge = {"model": {"model_type": "judge", "mode": "listwise"}, "shaping": "raw"}
    section = rewards("j")
    refused("which scores responses one by one", reward={**section, "sources": {**section["sources"], "j": judge}})
    refused("prime learns in the run", reward_model={}, reward={"truth": "prime"})
    refused("set reward_model.verifier_coef to 0", reward_model={}, reward={"truth": "verifier"})
    refused("set reward.combine_mode to replace", reward=rewards("verifier", combine_mode="add"))
    with refuses("reward.truth"):
        validate(Study, {"reward": {"truth": "gold"}, "policy": {"type": "mlp"}}, origin="study")


def test_the_verifier_can_be_the_truth_of_an_implicit_reward(tmp_path):
    study = letter_study(tmp_path, reward={"truth": "verifier"}, reward_model={"verifier_coef": 0})
    assert study.reward.truth == "verifier"


def test_commands_that_compare_with_true_answers_refuse_prompts_without(tmp_path):
    more = {
        "label": {"save_dir": str(tmp_path / "labels"), "labeler": "exact"},
        "search": {"save_dir": "s", "aggregation": "last", "model": {"model_type": "text", "checkpoint_path": "x"}},
    }
    study = unverified(tmp_path, reward=rewards(truth=None), **more)
    for check in (
        lambda: verifier_from(study.data),
        lambda: stage("label").check(study),
        lambda: stage("search").check(study),
    ):
        with refuses("data.type"):
            check()


def test_a_run_without_a_truth_says_in_its_report_that_success_is_unknown(tmp_path):
    study = unverified(tmp_path, reward=rewards(truth=None))
    start(study).run()
    page = write_single_report(run_folder(study)).read_text()
    assert "true success is unknown: its prompts have no answers, so the run is in no result" in page
    assert "last success <b>unknown</b>" in page
    assert "is not known" in page
    assert "alarm is on" not in page
    assert "not checked" in page
    assert "environment does not report" not in page


def test_warnings_are_about_what_trains_the_policy(tmp_path):
    said = "\n".join(reward_warnings(unverified(tmp_path, reward=rewards())))
    assert "reward proxy" in said
    assert "gold" not in said


def test_prompts_are_read_from_files_folders_data_sets_and_preferences(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"question": f"What is {i}?", "answer": str(i) if i % 2 else None} for i in range(6)]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "q.parquet"))
    parts = {"train": datasets.Dataset.from_list(rows[:4]), "test": datasets.Dataset.from_list(rows[4:])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    chosen = [{"role": "user", "content": "Say yes."}, {"role": "assistant", "content": "yes"}]
    pairs = [
        {"chosen": chosen, "rejected": [chosen[0], {"role": "assistant", "content": word}]} for word in ("no", "yes")
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))

    def read(name):
        train, held = load_prompts(PromptsDataSettings(path=str(tmp_path / name), val_size=1 if name[0] == "q" else 0))
        return [p.question for p in (*train, *held)], [p.ground_truth for p in (*train, *held)]

    for name in ("q.jsonl", "q.parquet"):
        questions, answers = read(name)
        assert sorted(questions) == [f"What is {i}?" for i in range(6)]
        assert sorted(answers) == ["", "", "", "1", "3", "5"], "a judge with `reference` may show those that are there"
    assert read("saved")[0] == [f"What is {i}?" for i in range(4)]
    assert read("pairs.jsonl")[0] == ["Say yes."] * 2
    for name in ("missing.jsonl", "no such folder"):
        with pytest.raises(DataError, match=name):
            read(name)


def study_file(folder, arms, **given):
    base = unverified(folder, reward=rewards(truth=None)).model_dump(mode="json", exclude_unset=True)
    base["runner"] = {"total_steps": 32, "eval_every": 16, "eval_episodes": 2, "logger": {"tensorboard": False}}
    compare = {"baseline": "A", "seeds": [0, 1], "arms": {n: {"label": n, "config": c} for n, c in arms.items()}}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**base, "work_dir": str(folder / "out"), "compare": compare, **given}))
    return path


@pytest.mark.slow
def test_arms_are_compared_by_the_truth_and_refused_without_one(tmp_path, monkeypatch):
    shown = {"reward": {"sources": {"gold": own("gold")}, "truth": "gold"}}
    with pytest.raises(ConfigError, match=r"arm B: true success is unknown with data.type prompts"):
        plan_study(study_file(tmp_path, {"A": shown, "B": {}}), [])
    more = {"reward": {**shown["reward"], "sources": {"gold": own("gold"), "proxy": own("gold")}}}
    plan = plan_study(study_file(tmp_path, {"A": shown, "B": more}), [], parallel=1)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]),
                                                      os.environ.get("PYTHONPATH", "")]))  # fmt: skip
    report, table = run_study(plan)
    study = read_study(tmp_path / "out")
    assert study.measure == "truth"
    rows = {row.arm: row for row in comparison_rows(study)}
    finals = [[run.evals[-1]["truth"] for run in study.select(arm=arm)] for arm in "AB"]
    assert rows["B"].difference.interval.estimate == pytest.approx(np.mean(finals[1]) - np.mean(finals[0]))
    assert "final value of reward.truth" in rows["B"].sentence
    page = report.read_text()
    assert "Does a reward lead to a higher value of reward.truth than A" in page
    assert "no policy was trained on it" in page
    assert "return of proxy against value of reward.truth" in page
    assert "return of gold against" not in page
    assert "no alarm is possible" not in page
    assert "true success is unknown" not in page
    assert "not checked" in page, "the video's responses"
    assert "final return" in table
    single = write_single_report(study.runs[0].path).read_text()
    assert "last value of reward.truth" in single
    assert "last success <b>unknown" in single
