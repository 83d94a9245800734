"""Deep Q-learning: how values act, and runs on CartPole that are resumed to the same bytes."""

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from guerdon.policies.robots.control import load_policy
from guerdon.policies.robots.heads import QValues
from guerdon.rl.off_policy import DQNLearner
from guerdon.rl.run import run_folder
from guerdon.settings.off_policy import DQNSettings, SACSettings
from guerdon.settings.study import Study
from rl_clock import interrupted, lines, result, start
from tables import refuses

OUTPUTS = np.array([[1.0, 0.0, 0.0, 2.0, 0.5, 0.5]], np.float32)  # three choices of two sources


def test_values_act_by_their_weighted_sum():
    head = QValues((3,), torch.tensor([1.0, 1.0]), torch.tensor(0.0))
    rng = np.random.default_rng(0)
    assert head.act(OUTPUTS, rng).values.tolist() == [[1]]
    frozen = head.frozen()
    head.weights.copy_(torch.tensor([1.0, 0.1]))
    assert head.act(OUTPUTS, rng).values.tolist() == [[0]]
    assert frozen(OUTPUTS, rng, False, None).values.tolist() == [[1]], "a copy does not follow later updates"
    assert head.act(OUTPUTS, rng, allowed=np.array([[False, True, True]])).values.tolist() == [[2]]
    assert head.values(torch.from_numpy(OUTPUTS)).tolist() == [[[1.0, 0.0], [0.0, 2.0], [0.5, 0.5]]]


def test_a_share_of_the_actions_is_random_among_those_that_are_allowed():
    head = QValues((3,), torch.tensor([1.0, 0.0]), torch.tensor(0.6))
    rng, many = np.random.default_rng(0), np.repeat(OUTPUTS, 6000, axis=0)
    counts = np.bincount(head.act(many, rng).values[:, 0], minlength=3) / 6000
    assert np.allclose(counts, [0.4 + 0.2, 0.2, 0.2], atol=0.02)
    allowed = np.repeat([[True, False, True]], 6000, axis=0)
    assert not (head.act(many, rng, allowed=allowed).values == 1).any()
    assert (head.act(many, rng, greedy=True).values == 0).all()


def test_several_choices_are_refused():
    with refuses("algorithm.type", "one discrete action, and the environment has 2"):
        QValues((3, 2), torch.ones(1), torch.ones(()))


def study(folder, name, **algorithm):
    return Study.model_validate(
        {
            "runner": {
                "total_steps": 400, "eval_every": 200, "eval_episodes": 2, "checkpoint_every": 100, "film_frames": 2,
                "logger": {"log_path": str(folder), "experiment_name": name, "tensorboard": False},
            },
            "env": {"type": "gymnasium", "task": "CartPole-v1", "num_envs": 2, "native_reward": "dense"},
            "policy": {"type": "mlp", "hidden": [16]},
            "algorithm": {
                "type": "dqn", "rollout_steps": 20, "batch_size": 16, "online_step_before_learning": 50,
                "exploration_fraction": 0.5, **algorithm,
            },
        }
    )  # fmt: skip


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path):
    whole, cut = study(tmp_path, "whole"), study(tmp_path, "cut")
    start(whole).run()
    interrupted(cut, "update", 7)
    start(cut, resume=True).run()
    assert result(cut) == result(whole)
    shares = [row["exploration"] for row in lines(whole) if row["kind"] == "train"]
    assert shares == pytest.approx([1 - 0.95 * min(k / 10 / 0.5, 1) for k in range(10)])
    policy = load_policy(run_folder(whole) / "policy")
    assert policy.actor().act(np.zeros((3, 4), np.float32), np.random.default_rng(0), greedy=True).values.shape == (
        3,
        1,
    )


class HalvedLearner(DQNLearner):
    """Fits the values to half of the rewards."""

    def _step(self, batch, noise, weights_H, *, act):
        half = replace(batch, rewards=batch.rewards / 2)
        return super()._step(half, noise, weights_H, act=act) | {"halved": 1.0}


class HalvedSettings(DQNSettings):
    learner: ClassVar[str] = f"{__name__}:HalvedLearner"


def test_the_form_of_an_algorithm_names_its_learner(tmp_path):
    given = study(tmp_path, "run")
    own = HalvedSettings.model_validate(given.algorithm.model_dump(exclude_unset=True))
    start(given.model_copy(update={"algorithm": own})).run()
    learned = [row for row in lines(given) if row["kind"] == "train" and row["updates"]]
    assert learned
    assert all(row["halved"] == 1.0 for row in learned)


def test_continuous_algorithms_are_not_for_choices(tmp_path):
    given = study(tmp_path, "run").model_copy(update={"algorithm": SACSettings()})
    with refuses("algorithm.type", "sac does not go with this environment, whose actions are discrete: take dqn"):
        start(given)
