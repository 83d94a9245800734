import numpy as np
import pytest

from guerdon.collect.observed_frames import ObservedRow, cut_into_segments


def look(t, *, env=0, first=False, last=False, episode=0):
    return ObservedRow(env, t, episode, 0 if first else 1, last, False)


def cut(rows, ends, steps=6, terminated=(), mask=None, copies=1):
    done = np.zeros((copies, steps), dtype=np.bool_)
    term = done.copy()
    for env, t in ends:
        done[env, t] = True
    for env, t in terminated:
        term[env, t] = True
    mask = np.ones_like(done) if mask is None else mask
    frames = np.arange(len(rows), dtype=np.uint8)[:, None, None, None] * np.ones((1, 1, 1, 3), np.uint8)
    return cut_into_segments(
        rows, frames, [[f"task {env}" for env in range(copies)]] * (mask.shape[1] + 1), mask, term, done
    )


def spans(segments):
    return [(s.stream, s.start, s.end, s.finished, s.terminated) for s in segments]


def test_a_rollout_is_cut_at_episode_ends():
    segments = cut([look(0), look(2, last=True), look(2, first=True, episode=1), look(4, episode=1)], [(0, 2)])
    assert spans(segments) == [(0, 0, 2, True, False), (0, 3, 5, False, False)]
    assert [segment.steps_F.tolist() for segment in segments] == [[0, 2], [2, 4]]
    assert [segment.number for segment in segments] == [0, 1]
    assert [segment.frames_F[:, 0, 0, 0].tolist() for segment in segments] == [[0, 1], [2, 3]]


def test_stretches_that_nobody_saw_are_segments_too():
    segments = cut([], [(0, 2)], terminated=[(0, 2)])
    assert spans(segments) == [(0, 0, 2, True, True), (0, 3, 5, False, False)]
    assert all(segment.number is None and len(segment) == len(segment.frames_F) == 0 for segment in segments)


def test_an_episode_that_only_just_began_ends_before_it_starts():
    segments = cut([look(5, last=True), look(5, first=True, episode=1)], [(0, 5)])
    assert spans(segments) == [(0, 0, 5, True, False), (0, 6, 5, False, False)]
    assert segments[1].rows_F.tolist() == [0]


def test_the_very_first_moment_belongs_to_the_first_stretch():
    segments = cut([look(-1, first=True), look(0, last=True)], [(0, 0)])
    assert segments[0].steps_F.tolist() == [-1, 0]
    assert spans(segments)[0] == (0, 0, 0, True, False)


@pytest.mark.parametrize("end", [2, 4])
def test_a_reset_that_takes_a_step_is_part_of_no_episode(end):
    mask = np.ones((1, 6), dtype=np.bool_)
    mask[0, end + 1] = False  # NEXT_STEP: the step after the end is a reset, and its picture the first moment
    segments = cut([look(end, last=True), look(end + 1, first=True, episode=1)], [(0, end)], mask=mask)
    assert spans(segments) == [(0, 0, end, True, False), (0, end + 2, 5, False, False)]
    assert segments[1].rows_F.tolist() == [0]


def test_copies_are_kept_apart():
    segments = cut([look(1, env=1), look(1, env=0)], [(1, 3)], copies=2)
    assert spans(segments) == [(0, 0, 5, False, False), (1, 0, 3, True, False), (1, 4, 5, False, False)]
    assert [len(s) for s in segments] == [1, 1, 0]
    assert [s.task for s in segments] == ["task 0", "task 1", "task 1"]


def test_what_follows_the_one_episode_of_a_group_is_nothing():
    mask = np.ones((1, 6), dtype=np.bool_)
    mask[0, 3:] = False
    assert spans(cut([look(2, last=True)], [(0, 2)], mask=mask)) == [(0, 0, 2, True, False)]
