"""Curricula: the two formulas by hand, what they prefer, and that their state is all that decides."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.worlds.starts import Curriculum, Playing, Rotation, Start, state_probabilities, task_probabilities

RATES = st.lists(st.floats(0, 1), min_size=2, max_size=8).map(np.array)


def curriculum(over="tasks", count=3, **more):
    names = [f"task {k}" for k in range(count)]
    return Curriculum(names, names=names, seed=5, over=over, **more)


def test_tasks_by_hand():
    # distances 0.5, 0 and 0.1: exp(-12.5), 1 and exp(-0.5)
    scores = np.array([np.exp(-12.5), 1.0, np.exp(-0.5)])
    assert np.allclose(task_probabilities(np.array([0.0, 0.5, 0.6]), 0.02), scores / scores.sum(), rtol=1e-12)


def test_states_by_hand():
    # distances 0.5, 0.25 and 0.5 give weights 2, 4 and 2; with temp 2 their roots
    rates = np.array([0.0, 0.75, 1.0])
    assert np.allclose(state_probabilities(rates, 1.0, 0.0), [0.25, 0.5, 0.25], rtol=1e-8)
    roots = np.sqrt([2.0, 4.0, 2.0])
    assert np.allclose(state_probabilities(rates, 2.0, 0.0), roots / roots.sum(), rtol=1e-8)
    # a floor of 0.9 / 3: (0.3, 0.5, 0.3) / 1.1
    assert np.allclose(state_probabilities(rates, 1.0, 0.9), np.array([0.3, 0.5, 0.3]) / 1.1, rtol=1e-8)


def test_a_start_that_succeeds_half_of_the_time_takes_nearly_all_draws_at_temp_1():
    assert state_probabilities(np.array([0.5, 0.0, 0.0]), 1.0, 0.0)[0] > 0.999999


@given(RATES, st.floats(1e-3, 10))
def test_probabilities_of_tasks(rates, tau):
    found = task_probabilities(rates, tau)
    assert found.sum() == pytest.approx(1.0)
    nearer = np.abs(rates[:, None] - 0.5) < np.abs(rates[None] - 0.5)
    assert (found[:, None] >= found[None])[nearer].all()
    assert np.allclose(task_probabilities(1 - rates, tau), found)  # success and failure count alike


@given(RATES, st.floats(0.1, 10), st.floats(0, 1))
def test_probabilities_of_states(rates, temp, floor):
    found = state_probabilities(rates, temp, floor)
    assert found.sum() == pytest.approx(1.0)
    assert (found >= floor / len(rates) / (1 + floor) - 1e-12).all()  # the floor, after what it added is divided out


def test_the_running_mean_begins_at_one_half_and_moves_by_a_hundredth():
    found = curriculum()
    found.report(Start(1, None), True)
    found.report(Start(1, None), True)
    found.report(Start(2, None), False)
    assert found.success == pytest.approx([0.5, 0.99 * (0.99 * 0.5 + 0.01) + 0.01, 0.495])
    metrics = found.metrics()
    assert metrics["curriculum/task 1/success"] == pytest.approx(0.50995)
    assert sum(metrics[f"curriculum/task {k}/probability"] for k in range(3)) == pytest.approx(1.0)


def test_tasks_near_one_half_are_drawn_more_often():
    found = curriculum(ema_alpha=0.9)
    for _ in range(40):
        found.report(Start(0, None), False)
        found.report(Start(2, None), True)
    drawn = np.bincount([found.next(turn).task for turn in range(400)], minlength=3)
    assert drawn[1] > 390
    assert found.sampled.tolist() == drawn.tolist()
    assert found.metrics()["curriculum/task 1/sampled"] == drawn[1]


def test_states_are_learnt_every_ten_episodes_and_tasks_come_in_turn():
    found = curriculum("states", count=2, states=4, min_prob=0.2)
    assert [found.next(turn).task for turn in range(4)] == [0, 1, 0, 1]
    assert found.metrics()["curriculum/task 0/state_success"] is None
    for n in range(9):
        found.report(Start(0, 3), n % 2 == 0)
    early = [found.next(0).number for _ in range(40)]
    found.report(Start(0, 3), False)  # the tenth: 5 of 10 succeeded
    late = [found.next(0).number for _ in range(40)]
    assert set(early) == {0, 1, 2, 3}
    assert late.count(3) > 30
    assert {found.next(1).number for _ in range(60)} == {0, 1, 2, 3}  # the other task has learnt nothing
    assert found.metrics()["curriculum/task 0/states_played"] == 1
    assert found.metrics()["curriculum/task 0/state_success"] == 0.5
    assert "curriculum/task 0/probability" not in found.metrics()


def test_both_draw_both():
    found = curriculum("both", states=3)
    drawn = {found.next(0) for _ in range(200)}
    assert drawn == {Start(task, number) for task in range(3) for number in range(3)}


def test_numbered_starts_of_a_task_follow_each_other():
    found = curriculum(ordered=True)
    drawn = [found.next(turn) for turn in range(60)]
    for task in range(3):
        numbers = [start.number for start in drawn if start.task == task]
        assert numbers == list(range(len(numbers)))


def test_parts_that_take_all_results_have_learned_what_one_curriculum_has():
    parts = [curriculum("both", states=3, shard=k, shards=2) for k in range(2)]
    whole = curriculum("both", states=3)
    for rollout in range(4):
        for k, part in enumerate(parts):
            for turn in range(7 + k):
                start = part.next(turn)
                part.report(start, (start.task + turn + rollout) % 2 == 0)
        results = [json.loads(json.dumps(part.state_dict()))["results"] for part in parts]
        assert [len(one) for one in results] == [7, 8]
        for part in parts:
            part.take(results)
        for task, number, success in [*results[0], *results[1]]:
            whole.report(Start(task, number), success)
        for part in parts:
            assert np.array_equal(part.success, whole.success)
            assert np.array_equal(part.successes, whole.successes)
            assert np.array_equal(part.probabilities, whole.probabilities)
            assert part.state_dict()["state_probabilities"] == whole.state_dict()["state_probabilities"]


def test_numbered_starts_are_shared_out_to_parts():
    parts = [curriculum(ordered=True, shard=k, shards=2) for k in range(2)]
    for k, part in enumerate(parts):
        drawn = [part.next(turn) for turn in range(30)]
        for task in range(3):
            numbers = [start.number for start in drawn if start.task == task]
            assert numbers == list(range(k, 2 * len(numbers), 2))


@pytest.mark.parametrize("over", ["tasks", "states", "both"])
def test_a_restored_curriculum_goes_on_alike(over):
    def play(one, count):
        drawn = []
        for turn in range(count):
            drawn.append(one.next(turn))
            one.report(drawn[-1], drawn[-1].task == 1 or turn % 3 == 0)
        return drawn

    whole, again = curriculum(over, states=5), curriculum(over, states=5)
    play(whole, 33)
    again.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    assert play(again, 30) == play(whole, 30)
    assert again.metrics() == whole.metrics()


def test_a_rotation_plays_every_task_equally_often():
    plain, numbered = Rotation("abc"), Rotation("abc", ordered=True)
    assert [plain.next(turn) for turn in range(4)] == [Start(0, None), Start(1, None), Start(2, None), Start(0, None)]
    assert [numbered.next(turn) for turn in range(2, 5)] == [Start(2, 0), Start(0, 1), Start(1, 1)]


class Heard(Rotation):
    def __init__(self):
        super().__init__("abc")
        self.reports = []

    def report(self, start, success):
        self.reports.append((start.task, success))


def flags(*copies, count=4):
    return np.isin(np.arange(count), copies)


def test_what_is_reported_is_success_at_any_step_of_a_whole_episode():
    heard = Heard()
    playing = Playing(heard, 4, 1)
    playing.begin_all(np.zeros(4, dtype=np.int64))
    assert playing.tasks == [0, 1, 2, 0]
    playing.step(flags(0), flags(0, 1, 2, 3), flags(), flags())
    playing.step(flags(), flags(0, 1), flags(0, 1, 2), flags(3))  # copy 2 does not say, copy 3 is lost
    assert heard.reports == [(0, True), (1, False)]
    playing.begin(flags(0, 1, 2, 3), np.ones(4, dtype=np.int64))
    assert playing.tasks == [1, 2, 0, 1]
    assert playing.texts == ("b", "c", "a", "b")
    playing.step(flags(), flags(0), flags(0), flags())
    assert heard.reports[2:] == [(1, False)]  # the success of copy 0 was of its last episode


def test_copies_of_a_group_begin_alike_and_report_one_episode_each():
    heard = Heard()
    playing = Playing(heard, 4, 2)
    playing.begin_all(np.full(4, 5))
    assert playing.tasks == [1, 1, 2, 2]  # groups 10 and 11
    everything = flags(0, 1, 2, 3)
    playing.step(flags(0), everything, flags(0, 2), flags(3))
    playing.begin(flags(0, 2, 3), np.full(4, 6))
    assert playing.tasks == [1, 1, 2, 2]
    playing.step(everything, everything, everything, flags())
    assert heard.reports == [(1, True), (2, False), (1, True)]  # copy 3 was lost, 0 and 2 had theirs
