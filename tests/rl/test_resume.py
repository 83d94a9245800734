"""`guerdon run`, killed for real and resumed, on Meta-World."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import yaml

from child import environment
from forked import forked
from guerdon.cli import main
from guerdon.config.loading import load, to_yaml
from guerdon.models.load import load_reward_model
from guerdon.rl import checkpoint as ckpt
from guerdon.rl.log import RunLog
from guerdon.rl.loop import Loop
from guerdon.rl.run import run, run_folder
from guerdon.settings.study import Study
from rl_clock import clock_study, interrupted, lines, result, start
from rl_models import image_reward, write_image_model

pytestmark = pytest.mark.usefixtures("narrow_resnets")

PATIENCE = 200  # seconds; a machine under load is slow


def write_study(folder, name, *, reward=None, env=None, algorithm=None, **runner):
    """A small Meta-World study as a file; the run's folder."""
    study = {
        "runner": {
            "total_steps": 600,
            "eval_every": 400,
            "eval_episodes": 2,
            "checkpoint_every": 120,
            "film_frames": 2,
            "logger": {"log_path": str(folder), "experiment_name": name, "tensorboard": False},
            **runner,
        },
        "env": {
            "task": "window-close", "num_envs": 2, "max_episode_steps": 20, "native_reward": "dense",
            "frame_size": 24, **(env or {}),
        },
        "policy": {"type": "mlp", "hidden": [8]},
        "algorithm": {"rollout_steps": 15, "minibatch_size": 15, "num_epochs": 2, **(algorithm or {})},
        "reward": reward or {
            "use_reward_model": True, "reward_mode": "per_step", "score_every": 4, "shaping": "potential",
            "combine_mode": "add", "model": {"model_type": "constant", "value": 0.5},
        },
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(study))
    return folder / name


def guerdon(folder, name, *flags):
    """Start `guerdon run` as a user would."""
    return subprocess.Popen(
        [sys.executable, "-m", "guerdon", "run", str(folder / f"{name}.yaml"), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment(Path(__file__).parent),
    )


def finish(process):
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output.decode()


def kill_after_a_checkpoint(process, folder):
    """SIGKILL as soon as a checkpoint can be seen and something was logged after it."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and process.poll() is None:
        found = sorted((folder / "checkpoints").glob("step_*"))
        if found and (folder / "metrics.jsonl").stat().st_size > _logged(found[-1]):
            process.send_signal(signal.SIGKILL)
            break
        time.sleep(0.002)
    code, output = finish(process)
    assert code == -signal.SIGKILL, output


def _logged(checkpoint):
    try:
        return json.loads((checkpoint / "state.json").read_text())["offsets"]["metrics.jsonl"]
    except FileNotFoundError:
        return 1 << 62


def outcome(folder):
    """What a run leaves, without times."""
    files = {n: (folder / f"{n}.jsonl").read_bytes() for n in ("metrics", "episodes", "failures")}
    files["policy"] = (folder / "policy/policy.safetensors").read_bytes()
    complete = json.loads((folder / "COMPLETE").read_text())
    del complete["wall_time"]
    return files | {"complete": complete}


def kill_and_resume(tmp_path, reward=None, **sections):
    """An uninterrupted and a killed run; both must leave the same bytes."""
    whole, killed = (write_study(tmp_path, name, reward=reward, **sections) for name in ("whole", "killed"))
    kill_after_a_checkpoint(guerdon(tmp_path, "killed"), killed)
    left, kept = (killed / "metrics.jsonl").read_bytes(), ckpt.latest_checkpoint(killed / "checkpoints")
    offset = json.loads((kept / "state.json").read_text())["offsets"]["metrics.jsonl"]
    code, output = finish(guerdon(tmp_path, "killed", "--resume"))
    assert code == 0, output
    run(load(Study, tmp_path / "whole.yaml", []))
    assert outcome(killed) == outcome(whole)
    assert (whole / "metrics.jsonl").read_bytes().startswith(left[:offset])
    return whole


def killed_after_a_checkpoint(folder):
    """A process that runs guerdon ends by SIGKILL as soon as it has logged something after a checkpoint."""
    log = RunLog.metrics

    def metrics(self, *row):
        log(self, *row)
        if list((folder / "checkpoints").glob("step_*")):
            os.kill(os.getpid(), signal.SIGKILL)

    RunLog.metrics = metrics


@pytest.mark.hostile("kills")
def test_a_killed_process_goes_on_to_the_same_bytes(tmp_path):
    whole, killed = (clock_study(tmp_path, name=name) for name in ("whole", "killed"))
    start(whole).run()
    (tmp_path / "killed.yaml").write_text(to_yaml(killed))
    end = partial(killed_after_a_checkpoint, run_folder(killed))
    assert forked("run", "killed.yaml", folder=tmp_path, before=end).status == -signal.SIGKILL
    again = forked("run", "killed.yaml", "--resume", folder=tmp_path)
    assert again.status == 0, again.said
    assert result(killed) == result(whole)


@pytest.mark.slow
@pytest.mark.hostile("kills")
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path):
    whole = kill_and_resume(tmp_path)
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 600
    assert {"return/env", "return/constant", "success"} <= set(rows[0]) | set(rows[1])


@pytest.mark.hostile("kills")
@pytest.mark.slow
def test_a_killed_run_with_a_model_that_keeps_up_goes_on_to_the_same_bytes(tmp_path):
    whole = kill_and_resume(tmp_path, image_reward(tmp_path))
    text = (whole / "metrics.jsonl").read_text()
    assert "reward_model/resnet/loss" in text
    load_reward_model("resnet", whole / "reward_models/resnet")


@pytest.mark.hostile("kills")
@pytest.mark.slow
def test_a_killed_run_with_all_options_of_the_process_reward_goes_on_to_the_same_bytes(tmp_path):
    pytest.importorskip("av")
    checkpoint, _ = write_image_model(tmp_path)
    reward = {
        "process_reward_model": True, "model": {"model_type": "resnet", "checkpoint_path": str(checkpoint)},
        "cache": {"tolerance": 2}, "adaptive_weight": {"share": 0.2},
    }  # fmt: skip
    videos = {"save_video": True, "video_share": 1.0}
    whole = kill_and_resume(tmp_path, reward, algorithm={"auxiliary_losses": {"prm": 0.5}}, **videos)
    last = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()][-2]
    assert last["reward_model/prm/cache_checked"] > 0
    assert last["auxiliary_loss/prm"] > 0
    assert last["reward_weight/prm"] != 0.1
    names = [{path.name for path in (tmp_path / run / "videos").iterdir()} for run in ("whole", "killed")]
    assert len(names[0]) == len((whole / "episodes.jsonl").read_text().splitlines())
    assert {name for name in names[1] if not name.endswith(".part")} == names[1] <= names[0]


@pytest.mark.parametrize(
    ("kind", "arch", "update"),
    [
        pytest.param("resnet", "resnet18", "after", marks=pytest.mark.slow),
        pytest.param("progress", "resnet18", "before", marks=pytest.mark.slow),
        ("progress", "mlp", "after"),
    ],
)
def test_a_model_that_keeps_up_is_part_of_the_checkpoint(kind, arch, update, tmp_path):
    setup = {
        "reward": image_reward(tmp_path, kind=kind, arch=arch, update=update, score_every=2),
        "env": {"frame_size": 24},
        "runner": {"total_steps": 120},
    }
    whole, study = clock_study(tmp_path, name="whole", **setup), clock_study(tmp_path, **setup)
    Loop(whole, run_folder(whole)).run()
    interrupted(study, "update", 5, reader="own")
    start(study, resume=True, reader="own").run()
    assert result(study) == result(whole)
    folder = f"reward_models/{kind}/model.safetensors"
    assert (run_folder(study) / folder).read_bytes() == (run_folder(whole) / folder).read_bytes()
    assert b"loss" in result(whole)["metrics"]


def test_a_run_whose_seed_does_not_decide_its_episodes_begins_new_ones(tmp_path, capsys):
    one = clock_study(tmp_path, env={"kwargs": {"own_order": True}})
    interrupted(one, "update", 5)
    interrupted(one, "update", 2, resume=True)
    loop = start(one, resume=True)
    assert capsys.readouterr().err.count("took another course, so those under way begin again") == 2
    assert not loop.collector.world.exact_resume
    loop.run()
    assert (run_folder(one) / "COMPLETE").exists()


def test_a_policy_on_meta_worlds_pixels(tmp_path):
    name = "pixels"
    folder = write_study(tmp_path, name, total_steps=48, eval_every=48, eval_episodes=1, checkpoint_every=24)
    path = tmp_path / f"{name}.yaml"
    study = yaml.safe_load(path.read_text())
    study["env"] |= {"observation": "pixels", "frame_size": 40, "max_episode_steps": 8}
    study["policy"] = {"type": "cnn", "channels": [4, 4, 4], "hidden": [8]}
    study["algorithm"] = {"rollout_steps": 8, "minibatch_size": 8, "num_epochs": 1}
    study["reward"] = {}
    path.write_text(yaml.safe_dump(study))
    run(load(Study, path, []))
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["step"], last["length"]) == ("eval", 48, 8.0)


def test_exit_code_3_for_too_many_failures(tmp_path, monkeypatch, capsys):
    """The command line's own exit code, with a network whose values are not numbers."""
    reward = image_reward(tmp_path, update="none")
    reward["model"] = {k: reward["model"][k] for k in ("model_type", "checkpoint_path")}
    spoil(tmp_path / "model")
    study = clock_study(tmp_path, reward={**reward, "failure_window": 30}, env={"frame_size": 24})
    (tmp_path / "failing.yaml").write_text(to_yaml(study))
    monkeypatch.setattr(sys, "argv", ["guerdon", "run", str(tmp_path / "failing.yaml")])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 3
    assert "guerdon: reward source 'resnet': 100% of its last" in capsys.readouterr().err
    folder = run_folder(study)
    assert ckpt.latest_checkpoint(folder / "checkpoints") is not None
    assert {row["reason"] for row in lines(study, "failures")} == {"non_finite"}
    assert all(row.get("return/resnet") is None for row in lines(study))
    assert json.loads((folder / "FAILED.json").read_text())["kind"] == "TooManyFailuresError"


def spoil(folder):
    """Make a model's weights so large that its values overflow, though they are finite themselves."""
    import torch

    from guerdon.models.images.image import load_checkpoint, save_checkpoint

    scorer, config = load_checkpoint(folder)
    with torch.no_grad():
        for parameter in scorer.parameters():
            parameter.mul_(1e17)
    save_checkpoint(folder, scorer, config)
