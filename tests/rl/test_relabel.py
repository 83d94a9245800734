"""Rewards of a replay are those of the model as it is: compared with measuring everything again at each update."""

from dataclasses import replace

import numpy as np
import pytest

from guerdon.collect.control import ControlCollector
from guerdon.engines.reward_models import RewardModels
from guerdon.rl.build_control import build_control_sources, load_model
from guerdon.rl.replay import Replay, relabel, remember
from guerdon.types import Failure, Score
from rl_clock import clock_study, register_clock
from rl_models import image_reward
from tables import first

pytestmark = pytest.mark.usefixtures("narrow_resnets")


def parts(tmp_path, *, arch="mlp", **given):
    """A collector of the clock, a source that is refitted, and a replay."""
    register_clock()
    reward = image_reward(tmp_path, arch=arch, **given)
    reward["model"]["update_params"]["every"] = 1
    study = clock_study(tmp_path, env={"num_envs": 2}, reward=reward)
    (source,) = build_control_sources(study, RewardModels(load_model, 1)).values()
    source.model.model.even = True
    collector = ControlCollector(
        study.env, study.control_policy, seed=1, rollout_steps=7, algorithm="sac", observes=[source.observes]
    )
    return collector, source, Replay(tmp_path / "rows", [source.name])


def fails(source, chosen):
    """Let the model fail on the states that are chosen, by step and version."""
    plain = source.model.model.score

    def score(episodes):
        found = plain(episodes)
        for n, episode in enumerate(episodes):
            if episode.states is not None and any(chosen(int(s[0]), source.version) for s in episode.states):
                found[n] = Score(failure=Failure("broken"))
        return found

    source.model.score = score


class History:
    """Whole episodes as they were seen, and the rows that the replay gave them."""

    def __init__(self):
        self.episodes, self.open = [], {}

    def add(self, rollout, after):
        for segment in rollout.segments:
            own = self.open.setdefault(segment.stream, ([], []))
            own[0].append(segment)
            own[1].extend(after[segment.stream, segment.start : segment.end + 1].tolist())
            if segment.finished:
                self.episodes.append(self.open.pop(segment.stream))

    def rewards(self, source):
        """Row to reward and whether it is missing, each measured now, episode by episode."""
        found = {}
        for segments, rows in [*self.episodes, *self.open.values()]:
            joined = {
                name: np.concatenate([getattr(s, name) for s in segments if len(s)])
                for name in ("rows_F", "last_F", "frames_F", "states_F", "actions_F")
                if any(len(s) for s in segments)
            }
            if not joined:
                found |= dict.fromkeys(rows, (0.0, False))
                continue
            whole = replace(
                segments[0], stream=0, start=0, end=len(rows) - 1, terminated=segments[-1].terminated,
                finished=segments[-1].finished, steps_F=joined["rows_F"] - 1,
                success_F=(None,) * len(joined["rows_F"]), **joined,
            )  # fmt: skip
            paid = source.elsewhere(1).rewards_of([whole], (1, max(len(rows), 1)))
            found |= {row: (paid.values[0, k], paid.failed[0, k]) for k, row in enumerate(rows)}
        return found


SHAPINGS = {
    "raw": {"shaping": "raw", "score_every": 2},
    "threshold": {"shaping": "threshold"},
    "relative": {"shaping": "relative", "score_every": 2},
    "potential": {"shaping": "potential", "score_every": 3, "reward_coef": 0.5},
    "bonus": {"shaping": "bonus", "confirm_frames": 1},
    "terminal": {"reward_mode": "terminal", "shaping": "threshold"},
}


@pytest.mark.parametrize("update", first(["before", "after"], 1))
@pytest.mark.parametrize("name", SHAPINGS)
def test_equal_to_the_bit_with_measuring_everything_at_each_update(tmp_path, name, update):
    collector, source, replay = parts(tmp_path, update=update, **SHAPINGS[name])
    fails(source, lambda step, version: (3 * step + version) % 5 == 0)
    policy, history, rng = collector.build_policy(), History(), np.random.default_rng(0)
    for _ in range(6):
        rollout = collector.collect(policy)
        if update == "before":
            source.learn(rollout)
        found = source.measure(rollout)
        after, first = replay.add(rollout, rollout.actions, {source.name: found})
        remember(replay, source, rollout, found, after, first)
        history.add(rollout, after)
        rows = rng.choice(replay.transitions, 10)
        relabel(replay, source, rows)
        wanted, paid = history.rewards(source), replay.paid[source.name]
        for row in rows.tolist():
            assert (paid["reward"][row], paid["failed"][row]) == wanted[row]
        if update == "after":
            source.learn(rollout)


@pytest.mark.parametrize("arch", first(["mlp", "resnet18"], 1))
def test_no_reward_of_an_older_version_is_used(tmp_path, arch):
    collector, source, replay = parts(tmp_path, arch=arch, shaping="raw")
    rollout = collector.collect(collector.build_policy())
    found = source.measure(rollout)
    after, first = replay.add(rollout, rollout.actions, {source.name: found})
    remember(replay, source, rollout, found, after, first)
    paid, rows = replay.paid[source.name], replay.transitions
    before = paid["reward"][rows].copy()
    assert relabel(replay, source, rows)["relabelled"] == 0, "these are current"
    plain = source.model.model.score
    source.model.score = lambda episodes: [Score.from_values(1.0 - one.steps) for one in plain(episodes)]
    source.settings = source.settings.model_copy(update={"shaping": "log_odds"})  # the sign of the reward
    source.model.updates += 1  # a refit that turns every value around
    some = rows[:5]
    assert relabel(replay, source, np.repeat(some, 3))["relabelled"] == 5, "each once, the others not at all"
    assert np.array_equal(np.sign(paid["reward"][some]), np.sign(0.5 - before[:5]))
    assert relabel(replay, source, some)["relabelled"] == 0, "values are kept by version and row"
    assert np.array_equal(paid["version"][rows[5:]], np.full(len(rows) - 5, source.version - 1))


def test_a_failed_measurement_is_masked_until_the_next_version(tmp_path):
    collector, source, replay = parts(tmp_path, shaping="raw")
    fails(source, lambda step, version: version == 0)
    rollout = collector.collect(collector.build_policy())
    found = source.measure(rollout)
    after, first = replay.add(rollout, rollout.actions, {source.name: found})
    remember(replay, source, rollout, found, after, first)
    paid, rows = replay.paid[source.name], replay.transitions
    assert paid["failed"][rows].all()
    assert relabel(replay, source, rows)["relabelled"] == 0, "it was measured by this version"
    source.model.updates += 1
    assert relabel(replay, source, rows) == {"relabelled": len(rows), "relabel_failed": 0.0}
    assert not paid["failed"][rows].any()
