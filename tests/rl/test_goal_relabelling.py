"""Goals in hindsight: which are taken, and what the environment pays for them."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from guerdon.errors import NonFiniteError
from guerdon.rl import off_policy
from guerdon.rl.run import run
from guerdon.rl.sampling import GoalRewards, gathered
from guerdon.settings.study import Study
from guerdon.worlds.spaces import own_values
from rl_clock import reader_reward, start
from tables import refuses

SAC = {"type": "sac", "rollout_steps": 10, "batch_size": 32, "online_step_before_learning": 20}


def study(tmp_path, name="run", *, steps=80, env=None, reward=None, **algorithm):
    return Study.model_validate(
        {
            "runner": {
                "total_steps": steps, "eval_every": 10**6, "eval_episodes": 16, "checkpoint_every": 10**6,
                "logger": {"log_path": str(tmp_path), "experiment_name": name, "tensorboard": False},
            },
            "env": {
                "type": "gymnasium", "task": "goal_world:Goal-v1", "num_envs": 2, "native_reward": "dense",
                **(env or {}),
            },
            "policy": {"type": "mlp", "hidden": [16], "normalize_observations": False},
            "reward": reward or {},
            "algorithm": {**SAC, **algorithm},
        }
    )  # fmt: skip


def collected(tmp_path, env=None, reward=None, **algorithm):
    loop = start(study(tmp_path, env=env, reward=reward, **algorithm), reader="own")
    for _ in range(3):
        loop.iterate()
    return loop


@pytest.mark.parametrize("strategy", ["future", "final"])
def test_goals_are_achieved_later_in_the_same_episode(tmp_path, strategy):
    loop = collected(tmp_path, goal_relabelling=strategy, goal_ratio=0.7)
    memory = loop.learner.memory
    (drawn,) = loop.learner._draw(50)
    taken = drawn.goals >= 0
    assert abs(taken.mean() - 0.7) < 0.05
    rows, goals = drawn.rows[taken], drawn.goals[taken]
    moment, episode = memory.rows("moment"), memory.rows("episode")
    assert np.array_equal(episode[goals], episode[rows])
    assert (moment[goals] >= moment[rows]).all()
    if strategy == "final":
        assert (moment[goals] == [moment[episode == one].max() for one in episode[rows]]).all()
    else:
        assert (moment[goals] > moment[rows]).any()
        assert (moment[goals] == moment[rows]).any(), "the goal may be what this action achieved"
    loop.close()


def test_rewards_are_those_of_the_environment_for_the_goal(tmp_path):
    loop = collected(tmp_path, goal_relabelling="future")
    learner, memory = loop.learner, loop.learner.memory
    (drawn,) = learner._draw(6)
    shown, place = memory.rows("observations"), [c.name for c in learner.policy.encoder.columns].index("desired_goal")
    for u, batch in enumerate(gathered(learner.policy, [drawn], learner.outputs, learner.terms, learner.goal_rewards)):
        for n in range(32):
            row, goal = drawn.rows[u, n], drawn.goals[u, n]
            desired = shown["achieved_goal"][goal] if goal >= 0 else shown["desired_goal"][row]
            wanted = -float(abs(shown["achieved_goal"][row] - desired)[0] > 0.1)
            assert batch.rewards[n, 0] == wanted
            assert batch.rewards[n, 1] == 0, "the entropy earns nothing"
            assert batch.x[n, place] == desired[0]
            assert batch.next_x[n, place] == desired[0]
    assert set(np.unique(memory.paid["env"]["reward"])) <= {0.0, -1.0}
    loop.close()


def test_models_judge_the_goal_that_was_asked_for(tmp_path, monkeypatch):
    """With another goal their reward is not known, not zero, and they end no episode."""
    reward = reader_reward(combine_mode="add", shaping="bonus", reward_threshold=0.9, ends=True, on_failure="neutral")
    loop = collected(tmp_path, reward=reward, goal_relabelling="future", goal_ratio=0.5)
    learner, memory = loop.learner, loop.learner.memory
    (drawn,) = learner._draw(6)
    assert learner.outputs == ("env", "constant", "entropy")
    memory.paid["constant"]["ends"][drawn.rows[0]] = True
    batch = next(iter(gathered(learner.policy, [drawn], learner.outputs, learner.terms, learner.goal_rewards)))
    taken, rows = drawn.goals[0] >= 0, drawn.rows[0]
    assert 0 < taken.sum() < len(taken)
    assert (batch.share[taken, 1] == 0).all()
    assert np.array_equal(batch.share[~taken, 1], np.full((~taken).sum(), 1 / (~taken).sum(), np.float32))
    assert np.array_equal(batch.rewards[~taken, 1], memory.paid["constant"]["reward"][rows[~taken]])
    assert (batch.share[:, [0, 2]] == np.float32(1 / 32)).all()
    assert np.array_equal(batch.goes_on[:, 0], taken.astype(np.float32))
    measured = []
    monkeypatch.setattr(off_policy, "relabel", lambda replay, source, rows: measured.append(rows.tolist()) or {})
    learner.learning = {"constant": loop.sources["constant"]}
    learner._relabel([drawn])
    assert measured == [drawn.rows[drawn.goals < 0].tolist()], "what it would pay for another goal is not used"
    loop.close()


class Goals(gymnasium.Env):
    """Pays minus the distance of a goal of some space, asserting that it is one of it."""

    goal, together, scale, render_mode = spaces.Discrete(5), True, 1.0, "rgb_array"

    def __init__(self, render_mode=None):
        parts = {"observation": spaces.Box(-1, 1, (2,)), "achieved_goal": self.goal, "desired_goal": self.goal}
        self.observation_space, self.action_space = spaces.Dict(parts), spaces.Box(-1, 1, (1,))

    def shown(self):
        achieved, desired = self.goal.sample(), self.goal.sample()
        return {"observation": np.zeros(2, np.float32), "achieved_goal": achieved, "desired_goal": desired}

    def reset(self, *, seed=None, options=None):
        self.goal.seed(seed)
        return self.shown(), {}

    def step(self, action):
        shown = self.shown()
        return shown, self.compute_reward(shown["achieved_goal"], shown["desired_goal"], {}), False, False, {}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)

    def compute_reward(self, achieved, desired, info):
        shape = self.goal.shape or ()
        lead = np.shape(achieved)[: np.ndim(achieved) - len(shape)]
        assert np.shape(achieved) == np.shape(desired) == (*lead, *shape)
        assert len(lead) <= self.together
        for one in np.reshape(achieved, (-1, *shape)):
            assert self.goal.contains(one.astype(self.goal.dtype))
        apart = abs(np.asarray(achieved, float) - desired)
        return -self.scale * apart.reshape(*lead, -1).sum(-1)


GOALS = {
    "Discrete": spaces.Discrete(5, start=-1),
    "MultiDiscrete": spaces.MultiDiscrete([3, 4], start=[1, 0]),
    "MultiBinary": spaces.MultiBinary(4),
    "Integers": spaces.Box(-5, 5, (3,), np.int64),
    "Matrix": spaces.Box(-5, 5, (2, 3), np.float64),
    "Alone": spaces.Box(-5, 5, (3,), np.float32),
}
MADE = {name: type(name, (Goals,), {"goal": goal, "together": name != "Alone"}) for name, goal in GOALS.items()}
for name, made in MADE.items():
    gymnasium.register(f"Goals{name}-v0", entry_point=made, max_episode_steps=6)


@pytest.mark.parametrize("name", GOALS)
def test_the_environment_gets_goals_in_its_own_form(tmp_path, monkeypatch, name):
    """As many as it takes at a time: one where it does not take more."""
    loop = collected(tmp_path, env={"task": f"Goals{name}-v0"}, goal_relabelling="future")
    learner, memory = loop.learner, loop.learner.memory
    assert learner.steps > 0
    shown = memory.rows("observations")
    own = [own_values(shown[key].astype(np.float32), GOALS[name]) for key in ("achieved_goal", "desired_goal")]
    expected = [-abs(np.asarray(one, float) - other).sum() for one, other in zip(*own, strict=True)]
    np.testing.assert_allclose(
        learner.goal_rewards.rewards(shown["achieved_goal"], shown["desired_goal"]), expected, rtol=1e-5
    )
    rows = memory.transitions
    np.testing.assert_allclose(memory.paid["env"]["reward"][rows], np.array(expected)[rows], rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(MADE[name], "scale", np.nan)
    with pytest.raises(NonFiniteError, match="compute_reward of the environment gave a reward that is not finite"):
        learner.goal_rewards.rewards(shown["achieved_goal"], shown["desired_goal"])
    loop.close()


class Tenth(gymnasium.Wrapper):
    """Rewards are a tenth."""

    def step(self, action):
        shown, reward, *rest = super().step(action)
        return shown, reward / 10, *rest


class OwnTenth(Tenth):
    def compute_reward(self, achieved, desired, info):
        return self.unwrapped.compute_reward(achieved, desired, info) / 10


class Other(MADE["Discrete"]):
    """What is achieved is of another space than what is desired."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.observation_space["achieved_goal"] = spaces.Discrete(5, start=3)

    def shown(self):
        return {**super().shown(), "achieved_goal": self.observation_space["achieved_goal"].sample()}


class Closing(MADE["Matrix"]):
    """It needs its simulator for rewards, which do not exist for some goals."""

    simulator = True

    def compute_reward(self, achieved, desired, info):
        assert self.simulator
        if np.any(np.asarray(desired) == 5):
            raise ValueError("out of reach")
        return super().compute_reward(achieved, desired, info)

    def close(self):
        self.simulator = None


@pytest.fixture
def registered(monkeypatch):
    """Registers an environment, named by its class, for a test."""
    monkeypatch.setattr("gymnasium.envs.registration.registry", dict(gymnasium.registry))

    def made(kind, inner=None):
        entry = kind if inner is None else lambda render_mode=None: kind(inner())
        gymnasium.register("GoalsMade-v0", entry_point=entry, max_episode_steps=6)
        return {"task": "GoalsMade-v0"}

    return made


def test_rewards_of_a_wrapper_are_those_of_its_own_function(tmp_path, registered):
    loop = collected(tmp_path, env=registered(OwnTenth, MADE["Matrix"]), goal_relabelling="future")
    memory, learner = loop.learner.memory, loop.learner
    shown, rows = memory.rows("observations"), memory.transitions
    paid = learner.goal_rewards.rewards(shown["achieved_goal"][rows], shown["desired_goal"][rows])
    np.testing.assert_allclose(memory.paid["env"]["reward"][rows], paid, rtol=1e-4)
    loop.close()


@pytest.mark.parametrize(
    ("kind", "inner", "reason"),
    [
        (Tenth, MADE["Matrix"], r"a step paid -\S+, and compute_reward of its goals is -\S+, so"),
        (Other, None, r"achieved_goal is of Discrete\(5, start=3\), desired_goal of Discrete\(5, start=-1\)"),
    ],
)
def test_goals_whose_rewards_would_be_others_are_refused(tmp_path, registered, kind, inner, reason):
    with refuses("algorithm.goal_relabelling", reason):
        collected(tmp_path, env=registered(kind, inner), goal_relabelling="future")


def test_rewards_may_need_the_simulator_and_fail(tmp_path, registered):
    loop = collected(tmp_path, env=registered(Closing), goal_relabelling="future")
    goals = np.full((3, 6), 4.0, np.float32)
    assert loop.learner.goal_rewards.rewards(goals, goals).tolist() == [0, 0, 0]
    with refuses("algorithm.goal_relabelling", r"compute_reward\(.*\) failed: ValueError: out of reach"):
        loop.learner.goal_rewards.rewards(goals, goals + 1)
    loop.close()


class Pair(gymnasium.Env):
    """Two numbers that move towards an action; its reward takes the numbers of a goal one by one."""

    render_mode = "rgb_array"

    def __init__(self, render_mode=None):
        two = spaces.Box(-1, 1, (2,), np.float32)
        self.observation_space = spaces.Dict(observation=two, achieved_goal=two, desired_goal=two)
        self.action_space = two

    def shown(self):
        return {"observation": self.here, "achieved_goal": self.here, "desired_goal": self.goal}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.here, self.goal = self.np_random.uniform(-1, 0.5, (2, 2)).astype(np.float32)
        self.goal[0] = 1.0  # a first step does not reach it
        return self.shown(), {}

    def step(self, action):
        self.here = (0.8 * self.here + 0.2 * action).astype(np.float32)
        reached = self.compute_terminated(self.here, self.goal, {})
        return self.shown(), float(self.compute_reward(self.here, self.goal, {})), reached, False, {}

    def render(self):
        return np.zeros((16, 16, 3), np.uint8)

    def compute_reward(self, achieved, desired, info):
        apart = np.hypot(achieved[0] - desired[0], achieved[1] - desired[1])
        return (apart < 0.3).astype(np.float32)

    def compute_terminated(self, achieved, desired, info):
        assert np.shape(achieved) == (2,)
        return bool(np.hypot(*(achieved - desired)) < 0.3)


def test_a_reward_for_one_goal_is_not_asked_for_as_many_as_a_goal_has_numbers(tmp_path, registered):
    loop = collected(tmp_path, env=registered(Pair), goal_relabelling="future")
    goals = np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.2]], np.float32)
    assert loop.learner.goal_rewards.rewards(goals, np.zeros_like(goals)).tolist() == [1, 0, 1]
    loop.close()


def test_the_task_ends_where_the_environment_says_so_of_another_goal(tmp_path, registered):
    """Else the value of a goal that is reached goes on, though no episode does."""
    loop = collected(tmp_path, env=registered(Pair), goal_relabelling="future")
    learner, memory = loop.learner, loop.learner.memory
    drawn = learner._draw(20)
    (taken,) = (one.goals >= 0 for one in drawn)
    batches = list(gathered(learner.policy, drawn, learner.outputs, learner.terms, learner.goal_rewards))
    goes_on = np.stack([one.goes_on[:, 0].numpy() for one in batches])
    paid = np.stack([one.rewards[:, 0].numpy() for one in batches])
    assert (paid[taken] == 1).any()
    assert np.array_equal(goes_on[taken] == 0, paid[taken] == 1)
    assert np.array_equal(goes_on[~taken] == 0, memory.terminated(drawn[0].rows[~taken]))
    loop.close()


def test_ends_that_fail_for_other_goals_are_an_error_of_the_environment(tmp_path, registered):
    class Informed(Pair):
        reads_info = False

        def compute_terminated(self, achieved, desired, info):
            return info["near"] if self.reads_info else super().compute_terminated(achieved, desired, info)

    loop = collected(tmp_path, env=registered(Informed), goal_relabelling="future")
    Informed.reads_info, goals = True, np.zeros((3, 2), np.float32)
    with refuses(
        "algorithm.goal_relabelling", r"compute_terminated\(achieved_goal, desired_goal, \{\}\) failed: .*near"
    ):
        loop.learner.goal_rewards.ends(goals, goals)
    loop.close()


def test_an_environment_that_says_nothing_of_ends_goes_on(tmp_path):
    loop = collected(tmp_path, goal_relabelling="future")
    goals = np.zeros((3, 1), np.float32)
    assert loop.learner.goal_rewards.ends(goals, goals).tolist() == [False] * 3
    loop.close()


def test_a_run_with_goals_learns_to_reach_them(tmp_path):
    given = {"learning_rate": 3e-3, "gamma": 0.9, "rollout_steps": 20, "temperature_init": 0.1}
    _, summary = run(study(tmp_path, steps=2400, goal_relabelling="future", **given))
    assert summary["final"]["success"] >= 0.75


def test_a_model_alone_knows_no_reward_for_another_goal(tmp_path):
    with refuses("algorithm.goal_relabelling"):
        study(tmp_path, reward=reader_reward(), goal_relabelling="future")


@pytest.mark.parametrize(
    ("env", "given", "key", "reason"),
    [
        ({}, {"goal_ratio": 0.5}, "goal_ratio", "would do nothing without goal_relabelling"),
        (
            {"native_reward": "sparse"},
            {"goal_relabelling": "final"},
            "algorithm.goal_relabelling",
            "set env.native_reward to dense",
        ),
        ({"frame_stack": 2}, {"goal_relabelling": "final"}, "algorithm.goal_relabelling", "goals of one moment"),
        (
            {"task": "tiny_world:Dot-v1"},
            {"goal_relabelling": "final"},
            "algorithm.goal_relabelling",
            "for environments that show achieved_goal",
        ),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, env, given, key, reason):
    with refuses(key, reason):
        start(study(tmp_path, env=env, **given))


EFFORT = {"task": "goal_world:GoalEffort-v1"}


def test_a_reward_that_reads_info_stops_the_run_at_the_first_rollout(tmp_path):
    """The first step of an episode agrees with an empty info."""
    with refuses("algorithm.goal_relabelling"):
        collected(tmp_path, env=EFFORT, goal_relabelling="future")


@pytest.mark.parametrize("vectorization", ["sync", "async"])
@pytest.mark.parametrize("shards", [1, 2])
def test_kept_info_is_that_of_the_transition(tmp_path, vectorization, shards):
    given = study(
        tmp_path, env={**EFFORT, "vectorization": vectorization}, goal_relabelling="future", keep_info=["effort"]
    )
    runner = given.runner.model_copy(update={"rollout_shards": shards})
    loop = start(given.model_copy(update={"runner": runner}), reader="own")
    for _ in range(3):
        loop.iterate()
    learner, memory = loop.learner, loop.learner.memory
    shown, effort, rows = memory.rows("observations"), memory.rows("info.effort"), memory.transitions
    assert effort.shape == (len(memory), 2)
    own = -(abs(shown["achieved_goal"] - shown["desired_goal"])[:, 0] > 0.1).astype(float) - effort[:, 1]
    np.testing.assert_allclose(memory.paid["env"]["reward"][rows], own[rows], atol=1e-5)
    (drawn,) = learner._draw(6)
    batch = next(iter(gathered(learner.policy, [drawn], learner.outputs, learner.terms, learner.goal_rewards)))
    taken, at = drawn.goals[0] >= 0, drawn.rows[0]
    desired = shown["achieved_goal"][drawn.goals[0][taken]]
    wanted = -(abs(shown["achieved_goal"][at[taken]] - desired)[:, 0] > 0.1).astype(float) - effort[at[taken], 1]
    np.testing.assert_allclose(batch.rewards[taken, 0], wanted, atol=1e-5)
    loop.close()


@pytest.mark.parametrize(
    ("value", "reason"),
    [("no", "is 'no', no numbers"), (None, "is not there; the environment reports"), ("grows", "has shape .* another")],
)
def test_info_that_cannot_be_kept_is_named(tmp_path, registered, value, reason):
    class Odd(MADE["Matrix"]):
        def step(self, action):
            *found, _ = super().step(action)
            self.age = getattr(self, "age", 0) + 1
            return *found, ({} if value is None else {"x": np.zeros(self.age) if value == "grows" else value})

    with refuses("algorithm.keep_info", reason):
        collected(tmp_path, env=registered(Odd), goal_relabelling="future", keep_info=["x"])


def test_ends_that_are_not_those_of_the_environment_stop_the_run(tmp_path, registered):
    class Falls(Pair):
        def step(self, action):
            shown, reward, reached, cut, info = super().step(action)
            self.age = getattr(self, "age", 0) + 1
            return shown, reward, reached or self.age == 4, cut, info

    with refuses("algorithm.goal_relabelling", "a step ended the task"):
        collected(tmp_path, env=registered(Falls), goal_relabelling="future")


class Silent(Pair):
    """It does not say where other goals end the task; at its own it does, or does not."""

    compute_terminated = property()
    ends, start = True, 0.1

    def reset(self, *, seed=None, options=None):
        found = super().reset(seed=seed, options=options)
        self.goal[:] = self.here + 0.4  # one or two steps away
        return self.shown(), found[1]

    def step(self, action):
        self.here = (self.here + 0.3 * np.abs(action)).astype(np.float32)
        reward = float(self.compute_reward(self.here, self.goal, {}))
        return self.shown(), reward, self.ends and reward == 1, False, {}


@pytest.mark.parametrize("ends", [True, False])
def test_goals_that_always_ended_the_task_do_so_in_hindsight(tmp_path, registered, ends):
    kind = type("Kind", (Silent,), {"ends": ends})
    loop = collected(tmp_path, env=registered(kind), goal_relabelling="future")
    learner, memory = loop.learner, loop.learner.memory
    reached = memory.paid["env"]["reward"][memory.transitions] == 1
    over = memory.rows("terminated")[memory.transitions]
    rule = learner.goal_rewards
    assert (rule.reached_over, rule.reached_on) == ((reached & over).sum(), (reached & ~over).sum())
    assert reached.sum() >= 5
    drawn = learner._draw(20)
    (taken,) = (one.goals >= 0 for one in drawn)
    batches = list(gathered(learner.policy, drawn, learner.outputs, learner.terms, rule))
    goes_on = np.stack([one.goes_on[:, 0].numpy() for one in batches])
    paid = np.stack([one.rewards[:, 0].numpy() for one in batches])
    assert (paid[taken] == 1).any()
    if ends:
        assert np.array_equal(goes_on[taken] == 0, (paid[taken] == 1) | memory.terminated(drawn[0].rows[taken]))
    else:
        assert (goes_on[taken] == 1).all()
    tensors, values = learner.state()
    rule.reached_over = rule.reached_on = 0
    learner.restore(tensors, values)
    assert (rule.reached_over, rule.reached_on) == ((reached & over).sum(), (reached & ~over).sum())
    loop.close()


def test_four_ends_are_not_enough_and_one_that_goes_on_is_too_much():
    goals = np.zeros((2, 2), np.float32)
    for over, on, expected in ((4, 0, False), (5, 0, True), (50, 1, False)):
        rule = GoalRewards(lambda a, d, i: np.ones(len(a), np.float32), None, reached_over=over, reached_on=on)
        assert rule.ends(goals, goals).tolist() == [expected] * 2
