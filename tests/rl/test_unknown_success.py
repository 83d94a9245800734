"""A run in an environment that does not report success: trained on its own reward, without a conclusion."""

import sys
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from guerdon import cli
from guerdon.comparison.report import write_single_report
from guerdon.models.images.online import OnlineImageModel
from guerdon.models.load import load_reward_model
from guerdon.rewards.refit import RefittedReward
from guerdon.rewards.source import SourceTerms
from guerdon.rl.log import true_success
from guerdon.rl.run import run_folder
from guerdon.settings.reward_source import RobotSource
from rl_clock import clock_study, lines, register_clock, start
from rl_models import SIZE, image_reward, write_image_model

sys.path.append(str(Path(__file__).parents[1] / "rewards"))

from test_control_sources import FAILED, ObservedRow, cut_into_segments, make, rollout_of

from tables import refuses

pytestmark = pytest.mark.usefixtures("narrow_resnets")

register_clock()
HALF_CHEETAH = "{type: gymnasium, task: HalfCheetah-v5, native_reward: dense}"


def corridor_study(folder, reports, **given):
    env = {
        "task": "corridor:guerdon-tests/Corridor-v0",
        "native_reward": "dense",
        "frame_size": SIZE,
        "max_episode_steps": 6,
        "kwargs": {"stops": False, "reports": reports},
        **given.pop("env", {}),
    }
    return clock_study(folder, env=env, **given)


def test_unknown_success_is_unknown_in_every_file_of_a_run(tmp_path, capsys):
    runner = {"logger": {"log_path": str(tmp_path), "experiment_name": "run", "tensorboard": True}}
    study = corridor_study(tmp_path, "never", runner=runner)
    summary = start(study).run()
    assert "success" not in summary["final"]
    assert summary["final"]["success_known"] == 0
    assert summary["final"]["return/env"] > 0
    assert {row["success"] for row in lines(study, "episodes")} == {None}
    for row in lines(study):
        assert row.get("success") is None
        assert row.get("hacking_alarm") is None
    tags = EventAccumulator(str(run_folder(study) / "tb")).Reload().Tags()["scalars"]
    assert "eval/return/env" in tags
    assert not {"eval/success", "train/success", "eval/success_at_end", "train/hacking_alarm"} & set(tags)
    said = capsys.readouterr().err
    assert "true success unknown over 2 evaluation episodes" in said
    assert "true success 0" not in said
    page = write_single_report(run_folder(study)).read_text()
    assert "True success is unknown: the environment does not report it" in page
    assert "last success <b>unknown</b>" in page
    assert "true success unknown</span>" in page, "the video says so, too"
    assert "did not succeed" not in page
    assert "is not known" in page
    assert "alarm is on" not in page
    assert "None: in no run" not in page


def test_what_some_episodes_say_is_a_share_of_those(tmp_path):
    study = corridor_study(tmp_path, "every other", runner={"eval_episodes": 4})
    summary = start(study).run()
    assert (summary["final"]["success_known"], summary["final"]["episodes"]) == (2, 4)
    assert summary["final"]["success"] in (0, 0.5, 1)
    known = [row["success"] for row in lines(study, "episodes")]
    assert {True, False} & set(known)
    assert None in known
    assert "known for 2 of 4 episodes" in write_single_report(run_folder(study)).read_text()


def test_where_success_is_unknown_an_evaluation_leads_with_the_return():
    unknown = {"success_known": 0.0, "episodes": 8.0, "return/env": -1203.42}
    assert true_success(unknown) == "return -1203, true success unknown over 8 evaluation episodes"
    known = {"success": 0.25, "episodes": 8.0, "return/env": 3.0}
    assert true_success(known) == "true success 0.25 over 8 evaluation episodes"


def test_an_evaluation_in_words_never_says_0_for_unknown():
    assert true_success({"success": 0.25, "episodes": 8.0}) == "true success 0.25 over 8 evaluation episodes"
    assert true_success({"success_known": 0.0, "episodes": 8.0}) == "true success unknown over 8 evaluation episodes"
    said = true_success({"success": 0.5, "success_known": 2.0, "episodes": 8.0})
    assert said == "true success 0.50 over 2 of 8 evaluation episodes, unknown in the rest"


@pytest.mark.parametrize("reports", ["never", pytest.param("every other", marks=pytest.mark.slow)])
def test_a_refit_by_true_success_stops_or_counts_what_it_cannot_label(tmp_path, reports):
    study = corridor_study(tmp_path, reports, reward=image_reward(tmp_path))
    if reports == "never":
        with refuses("env.success_key", r"reward\.sources\.\w+\.model\.update.*had position"):
            start(study, reader="own").run()
        return
    start(study, reader="own").run()
    (name,) = study.reward.sources
    key = f"reward_model/{name}/episodes_without_labels"
    refits = [row for row in lines(study) if f"reward_model/{name}/loss" in row]
    assert refits
    assert sum(row.get(key, 0) for row in refits) > 0


def test_what_could_not_be_labelled_is_part_of_the_checkpoint(tmp_path):
    checkpoint, _ = write_image_model(tmp_path)

    def refit_of():
        frames, targets = np.zeros((4, SIZE, SIZE, 3), np.uint8), np.array([0, 1, 0, 1], np.float32)
        model = {"checkpoint_path": "x", "update": "after", "replay_path": "y"}
        model["update_params"] = {"steps": 1, "every": 3}
        online = OnlineImageModel(load_reward_model("resnet", str(checkpoint)), frames, targets, seed=0)
        return RefittedReward(SourceTerms("rm"), online, RobotSource(model=model), num_envs=2)

    def observed(*successes):
        rows = [ObservedRow(0, t, 0, t, False, s) for t, s in enumerate(successes)]
        frames = np.zeros((len(successes), SIZE, SIZE, 3), np.uint8)
        done = np.zeros((1, 4), dtype=np.bool_)
        done[0, 3] = len(successes) > 2
        return cut_into_segments(
            rows, frames, [["task"]] * (done.shape[1] + 1), np.ones_like(done), np.zeros_like(done), done
        )

    def learned(one, *successes):
        segments = observed(*successes) if successes else ()
        return one.learn(rollout_of(segments, np.ones((1, 4), dtype=np.bool_)))

    refit = refit_of()
    assert learned(refit, False, None, None) == {}
    assert learned(refit, False, None) == {}  # goes on
    again = refit_of()
    again.restore(*refit.state())
    for one in (refit, again):
        assert one._open[0].success == [False, None]
        assert learned(one, None, None, None) == {"episodes_without_labels": 2}
        assert [learned(one) for _ in range(3)] == [{}, {}, {}]


def test_native_fallback_has_nothing_to_fall_back_to_where_success_is_unknown():
    remote = {"model_type": "remote", "remote": {"endpoint": "http://127.0.0.1:9", "fallback": "native"}}
    values = []
    for success in (None, False, True):
        source = make(model=remote)
        rows = [ObservedRow(0, 1, 0, 2, False, success)]
        frames, none = np.full((1, 1, 1, 3), FAILED, np.uint8), np.zeros((1, 3), dtype=np.bool_)
        measured = source.measure(
            rollout_of(cut_into_segments(rows, frames, [["task"]] * (none.shape[1] + 1), ~none, none, none), ~none)
        )
        values.append((measured.scores.values_N.tolist(), measured.failed[0, 1], len(measured.failures)))
    assert values == [([], True, 1), ([0.0], False, 1), ([1.0], False, 1)]


def test_the_environment_of_the_readme_runs_with_the_setting_it_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(env):
        (tmp_path / "study.yaml").write_text(
            f"work_dir: {tmp_path}\nenv: {env}\npolicy: {{type: mlp, hidden: [4]}}\n"
            "algorithm: {rollout_steps: 20, minibatch_size: 20, num_epochs: 1}\n"
            "runner: {total_steps: 80, eval_every: 80, eval_episodes: 1, film_frames: 2, "
            f"logger: {{log_path: {tmp_path}, experiment_name: cheetah, tensorboard: false}}}}\n"
        )
        short = ("env.num_envs=2", "env.max_episode_steps=20", "env.frame_size=16")
        monkeypatch.setattr(sys, "argv", ["guerdon", "run", "study.yaml", *short])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code, capsys.readouterr().err

    code, said = run("{type: gymnasium, task: HalfCheetah-v5}")
    assert code == 2
    assert "env.success_key" in said
    assert "env.native_reward=dense" in said
    assert f"`env: {HALF_CHEETAH}`" in (Path(__file__).parents[2] / "README.md").read_text()
    code, said = run(HALF_CHEETAH)
    assert code == 0
    assert "true success unknown over 2 evaluation episodes" in said


@pytest.mark.parametrize(
    ("verb", "section", "reader"),
    [
        ("run", "", "native_reward: sparse"),
        ("run", "env: {data_collection: {enabled: true, save_dir: kept, only_success: true}, native_reward: dense}",
         "env.data_collection.only_success"),
        ("collect", "env: {native_reward: dense}\ncollect: {save_dir: kept, only_success: true}",
         "collect.only_success"),
        ("compare", "compare: {seeds: [0], baseline: a, arms: {a: {label: a}, b: {label: b, config: {env: "
         "{native_reward: dense}}}}}", "native_reward: sparse"),
        ("compare", "env: {native_reward: dense}\ncollect: {save_dir: kept, stop_after_success: 2}\n"
         "compare: {seeds: [0], baseline: a, arms: {a: {label: a}, b: {label: b, config: {runner: "
         "{total_steps: 9}}}}}", "collect.stop_after_success"),
    ],
)  # fmt: skip
def test_a_dry_run_and_the_start_refuse_alike_without_success(verb, section, reader, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("study.yaml").write_text(f"work_dir: work\n{section}\n")

    def call(*flags):
        cheetah = ("env.type=gymnasium", "env.task=HalfCheetah-v5", "env.frame_size=16")
        monkeypatch.setattr(sys, "argv", ["guerdon", verb, "study.yaml", *cheetah, *flags])
        with pytest.raises(SystemExit) as left:
            cli.main()
        return left.value.code, capsys.readouterr().err

    code, said = call("--dry-run")
    assert code == 2
    assert f"HalfCheetah-v5 does not report success, which {reader}" in said
    assert (code, said) == call(), "the start says the same"
