"""A policy loss that is not guerdon's is one function: what it names decides what it is given, and which keys count."""

from inspect import signature

import numpy as np
import pytest
import torch
from test_closed_form import compared, policy_and_batch, updated
from test_learner import policy_of, responses, same, taught
from test_learner import updated as updated_text

from guerdon.config.loading import to_plain
from guerdon.errors import DataError
from guerdon.rl.losses import policy_loss
from guerdon.rl.run import run
from guerdon.settings import algorithm
from guerdon.settings.algorithm import LOSSES, ControlAlgorithmSettings, TextAlgorithmSettings
from guerdon.settings.study import Study
from rl_clock import clock_study
from tables import refuses
from text_rl import LETTERS, lines, tiny

BUILT_IN = tuple(LOSSES.builtins)
TWICE = {"num_epochs": 2}  # so that the ratio is not 1


def text(**keys):
    return TextAlgorithmSettings(learning_rate=1e-2, max_grad_norm=1e9, **{**TWICE, **keys})


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_table_of_what_losses_take_is_that_of_their_signatures(name):
    function = LOSSES.factory(name)
    taken = set(signature(function).parameters) - {"log_probs", "advantages", "mask"}
    assert taken == set(algorithm._LOSSES[name])
    assert set(signature(function.slope).parameters) == set(signature(function).parameters)


CLIPS = {"clip_range": 0.2, "clip_range_high": 0.3}


@pytest.mark.parametrize(
    ("name", "keys"),
    [("ppo", CLIPS), ("ppo", {**CLIPS, "clip_ratio_c": 1.5}), ("gspo", CLIPS), ("cispo", CLIPS), ("reinforce", {})],
)
def test_a_slope_is_the_derivative_of_each_term(name, keys):
    rng = np.random.default_rng(0)
    new, old, advantages = (rng.normal(0, scale, (40, 6)).astype(np.float32) for scale in (0.4, 0.4, 1.0))
    mask = (np.arange(6) < rng.integers(0, 7, 40)[:, None]).astype(np.float32)
    loss = policy_loss(text(loss=name, **keys))
    leaf = torch.tensor(new, requires_grad=True)
    found = loss(leaf, *map(torch.tensor, (old, advantages, mask)))
    (found.terms * torch.tensor(mask)).sum().backward()
    sloped = loss.sloped(new, old, advantages, mask)
    np.testing.assert_allclose(sloped.slope * mask, leaf.grad.numpy(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(sloped.terms * mask, found.terms.detach().numpy() * mask, rtol=1e-4, atol=1e-6)
    outside, wanted = sloped.numbers["clip_fraction"], found.numbers["clip_fraction"].numpy()
    np.testing.assert_array_equal(outside.astype(np.float32), wanted)
    assert name == "reinforce" or 0 < wanted.mean() < 1


@pytest.mark.parametrize(
    ("given", "key", "message"),
    [
        ({"loss": "cipso"}, "loss", "unknown policy loss 'cipso': choose one of .*; did you mean 'cispo'"),
        ({"loss": "own_losses:cipso"}, "loss", "there is no cipso in own_losses; did you mean cispo"),
        ({"loss": "own_losses:cispo", "loss_params": {"skale": 2}}, "loss_params.skale", "unknown key; did you mean"),
        (
            {"loss": "own_losses:cispo", "loss_params": {"scale": "much"}},
            "loss_params.scale",
            "params.scale is 'much'; allowed: number",
        ),
        ({"loss": "own_losses:cispo", "loss_params": {"mask": 1}}, "loss_params.mask", "params.mask = 1: unknown key"),
        ({"loss_params": {"scale": 2}}, "loss_params", "would do nothing with loss ppo"),
        (
            {"loss": "own_losses:cispo", "clip_ratio_c": 3},
            "clip_ratio_c",
            "would do nothing with loss own_losses:cispo",
        ),
        (
            {"loss": "own_losses:without_ratio", "clip_range": 0.1},
            "clip_range",
            "would do nothing with loss own_losses",
        ),
        ({"loss": "reinforce", "clip_range": 0.1}, "clip_range", "would do nothing with loss reinforce"),
        ({"loss": "own_losses:without_log_probs"}, "loss", "without_log_probs has no parameter log_probs"),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", [ControlAlgorithmSettings, TextAlgorithmSettings])
def test_a_loss_that_would_not_do_what_it_says_is_refused(form, given, key, message):
    with refuses(key, message):
        form(**{**TWICE, **given})


def test_robots_and_language_models_name_losses_alike_and_an_untold_one_is_not_written():
    for form in (ControlAlgorithmSettings, TextAlgorithmSettings):
        assert form(policy_loss="cispo") == form(loss="cispo")
        own = form(loss="own_losses:cispo", loss_params={"scale": 2}, clip_range=0.1, **TWICE)
        assert form.model_validate(to_plain(own)) == own
    assert "loss" not in to_plain(ControlAlgorithmSettings())
    assert to_plain(ControlAlgorithmSettings(loss="gspo"))["loss"] == "gspo"


@pytest.mark.parametrize("policy", [{"type": "mlp"}, tiny(LETTERS)], ids=["robot", "text"])
def test_a_loss_without_old_log_probabilities_corrects_for_no_old_weights(policy):
    for name, fits in (("own_losses:without_ratio", False), ("reinforce", False), ("own_losses:whole_rows", True)):
        given = {"policy": policy, "algorithm": {"loss": name}, "runner": {"max_staleness": 1}}
        if fits:
            assert Study.model_validate(given).algorithm.loss == name
            continue
        with refuses("algorithm.loss", f"{name} has no probability ratio, .*set loss to ppo, gspo or cispo"):
            Study.model_validate(given)


@pytest.mark.parametrize("agg", ["token", "sequence", "constant"])
@pytest.mark.parametrize("loss", ["own_losses:cispo", "own_losses:whole_rows"])
def test_micro_batches_of_a_language_model_add_up_to_the_step(loss, agg):
    batch, advantages = responses()
    old = policy_of().evaluate_all(batch, micro=4, temperature=1.0).log_probs
    old += torch.randn(old.shape, generator=torch.Generator().manual_seed(0)) / 4
    policies, found = [policy_of(), policy_of()], []
    for policy, micro in zip(policies, (None, 2), strict=True):
        settings = text(loss=loss, loss_agg=agg, num_epochs=1, minibatch_size=6, micro_batch_size=micro)
        found.append(updated_text(policy, taught(batch, advantages, old), settings))
    same(*policies, rtol=1e-5, atol=1e-6)
    for key in ("policy_loss", "grad_norm", "policy_loss/weight"):
        assert found[0][key] == pytest.approx(found[1][key], rel=1e-5, abs=1e-6)


def test_numbers_are_means_over_the_mask():
    batch, advantages = responses()
    old = policy_of().evaluate_all(batch, micro=8, temperature=1.0).log_probs - 0.1  # every ratio is exp(0.1)
    settings = text(loss="own_losses:cispo", num_epochs=1, minibatch_size=6, clip_range=0.05)
    metrics = updated_text(policy_of(), taught(batch, advantages, old), settings)
    assert metrics["policy_loss/weight"] == pytest.approx(1.05)
    assert metrics["clip_fraction"] == 1
    silent = updated_text(policy_of(), taught(batch, advantages, old), text(loss="own_losses:without_ratio"))
    assert silent["clip_fraction"] is None, "it did not say"


def test_params_reach_the_loss():
    batch, advantages = responses()
    old = policy_of().evaluate_all(batch, micro=8, temperature=1.0).log_probs
    found = []
    for scale in (1.0, 3.0):
        settings = text(loss="own_losses:cispo", loss_params={"scale": scale}, num_epochs=1, minibatch_size=6)
        found.append(updated_text(policy_of(), taught(batch, advantages, old), settings)["policy_loss"])
    assert found[1] == pytest.approx(3 * found[0])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mean", r"terms has the shape \(\), it must have one number per decision, \(6, 5\) as log_probs"),
        ("plain_tensor", "returned a Tensor, it must return PolicyTerms"),
        ("detached", "do not depend on log_probs"),
        ("reduced_number", r"size has the shape \(\)"),
    ],
)
def test_a_loss_that_returns_something_else_is_refused(name, message):
    batch, advantages = responses()
    with refuses("algorithm.loss", message):
        updated_text(policy_of(), taught(batch, advantages), text(loss=f"own_losses:{name}", num_epochs=1))


def test_terms_that_are_nan_without_need_end_the_run_and_an_overflow_skips_the_step():
    batch, advantages = responses()
    wrong = int((advantages < 0).sum())
    with pytest.raises(DataError, match=rf"{wrong} of 30 terms are NaN \(0 of them where the mask is 0\)"):
        updated_text(policy_of(), taught(batch, advantages), text(loss="own_losses:root_of_advantage", num_epochs=1))
    old = policy_of().evaluate_all(batch, micro=8, temperature=1.0).log_probs - 200.0
    nothing = torch.zeros_like(advantages)
    for name in ("own_losses:overflowing", "ppo"):  # infinity times 0
        metrics = updated_text(policy_of(), taught(batch, nothing, old), text(loss=name, minibatch_size=6))
        assert (metrics["updates"], metrics["skipped_updates"]) == (0, 2)


def test_slopes_are_checked_too():
    policy, batch = policy_and_batch(0)
    with refuses("algorithm.loss", r"slope has the shape \(\)"):
        updated(policy, batch, {"loss": "own_losses:wrong_slope"})
    policy, batch = policy_and_batch(0)
    with pytest.raises(DataError, match="15 of 15 terms are NaN"):
        updated(policy, batch, {"loss": "own_losses:nan_slope"})


@pytest.mark.parametrize("loss", ["own_losses:cispo", "cispo", "gspo", "reinforce"])
def test_any_loss_trains_a_robot_in_micro_batches(loss):
    found = []
    for micro in ({}, {"micro_batch_size": 5}):
        policy, batch = policy_and_batch(2)
        found.append(updated(policy, batch, {"loss": loss, **micro}))
    torch.testing.assert_close(found[0][1], found[1][1], rtol=1e-4, atol=1e-6)
    assert found[0][0]["policy_loss"] == pytest.approx(found[1][0]["policy_loss"], rel=1e-5)
    policy, batch = policy_and_batch(2)
    assert compared(policy, batch, {"loss": loss}) == (not LOSSES.is_own(loss))


def test_a_run_of_a_robot_logs_the_numbers_of_its_loss(tmp_path):
    algorithm = {"loss": "own_losses:cispo", "rollout_steps": 6, "minibatch_size": 6, "num_epochs": 2}
    study = clock_study(tmp_path, algorithm=algorithm, runner={"total_steps": 24})
    run(study)
    weights = [row["policy_loss/weight"] for row in lines(study) if "policy_loss" in row]
    assert weights
    assert all(0.8 <= weight <= 1.2 for weight in weights)
