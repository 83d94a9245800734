"""Auxiliary losses: a head of the policy learns the values of a reward model where the policy observes."""

import numpy as np
import pytest
import torch

from guerdon.compute.optimizers import FlatAdam
from guerdon.policies.batches.passes import slices
from guerdon.policies.robots.control import load_policy
from guerdon.rl.learner import observation_values
from guerdon.rl.run import run_folder
from guerdon.rl.update import Batch, update_policy
from guerdon.settings.algorithm import ControlAlgorithmSettings
from guerdon.settings.reward import RewardSettings
from guerdon.types import Evaluated, RawScores
from rl_clock import clock_study, interrupted, lines, reader_reward, result, start
from tables import first, refuses

ALGORITHM = {"rollout_steps": 12, "minibatch_size": 8, "num_epochs": 2, "auxiliary_losses": {"constant": 0.5}}


def scores(*rows):
    streams, steps, values, last = zip(*rows, strict=True)
    return RawScores(
        np.array(streams), np.array(steps), np.array(values, np.float32), 0.5, np.array(last, dtype=np.bool_)
    )


def test_a_moment_is_the_one_before_the_next_decision():
    mask = np.array([[True, True, True, True], [True, False, True, True]])
    found = scores(
        (0, -1, 0.1, False),  # the very first moment
        (0, 0, 0.2, False),
        (0, 1, 0.3, True),  # terminal: nothing is decided there
        (0, 1, 0.4, False),  # the first moment of the next episode
        (0, 3, 0.5, False),  # the next rollout's
        (1, 0, 0.6, False),  # before a reset step
        (1, 2, 0.7, False),
    )
    values, known = observation_values(found, mask)
    assert known.tolist() == [[True, True, True, False], [False, False, False, True]]
    np.testing.assert_allclose(values, [[0.1, 0.2, 0.4, 0.0], [0.0, 0.0, 0.0, 0.7]])
    assert not observation_values(None, mask)[1].any()


class Rows:
    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def take(self, rows):
        return Rows(self.x[rows])


class Linear(torch.nn.Module):
    """Two auxiliary heads that are linear in the observation, and an action that depends on nothing."""

    def __init__(self):
        super().__init__()
        self.aux = torch.nn.Linear(3, 2)
        self.level = torch.nn.Parameter(torch.zeros(1))

    def passes(self, inputs, rows, micro):
        return slices(len(rows), micro)

    def evaluate(self, inputs, *, entropy=False):
        x = torch.from_numpy(inputs.x)
        return Evaluated(self.level.expand(len(x), 1), self.level.sum(), auxiliary=self.aux(x)[:, None])


@pytest.mark.parametrize("size", [4, 20])
def test_the_loss_and_its_gradient_by_hand(size):
    rng = np.random.default_rng(0)
    x, targets = rng.normal(size=(20, 3)).astype(np.float32), rng.normal(size=(20, 1, 2)).astype(np.float32)
    known = rng.random((20, 1, 2)) < 0.6
    settings = ControlAlgorithmSettings(
        auxiliary_losses={"a": 0.5, "b": 2.0}, minibatch_size=size, num_epochs=1, max_grad_norm=1e9,
        normalize_advantages=False,
    )  # fmt: skip
    ones = torch.ones(20, 1)
    policy = Linear()
    optimizer = FlatAdam(policy, 0.0)  # the weights stay
    batch = Batch(
        Rows(x), ones, 0 * ones, auxiliary=torch.from_numpy(targets), auxiliary_mask=torch.from_numpy(known).float()
    )
    metrics = update_policy(policy, optimizer, batch, settings, np.random.default_rng(0), learning_rate=0.0)
    if size == 20:
        said = policy.aux(torch.from_numpy(x)).detach().numpy()[:, None]
        for k, name in enumerate("ab"):
            errors = (said - targets)[..., k][known[..., k]] ** 2
            assert metrics[f"auxiliary_loss/{name}"] == pytest.approx(0.5 * errors.mean(), rel=1e-5)
        gradient = np.einsum("nkh,nd->hd", (said - targets) * known / known.sum(0), x) * np.array([[0.5], [2.0]])
        np.testing.assert_allclose(policy.aux.weight.grad.numpy(), gradient, rtol=1e-4, atol=1e-6)
    assert metrics["updates"] == 20 / size


def test_the_head_learns_what_the_model_says(tmp_path):
    algorithm = {**ALGORITHM, "num_epochs": 10, "learning_rate": 0.02, "auxiliary_losses": {"constant": 5.0}}
    reward = {"use_reward_model": True, "reward_mode": "per_step", "shaping": "raw", "combine_mode": "add"}
    reward |= {"model": {"model_type": "constant", "value": 0.8}, "reward_weight": 0.0}
    study = clock_study(tmp_path, algorithm=algorithm, reward=reward, runner={"total_steps": 240})
    start(study, reader="own").run()
    losses = [row["auxiliary_loss/constant"] for row in lines(study) if row["kind"] == "train"]
    assert losses[-1] < 0.02 < losses[0]
    policy = load_policy(run_folder(study) / "policy")
    observations = np.array([[1.0, 0.1], [5.0, -0.3]], np.float32)
    said = policy.evaluate(policy.prepared(type("I", (), {"observations": observations, "actions": observations})()))
    np.testing.assert_allclose(said.auxiliary.detach().numpy().reshape(-1), 0.8, atol=0.25)


def test_without_it_nothing_is_different(tmp_path):
    """The head is drawn after everything else, and with a coefficient near 0 the policy goes the same way."""
    studies = [
        clock_study(
            tmp_path, name=name, reward=reader_reward(combine_mode="add"), runner={"total_steps": 24},
            algorithm={**ALGORITHM, "max_grad_norm": 1e9, "auxiliary_losses": losses},
        )
        for name, losses in (("with", {"constant": 1e-30}), ("without", {}))
    ]  # fmt: skip
    loops = [start(study) for study in studies]
    for loop in loops:
        loop.run()
    a, b = (loop.learner.policy.tensors() for loop in loops)
    assert set(a) - set(b) == {"aux.weight", "aux.bias"}
    for name, tensor in b.items():
        np.testing.assert_allclose(a[name].numpy(), tensor.numpy(), atol=1e-6)


@pytest.mark.parametrize("policy", first(["mlp", "cnn"], 1))
def test_a_run_with_an_auxiliary_loss_resumes_to_the_same_bytes(tmp_path, policy):
    sections = {"algorithm": ALGORITHM, "reward": reader_reward(combine_mode="add")}
    if policy == "cnn":
        sections |= {"env": {"observation": "pixels"}, "runner": {"total_steps": 48, "eval_every": 48}}
        sections["policy"] = {"type": "cnn", "channels": [4, 4, 4], "hidden": [8]}
        sections["runner"] |= {"checkpoint_every": 24}
    studies = [clock_study(tmp_path, name=name, **sections) for name in "ab"]
    start(studies[0]).run()
    interrupted(studies[1], "update", 2)
    start(studies[1], resume=True).run()
    assert result(studies[0]) == result(studies[1])


def test_another_run_starts_without_the_head(tmp_path):
    first = clock_study(tmp_path, name="first", algorithm=ALGORITHM, reward=reader_reward(), runner={"total_steps": 24})
    start(first).run()
    plain = {k: v for k, v in ALGORITHM.items() if k != "auxiliary_losses"}
    for algorithm in (plain, ALGORITHM):
        second = clock_study(
            tmp_path, name="second", algorithm=algorithm, reward=reader_reward(),
            runner={"resume_dir": str(run_folder(first))},
        )  # fmt: skip
        loop = start(second)
        assert torch.equal(loop.learner.policy.pi[0].weight, load_policy(run_folder(first) / "policy").pi[0].weight)
        loop.close()


def test_what_has_no_target_or_no_head_is_refused(tmp_path):
    for losses, reward in (
        ({"prm": 1.0}, reader_reward()),
        ({"constant": 1.0}, {}),
        ({"constant": 1.0}, reader_reward(reward_mode="terminal")),
    ):
        with refuses("algorithm.auxiliary_losses"):
            clock_study(tmp_path, algorithm={**ALGORITHM, "auxiliary_losses": losses}, reward=reward)
    own = {"type": "own_policy:StatePolicy"}
    with refuses("algorithm.auxiliary_losses", "has no auxiliary heads"):
        start(clock_study(tmp_path, algorithm=ALGORITHM, reward=reader_reward(), policy=own))
    assert RewardSettings().sources == {}
