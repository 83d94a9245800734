"""Somebody else who acts in place of the policy: what is stored, drawn, shown and refused."""

import json
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium import Wrapper
from gymnasium.envs.registration import register, registry

from guerdon.collect.control import ControlCollector
from guerdon.collect.shards import join_control
from guerdon.collect.stepping import evaluate
from guerdon.comparison.report import write_single_report
from guerdon.errors import ConfigError
from guerdon.rewards.source import GroundTruth, SourceTerms
from guerdon.rl.loop import Loop
from guerdon.rl.off_policy import SACLearner
from guerdon.rl.replay import Replay
from guerdon.rl.run import run_folder
from guerdon.rl.videos import _shots
from guerdon.settings.study import Study
from guerdon.worlds.build import build_world
from guerdon.worlds.interventions import NAMES, Interventions, interventions
from rl_clock import Clock, clock_study, interrupted, lines, result, start
from tables import refuses

ID = "guerdon-test/Helped-v0"
HELP = np.array([0.25, -0.75], np.float32)


class Helped(Wrapper):
    """A clock in which somebody acts at every third step."""

    def __init__(self, names=("is_intervention", "teleop_action"), always=True, given=HELP, helps=3, **kwargs):
        super().__init__(Clock(**kwargs))
        self.names, self.always, self.given, self.helps, self.taken = names, always, given, helps, []

    def step(self, action):
        helped = self.helps and (self.env.count + 1) % self.helps == 0
        executed = HELP if helped else action
        *found, info = self.env.step(executed)
        self.taken.append(np.array(executed))
        if helped or self.always:
            info[self.names[0]] = bool(helped)
        if self.given is not None and (helped or self.always):
            info[self.names[1]] = np.array(self.given if helped else action)
        if found[2] or found[3]:
            info["next.success"] = info.pop("success")
        else:
            del info["success"]
        return (*found, info)


if ID not in registry:
    register(ID, entry_point=Helped, disable_env_checker=True, order_enforce=False)

SAC = {
    "type": "sac", "rollout_steps": 10, "batch_size": 8, "online_step_before_learning": 12, "learning_rate": 1e-2
}  # fmt: skip


def study(tmp_path, name="run", *, env=None, algorithm=None, **given):
    env = {"task": f"test_interventions:{ID}", "native_reward": "dense", **(env or {})}
    return clock_study(tmp_path, name=name, env=env, algorithm=SAC if algorithm is None else algorithm, **given)


def collected(tmp_path, steps=12, **given):
    one = study(tmp_path, **given)
    collector = ControlCollector(one.env, one.control_policy, seed=1, rollout_steps=steps, algorithm="sac")
    return collector, collector.build_policy()


# Reports.


def test_a_report_is_of_each_copy_and_says_what_was_executed():
    info = {
        "is_intervention": np.array([True, False, True, True]),
        "_is_intervention": np.array([True, True, True, False]),
        "teleop_action": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]),
    }
    own = -np.ones((4, 2), np.float32)
    found, executed = interventions(info, own, names=NAMES, ended=np.zeros(4, bool))
    assert found.tolist() == [True, False, True, False]
    assert executed.tolist() == [[1, 2], [-1, -1], [5, 6], [-1, -1]]
    assert (own == -1).all(), "the policy's actions are left as they are"
    assert interventions({"success": np.ones(4)}, own, names=NAMES, ended=np.zeros(4, bool)) is None
    finals = {"final_info": {**info, "is_intervention": np.array([False, True, False, False])}, **info}
    found, executed = interventions(finals, own, names=NAMES, ended=np.array([False, True, True, False]))
    assert found.tolist() == [True, True, False, False]
    discrete = {"is_intervention": np.array([1]), "teleop_action": np.array([5])}
    _, executed = interventions(discrete, np.zeros((1, 1), int), names=NAMES, ended=np.zeros(1, bool), start=3)
    assert executed.tolist() == [[2]]


@pytest.mark.parametrize(
    "given",
    [None, np.zeros(3), "left", np.array([np.nan, 0.0])],
    ids=["missing", "other_size", "text", "not_finite"],
)
def test_an_intervention_whose_action_is_not_known_is_refused(given):
    info = {"is_intervention": np.array([True]), "teleop_action": np.array([None], object)}
    info["teleop_action"][0] = given
    with refuses("env.info_keys", r"info\['teleop_action'\] says .*not the 2 numbers"):
        interventions(info, np.zeros((1, 2)), names=NAMES, ended=np.zeros(1, bool))
    del info["teleop_action"]
    with refuses("env.info_keys"):
        interventions(info, np.zeros((1, 2)), names=NAMES, ended=np.zeros(1, bool))


def test_a_choice_that_there_is_not_is_refused():
    env = SimpleNamespace(metadata={}, single_action_space=gymnasium.spaces.MultiDiscrete([3]), action_start=1)
    nobody, everybody = np.zeros(1, bool), np.ones(1, bool)
    info = {"is_intervention": everybody, "teleop_action": np.array([9])}
    with pytest.raises(ConfigError, match=r"info\['teleop_action'\] is \[9\] in copy 0: there is no such action"):
        Interventions(env, {}).executed(info, np.zeros((1, 1)), everybody, nobody)
    given = {**info, "teleop_action": np.array([3])}
    assert Interventions(env, {}).executed(given, np.zeros((1, 1)), everybody, nobody)[0].tolist() == [[2]]


def test_a_name_that_hides_the_usual_report_is_refused():
    env = SimpleNamespace(metadata={}, single_action_space=gymnasium.spaces.Box(-1, 1, (2,)))
    told = Interventions(env, {"is_intervention": "is_interventon"})
    with refuses("env.info_keys"):
        told.executed({"is_intervention": np.ones(1, bool)}, np.zeros((1, 2)), np.ones(1, bool), np.zeros(1, bool))


@pytest.mark.parametrize("names", [{}, {"is_intervention": "human"}])
def test_a_named_report_that_never_comes_is_said_once(capsys, names):
    """It may be misspelled, and may as well be that nobody has intervened yet."""
    told = Interventions(SimpleNamespace(metadata={}), names)
    for _ in range(1500):
        told.executed({"success": np.ones(1)}, np.zeros((1, 2)), np.ones(1, bool), np.zeros(1, bool))
    line = "[env] env.info_keys names info['human'], which 500 steps have not had"
    assert capsys.readouterr().err.count(line) == len(names)


def test_a_report_that_is_no_flag_is_refused():
    with refuses("env.info_keys", r"info\['is_intervention'\] is 'yes'"):
        interventions({"is_intervention": ["yes"]}, np.zeros((1, 2)), names=NAMES, ended=np.zeros(1, bool))


# Rollouts and the replay.


@pytest.mark.parametrize(
    ("vectorization", "names"),
    [("sync", ("is_intervention", "teleop_action")), ("async", ("human", "joystick"))],
)
def test_what_is_stored_is_what_was_executed(tmp_path, vectorization, names):
    keys = {} if names[0] in NAMES else {"info_keys": dict(zip(NAMES, names, strict=True))}
    env = {"kwargs": {"names": list(names)}, "vectorization": vectorization, **keys}
    collector, policy = collected(tmp_path, env=env)
    rollouts = [collector.collect(policy) for _ in range(2)]
    collector.close()
    replay = Replay(tmp_path / "rows", ["env"])
    for rollout in rollouts:
        replay.add(rollout, rollout.actions, {"env": GroundTruth(SourceTerms("env")).measure(rollout)})
    rows = replay.transitions
    helped = replay.rows("moment")[rows] % 3 == 0
    assert np.array_equal(replay.interventions, rows[helped])
    assert helped.any()
    assert (replay.rows("actions")[rows[helped]] == HELP).all()
    assert not (replay.rows("actions")[rows[~helped]] == HELP).all(1).any()
    assert np.array_equal(replay.rows("observations")[rows, 1], replay.rows("actions")[rows, 0])
    intervened = np.concatenate([r.intervened[r.mask] for r in rollouts])
    assert intervened.sum() == helped.sum()
    assert not collector.world.exact_resume


def test_joined_shards_have_the_interventions_of_those_that_report_them(tmp_path):
    one, policy = collected(tmp_path)
    other, _ = collected(tmp_path, env={"kwargs": {"always": False, "helps": 0}}, steps=9)
    parts = [one.collect(policy), other.collect(policy)]
    assert parts[1].intervened is None
    whole = join_control(parts)
    assert np.array_equal(whole.intervened[:2], parts[0].intervened)
    assert not whole.intervened[2:].any()
    assert join_control([parts[1], parts[1]]).intervened is None


def test_success_at_the_end_is_read(tmp_path):
    collector, policy = collected(tmp_path, steps=30)
    rollout = collector.collect(policy)
    assert np.array_equal(rollout.success_known, rollout.done & rollout.mask)


def test_interventions_in_evaluations_are_not_the_policys_success(tmp_path):
    def of(helps):
        world = build_world(study(tmp_path, env={"kwargs": {"helps": helps, "fixed": 4}}).env, seed=0)
        found = evaluate(world, lambda shown: np.zeros((2, 2), np.float32), episodes=4)
        world.close()
        return found

    assert of(3) == {"episodes_intervened": 4.0, "episodes": 0.0}
    assert of(5)["episodes"] == 4
    assert "episodes_intervened" not in of(5)


# The learner.


def batches(tmp_path, *, demonstrations=0, helped=(2, 3), online_ratio=0.5):
    """A learner's rows for 200 batches, as shares of the batch by where they come from."""
    one = study(tmp_path, algorithm={**SAC, "online_ratio": online_ratio})
    collector, policy = collected(tmp_path, steps=16)
    terms = {"env": SourceTerms("env")}
    rollout = collector.collect(policy)
    rollout.intervened[:] = False
    for i, t in [helped] if helped else ():
        rollout.intervened[i - 2, t] = True
    rewards = {"env": GroundTruth(terms["env"]).measure(rollout)}
    shown = Replay(tmp_path / "shown", ["env"]) if demonstrations else None
    learner = SACLearner(
        policy, one.algorithm, terms, {}, memory=Replay(tmp_path / "m", ["env"]), demonstrations=shown, seed=0
    )
    learner.remember(learner.memory, rollout, rewards)
    if shown is not None:
        rollout.intervened[:] = False
        learner.remember(shown, rollout, rewards)
    return learner, [learner._draw(4) for _ in range(200)]


def test_interventions_are_drawn_again_as_demonstrations(tmp_path):
    learner, drawn = batches(tmp_path)
    (row,) = learner.memory.interventions.tolist()
    for own, shown in drawn:
        assert own[1].shape == shown[1].shape == (4, 4)
        assert (shown[1] == row).all()
    assert len(np.unique(np.concatenate([own[1] for own, _ in drawn]))) == len(learner.memory.transitions)


def test_without_interventions_and_demonstrations_the_run_is_drawn_from_alone(tmp_path):
    _, drawn = batches(tmp_path, helped=())
    assert all(len(parts) == 1 and parts[0][1].shape == (4, 8) for parts in drawn)


def test_interventions_and_demonstrations_share_their_part_by_their_numbers(tmp_path):
    learner, drawn = batches(tmp_path, demonstrations=1)
    shown = len(learner.demonstrations.transitions)
    of_set = [sum(one[1].shape[1] for one in parts[1:] if one[0] is learner.demonstrations) for parts in drawn]
    assert all(sum(one[1].shape[1] for one in parts) == 8 for parts in drawn)
    assert np.mean(of_set) == pytest.approx(4 * shown / (shown + 1), abs=4 * 3 * np.sqrt(0.04 / 800))
    assert min(of_set) < 4, "so rare an intervention is drawn now and then"


# Runs.


def test_a_run_counts_interventions(tmp_path):
    one = study(tmp_path)
    start(one).run()
    train = [row for row in lines(one) if row["kind"] == "train"]
    assert all(0 < row["intervention_rate"] < 0.5 for row in train)
    counts = [row["interventions"] for row in train]
    assert counts == sorted(counts)
    assert counts[-1] == pytest.approx(sum(20 * row["intervention_rate"] for row in train), abs=1e-6)
    page = write_single_report(run_folder(one)).read_text()
    assert "<h3>Interventions</h3>" in page
    plain = study(tmp_path, "plain", env={"kwargs": {"always": False, "helps": 0}})
    start(plain).run()
    assert not any("intervention_rate" in row for row in lines(plain))
    assert "<h3>Interventions</h3>" not in write_single_report(run_folder(plain)).read_text()


def test_videos_mark_interventions(tmp_path):
    one = study(tmp_path)
    collector = ControlCollector(
        one.env, one.control_policy, seed=1, rollout_steps=12, algorithm="sac", video_share=1.0
    )
    rollout = collector.collect(collector.build_policy())
    collector.close()
    marks = 0
    for segment in rollout.videos:
        for row, (_, shown) in zip(segment.rows_F, _shots(segment, rollout, {}, rollout.actions), strict=True):
            marked = any("INTERVENTION" in line for line in shown)
            assert marked == (row > 0 and row % 3 == 0)
            marks += marked
    assert marks == rollout.intervened.sum() > 0


def test_a_resumed_run_with_people_begins_new_episodes(tmp_path):
    one = study(tmp_path)
    interrupted(one, "update", 5)
    loop = start(one, resume=True)
    assert not loop.collector.world.exact_resume
    loop.run()
    assert (run_folder(one) / "COMPLETE").exists()


@pytest.mark.parametrize("helps", [3, 0])
def test_on_policy_algorithms_refuse_interventions_and_nothing_else(tmp_path, helps):
    algorithm = {"rollout_steps": 12, "minibatch_size": 8, "num_epochs": 1}
    loop = start(study(tmp_path, env={"kwargs": {"helps": helps}}, algorithm=algorithm))
    if not helps:
        loop.run()
        return
    with refuses("env.task", "somebody else acts in place of the policy"):
        loop.run()


@pytest.mark.parametrize("env", [{"info_keys": {"is_intervention": "human"}}, {"intervene_after": 3}])
def test_on_policy_runs_are_refused_before_they_start_where_it_is_known(tmp_path, env):
    algorithm = {"rollout_steps": 12, "minibatch_size": 8, "num_epochs": 1}
    with refuses(f"env.{next(iter(env))}"):
        start(study(tmp_path, env=env, algorithm=algorithm))


@pytest.mark.parametrize(
    ("env", "key"),
    [
        ({"info_keys": {"is_intervention": "human"}, "intervene_after": 3}, "info_keys"),
        ({"intervene_steps": 3}, "intervene_steps"),
        ({"intervene_after": 3, "autoreset_mode": "same_step"}, "intervene_after"),
        ({"info_keys": {"person": "human"}}, "person"),
    ],
)
def test_keys_that_do_not_fit_are_refused(tmp_path, env, key):
    with refuses(key):
        study(tmp_path, env=env)


def test_a_task_without_an_expert_is_refused(tmp_path):
    with refuses("env.intervene_after"):
        start(study(tmp_path, env={"intervene_after": 3}))


# The scripted expert.


def car(tmp_path, name="car", **runner):
    return Study.model_validate(
        {
            "runner": {
                "total_steps": 240, "eval_every": 240, "eval_episodes": 2, "checkpoint_every": 60, "film_frames": 2,
                "logger": {"log_path": str(tmp_path), "experiment_name": name, "tensorboard": False}, **runner,
            },
            "env": {
                "type": "gymnasium", "task": "MountainCarContinuous-v0", "num_envs": 2, "max_episode_steps": 70,
                "frame_size": 32, "native_reward": "dense", "intervene_after": 5, "intervene_steps": 3,
            },
            "policy": {"type": "mlp", "hidden": [8]},
            "algorithm": {**SAC, "rollout_steps": 30},
        }
    )  # fmt: skip


def test_the_expert_takes_over_after_steps_without_a_new_best_reward(tmp_path):
    one = car(tmp_path)
    collector = ControlCollector(one.env, one.control_policy, seed=1, rollout_steps=60, algorithm="sac")
    rollout = collector.collect(collector.build_policy())
    collector.close()
    best, since, left = -np.inf, 0, 0
    for t in range(60):
        assert rollout.intervened[0, t] == (left > 0), f"step {t}"
        helped, left = left > 0, max(left - 1, 0)
        since = 0 if rollout.rewards[0, t] > best or helped else since + 1
        best = max(best, rollout.rewards[0, t])
        left = 3 if since >= 5 else left
    assert 0 < rollout.intervened[0].sum() < 60
    assert set(np.abs(rollout.actions[rollout.intervened]).ravel().tolist()) == {1.0}, "the expert's full force"


def test_a_killed_run_with_the_expert_goes_on_to_the_same_bytes(tmp_path):
    whole, cut = car(tmp_path, "whole"), car(tmp_path, "cut")
    Loop(whole, run_folder(whole)).run()
    interrupted(cut, "update", 3)
    Loop(cut, run_folder(cut), resume=True).run()
    assert result(cut) == result(whole)
    last = [max((run_folder(one) / "checkpoints").glob("step_*")) for one in (whole, cut)]
    assert (last[0] / "state.safetensors").read_bytes() == (last[1] / "state.safetensors").read_bytes()
    final = json.loads((run_folder(whole) / "COMPLETE").read_text())["final"]
    assert final["episodes"] == 2, "nobody helps in evaluations"
    assert any(row.get("intervention_rate") for row in lines(whole))


FAR = np.array([1.75, -0.25], np.float32)


class Strong(Helped):
    """Who acts is stronger than the action space has it, and it is executed."""

    def __init__(self, **kwargs):
        super().__init__(given=FAR, **kwargs)


if "guerdon-test/Strong-v0" not in registry:
    register("guerdon-test/Strong-v0", entry_point=Strong, disable_env_checker=True, order_enforce=False)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_action_outside_of_the_space_is_kept_counted_and_named_once(tmp_path, capsys, vectorization):
    env = {"task": "test_interventions:guerdon-test/Strong-v0", "vectorization": vectorization}
    loop = start(study(tmp_path, env=env), reader="own")
    for _ in range(2):
        loop.iterate()
    memory = loop.learner.memory
    theirs = memory.rows("actions")[memory.interventions]
    assert len(theirs) > 2
    assert (theirs == FAR).all()
    others = np.setdiff1d(memory.transitions, memory.interventions)
    assert (abs(memory.rows("actions")[others]) <= 1).all()
    rollout = loop.collector.collect(loop.learner.policy)
    found = loop.learner.remember(memory, rollout, {"env": GroundTruth(SourceTerms("env")).measure(rollout)})
    assert found["interventions_outside"] == found["interventions"] == len(memory.interventions)
    loop.close()
    said = capsys.readouterr().err
    assert said.count("[env] info['teleop_action'] is [1.75, -0.25], outside of the action space") == 1
    assert f"[env] {len(memory.interventions)} actions of somebody else were outside of the action space" in said
