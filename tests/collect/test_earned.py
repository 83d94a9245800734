"""Steps and returns from inside a rollout: in the line of progress before the rollout is over."""

from types import SimpleNamespace

import numpy as np
import pytest
from test_shards import collectors
from test_shards import study as corridor_study

from guerdon.collect import control, rollout_progress
from guerdon.collect.rollout_progress import RolloutProgress
from guerdon.collect.shards import ShardedCollector, join_control
from guerdon.processes.progress import ProgressBar, tell
from rl_clock import clock_study, interrupted, lines, start


@pytest.fixture
def told(monkeypatch):
    """The texts of a rollout, after every step."""
    texts = []
    monkeypatch.setattr(control, "TOLD_EVERY", 0.0)
    monkeypatch.setattr(rollout_progress, "tell", texts.append)
    return texts


def transition(rewards, done=(), failures=(), resets=()):
    ended, acted = np.zeros(len(rewards), np.bool_), np.ones(len(rewards), np.bool_)
    ended[list(done)] = True
    acted[[*failures, *resets]] = False
    return SimpleNamespace(
        rewards=np.array(rewards, np.float32), done=ended, mask=acted, failures=dict.fromkeys(failures)
    )


def test_only_whole_episodes_count(told):
    earned = control.Earned(3)
    earned.begin(known=False)
    earned.add(transition([1, 1, 1], done=[0]), None)
    assert told == ["this rollout: steps 3"], "what it earned before is not known"
    earned.add(transition([2, 2, 2], done=[0], failures=[1]), None)
    assert told[1:] == ["this rollout: steps 6, episodes 1, mean return 2"]
    earned.add(transition([4, 4, 0], done=[1], resets=[2]), None)
    assert told[2:] == ["this rollout: steps 8, episodes 2, mean return 3"], "an episode that was lost is left out"
    earned.next_rollout()
    earned.add(transition([8, 8, 8], done=[0, 1], failures=[2]), np.array([True, False, True]))
    assert told[3:] == ["this rollout: steps 1, episodes 1, mean return 8"], "so is one that is no part of the rollout"


def test_the_numbers_of_a_rollout_are_those_of_its_episodes(tmp_path, told):
    study = clock_study(tmp_path, env={"native_reward": "dense"}, algorithm={"rollout_steps": 30, "minibatch_size": 20})
    start(study).run()
    paid = {}
    for row in lines(study, "episodes"):
        paid.setdefault(row["step"], []).append(row["return/env"])
    done, wanted = 0, []
    for step, returns in paid.items():
        wanted.append(str(RolloutProgress(step - done, len(returns), sum(returns))))
        done = step
    assert [text for text in told if text in wanted] == wanted
    assert len(told) > len(wanted), "before the rollout was over"


def test_shards_are_one_rollout(told):
    collector = ShardedCollector(collectors(corridor_study()), join_control)
    rollout = collector.collect(collector.collectors[0].build_policy())
    steps = [int(text.split()[3].strip(",")) for text in told]
    assert steps == sorted(steps)
    assert len(set(steps)) > 12, "each of twelve steps in both shards but resets"
    done = rollout.terminated | rollout.truncated
    assert told[-1].startswith(f"this rollout: steps {rollout.steps}, episodes {done.sum()}, ")


def test_after_a_resume_episodes_that_were_under_way_are_left_out(tmp_path, told):
    study = clock_study(tmp_path, env={"native_reward": "dense"})
    interrupted(study, "update", 4)
    told.clear()
    start(study, resume=True).run()
    assert "nan" not in " ".join(told)
    assert told


def test_a_text_stands_beside_the_newest_bar():
    tell("nothing without a bar")
    outer, inner = ProgressBar(10), ProgressBar(100, what="environment steps")
    try:
        inner.advance(20, "return 3")
        tell("mean return 4")
        assert str(inner) == "environment steps 20/100: mean return 4"
        assert str(outer) == "steps 0/10"
    finally:
        inner.close()
        outer.close()
