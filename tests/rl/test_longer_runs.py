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
from tables import refuses, sample
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


KINDS = {  # and the steps of the first end, of a kill, and of the last end
    "PPO": (ppo, 40, 90, 110),
    "SAC": (sac, 40, 90, 110),
    "DQN": (partial(dqn, schedule_steps=90), 40, 70, 90),
    "GRPO of text": (grpo, 16, 32, 48),
    "a rollout ahead": (stale, 40, 90, 110),
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
                raise Killed
            super().iterate()

    with monkeypatch.context() as patch:
        patch.setattr(guerdon.rl.run, "Loop", Dying)
        with pytest.raises(Killed):
            run(study, resume=True)
    assert not (run_folder(study) / "COMPLETE").exists()


@pytest.mark.parametrize("kind", sample(KINDS, "PPO", "SAC", "GRPO of text"))
def test_a_run_that_goes_on_leaves_the_bytes_of_one_of_that_length(tmp_path, monkeypatch, kind):
    of, first, killed, last = KINDS[kind]
    whole, long = of(tmp_path, "whole", last), of(tmp_path, "longer", last)
    run(whole)
    run(of(tmp_path, "longer", first))  # where the longer run has no evaluation
    end = lines(long)[-1]
    assert end["kind"] == "eval"
    killed_at(monkeypatch, long, killed)
    run(long, resume=True)
    assert left(long) == left(whole)
    assert end not in lines(long)
    assert run(long, resume=True)[1] == json.loads((run_folder(long) / "COMPLETE").read_text())


def test_intervals_change_from_there_on(tmp_path):
    run(ppo(tmp_path, "run", 40))
    later = ppo(
        tmp_path, "run", 110, eval_every=20, eval_episodes=4, checkpoint_every=10, film_every=70, keep_checkpoints=9
    )
    run(later, resume=True)
    evaluations = [(row["step"], row["episodes"]) for row in lines(later) if row["kind"] == "eval"]
    assert evaluations == [(48, 4), (72, 4), (96, 4), (120, 4)]
    folder = run_folder(later)
    kept = [[int(path.stem[5:]) for path in sorted(folder.glob(name))] for name in ("checkpoints/step_*", "films/*")]
    assert kept == [[48, 72, 96, 120], [72, 120]]


def test_a_change_of_the_past_is_refused_by_its_key(tmp_path):
    run(ppo(tmp_path, "run", 40))
    before = left(ppo(tmp_path, "run", 40))
    longer = {"total_steps": 110}
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
    with pytest.raises(ConfigError, match=r"--resume, to a larger length by --resume runner\.total_steps=80"):
        run(ppo(tmp_path, "run", 110))
    assert left(ppo(tmp_path, "run", 40)) == before


def test_a_run_without_checkpoints_cannot_go_on(tmp_path):
    run(ppo(tmp_path, "run", 20, keep_checkpoints=0))
    with refuses("runner.total_steps", "kept no checkpoint"):
        run(ppo(tmp_path, "run", 150, keep_checkpoints=0), resume=True)


def test_schedules_keep_their_last_value(tmp_path, capsys, monkeypatch):
    run(dqn(tmp_path, "run", 40))
    long = dqn(tmp_path, "run", 110)
    killed_at(monkeypatch, long, 90)
    run(long, resume=True)  # also of a run that was killed
    said = capsys.readouterr().err
    assert said.count("algorithm.exploration_fraction: as it was at step 40 from there on") == 2
    shares = {row["step"]: row["exploration"] for row in lines(long) if row["kind"] == "train"}
    assert shares == {24: 1.0, 48: pytest.approx(0.05), 72: pytest.approx(0.05), 96: shares[48], 120: shares[48]}
    assert yaml.safe_load((run_folder(long) / "config.yaml").read_text())["runner"]["schedule_steps"] == 40
    run(dqn(tmp_path, "run", 140, schedule_steps=1000), resume=True)
    assert lines(long)[-2]["exploration"] == pytest.approx(1 - 0.95 * 120 / 500)


def falling(folder, steps, **runner):
    algorithm = {"rollout_steps": 12, "minibatch_size": 8, "num_epochs": 2, "lr_schedule": "linear"}
    return clock_study(folder, algorithm=algorithm, runner={"total_steps": steps, **runner})


def test_a_learning_rate_of_zero_is_refused_with_the_key_that_changes_it(tmp_path):
    run(falling(tmp_path, 40))
    with refuses("runner.schedule_steps") as refused:
        run(falling(tmp_path, 90), resume=True)
    assert "set schedule_steps to 90 or more" in str(refused.value)
    assert (run_folder(falling(tmp_path, 40)) / "COMPLETE").exists()
    with refuses("runner.schedule_steps"):
        falling(tmp_path, 90, schedule_steps=40)
    with refuses("runner.schedule_steps"):
        ppo(tmp_path, "run", 90, schedule_steps=90)  # nothing has a schedule
    run(falling(tmp_path, 90, schedule_steps=90), resume=True)
    rates = {row["step"]: row["learning_rate"] for row in lines(falling(tmp_path, 90)) if row["kind"] == "train"}
    wanted = {step: 1e-3 * (1 - (step - 24) / (40 if step < 60 else 90)) for step in (24, 48, 72, 96)}
    assert rates == pytest.approx(wanted)


def test_a_run_with_a_longer_schedule_is_one_of_that_length(tmp_path):
    run(falling(tmp_path / "whole", 90))
    run(falling(tmp_path / "cut", 40, schedule_steps=90))
    run(falling(tmp_path / "cut", 90, schedule_steps=90), resume=True)
    whole, cut = left(falling(tmp_path / "whole", 90)), left(falling(tmp_path / "cut", 90))
    assert cut.pop("config.yaml")["runner"].pop("schedule_steps") == 90
    whole.pop("config.yaml")
    assert cut == whole


def test_what_may_change_are_keys():
    runner = Study.model_fields["runner"].annotation
    assert {key.removeprefix("runner.") for key in LATER} <= set(runner.model_fields)
