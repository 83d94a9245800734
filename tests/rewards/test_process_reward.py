"""The process reward of the VLA guide in a robot run, under the guide's names."""

import json

import numpy as np
import pytest
import torch

from guerdon.models.vlm.tiny_vlm import write_tiny_vlm
from guerdon.rewards.source import SourceTerms
from guerdon.rl.learner import source_advantages
from guerdon.rl.loop import Loop
from guerdon.rl.run import run_folder
from guerdon.settings.algorithm import ControlAlgorithmSettings
from guerdon.settings.reward import RewardSettings
from guerdon.settings.vlm import TinyVLMSettings
from guerdon.types import Rewards, Rollout
from rl_clock import Reader, clock_study, lines, read_moment, start, truth_of
from tables import cases, first, refuses


def prm(**given):
    return RewardSettings.model_validate({"process_reward_model": True, **given})


def test_the_guides_names_are_one_source():
    reward = prm(prm_model_name_or_path="some/qwen", prm_checkpoint_path="some/adapter")
    assert reward.weights() == {"env": 1.0, "prm": 0.1}
    source = reward.sources["prm"]
    assert (source.reward_mode, source.score_every, source.shaping, source.on_failure) == ("per_step", 1, "raw", "drop")
    model = source.model
    assert (model.model_type, model.vlm.path, model.vlm.adapter) == ("QwenProcessRM", "some/qwen", "some/adapter")
    assert (model.vlm.answer, model.vlm.backend) == ("hard", "transformers")
    assert prm(prm_model_name_or_path="q", use_vllm_prm=True).sources["prm"].model.vlm.backend == "vllm"
    assert prm().sources["prm"].model.model_type == "DummyRM"
    assert prm(prm_reward_weight=0.01, combine_mode="replace").weights() == {"prm": 0.01}
    soft = prm(prm_model_name_or_path="q", model={"vlm": {"answer": "soft"}}, on_failure="neutral", score_every=2)
    source = soft.sources["prm"]
    assert (source.model.vlm.answer, source.on_failure, source.score_every) == ("soft", "neutral", 2)
    constant = prm(model={"model_type": "constant", "value": 1.0}).sources["prm"].model
    assert (constant.model_type, constant.value) == ("constant", 1.0)
    other = {"bonus": {"model": {"model_type": "constant"}}, "prm": {"on_failure": "raise"}}
    reward = prm(sources=other)
    assert list(reward.weights()) == ["env", "prm", "bonus"]
    assert reward.sources["prm"].on_failure == "raise"
    assert not RewardSettings(process_reward_model=False).use_reward_model


@cases(
    ("given", "key"),
    [
        ({"process_reward_model": False, "prm_reward_weight": 0.2}, "prm_reward_weight"),
        ({"prm_model_name_or_path": "q"}, "prm_model_name_or_path"),
        ({"process_reward_model": True, "prm_checkpoint_path": "a"}, "prm_checkpoint_path"),
        ({"process_reward_model": True, "use_reward_model": False}, "process_reward_model"),
        ({"process_reward_model": True, "prm_reward_weight": 0.2, "reward_weight": 0.1}, "reward_weight"),
        (
            {"process_reward_model": True, "prm_model_name_or_path": "q", "model": {"model_type": "constant"}},
            "prm_model_name_or_path",
        ),
        ({"process_reward_model": "perhaps"}, "process_reward_model"),
        ({"process_reward_model": True, "sources": {"prm": None}}, "sources"),
        ({"process_reward_model": True, "sources": "prm"}, "sources"),
    ],
)
def test_what_would_do_nothing_is_refused(given, key):
    with refuses(key):
        RewardSettings.model_validate(given)


def test_separate_advantages_are_those_of_the_sum():
    """GAE is linear: env + 0.1 prm with the sum of the values gives the sum of the advantages."""
    rng = np.random.default_rng(0)
    draw = {name: rng.normal(size=(3, 3, 7)).astype(np.float32) for name in ("env", "prm")}
    draw["sum"] = draw["env"] + np.float32(0.1) * draw["prm"]
    ends, none = rng.random((3, 7)) < 0.2, np.zeros((3, 7), np.bool_)
    weights = {"both": {"env": 1.0, "prm": 0.1}, "one": {"sum": 1.0}}
    found = {}
    for name, parts in weights.items():
        rollout = Rollout(
            inputs=(), log_probs=draw["env"][0], mask=~none, terminated=ends, truncated=none, success=none,
            success_known=none, rewards=draw["env"][0], failed=none,
            values={k: draw[k][1] for k in parts}, next_values={k: draw[k][2] for k in parts},
        )  # fmt: skip
        terms = {k: SourceTerms(k, 0.99) for k in parts}
        rewards = {k: Rewards(draw[k][0], none) for k in parts}
        found[name] = source_advantages(rollout, rewards, terms, parts, ControlAlgorithmSettings()).advantages
    np.testing.assert_allclose(found["both"], found["one"], atol=1e-5)


@pytest.mark.parametrize("mode", ["disabled", "next_step", "same_step"])
def test_every_frame_after_an_action_is_scored_once(mode, tmp_path):
    env = {"num_envs": 3, "autoreset_mode": mode}
    loop = start(clock_study(tmp_path, reward={"process_reward_model": True}, env=env), reader=(reader := Reader()))
    calls = []
    reader.score, score = lambda episodes: calls.append(len(episodes)) or score(episodes), reader.score
    for _ in range(3):
        reader.seen.clear()
        rollout = loop.collector.collect(loop.learner.policy)
        rewards = loop.sources["prm"].measure(rollout)
        assert rewards.values.shape == rewards.failed.shape == rollout.mask.shape == (3, 12)
        assert rewards.measured == rollout.mask.sum() == len(reader.seen)
        assert not rewards.failed.any()
        assert rollout.done.any()
        assert sum(segment.last_F.sum() for segment in rollout.segments) == rollout.done.sum(), "terminal frames"
        moments = [moment for segment in rollout.segments for moment in map(read_moment, segment.frames_F)]
        assert [one for (one,) in reader.seen] == moments
        steps = [(s.stream, step) for s in rollout.segments for step in s.steps_F]
        assert len(set(steps)) == len(steps) == rollout.mask.sum()
        for (stream, step), (name, count, _) in zip(steps, moments, strict=True):
            assert rewards.values[stream, step] == pytest.approx(truth_of(name, count))
            assert (rollout.rewards[stream, step] > 0) == (count % 3 == 0), "the frame of the same step"
    assert len(calls) == 3, "one call for all copies"
    loop.close()


def test_the_log_lines_are_of_the_moments_after_actions(tmp_path, capsys):
    """The first moment of an episode is the baseline of a change: it is measured, and has no reward."""
    reward = {"process_reward_model": True, "shaping": "relative", "prm_reward_weight": 1.0}
    algorithm = {"rollout_steps": 8, "minibatch_size": 8}
    study = clock_study(tmp_path, reward=reward, env={"num_envs": 1}, algorithm=algorithm)
    loop = start(study, reader=Reader(fails=lambda name, count: count == 2))
    capsys.readouterr()
    rollout = loop.collector.collect(loop.learner.policy)
    rewards = loop.sources["prm"].measure(rollout)
    said = [json.loads(line.split(": ")[1]) for line in capsys.readouterr().err.splitlines()]
    paid = rewards.values[rollout.mask & ~rewards.failed]
    assert rewards.failed.any()
    assert rollout.done[0, :-1].any()
    assert len(said[0]) == len(said[1]) == len(paid) < rewards.measured
    np.testing.assert_allclose(said[1], paid, atol=1e-4)
    loop.close()


def test_a_failure_is_of_its_own_frame(tmp_path):
    loop = start(
        clock_study(tmp_path, reward={"process_reward_model": True}),
        reader=Reader(fails=lambda name, count: count == 2),
    )
    rollout = loop.collector.collect(loop.learner.policy)
    rewards = loop.sources["prm"].measure(rollout)
    broken = {
        (s.stream, int(t)) for s in rollout.segments for t, row in zip(s.steps_F, s.rows_F, strict=True) if row == 2
    }
    assert broken == {(b, t) for b, t, _ in rewards.failures} == {tuple(where) for where in np.argwhere(rewards.failed)}
    assert 0 < len(broken) < rewards.measured
    loop.close()


def test_the_dummy_runs_with_the_guides_log_lines(tmp_path, capsys):
    study = clock_study(tmp_path, reward={"process_reward_model": True}, runner={"total_steps": 24})
    Loop(study, run_folder(study)).run()
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "[PRM] Initializing Process Reward Model"
    assert said[1].startswith("[PRM] Memory before loading: ")
    assert said[2] == "[PRM] Loaded DummyRM"
    assert said[3].startswith("[PRM] Memory after loading: ")
    zeros = ", ".join(["0.0"] * 8)
    assert said[5:7] == [
        f"[PRM] Computed rewards: [{zeros}, ...]",
        f"[PRM] Added weighted PRM rewards (weight=0.1): [{zeros}, ...]",
    ]
    (row,) = [row for row in lines(study) if row["kind"] == "train"]
    assert row["reward_weight/prm"] == 0.1
    assert row["return/prm"] == 0.0
    assert row["return/combined"] == pytest.approx(row["return/env"])


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A Qwen2-VL made in code."""
    settings = TinyVLMSettings(architecture="qwen2_vl", hidden_size=32, intermediate=64)
    return str(write_tiny_vlm(settings, tmp_path_factory.mktemp("vlm") / "qwen2_vl", seed=0))


def qwen_study(folder, path, **reward):
    given = {"process_reward_model": True, "prm_model_name_or_path": path, "max_failure_rate": 1.0, **reward}
    runner = {"total_steps": 24, "eval_every": 24, "checkpoint_every": 24}
    return clock_study(folder, reward=given, runner=runner, env={"task_text": "wait"})


def test_a_qwen_vl_rewards_every_step(qwen, tmp_path, capsys):
    study = qwen_study(tmp_path, qwen, model={"vlm": {"answer": "soft", "bf16": False, "batch_size": 64}})
    loop = Loop(study, run_folder(study))
    backend = loop.sources["prm"].model.backend
    passes, forward = [], type(backend.model).forward
    backend.model.forward = lambda *a, **k: passes.append(len(k["input_ids"])) or forward(backend.model, *a, **k)
    loop.run()
    said = capsys.readouterr().err
    assert f"[PRM] Loaded QwenProcessRM from {qwen}" in said
    (computed,) = [json.loads(x.split(": ")[1].replace(", ...", "")) for x in said.splitlines() if "Computed" in x]
    (added,) = [json.loads(x.split(": ")[1].replace(", ...", "")) for x in said.splitlines() if "Added" in x]
    assert len(computed) == 8
    assert all(0 < value < 1 for value in computed)
    np.testing.assert_allclose(added, 0.1 * np.array(computed), atol=1e-4)
    assert passes[0] > 12, "the frames of both copies go through the model together"
    rows = lines(study, "episodes")
    assert rows
    for row in rows:
        assert row["return/combined"] == pytest.approx(row["return/env"] + 0.1 * row["return/prm"], abs=1e-5)
        assert row["return/prm"] > 0


@pytest.mark.parametrize("on_failure", first(["drop", "neutral"], 1))
def test_answers_that_are_none_are_counted(qwen, tmp_path, on_failure):
    study = qwen_study(tmp_path, qwen, on_failure=on_failure)  # an untrained model does not write yes or no
    Loop(study, run_folder(study)).run()
    (row,) = [row for row in lines(study) if row["kind"] == "train"]
    assert row["failures"] == 24
    assert row["failure_rate/prm"] == 1.0
    assert row["return/prm"] is None
    assert torch.isfinite(torch.tensor(row["policy_loss"]))
