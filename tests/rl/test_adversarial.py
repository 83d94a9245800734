"""A success classifier whose negatives are what the policy shows (`labeler: adversarial`), in the real loop."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from test_unknown_success import corridor_study

from guerdon.episodes.read import read_episodes
from guerdon.episodes.write import EpisodeWriter
from guerdon.errors import DataError
from guerdon.models.images.backbone import ImageScorer
from guerdon.models.images.image import ImageModelConfig, ImageRewardModel
from guerdon.models.images.online import load_online_image_model
from guerdon.rewards.refit import RefittedReward, online_model
from guerdon.rl.loop import Loop
from guerdon.rl.run import run_folder
from guerdon.settings.reward_models import ProgressModelSettings, ResNetModelSettings, UpdateSettings
from guerdon.types import Episode
from rl_clock import clock_study, interrupted, lines, register_clock, result, start
from rl_models import episodes, image_reward
from tables import refuses

register_clock()
torch.set_num_threads(1)


def adversarial(folder, *, arch="mlp", **params):
    reward = image_reward(folder, arch=arch, update="before", shaping="log_odds")
    reward["model"]["labeler"] = "adversarial"
    reward["model"]["update_params"] |= params
    return reward


def test_all_that_the_policy_shows_is_a_negative(tmp_path):
    study = clock_study(tmp_path, reward=adversarial(tmp_path, every=2), runner={"total_steps": 160})
    loop = Loop(study, run_folder(study))
    trainer, collect, told, seen = loop.sources["resnet"].model, loop.collector.collect, [], []
    learn = trainer.update
    trainer.update = lambda rows, targets, **kw: (told.append((rows, targets)), learn(rows, targets, **kw))[1]
    loop.collector.collect = lambda policy, **kw: seen.append(collect(policy, **kw)) or seen[-1]
    loop.run()
    assert len(told) == len(seen) // 2 > 1
    for n, (rows, targets) in enumerate(told):
        shown = [s.states_F for rollout in seen[2 * n : 2 * n + 2] for s in rollout.segments]
        np.testing.assert_array_equal(rows, np.concatenate(shown))
        assert any(s.success_F[i] for r in seen[2 * n : 2 * n + 2] for s in r.segments for i in range(len(s)))
        assert not targets.any()


def test_the_reward_is_the_log_odds_of_the_refitted_model(tmp_path):
    study = clock_study(tmp_path, reward=adversarial(tmp_path, every=1), runner={"total_steps": 48})
    loop = Loop(study, run_folder(study))
    source, checked = loop.sources["resnet"], 0
    assert source.model.gradient_penalty == 1.0
    measure = source.measure

    def compared(rollout):
        nonlocal checked
        paid = measure(rollout)
        for segment in rollout.segments:
            acted = segment.rows_F > 0
            p = source.model.model.probabilities(segment.states_F[acted]).astype(np.float64)
            expected = np.log(p / (1 - p))
            np.testing.assert_allclose(paid.values[segment.stream, segment.steps_F[acted]], expected, atol=1e-6)
            checked += len(p)
        return paid

    source.measure = compared
    loop.run()
    assert checked == 48


def test_no_success_is_read_in_the_run(tmp_path):
    study = corridor_study(tmp_path, "never", reward=adversarial(tmp_path, every=1))
    summary = start(study, reader="own").run()
    assert summary["final"]["success_known"] == 0
    refits = [row for row in lines(study) if "reward_model/resnet/loss" in row]
    assert refits
    assert all(row["reward_model/resnet/fresh"] > 0 for row in refits)


def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path):
    setup = {"reward": adversarial(tmp_path, every=2), "runner": {"total_steps": 120}}
    whole, study = clock_study(tmp_path, name="whole", **setup), clock_study(tmp_path, **setup)
    Loop(whole, run_folder(whole)).run()
    interrupted(study, "update", 5, reader="own")
    start(study, resume=True, reader="own").run()
    assert result(study) == result(whole)


def test_a_killed_run_with_own_successes_goes_on_to_the_same_bytes(tmp_path):
    reward = adversarial(tmp_path, every=2)
    reward["model"] |= {"own_successes": True, "demonstration_negatives": 0.25}
    setup = {"reward": reward, "runner": {"total_steps": 120}}
    whole, study = clock_study(tmp_path, name="whole", **setup), clock_study(tmp_path, **setup)
    Loop(whole, run_folder(whole)).run()
    counted = [row["reward_model/resnet/own_successes"] for row in lines(whole) if "reward_model/resnet/loss" in row]
    assert max(counted) > 0
    interrupted(study, "update", 5, reader="own")
    start(study, resume=True, reader="own").run()
    assert result(study) == result(whole)


def test_own_successes_need_an_environment_that_reports_success(tmp_path):
    reward = adversarial(tmp_path, every=1)
    reward["model"]["own_successes"] = True
    with refuses("env.success_key", r"reward\.sources\.resnet\.model\.own_successes"):
        start(corridor_study(tmp_path, "never", reward=reward), reader="own").run()


def demonstrations(folder, count=12, *, goals=True, early=True):
    """A hand goes to a goal of its own; (hand, goal, 0) at each row, the last three rows are at it."""
    rng = np.random.default_rng(0)
    with EpisodeWriter(folder) as writer:
        for n in range(count):
            goal = rng.uniform(-1, 1)
            hand = np.full(12, goal)
            hand[:9] = np.linspace(-2, goal, 10)[:9] if early else goal + rng.normal(0, 0.1, 9)
            shown = np.stack([hand, np.full(12, goal if goals else 1.0), np.zeros(12)], axis=1).astype(np.float32)
            writer.add(
                Episode(f"e{n}", "go", states=shown, actions=np.zeros((12, 1), np.float32), outcome=True,
                        rewards=np.zeros(12, np.float32), success=np.arange(12) >= (9 if early else 0))
            )  # fmt: skip
    return folder


def learner(folder, **given):
    """A classifier of three numbers that learns adversarially from the demonstrations in a folder."""
    torch.manual_seed(0)
    config = ImageModelConfig("resnet", "mlp", threshold=0.5, state_size=3)
    scorer = ImageScorer("mlp", hidden_dim=8, dropout=0.0, state_size=3)
    settings = ResNetModelSettings(
        checkpoint_path="x", update="before", replay_path=str(folder), labeler="adversarial", **given
    )
    return online_model("near", ImageRewardModel(scorer, config), settings, seed=0)


def drawn_negatives(model, policy):
    """What the model takes for negatives of the replay once the policy has filled it."""
    model.replay.add(policy, np.zeros(len(policy)), model.rng)
    rows, targets = model._contrasted(*model.replay.draw(400, model.rng))
    assert (targets > 0.5).sum() == 200
    return rows[targets <= 0.5]


def test_negatives_of_the_demonstrations_are_kept_in_the_share_that_was_asked_for(tmp_path):
    folder, policy = demonstrations(tmp_path / "data"), np.full((4000, 3), 9, np.float32)
    plain = drawn_negatives(learner(folder), policy)
    assert (plain == 9).all(axis=1).mean() > 0.9, "the policy's rows have replaced those of the demonstrations"
    found = drawn_negatives(learner(folder, demonstration_negatives=0.5, shuffled_goals=0.25), policy)
    own, shuffled = found[:100], found[100:150]
    assert (own[:, 0] < own[:, 1]).all(), "on the way, each to its own goal"
    success = {round(float(e.states[-1, 0]), 5) for e in read_episodes(folder, with_frames=False)}
    assert {round(float(hand), 5) for hand in shuffled[:, 0]} <= success
    assert {round(float(goal), 5) for goal in shuffled[:, 1]} <= success
    assert (np.abs(shuffled[:, 0] - shuffled[:, 1]) > 0.1).all(), "a goal that is not near its own"


def test_a_success_with_the_same_goal_is_no_negative(tmp_path):
    """Three of twelve demonstrations have another goal than the rest."""
    with EpisodeWriter(tmp_path / "data") as writer:
        for n, episode in enumerate(read_episodes(demonstrations(tmp_path / "plain"), with_frames=False)):
            goal, noise = (-1.0 if n % 4 == 0 else 1.0), np.random.default_rng(n).normal(0, 1e-3, 12)
            shown = episode.states.copy()
            shown[:, 1] = goal + noise
            shown[:, 0] += shown[-1, 1] - shown[-1, 0]
            shown[9:, 0] = shown[9:, 1]
            writer.add(replace(episode, states=shown))
    model = learner(tmp_path / "data", shuffled_goals=1.0)
    ((negatives, _),) = model.contrast
    assert len(negatives) == 12 * 3
    assert (np.abs(negatives[:, 0] - negatives[:, 1]) > 1).all()


def where_an_object_lies(folder, count=12):
    """Demonstrations whose third number only tells them apart."""
    rng = np.random.default_rng(8)
    with EpisodeWriter(folder) as writer:
        for episode in read_episodes(demonstrations(folder.parent / "plain", count), with_frames=False):
            states = episode.states.copy()
            states[:, 2] = rng.uniform(1, 2)
            writer.add(replace(episode, states=states))
    return folder


def test_rows_exchange_the_numbers_that_only_tell_episodes_apart(tmp_path):
    """The policy's object lies elsewhere; only a classifier that cannot use that looks at hand and goal alone."""
    folder, rng = where_an_object_lies(tmp_path / "data"), np.random.default_rng(0)
    policy = np.stack([*rng.uniform(-2, 2, (2, 400)), rng.uniform(-2, -1, 400)], axis=1).astype(np.float32)
    success = np.concatenate([e.states[e.success] for e in read_episodes(folder, with_frames=False)])
    elsewhere = success.copy()
    elsewhere[:, 2] -= 3
    lost = {}
    for exchanged in (False, True):
        model = learner(folder, shuffled_episodes=exchanged, update_params={"learning_rate": 1e-2})
        assert model.exchanged.tolist() == ([2] if exchanged else [])
        model.update(policy, np.zeros(len(policy)), steps=300)
        odds = [np.log(p / (1 - p)).mean() for p in map(model.model.probabilities, (success, elsewhere))]
        lost[exchanged] = odds[0] - odds[1]
    assert lost[False] > 2
    assert abs(lost[True]) < 0.1 * lost[False]


def test_the_run_says_what_is_exchanged(tmp_path):
    def said(folder, wanted):
        settings = SimpleNamespace(refitted=SimpleNamespace(shuffled_episodes=wanted))
        source = SimpleNamespace(model=learner(folder, shuffled_episodes=wanted), settings=settings)
        return RefittedReward.notes.fget(source)

    apart, alike = where_an_object_lies(tmp_path / "data"), demonstrations(tmp_path / "alike")
    assert said(apart, False) == ()
    assert said(apart, True) == ("shuffled_episodes exchanges these numbers of the state, from 0: 2",)
    assert "exchanges nothing" in said(alike, True)[0]


def test_exchanges_go_on_where_a_state_was_taken(tmp_path):
    folder, policy = where_an_object_lies(tmp_path / "data"), np.ones((50, 3), np.float32)
    one, other = (learner(folder, shuffled_episodes=True) for _ in range(2))
    one.update(policy, np.zeros(50), steps=2)
    other.load_state(*one.state())
    assert one.update(policy, np.zeros(50), steps=2)["loss"] == other.update(policy, np.zeros(50), steps=2)["loss"]


def test_what_the_demonstrations_do_not_have_is_refused_in_one_line(tmp_path):
    with pytest.raises(DataError, match=r"demonstration_negatives: in replay_path .* no row before a success"):
        learner(demonstrations(tmp_path / "late", early=False), demonstration_negatives=0.5)
    with pytest.raises(DataError, match=r"shuffled_goals: .*stays the same in an episode and goes with what moves"):
        learner(demonstrations(tmp_path / "alike", goals=False), shuffled_goals=0.5)
    with pytest.raises(DataError, match=r"shuffled_goals: .*3 successful episodes"):
        learner(demonstrations(tmp_path / "few", count=3), shuffled_goals=0.5)
    with pytest.raises(DataError, match=r"shuffled_episodes: .*3 successful episodes"):
        learner(tmp_path / "few", shuffled_episodes=True)
    with refuses("demonstration_negatives"):
        ResNetModelSettings(
            checkpoint_path="x", update="before", replay_path="y", labeler="adversarial",
            demonstration_negatives=0.6, shuffled_goals=0.6,
        )  # fmt: skip
    for key in ("own_successes", "demonstration_negatives", "shuffled_goals", "shuffled_episodes"):
        with refuses(key):
            ResNetModelSettings(checkpoint_path="x", update="before", replay_path="y", **{key: 1})


def test_a_demonstrators_end_is_no_negative_of_a_classifier_of_success_in_the_frame(tmp_path):
    folder = demonstrations(tmp_path / "data")
    with EpisodeWriter(tmp_path / "short") as writer:
        for episode in read_episodes(folder, with_frames=False):
            writer.add(replace(episode, success=np.arange(12) == 9))
    others, positives = learner(tmp_path / "short").replay.kept
    assert (len(others), len(positives)) == (12 * 9, 12)


def test_a_rollout_in_which_nothing_is_scored_is_no_reason_to_stop(tmp_path):
    reward = adversarial(tmp_path, every=1) | {"reward_mode": "terminal"}
    algorithm = {"rollout_steps": 4, "minibatch_size": 8, "num_epochs": 1}  # episodes last up to 8 steps
    study = clock_study(tmp_path, reward=reward, algorithm=algorithm, env={"kwargs": {"fixed": 8}})
    start(study, reader="own").run()
    refits = ["reward_model/resnet/loss" in row for row in lines(study) if "failures" in row]
    assert any(refits)
    assert not all(refits)


def test_a_replay_without_success_is_refused(tmp_path):
    reward = adversarial(tmp_path)
    with EpisodeWriter(tmp_path / "failures") as writer:
        for episode in episodes():
            if not episode.outcome:
                writer.add(episode)
    reward["model"]["replay_path"] = str(tmp_path / "failures")
    with pytest.raises(DataError, match="no row of success"):
        start(clock_study(tmp_path, reward=reward), reader="own")


def test_models_of_frames_are_refused(tmp_path):
    study = clock_study(tmp_path, reward=adversarial(tmp_path, arch="resnet18"), env={"frame_size": 24})
    with refuses("reward.sources.resnet.model.labeler", "labeler adversarial needs a model that looks at states"):
        start(study, reader="own")


def test_keys_without_effect_are_refused():
    given = {"checkpoint_path": "x", "update": "before", "replay_path": "y"}
    with refuses("labeler"):
        ProgressModelSettings(**given, labeler="adversarial")


def test_it_has_defaults_of_its_own():
    given = {"checkpoint_path": "x", "update": "before", "replay_path": "y", "labeler": "adversarial"}
    found = ResNetModelSettings(**given, update_params={"steps": 7}).update_params
    assert (found.steps, found.batch_size, found.replay_ratio) == (7, 512, 0.75)
    written = ResNetModelSettings(**given).model_dump(exclude_unset=True)
    assert ResNetModelSettings.model_validate(written).update_params.steps == 50
    found = ResNetModelSettings(**given, update_params=UpdateSettings(every=2)).update_params
    assert (found.steps, found.every) == (50, 2)
    for params in ({"replay_ratio": 0}, {"replay_ratio": 0.002}, {"batch_size": 2}):  # no batch would have a positive
        with refuses("labeler"):
            ResNetModelSettings(**given, update_params=params)
    ResNetModelSettings(**given, update_params={"replay_ratio": 0.004})
    with refuses("replay_size"):  # there is room for a row of success, and for one of none
        ResNetModelSettings(**given, update_params={"replay_size": 1})
    with refuses("labeler"):
        ResNetModelSettings(checkpoint_path="x", labeler="adversarial")


def test_the_penalty_is_part_of_the_loss_of_a_refit(tmp_path):
    losses = []
    for n, weight in enumerate((0.0, 1.0, 2.0)):
        reward = adversarial(tmp_path / str(n), every=1)
        model = load_online_image_model(
            reward["model"]["checkpoint_path"], kind="resnet", data_path=reward["model"]["replay_path"], batch_size=32
        )
        model.gradient_penalty = weight
        losses.append(model.update(np.zeros((8, 2), np.float32), np.zeros(8), steps=1)["loss"])
    assert losses[1] > losses[0]
    assert losses[2] - losses[0] == pytest.approx(2 * (losses[1] - losses[0]), rel=1e-4)


def linear(slope):
    """A scorer whose logit is slope . z + constant wherever |z| < 50."""
    scorer = ImageScorer("mlp", hidden_dim=None, dropout=0.0, state_size=len(slope))
    scorer.backbone.std = torch.tensor([2.0, 0.5])
    first, second = scorer.backbone.layers[0], scorer.backbone.layers[2]
    with torch.no_grad():
        for layer in (first, second):
            layer.weight.copy_(torch.eye(*layer.weight.shape))
            layer.bias.fill_(100.0)  # no ReLU is at rest
        scorer.head.weight.zero_()
        scorer.head.weight[0, : len(slope)] = torch.tensor(slope)
    return scorer


def test_the_penalty_of_a_linear_logit_is_that_of_its_slope():
    scorer = linear([3.0, 4.0])
    positive, negative = torch.randn(5, 2), torch.randn(3, 2)
    penalty = scorer.gradient_penalty(positive, negative)
    assert penalty.item() == pytest.approx((5.0 - 1.0) ** 2, rel=1e-5)
    penalty.backward()
    # d/dw (|w| - 1)^2 = 2 (|w| - 1) w / |w|
    np.testing.assert_allclose(scorer.head.weight.grad[0, :2], [2 * 4 * 3 / 5, 2 * 4 * 4 / 5], rtol=1e-5)
    assert linear([0.6, 0.8]).gradient_penalty(positive, negative).item() == pytest.approx(0.0, abs=1e-10)
    assert scorer.gradient_penalty(positive, negative[:0]).item() == 0
