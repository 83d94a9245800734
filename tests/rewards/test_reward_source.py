"""What all sources of reward share: their weight over a run, greedy responses, raw scores."""

import numpy as np
import pytest

from guerdon.rewards.source import RewardSource, SourceTerms, raw_scores, response_rewards, with_greedy
from guerdon.types import Failure


@pytest.mark.parametrize(
    ("schedule", "weights"),
    [("constant", [5, 5, 5]), ("linear_decay", [5, 2.5, 0]), ("linear_warmup", [0, 2.5, 5])],
)
def test_the_weight_follows_its_schedule_and_is_never_negative(schedule, weights):
    terms = SourceTerms("prm", coefficient=5.0, schedule=schedule)
    assert [terms.weight(progress) for progress in (0.0, 0.5, 1.0)] == weights
    assert min(terms.weight(1.2), terms.weight(-0.2)) >= 0  # the last iteration may pass the end of the run


def rewards(rows, failed):
    mask = np.ones((rows, 2), dtype=np.bool_)
    return response_rewards(np.zeros((rows, 2)), mask, {row: Failure("late") for row in failed})


def test_greedy_responses_are_counted_with_the_others_after_their_rows():
    own, greedy = rewards(3, [1]), rewards(2, [0])
    both = with_greedy(own, greedy)
    assert both.greedy is greedy
    assert both.measured == 5
    assert [row for row, _, _ in both.failures] == [1, 3]
    assert both.failed_B.tolist() == [False, True, False]
    assert own.values.dtype == np.float32


def test_raw_scores_are_columns():
    found = raw_scores([(0, 3, 0.5), (1, -1, 0.25)], 0.5)
    assert (found.rows_N.tolist(), found.steps_N.tolist(), found.values_N.tolist()) == ([0, 1], [3, -1], [0.5, 0.25])
    assert found.values_N.dtype == np.float32
    nothing = raw_scores([], 0.5)
    assert len(nothing.rows_N) == len(nothing.steps_N) == len(nothing.values_N) == 0


def test_a_source_without_state_keeps_nothing(tmp_path):
    source = RewardSource(SourceTerms("fixed"))
    assert source.state() == ({}, {})
    source.restore({}, {})
    source.save(tmp_path)
    assert not list(tmp_path.iterdir())
    assert (source.ready, source.learn_before, source.skipped_in_a_row) == (True, False, 0)
    assert source.learn(None) == {}
