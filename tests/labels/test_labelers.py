"""Labels by continuations, against samplers whose success is known."""

import math
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from guerdon.episodes.solutions import Solution, until_first_error
from guerdon.labels.labelers import (
    BinarySearchLabeler,
    CompletionCounts,
    ConsensusLabeler,
    ExactLabeler,
    MonteCarloLabeler,
    PromptedSolution,
    StepLabels,
)
from guerdon.settings.data import ChainSettings
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.reasoning import task_family
from guerdon.types import Failure

PROMPT = Prompt("p", ({"role": "user", "content": "q"},), "1", "x")


def written(n, first=-1, *, is_correct=...):
    """n steps, the first wrong one is `first`."""
    right = first < 0 if is_correct is ... else is_correct
    steps = tuple(("!" if 0 <= first <= k else ".") + f"{k};" for k in range(n))
    return PromptedSolution(Solution("s", "q", steps, is_correct=right), PROMPT)


class Lively:
    """A prefix without a wrong step reaches the answer so many times out of k; one with a wrong step never."""

    def __init__(self, right=1, known=None):
        self.right, self.known, self.looks = right, known, []

    def unreadable(self, given):
        long = len(given.solution.steps) > 40
        return Failure("too_long", "as told") if long else None

    def sample(self, prefixes, k):
        self.looks += [prefix for _, prefix in prefixes]
        known = k if self.known is None else self.known
        return [CompletionCounts(0 if "!" in prefix else self.right, known, k) for _, prefix in prefixes]


@pytest.mark.parametrize(
    ("reached", "hard", "soft"),
    [
        (CompletionCounts(0, 8, 8), 0.0, 0.0),
        (CompletionCounts(1, 8, 8), 1.0, 0.125),
        (CompletionCounts(8, 8, 8), 1.0, 1.0),
        (CompletionCounts(2, 4, 8), 1.0, 0.5),
        (CompletionCounts(1, 3, 8), 1.0, None),  # hard: one is enough, whatever became of the others
        (CompletionCounts(0, 3, 8), None, None),
        (CompletionCounts(0, 0, 8), None, None),
    ],
)
def test_hard_is_any_and_soft_is_the_share_of_what_could_be_checked(reached, hard, soft):
    assert (reached.value(hard=True), reached.value(hard=False)) == (hard, soft)


def test_every_prefix_is_completed_and_the_last_step_is_as_good_as_the_answer():
    sampler = Lively(right=3)
    found = MonteCarloLabeler(sampler, k=4, hard=False).label([written(3, 1), written(2), written(1)])
    assert [f.values for f in found] == [(0.75, 0.0, 0.0), (0.75, 1.0), (1.0,)]
    assert sampler.looks == [".0;", ".0;!1;", ".0;"]
    assert found[0].meta == {"completions": 4, "estimate": "soft", "right": [3, 0], "known": [4, 4]}
    assert MonteCarloLabeler(sampler, k=4, hard=True).label([written(3, 1)])[0].values == (1.0, 0.0, 0.0)


def test_what_cannot_be_checked_has_no_label():
    labeler = MonteCarloLabeler(Lively(known=1, right=0), k=4, hard=True)
    assert labeler.label([written(2)])[0].values == (None, 1.0)
    assert labeler.label([written(2, is_correct=None)])[0].reason == "unchecked_completions"


def test_a_solution_that_the_policy_cannot_read_fails_alone():
    for labeler in (MonteCarloLabeler(Lively(), k=2, hard=True), BinarySearchLabeler(Lively(), k=2)):
        found = labeler.label([written(3, 1), written(41, 2), written(2, 0)])
        assert [getattr(one, "values", None) for one in found][::2] == [
            labeler.label([written(3, 1)])[0].values, labeler.label([written(2, 0)])[0].values,
        ]  # fmt: skip
        assert found[1] == Failure("too_long", "as told")


@hypothesis_settings(deadline=None)
@given(st.lists(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1))), max_size=5))
def test_binary_search_finds_the_first_error_with_few_completions(cases):
    sampler = Lively()
    found = BinarySearchLabeler(sampler, k=8).label([written(n, first) for n, first in cases])
    for (n, first), labels in zip(cases, found, strict=True):
        assert labels.values == (1.0,) * first + (0.0,) + (None,) * (n - first - 1)
        assert labels.meta["completions"] <= 8 * math.ceil(math.log2(n)) if n > 1 else labels.meta["completions"] == 0
    assert sum(labels.meta["completions"] for labels in found) == 8 * len(sampler.looks)


def test_binary_search_needs_no_completion_where_the_answer_is_right():
    sampler = Lively()
    assert BinarySearchLabeler(sampler, k=8).label([written(5)])[0].values == (1.0,) * 5
    assert not sampler.looks
    assert BinarySearchLabeler(sampler, k=8).label([written(5, is_correct=None)])[0].reason == "unchecked_answer"
    blind = BinarySearchLabeler(Lively(right=0, known=2), k=8)
    assert blind.label([written(5, 3)])[0].reason == "unchecked_completions"


class Fixed:
    """A labeler with known answers."""

    name, at_a_time = "fixed", 8

    def __init__(self, *answers):
        self.answers = [a if isinstance(a, Failure) else StepLabels(a) for a in answers]

    def label(self, written):
        return self.answers


def test_consensus_keeps_what_both_find_up_to_the_first_error():
    bad = Failure("refusal")
    late = Failure("timeout")
    judge = Fixed((1.0, 0.0, 1.0), (1.0, 1.0, 1.0), (0.0, 0.0, 0.0), bad, (1.0, 1.0, 1.0), (1.0,) * 3, bad)
    continued = Fixed((1.0, 0.0, 0.0), (1.0, 1.0, 1.0), (1.0, 0.0, 0.0), (1.0,) * 3, (1.0, None, 1.0), late, late)
    found = ConsensusLabeler(judge, continued).label([written(3)] * 7)
    assert [f.values if isinstance(f, StepLabels) else f.reason for f in found] == [
        (1.0, 0.0, None), (1.0, 1.0, 1.0), "no_consensus", "refusal", "unchecked_completions", "timeout", "refusal",
    ]  # fmt: skip


def test_exact_labels_are_true_until_the_first_error():
    family = task_family(ChainSettings(steps=4))
    prompt = family.sample(np.random.default_rng(0))
    lines = [line + ";" for line in prompt.solution.split(";")[:-1]]
    wrong = [lines[0], lines[1][:-2] + str((int(lines[1][-2]) + 1) % 10) + ";", *lines[2:]]

    def label(*steps):
        return ExactLabeler().label([PromptedSolution(Solution("s", prompt.question, steps), prompt)])[0]

    assert label(*lines).values == (1.0,) * 4
    assert label(*wrong).values == (1.0, 0.0, None, None)  # though line 3 is the true line again
    assert label(lines[0] + lines[1], wrong[1] + lines[3]).values == (1.0, 0.0)  # coarser steps
    assert label(lines[0][:2], lines[0][2:]).reason == "steps_do_not_fit"
    assert ExactLabeler().label([written(2)])[0].reason == "not_generated"
    assert list(accumulate(lines))[-1] == prompt.solution


def test_labels_end_with_the_first_error():
    assert until_first_error(1, 3) == (1.0, 0.0, None)
    assert until_first_error(0, 2) == (0.0, None)
    assert until_first_error(-1, 1) == until_first_error(1, 1) == (1.0,)
    assert until_first_error(-1, 0) == until_first_error(0, 0) == ()
