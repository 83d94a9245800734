"""Learning from a replay: targets by hand, gradients against autograd, runs that are resumed to the same bytes."""

import json
import math
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from guerdon.episodes.write import EpisodeWriter
from guerdon.policies.robots.control import build_policy, load_policy
from guerdon.policies.robots.efficientnet import EfficientNetLite0
from guerdon.policies.robots.encoders import FrozenFeatures
from guerdon.processes.progress import log_once
from guerdon.rewards.source import SourceTerms
from guerdon.rl.off_policy import SACLearner, dqn_targets, sac_targets, smallest, squared_error
from guerdon.rl.replay import Replay
from guerdon.rl.run import run_folder
from guerdon.rl.sampling import DrawnRows, Transitions, gathered, shares
from guerdon.settings.off_policy import SACSettings
from guerdon.settings.policy import MLPPolicySettings
from guerdon.types import Episode
from rl_clock import Clock, clock_study, interrupted, lines, reader_reward, result, start
from rl_models import image_reward
from tables import first, refuses

SAC = {
    "type": "sac", "rollout_steps": 10, "batch_size": 8, "online_step_before_learning": 12, "learning_rate": 1e-2
}  # fmt: skip

# Pure functions.


@pytest.mark.parametrize("high", [[np.inf, 1.0], [3.4028235e38, 1.0]])
def test_an_action_with_one_bound_is_refused_and_one_without_any_said(high, capsys):
    space = gymnasium.spaces.Box(np.array([5.0, -1.0], np.float32), np.array(high, np.float32))
    given = {"sources": (), "seed": 0, "algorithm": "sac"}
    with refuses("algorithm.type", "action 0 has one bound alone, and actions of a tanh need both"):
        build_policy(MLPPolicySettings(hidden=(8,)), (3,), space, **given)
    log_once.cache_clear()
    build_policy(MLPPolicySettings(hidden=(8,)), (3,), gymnasium.spaces.Box(-np.inf, np.inf, (2,)), **given)
    assert r"actions without bounds are limited to [-1, 1]" in capsys.readouterr().err


def test_all_outputs_are_of_the_critic_with_the_smallest_weighted_sum():
    values = torch.tensor([[[1.0, 9.0], [4.0, 0.0]], [[5.0, 2.0], [3.0, 0.5]]])  # critics, rows, sources
    assert smallest(values, torch.tensor([1.0, 1.0])).tolist() == [[5.0, 2.0], [3.0, 0.5]]
    assert smallest(values, torch.tensor([1.0, 0.0])).tolist() == [[1.0, 9.0], [3.0, 0.5]]
    assert smallest(values, torch.tensor([0.0, 1.0])).tolist() == [[5.0, 2.0], [4.0, 0.0]]


def test_targets_discount_each_source_by_itself_and_stop_at_the_end_of_the_task():
    rewards = torch.tensor([[1.0, -2.0, 0.0], [1.0, -2.0, 0.0]])
    following, log_probs = torch.tensor([[10.0, 20.0, 4.0]] * 2), torch.tensor([-0.5, -0.5])
    found = sac_targets(rewards, torch.tensor([[1.0], [0.0]]), following, log_probs, torch.tensor([0.9, 0.5, 0.8]))
    assert torch.allclose(found, torch.tensor([[10.0, 8.0, 0.8 * 4.5], [1.0, -2.0, 0.0]]))
    assert following[0, 2] == 4.0


def test_targets_of_one_source_add_up_to_those_of_plain_soft_q_learning():
    rng = torch.Generator().manual_seed(0)
    reward, values, log_probs = torch.randn(7, generator=rng), torch.randn(7, 2, generator=rng), torch.randn(7)
    goes_on, alpha, gamma = (torch.rand(7, generator=rng) < 0.7).float(), 0.3, 0.97
    rewards = torch.stack([reward, torch.zeros(7)], 1)
    found = sac_targets(rewards, goes_on[:, None], values, log_probs, torch.tensor([gamma, gamma]))
    q = values[:, 0] + alpha * values[:, 1]
    assert torch.allclose(found @ torch.tensor([1.0, alpha]), reward + gamma * goes_on * (q - alpha * log_probs))


def test_the_online_network_chooses_and_the_target_network_values():
    online = torch.tensor([[[1.0, 0.0], [0.0, 3.0]]])
    target = torch.tensor([[[10.0, 11.0], [20.0, 21.0]]])
    given = torch.tensor([[1.0, 2.0]]), torch.ones(1, 1), target, online
    gammas = torch.tensor([0.5, 1.0])
    assert dqn_targets(*given, torch.tensor([1.0, 1.0]), gammas).tolist() == [[11.0, 23.0]]
    assert dqn_targets(*given, torch.tensor([1.0, 0.1]), gammas).tolist() == [[6.0, 13.0]]
    allowed = torch.tensor([[True, False]])
    assert dqn_targets(*given, torch.tensor([1.0, 1.0]), gammas, allowed).tolist() == [[6.0, 13.0]]
    none = torch.tensor([[False, False]])  # as acting takes it: all are allowed
    assert dqn_targets(*given, torch.tensor([1.0, 1.0]), gammas, none).tolist() == [[11.0, 23.0]]


def test_missing_targets_have_no_gradient_and_the_loss_is_a_mean_of_the_others():
    values = torch.tensor([[1.0, 5.0], [2.0, 6.0], [4.0, 7.0]], requires_grad=True)
    known, targets = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]), torch.zeros(3, 2)
    loss, gradient = squared_error(values, targets, torch.from_numpy(shares(known.numpy())))
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * (1 + 4) / 2)
    assert torch.allclose(gradient, torch.tensor([[0.5, 0.0], [1.0, 0.0], [0.0, 0.0]]))


def learner(tmp_path, *, weights=(1.0, 0.5), activation="tanh", **given):
    """A learner of three actions of which one has other bounds."""
    space = gymnasium.spaces.Box(np.array([-1, -1, 2], np.float32), np.array([1, 1, 6], np.float32))
    policy = build_policy(
        MLPPolicySettings(hidden=(9, 7), activation=activation), (5,), space, sources=(), seed=3, algorithm="sac"
    )
    terms = {name: SourceTerms(name, 0.9, weight) for name, weight in zip("ab", weights, strict=True)}
    settings = SACSettings(learning_rate=0.0, batch_size=16, **given)
    return SACLearner(policy, settings, terms, {}, memory=Replay(tmp_path / "rows", list(terms)), seed=2)


@pytest.mark.parametrize("subset", [None, 2])
def test_the_gradient_of_the_policy_is_that_of_autograd(tmp_path, subset):
    one = learner(tmp_path, num_critics=3, num_subsample_critics=subset, temperature_init=0.3)
    torch.manual_seed(0)
    x, noise = torch.randn(16, 5), torch.randn(16, 3)
    with torch.no_grad():
        one.policy.pi[-1].weight.mul_(300)  # so that some deviations are at their bounds
    alpha, weights = 0.3, torch.tensor([1.0, 0.5, 0.3])
    actions, log_probs = one.head.sample(one.policy.pi(x), noise)
    inside = torch.cat([x, actions], 1)
    totals = []
    for m in range(3):
        h = inside
        for k in range(3):
            h = h @ one.critic.heads.weights[k][m] + one.critic.heads.biases[k][m]
            h = h.tanh() if k < 2 else h
        totals.append(h @ weights)
    value = torch.stack(totals).mean(0) if subset else torch.stack(totals).min(0).values
    loss = (alpha * log_probs - value).mean()
    expected = torch.autograd.grad(loss, list(one.policy.pi.parameters()))
    outputs, back = one._outputs(x, torch.randn(16, 5))
    gradient, values = one._policy_step(x, outputs[:16], noise, actions.detach(), weights, torch.tensor([alpha]))
    assert torch.allclose(one._followed(values, weights), value.detach(), atol=1e-6)
    back(gradient)
    for p, wanted in zip(one.policy.pi.parameters(), expected, strict=True):
        assert torch.allclose(p.grad, wanted, atol=1e-6)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_the_step_in_numpy_is_that_in_torch(tmp_path, activation):
    sides = [learner(tmp_path / side, temperature_init=0.3, activation=activation) for side in ("numpy", "torch")]
    assert sides[0]._computes_plainly
    sides[1]._computes_plainly = False
    rng, weights = np.random.default_rng(0), torch.tensor([1.0, 0.5, 0.0])
    for act in (True, False):
        x, next_x, actions, rewards = (
            torch.from_numpy(rng.standard_normal((16, n)).astype(np.float32)) for n in (5, 5, 3, 3)
        )
        share = torch.from_numpy(rng.uniform(size=(16, 3)).astype(np.float32))
        goes_on = torch.from_numpy((rng.random((16, 1)) < 0.7).astype(np.float32))
        batch = Transitions(x, next_x, actions, rewards, share, goes_on)
        noise = rng.standard_normal((32, 3), dtype=np.float32)
        found = [one._step(batch, noise, weights, act=act) for one in sides]
        assert found[0].keys() == found[1].keys() >= ({"entropy"} if act else set())
        for name, value in found[0].items():
            assert float(value) == pytest.approx(float(found[1][name]), rel=1e-5), name
        assert torch.allclose(sides[0]._values, sides[1]._values, atol=1e-6)
        for part in ("critic", "policy"):
            ours, theirs = (one.optimizers[part].flat.grad for one in sides)
            assert theirs.abs().max() > 1e-3
            assert torch.allclose(ours, theirs, atol=1e-6), part


def test_the_temperature_follows_the_entropy(tmp_path):
    one = learner(tmp_path, temperature_init=0.3, target_entropy=-1.5)
    torch.manual_seed(0)
    x, noise = torch.randn(2, 16, 5), np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32)
    batch = Transitions(*x, torch.zeros(16, 3), torch.zeros(16, 3), torch.full((16, 3), 1 / 16), torch.ones(16, 1))
    facts = one._step(batch, noise, torch.tensor([1.0, 0.5, 0.0]), act=True)
    _, log_probs = one.head.sample(one.policy.pi(x[0]), torch.from_numpy(noise[:16]))
    assert float(facts["entropy"]) == pytest.approx(-log_probs.mean().item(), abs=1e-5)
    assert float(one.temperature.log.grad) == pytest.approx(-log_probs.mean().item() + 1.5, abs=1e-5)
    assert float(facts["temperature"]) == pytest.approx(0.3)


def test_an_entropy_that_no_policy_has_is_refused(tmp_path):
    assert learner(tmp_path, target_entropy=2.0).target_entropy == 2.0  # of at most 3 log 2
    with refuses("algorithm.target_entropy"):
        learner(tmp_path, target_entropy=3.0)


# Runs.


def study(tmp_path, name="run", *, algorithm=None, env=None, reward=None, policy=None, **runner):
    return clock_study(
        tmp_path, name=name, algorithm={**SAC, **(algorithm or {})}, reward=reward, runner=runner, policy=policy,
        env={"native_reward": "dense", **(env or {})},
    )  # fmt: skip


def demonstrations(folder, count=3, **changed):
    """Episodes of the clock."""
    with EpisodeWriter(folder) as writer:
        for n in range(count):
            steps = np.arange(5 + n)
            writer.add(
                replace(
                    Episode(
                        id=str(n),
                        task="wait",
                        frames=np.full((len(steps), 40, 40, 3), 20 * n, np.uint8),
                        states=np.stack([steps, np.full(len(steps), 0.1 * n)], 1).astype(np.float32),
                        actions=np.where(steps[:, None] > 0, 0.5, 0.0).astype(np.float32).repeat(2, 1),
                        rewards=steps.astype(np.float32),
                        success=steps == steps[-1],
                        outcome=True,
                    ),
                    **changed,
                )
            )
    return str(folder)


def both(tmp_path, where="update", count=4, **given):
    """An uninterrupted and a resumed run; what they leave."""
    whole, cut = (study(tmp_path, name, **given) for name in ("whole", "cut"))
    start(whole, reader="own").run()
    interrupted(cut, where, count, reader="own")
    start(cut, resume=True, reader="own").run()
    assert result(cut) == result(whole)
    last = [max((run_folder(one) / "checkpoints").glob("step_*")) for one in (whole, cut)]
    assert (last[0] / "state.safetensors").read_bytes() == (last[1] / "state.safetensors").read_bytes()
    for part in ("replay", "demonstrations"):
        kept = run_folder(whole) / "checkpoints" / part
        for column in kept.glob("*.bin"):
            assert column.read_bytes() == (run_folder(cut) / "checkpoints" / part / column.name).read_bytes()
    return whole


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path):
    whole = both(tmp_path)
    rows = lines(whole)
    train = [row for row in rows if row["kind"] == "train"]
    assert [row["updates"] for row in train] == [20] * 8, "one for each environment step"
    assert {"critic_loss", "temperature", "entropy", "q/env", "q/entropy"} <= set(train[-1])
    policy = load_policy(run_folder(whole) / "policy")
    assert policy.actor().act(np.zeros((1, 2), np.float32), np.random.default_rng(0)).values.shape == (1, 2)


@pytest.mark.parametrize("update", first(["before", "after"], 1))
def test_a_killed_run_with_a_model_that_learns_goes_on_to_the_same_bytes(tmp_path, update):
    reward = image_reward(tmp_path, arch="mlp", update=update, shaping="relative", combine_mode="add")
    whole = both(tmp_path, reward=reward)
    train = [row for row in lines(whole) if row["kind"] == "train"]
    assert sum(row.get("reward_model/resnet/relabelled", 0) for row in train) > 0
    assert all("q/resnet" in row for row in train if row["updates"])


@pytest.mark.slow
def test_a_killed_run_with_demonstrations_goes_on_to_the_same_bytes(tmp_path):
    path = demonstrations(tmp_path / "shown")
    reward = image_reward(tmp_path, shaping="raw")
    both(tmp_path, reward=reward, algorithm={"demonstrations": path, "online_ratio": 0.25})


@pytest.mark.parametrize("more", [{"runner": {"max_staleness": 1}}, {"runner": {"rollout_shards": 2}}])
def test_collected_ahead_and_in_shards(tmp_path, more):
    both(tmp_path, **more["runner"])


def test_averaged_weights_go_on_to_the_same_bytes(tmp_path):
    both(tmp_path, algorithm={"ema_decay": 0.8}, max_staleness=1)


def test_a_killed_run_on_pictures_goes_on_to_the_same_bytes(tmp_path):
    policy = {"type": "cnn", "channels": [4, 4], "hidden": [8]}
    both(
        tmp_path,
        policy=policy,
        env={"observation": "pixels"},
        algorithm={"demonstrations": demonstrations(tmp_path / "shown")},
    )


@pytest.mark.slow
def test_a_frozen_backbone_sees_each_picture_of_a_replay_once(tmp_path, monkeypatch):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        (tmp_path / "backbone").mkdir()
        save_file(EfficientNetLite0().state_dict(), tmp_path / "backbone" / "model.safetensors")
    seen, computed = [], FrozenFeatures._computed
    monkeypatch.setattr(FrozenFeatures, "_computed", lambda self, f: seen.append(f.tobytes()) or computed(self, f))
    policy = {"type": "cnn", "backbone": str(tmp_path / "backbone"), "hidden": [8]}
    loop = start(study(tmp_path, policy=policy, env={"observation": "pixels"}, total_steps=60), reader="own")
    for _ in range(3):
        loop.iterate()
    again = 2 * 2  # what each of two copies shows after a rollout begins the next one
    assert len(seen) - again == len(set(seen)) > 30
    assert set(seen) == {one[None].tobytes() for one in loop.learner.memory.rows("observations")}
    loop.close()
    both(tmp_path, policy=policy, env={"observation": "pixels"}, total_steps=80)


def test_rlpd(tmp_path):
    path = demonstrations(tmp_path / "shown")
    given = {"num_critics": 4, "num_subsample_critics": 2, "utd_ratio": 3, "layer_norm": True, "demonstrations": path}
    whole = both(tmp_path, algorithm={**given, "policy_update_freq": 2}, total_steps=80)
    train = [row for row in lines(whole) if row["kind"] == "train"]
    assert train[-1]["updates"] == 3 * 20


def test_demonstrations_are_half_of_a_batch_and_measured_by_every_source(tmp_path):
    path = demonstrations(tmp_path / "shown")
    reward = reader_reward(combine_mode="add")
    reward["model"] = {"model_type": "constant", "value": 0.25}
    loop = start(study(tmp_path, algorithm={"demonstrations": path}, reward=reward), reader="own")
    shown = loop.learner.demonstrations
    rows = shown.transitions
    assert len(rows) == 4 + 5 + 6
    assert np.array_equal(shown.paid["env"]["reward"][rows], shown.rows("observations")[rows, 0])
    assert np.array_equal(shown.paid["constant"]["reward"][rows], np.full(15, 0.25, np.float32))
    assert shown.rows("ended").sum() == 3
    assert not shown.rows("terminated").any(), "env.end_on_success is off"
    loop.iterate()
    drawn = loop.learner._draw(4)
    assert [(one.replay is shown, one.rows.shape) for one in drawn] == [(False, (4, 4)), (True, (4, 4))]
    loop.close()


def test_a_rollout_that_is_longer_than_the_run_is_said(tmp_path):
    for budget, said in ((19, True), (20, False)):
        loop = start(study(tmp_path, str(budget), env={"num_envs": 2}, total_steps=budget))
        notes = [line for line in loop.parts.notes if line.startswith("WARNING: runner.total_steps is 19,")]
        assert len(notes) == said
        assert all("has 20: the run takes 20 steps" in line for line in notes)
        loop.close()


def test_demonstrations_whose_rewards_are_their_success_are_named(tmp_path, capsys):
    steps = np.arange(5)
    path = demonstrations(tmp_path / "success", count=1, rewards=(steps == 4).astype(np.float32))
    question = "were they collected with env.native_reward dense?"
    for name, native, asked in (("dense", "dense", True), ("sparse", "sparse", False)):
        start(study(tmp_path, name, algorithm={"demonstrations": path}, env={"native_reward": native})).close()
        assert (question in "".join(capsys.readouterr())) == asked
    dense = demonstrations(tmp_path / "kept", count=1, rewards=None, meta={"dense_rewards": [0.0, 3.0, 2.0, 1.0, 7.0]})
    loop = start(study(tmp_path, "own", algorithm={"demonstrations": dense}))
    shown = loop.learner.demonstrations
    assert shown.paid["env"]["reward"][shown.transitions].tolist() == [3, 2, 1, 7]
    loop.close()
    assert question not in "".join(capsys.readouterr())


class Boundless(Clock):
    """A clock whose actions have no bounds."""

    def __init__(self, *args, **given):
        super().__init__(*args, **given)
        self.action_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)


@pytest.mark.parametrize("bounds", [True, False])
def test_demonstrated_actions_are_limited_as_those_of_the_policy(tmp_path, capsys, monkeypatch, bounds):
    monkeypatch.setattr("gymnasium.envs.registration.registry", dict(gymnasium.registry))
    gymnasium.register("Boundless-v0", entry_point=Boundless)
    path = demonstrations(
        tmp_path / "shown", count=1, actions=np.float32([[0, 0], [0.5, 3], [0, -0.5], [-2, 1], [1, 1]])
    )
    loop = start(study(tmp_path, algorithm={"demonstrations": path}, env={} if bounds else {"task": "Boundless-v0"}))
    shown = loop.learner.demonstrations
    assert shown.rows("actions")[shown.transitions].tolist() == [[0.5, 1], [0, -0.5], [-1, 1], [1, 1]]
    assert "2 of their actions are outside of the action space" in "".join(capsys.readouterr())
    loop.close()


def test_success_ends_the_task_in_demonstrations_as_in_the_environment(tmp_path):
    path = demonstrations(tmp_path / "shown")
    env = {"end_on_success": True, "native_reward": "sparse"}
    loop = start(study(tmp_path, algorithm={"demonstrations": path}, env=env))
    shown = loop.learner.demonstrations
    assert shown.rows("terminated").sum() == 3
    assert shown.paid["env"]["reward"].sum() == 3
    loop.close()


@pytest.mark.parametrize(
    ("changed", "field", "reason"),
    [
        ({"success": None, "outcome": None}, "next.success", "has no outcome"),
        (
            {"states": np.zeros((5, 3), np.float32)},
            "observation.state",
            r"observes states of shape \(2,\), it has those of shape \(3,\)",
        ),
        ({"actions": np.zeros((5, 4), np.float32)}, "action", "takes actions of 2 numbers"),
        ({"rewards": None}, "next.reward", "has no rewards"),
        ({"meta": {"frame_every": 5}}, None, "keeps every 5th row.*frame_every=1"),
    ],
)
def test_demonstrations_that_do_not_fit_are_refused(tmp_path, changed, field, reason):
    path = demonstrations(tmp_path / "shown", count=1, **changed)
    env = {"native_reward": "sparse" if "outcome" in changed else "dense"}
    with refuses(field, reason):
        start(study(tmp_path, algorithm={"demonstrations": path}, env=env))


def test_demonstrations_without_outcomes_are_learned_from_by_their_rewards(tmp_path):
    path = demonstrations(tmp_path / "shown", success=None, outcome=None)
    loop = start(study(tmp_path, algorithm={"demonstrations": path}))
    shown = loop.learner.demonstrations
    assert (shown.rows("success")[shown.transitions] == -1).all()
    loop.iterate()
    loop.iterate()
    assert loop.learner.steps > 0
    loop.close()


def test_failed_measurements_are_masked(tmp_path):
    loop = start(study(tmp_path, reward=reader_reward(combine_mode="add")))
    source = loop.sources["constant"]
    source.model.fails = lambda name, count: count % 2 == 1
    loop.study = loop.study.model_copy(update={})
    loop.failures.limit = 1.0
    rollout = loop.collector.collect(loop.learner.policy)
    rewards = {name: one.measure(rollout) for name, one in loop.sources.items()}
    loop.learner.remember(loop.learner.memory, rollout, rewards)
    rows = loop.learner.memory.transitions
    failed = loop.learner.memory.paid["constant"]["failed"][rows]
    assert np.array_equal(failed, loop.learner.memory.rows("observations")[rows, 0] % 2 == 1)
    learner = loop.learner
    (batch,) = gathered(learner.policy, [DrawnRows(learner.memory, rows[None])], learner.outputs, learner.terms)
    assert np.array_equal(batch.share[:, 1].numpy() == 0, failed)
    assert torch.allclose(batch.share.sum(0)[:2], torch.ones(2))
    loop.close()


def test_a_second_stage_takes_over_policy_and_critics(tmp_path, capsys):
    first = study(tmp_path, "first", total_steps=60)
    start(first).run()
    again = start(study(tmp_path, "again", total_steps=60, resume_dir=str(run_folder(first))))
    learned = math.exp(again.learner.temperature.log.item())
    assert f"the temperature starts at {learned:.3g}" in capsys.readouterr().err
    assert not len(again.learner.memory)
    state, _ = again.learner.state()
    stored = json.loads((run_folder(first) / "COMPLETE").read_text())
    assert stored["step"] == 60
    trained = load_policy(run_folder(first) / "policy").tensors()
    for name, tensor in trained.items():
        assert torch.equal(state[f"policy.{name}"], tensor), name
    again.close()
    other = start(study(tmp_path, "other", resume_dir=str(run_folder(first)), reward=reader_reward(combine_mode="add")))
    assert torch.equal(other.learner.state()[0]["policy.pi.0.weight"], trained["pi.0.weight"])
    other.close()


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"algorithm": {"num_critics": 2, "num_subsample_critics": 3}}, "num_subsample_critics"),
        ({"algorithm": {"online_ratio": 0.01}}, "online_ratio"),
        ({"algorithm": {"demonstrations": "x", "online_ratio": 0.01}}, "online_ratio"),
        ({"algorithm": {"gae_lambda": 0.9}}, "gae_lambda"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, given, key):
    with refuses(key):
        study(tmp_path, **given)


def test_algorithms_say_which_actions_they_are_for(tmp_path):
    with refuses("algorithm.type"):
        start(study(tmp_path, algorithm={"type": "dqn"}))
