"""The policy of the best evaluation: which one it is, which snapshots stay, and what a run says of it at its end."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from guerdon.comparison.single_run import best_policy
from guerdon.errors import CheckpointError
from guerdon.policies.robots.control import load_policy
from guerdon.rl.best_policy import FOLDER, BestPolicy
from guerdon.rl.loop import Loop
from guerdon.rl.run import run, run_folder
from guerdon.worlds.resets import Resets
from rl_clock import clock_study, lines, start
from tables import refuses
from text_rl import letter_study


def known(success=None, paid=None):
    found = {"success": success, "return/env": paid}
    return {name: value for name, value in found.items() if value is not None} | {"episodes": 2.0}


def kept(folder):
    return sorted(int(path.name.removeprefix("step_")) for path in (folder / "checkpoints" / "best").iterdir())


def saves(folder, wrote=None):
    """A best policy whose snapshots hold the step at which they were written."""
    return BestPolicy(folder, lambda place: (place / "policy.json").write_text(str(wrote)))


def test_the_best_has_the_highest_success_else_return_and_of_equal_ones_it_is_the_latest(tmp_path):
    best = saves(tmp_path)
    for step, result, wanted in [
        (1, {"episodes": 0.0}, None),  # neither is known
        (2, known(paid=5.0), 2),
        (3, known(paid=4.0), 2),
        (4, known(paid=5.0), 4),
        (5, known(success=0.0, paid=1.0), 5),
        (6, known(paid=9.0), 5),  # success counts where it is known
        (7, known(success=0.5, paid=0.0), 7),
        (8, known(success=0.4, paid=9.0), 7),
        (9, known(success=0.5), 9),
    ]:
        best.consider(step, result)
        assert (None if best.found is None else best.found[0]) == wanted, step
    assert best.state() == {"step": 9, "evaluation": known(success=0.5)}


def test_a_snapshot_stays_as_long_as_a_checkpoint_may_go_on_from_it(tmp_path):
    best = saves(tmp_path)
    for step in (10, 20):
        best.consider(step, known(success=step / 100))
    (tmp_path / "checkpoints" / "step_20").mkdir()  # it may be from before the evaluation at 20
    best.forget()
    assert kept(tmp_path) == [10, 20]
    for step in (30, 40, 50):
        best.consider(step, known(success=step / 100))
    assert kept(tmp_path) == [10, 20, 40, 50], "the checkpoint of step 50 may be from before its evaluation"
    state = {"step": 20, "evaluation": known(success=0.2)}
    best.restore(state)
    assert kept(tmp_path) == [10, 20]
    assert best.state() == state
    best.publish()
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == ["COMPLETE", "policy.json"]
    (tmp_path / "checkpoints" / "best" / "step_000000000020" / "policy.json").unlink()
    with pytest.raises(CheckpointError, match="missing"):
        best.restore(state)
    best.restore(None)
    assert kept(tmp_path) == []


def test_a_run_keeps_its_best_policy_with_an_evaluation_from_starts_that_no_other_episode_has(tmp_path, monkeypatch):
    study = clock_study(tmp_path, runner={"best_episodes": 4, "eval_every": 24}, env={"native_reward": "dense"})
    seeds, last, reset, of_best = [], [], Resets._reset, Loop._best

    def spied(self, given, options, waiting):
        (last if marked else seeds).extend(seed for seed in given if seed is not None)
        return reset(self, given, options, waiting)

    def marking(self, best):
        marked.append(True)
        return of_best(self, best)

    marked = []
    monkeypatch.setattr(Resets, "_reset", spied)
    monkeypatch.setattr(Loop, "_best", marking)
    loop = start(study)
    scores = iter([0.1, 0.7, 0.3, 0.7, 0.2, 0.0, 0.0, 0.0])
    evaluated = loop.collector.evaluate

    def scored(policy, *, episodes, step=0, fresh=False):
        found = evaluated(policy, episodes=episodes, step=step, fresh=fresh)
        if fresh:
            given.append({name: value.clone() for name, value in policy.tensors().items()})
            return found
        weights[step] = {name: value.clone() for name, value in policy.tensors().items()}
        return {**found, "success": next(scores)}

    weights, given = {}, []
    monkeypatch.setattr(loop.collector, "evaluate", scored)
    summary = loop.run()
    steps = sorted(weights)
    folder = run_folder(study)
    assert summary["best"]["step"] == steps[3], "of two equal ones the later"
    assert summary["best"]["evaluation"]["success"] == 0.7
    assert summary["best"]["fresh"]["episodes"] == 4.0
    assert summary["final"]["success"] == 0.0, "results are about the last policy"
    assert lines(study)[-1]["success"] == 0.0
    stored = load_file(folder / FOLDER / "policy.safetensors")
    ended = load_file(folder / "policy" / "policy.safetensors")
    for name, value in weights[steps[3]].items():
        assert torch.equal(stored[name], value)
        assert torch.equal(given[0][name], value)
        assert torch.equal(ended[name], weights[steps[-1]][name]), "and the last policy is as it was"
    assert any(not torch.equal(stored[name], ended[name]) for name in stored)
    load_policy(folder / FOLDER).actor().act(np.zeros((1, 2), np.float32), np.random.default_rng(0), greedy=True)
    assert len(last) >= 4
    assert not set(last) & set(seeds)
    assert best_policy(summary["best"]) == (
        f"best policy: that of step {steps[3]}, in policy_best: true success 0.70 over 2 episodes of the evaluation "
        f"that chose it, true success {summary['best']['fresh']['success']:.2f} over 4 fresh ones"
    )
    assert json.loads((folder / "COMPLETE").read_text())["best"] == summary["best"]


def test_no_best_policy_is_kept_where_none_is_wanted_or_none_can_be_said(tmp_path):
    study = clock_study(tmp_path, runner={"best_episodes": 0, "total_steps": 24})
    assert "best" not in run(study)[1]
    assert not (run_folder(study) / FOLDER).exists()
    assert not (run_folder(study) / "checkpoints" / "best").exists()
    with refuses("runner.best_episodes"):
        letter_study(tmp_path, runner={"best_episodes": 3})


def test_the_averaged_weights_are_kept_where_they_are_evaluated(tmp_path):
    algorithm = {"rollout_steps": 12, "minibatch_size": 8, "num_epochs": 2, "ema_decay": 0.9}
    study = clock_study(tmp_path, algorithm=algorithm, runner={"total_steps": 48, "eval_every": 1000})
    run(study)
    of = {name: load_file(run_folder(study) / name / "policy.safetensors") for name in (FOLDER, "policy")}
    assert all(torch.equal(value, of["policy"][name]) for name, value in of[FOLDER].items())
