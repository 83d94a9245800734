"""Runs that go on beyond their end: the same bytes as one run of that length, what may change, and what is refused."""

import json
from functools import partial

import pytest
import yaml

import guerdon.rl.run
from guerdon.errors import ConfigError
from guerdon.rl.loop import Loop
from guerdon.rl.run import LATER, run, run_folder
from guerdon.settings.study import Study
from rl_clock import clock_study, lines
from rl_killed import Killed
from tables import refuses
from text_rl import letter_study

SAC = {"type": "sac", "rollout_steps": 10, "batch_size": 8, "online_step_before_learning": 12}
FILES = ("metrics", "episodes", "failures")


def ppo(folder, name, steps, **runner):
    return clock_study(folder, name=name, runner={"total_steps": steps, **runner})


def sac(folder, name, steps, **runner):
    runner = {"total_steps": steps, **runner}
    return clock_study(folder, name=name, algorithm=SAC, env={"native_reward": "dense"}, runner=runner)


def stale(folder, name, steps, **runner):
    return ppo(folder, name, steps, max_staleness=1, **runner)


def dqn(folder, name, steps, **runner):
    return Study.model_validate(
        {
            "runner": {
                "total_steps": steps, "eval_every": 60, "eval_episodes": 2, "checkpoint_every": 40, "film_frames": 2,
                "logger": {"log_path": str(folder), "experiment_name": name, "tensorboard": False}, **runner,
            },
            "env": {"type": "gymnasium", "task": "CartPole-v1", "num_envs": 2, "native_reward": "dense"},
            "policy": {"type": "mlp", "hidden": [8]},
            "algorithm": {
                "type": "dqn", "rollout_steps": 12, "batch_size": 8, "online_step_before_learning": 30,
                "exploration_fraction": 0.5,
            },
        }
    )  # fmt: skip


def grpo(folder, name, steps, **runner):
    return letter_study(folder, name=name, runner={"total_steps": steps, **runner}, algorithm={"adv_estimator": "grpo"})


KINDS = {
    "PPO": ppo,
    "SAC": sac,
    "DQN": partial(dqn, schedule_steps=150),
    "GRPO of text": grpo,
    "a rollout ahead": stale,
}


def left(study):
    """What a run leaves that holds no times and no name of its own."""
    folder = run_folder(study)
    found = {f"{name}.jsonl": (folder / f"{name}.jsonl").read_bytes() for name in FILES}
    others = [path for path in (*folder.glob("policy*/*"), *folder.glob("films/*")) if path.is_file()]
    found |= {str(path.relative_to(folder)): path.read_bytes() for path in others}
    found["COMPLETE"] = {k: v for k, v in json.loads((folder / "COMPLETE").read_text()).items() if k != "wall_time"}
    found["config.yaml"] = yaml.safe_load((folder / "config.yaml").read_text())
    found["config.yaml"]["runner"].pop("logger")
    return found


def killed_at(monkeypatch, study, step):
    """Go on with a run until its iteration at this step, then stop as dead."""

    class Dying(Loop):
        def iterate(self):
            if self.step >= step:
                self.close()
                raise Killed
            super().iterate()

    with monkeypatch.context() as patch:
        patch.setattr(guerdon.rl.run, "Loop", Dying)
        with pytest.raises(Killed):
            run(study, resume=True)
    assert not (run_folder(study) / "COMPLETE").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_goes_on_leaves_the_bytes_of_one_of_that_length(tmp_path, monkeypatch, kind):
    of = KINDS[kind]
    whole, long = of(tmp_path, "whole", 150), of(tmp_path, "longer", 150)
    run(whole)
    run(of(tmp_path, "longer", 50))  # its end is at no evaluation and no checkpoint of the longer run
    ended = left(long)
    assert ended["COMPLETE"]["step"] < 80
    killed_at(monkeypatch, long, 120)
    run(long, resume=True)
    assert left(long) == left(whole)
    assert ended["metrics.jsonl"] != left(long)["metrics.jsonl"]
    assert run(long, resume=True)[1] == json.loads((run_folder(long) / "COMPLETE").read_text())


def test_intervals_change_from_there_on(tmp_path):
    run(ppo(tmp_path, "run", 50))
    later = ppo(
        tmp_path, "run", 150, eval_every=30, eval_episodes=4, checkpoint_every=10, film_every=70, keep_checkpoints=9
    )
    run(later, resume=True)
    evaluations = [row for row in lines(later) if row["kind"] == "eval"]
    steps = [row["step"] for row in evaluations]
    assert steps == sorted(set(steps))
    assert len(steps) >= 5
    assert {row["episodes"] for row in evaluations[1:]} == {4}
    folder = run_folder(later)
    assert len(list((folder / "checkpoints").glob("step_*"))) > 3
    assert len(list((folder / "films").glob("step_*"))) == 3
    run(ppo(tmp_path, "run", 151, eval_every=30), resume=True)  # one step more is one more rollout


def test_a_change_of_the_past_is_refused_by_its_key(tmp_path):
    run(ppo(tmp_path, "run", 50))
    before = left(ppo(tmp_path, "run", 50))
    longer = {"total_steps": 150}
    for key, changed in {
        "runner.seed": clock_study(tmp_path, runner={**longer, "seed": 1}),
        "env.max_episode_steps": clock_study(tmp_path, runner=longer, env={"max_episode_steps": 9}),
        "algorithm.gamma": clock_study(
            tmp_path, runner=longer, algorithm={"rollout_steps": 12, "minibatch_size": 8, "num_epochs": 2, "gamma": 0.5}
        ),
        "runner.total_steps": ppo(tmp_path, "run", 20),
    }.items():
        with refuses(key) as refused:
            run(changed, resume=True)
        assert str(run_folder(changed)) in str(refused.value)
    with pytest.raises(ConfigError, match=r"--resume, to a larger length by --resume runner\.total_steps=100"):
        run(ppo(tmp_path, "run", 150))
    assert left(ppo(tmp_path, "run", 50)) == before


def test_a_run_without_checkpoints_cannot_go_on(tmp_path):
    run(ppo(tmp_path, "run", 50, keep_checkpoints=0))
    with pytest.raises(ConfigError, match=r"policy\.checkpoint="):
        run(ppo(tmp_path, "run", 150, keep_checkpoints=0), resume=True)


def test_schedules_keep_their_last_value(tmp_path, capsys, monkeypatch):
    run(dqn(tmp_path, "run", 50))
    long = dqn(tmp_path, "run", 150)
    killed_at(monkeypatch, long, 120)
    run(long, resume=True)  # also of a run that was killed
    assert "algorithm.exploration_fraction: as it was at step 50 from there on" in capsys.readouterr().err
    shares = [(row["step"], row["exploration"]) for row in lines(long) if row["kind"] == "train"]
    assert shares[0][1] > 0.05
    assert {share for step, share in shares if step > 50} == {pytest.approx(0.05)}
    assert yaml.safe_load((run_folder(long) / "config.yaml").read_text())["runner"]["schedule_steps"] == 50
    run(dqn(tmp_path, "run", 200, schedule_steps=1000), resume=True)
    last = [row for row in lines(long) if row["kind"] == "train"][-1]
    assert last["exploration"] > 0.5


def falling(folder, steps, **runner):
    algorithm = {"rollout_steps": 12, "minibatch_size": 8, "num_epochs": 2, "lr_schedule": "linear"}
    return clock_study(folder, algorithm=algorithm, runner={"total_steps": steps, **runner})


def test_a_learning_rate_of_zero_is_refused_with_the_key_that_changes_it(tmp_path):
    run(falling(tmp_path, 50))
    with refuses("runner.schedule_steps") as refused:
        run(falling(tmp_path, 150), resume=True)
    assert "set schedule_steps to 150 or more" in str(refused.value)
    assert (run_folder(falling(tmp_path, 50)) / "COMPLETE").exists()
    with refuses("runner.schedule_steps"):
        falling(tmp_path, 150, schedule_steps=50)
    with refuses("runner.schedule_steps"):
        ppo(tmp_path, "run", 150, schedule_steps=150)  # nothing has a schedule
    run(falling(tmp_path, 150, schedule_steps=150), resume=True)
    rates = [row["learning_rate"] for row in lines(falling(tmp_path, 150)) if row["kind"] == "train"]
    assert rates[-1] == pytest.approx(1e-3 * (1 - (lines(falling(tmp_path, 150))[-2]["step"] - 24) / 150), abs=1e-4)


def test_a_run_with_a_longer_schedule_is_one_of_that_length(tmp_path):
    run(falling(tmp_path / "whole", 150))
    run(falling(tmp_path / "cut", 50, schedule_steps=150))
    run(falling(tmp_path / "cut", 150, schedule_steps=150), resume=True)
    whole, cut = left(falling(tmp_path / "whole", 150)), left(falling(tmp_path / "cut", 150))
    assert cut.pop("config.yaml")["runner"].pop("schedule_steps") == 150
    whole.pop("config.yaml")
    assert cut == whole


def test_what_may_change_are_keys():
    runner = Study.model_fields["runner"].annotation
    assert {key.removeprefix("runner.") for key in LATER} <= set(runner.model_fields)
