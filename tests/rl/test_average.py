"""Averaged weights: what is evaluated and kept, while what learns and acts is as without them."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from guerdon.rl.loop import PolicyAverage
from guerdon.rl.run import run_folder
from guerdon.settings.study import Study
from rl_clock import clock_study, lines, start
from tables import refuses

torch.set_num_threads(1)
PPO = {"rollout_steps": 12, "minibatch_size": 8, "num_epochs": 2}
SAC = {"type": "sac", "rollout_steps": 12, "batch_size": 8, "online_step_before_learning": 12}


def kept(study):
    return load_file(run_folder(study) / "policy" / "policy.safetensors")


def watched(study):
    """What the policy stores at the start and after each update, and where it acts, with the updates up to then."""
    loop = start(study)
    policy = loop.learner.policy
    learned, seen = [stored(policy)], {"evaluate": [], "show": [], "collect": []}

    update = loop.learner.update

    def updated(*args, **options):
        found = update(*args, **options)
        learned.append(stored(policy))
        return found

    def noting(name, original):
        def call(*args, **options):
            seen[name].append((len(learned) - 1, stored(policy)))
            return original(*args, **options)

        return call

    loop.learner.update = updated
    for name in seen:
        setattr(loop.collector, name, noting(name, getattr(loop.collector, name)))
    loop.run()
    return learned, seen, {name for name, _ in policy.named_parameters()}


def stored(policy):
    return {name: value.clone() for name, value in policy.tensors().items()}


def averages(learned, names, decay):
    """The average after each update: every weight times its power of the decay (closed form), and the rest."""
    for count in range(len(learned)):
        powers = np.array([decay**count, *[(1 - decay) * decay ** (count - k) for k in range(1, count + 1)]])
        past = {name: np.stack([one[name].double() for one in learned[: count + 1]]) for name in names}
        rest = {name: value.numpy() for name, value in learned[count].items() if name not in names}
        yield {name: np.tensordot(powers, values, 1) for name, values in past.items()} | rest


def assert_near(found, expected):
    for name, value in expected.items():
        np.testing.assert_allclose(found[name].double().numpy(), value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("steps", [PPO, SAC], ids=["ppo", "sac"])
def test_averages_are_evaluated_shown_and_kept_and_nothing_else_changes(steps, tmp_path):
    dense = {"native_reward": "dense"}
    plain = clock_study(tmp_path, name="plain", algorithm=steps, env=dense)
    study = clock_study(tmp_path, name="averaged", algorithm={**steps, "ema_decay": 0.7}, env=dense)
    (last, _, _), (learned, seen, names) = watched(plain), watched(study)
    for one, other in zip(last, learned, strict=True):
        assert all(torch.equal(value, other[name]) for name, value in one.items())
    expected = list(averages(learned, names, 0.7))
    assert {"normalizer.mean", "normalizer.var"} < expected[-1].keys() - names
    assert_near(kept(study), expected[-1])
    *evaluated, best = seen["evaluate"]  # the best policy comes last, once more
    assert [count for count, _ in evaluated] == [3, 5, 7]
    for count, found in (*evaluated, *seen["show"]):
        assert_near(found, expected[count])
    assert any(all(torch.equal(best[1][name], value) for name, value in found.items()) for _, found in evaluated)
    for count, found in seen["collect"]:
        assert all(torch.equal(value, found[name]) for name, value in learned[count].items())
    assert any(not torch.equal(value, kept(study)[name]) for name, value in kept(plain).items())
    own, other = ([row for row in lines(one) if row["kind"] == "train"] for one in (plain, study))
    assert own == other


@pytest.mark.parametrize("decay", [0.5, 0.9])
def test_weights_are_the_own_ones_again_to_the_bit(decay, tmp_path):
    policy = start(clock_study(tmp_path)).learner.policy
    average, before = PolicyAverage(policy, decay), stored(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    average.follow()
    own = stored(policy)
    with average.acting():
        for name, value in policy.named_parameters():
            torch.testing.assert_close(value.detach(), before[name] + (1 - decay))
    assert all(torch.equal(value, own[name]) for name, value in stored(policy).items())
    load, policy.load_tensors = policy.load_tensors, interrupted(policy)
    with pytest.raises(KeyboardInterrupt):
        average.acting().__enter__()
    policy.load_tensors = load
    assert all(torch.equal(value, own[name]) for name, value in stored(policy).items())


def interrupted(policy):
    """`load_tensors` of a policy, which ends in Ctrl-C the first time."""
    load, calls = policy.load_tensors, []

    def call(state):
        load(state)
        calls.append(state)
        if len(calls) == 1:
            raise KeyboardInterrupt

    return call


@pytest.mark.parametrize("other", [{"new": torch.zeros(2)}, {}, {"weight": torch.zeros(3)}])
def test_tensors_that_change_their_names_or_shapes_are_refused(other):
    policy = SimpleNamespace(tensors=lambda: {"weight": torch.zeros(2)}, named_parameters=lambda: [("weight", None)])
    average = PolicyAverage(policy, 0.5)
    policy.tensors = lambda: other
    with refuses("algorithm.ema_decay", r"keep their names and shapes, unlike (new|weight): remove it"):
        average.follow()
    with refuses("algorithm.ema_decay", "whose tensors have the names of its parameters: remove it"):
        PolicyAverage(SimpleNamespace(tensors=lambda: {"pi": torch.zeros(2)}, named_parameters=list), 0.5)


def test_a_vla_is_refused():
    with refuses("algorithm.ema_decay"):
        Study.model_validate({"policy": {"type": "vla", "tiny": {}}, "algorithm": {"ema_decay": 0.8}})
