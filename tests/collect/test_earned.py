"""Returns of training episodes from inside a rollout: in the line of progress before the rollout is over."""

from types import SimpleNamespace

import numpy as np
import pytest

from guerdon.collect import control
from guerdon.processes.progress import ProgressBar, tell
from rl_clock import clock_study, interrupted, lines, start


@pytest.fixture
def told(monkeypatch):
    """The texts of a rollout, each as soon as an episode ends."""
    texts = []
    monkeypatch.setattr(control, "TOLD_EVERY", 0.0)
    monkeypatch.setattr(control, "tell", texts.append)
    return texts


def transition(rewards, done=(), failures=()):
    ended = np.zeros(len(rewards), np.bool_)
    ended[list(done)] = True
    return SimpleNamespace(rewards=np.array(rewards, np.float32), done=ended, failures=dict.fromkeys(failures))


def test_only_whole_episodes_count(told):
    earned, none = control.Earned(3), np.zeros(3, np.bool_)
    earned.begin(known=False)
    earned.add(transition([1, 1, 1], done=[0]), none)
    assert told == [], "what it earned before is not known"
    earned.add(transition([2, 2, 2], done=[0], failures=[1]), none)
    assert told == ["episodes in this rollout 1, mean return 2"]
    earned.add(transition([4, 4, 4], done=[1, 2]), none)
    assert told[1:] == ["episodes in this rollout 2, mean return 3"], "an episode that was lost is left out"
    earned.next_rollout()
    earned.add(transition([8, 8, 8], done=[0, 1]), np.array([True, False, False]))
    assert told[2:] == ["episodes in this rollout 1, mean return 8"], "one that is no part of the rollout, too"


def test_the_numbers_of_a_rollout_are_those_of_its_episodes(tmp_path, told):
    study = clock_study(tmp_path, env={"native_reward": "dense"}, algorithm={"rollout_steps": 30, "minibatch_size": 20})
    start(study).run()
    paid = {}
    for row in lines(study, "episodes"):
        paid.setdefault(row["step"], []).append(row["return/env"])
    wanted = [f"episodes in this rollout {len(one)}, mean return {np.mean(one):.4g}" for one in paid.values()]
    assert [text for text in told if text in wanted] == wanted
    assert len(told) > len(wanted), "before the rollout was over"


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
