import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guerdon.errors import ConfigError, DataError
from guerdon.evaluation.benchmarks.step_benchmarks import generated_bench, right_and_wrong
from guerdon.settings.data import AutomatonSettings, ChainSettings, RegisterSettings, SwapSettings
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.reasoning import generate, step_truth

FAMILIES = [ChainSettings(steps=5), RegisterSettings(steps=4), SwapSettings(steps=4), AutomatonSettings(steps=5)]


def truth_of(solution):
    extra = {key: solution.meta[key] for key in ("family", "parameters")}
    prompt = Prompt("x", ({"role": "user", "content": solution.question},), "", "x", extra_info=extra)
    return step_truth(prompt, solution.text)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(FAMILIES))
def test_every_slip_is_the_first_error_and_the_rest_follows(seed, family):
    for solution in generated_bench([family], 6, seed):
        truth = truth_of(solution)
        first = solution.meta["first_error"]
        assert truth.first_error == first == solution.first_error
        assert [k for k, follows in enumerate(truth.follows) if not follows] == ([] if first < 0 else [first])
        assert solution.is_correct == truth.outcome
        assert len(solution.steps) == truth.expected


def test_half_are_right_and_slips_are_uniform():
    bench = generated_bench(FAMILIES, 400, 0)
    assert {s.meta["subset"] for s in bench} == {"chain", "register", "swap", "automaton"}
    assert len({s.id for s in bench}) == len(bench) == 1600
    chain = [s.meta["first_error"] for s in bench if s.meta["subset"] == "chain"]
    assert chain.count(-1) == 200
    counts = np.bincount([k for k in chain if k >= 0], minlength=5)
    assert ((counts - 40) ** 2 / 40).sum() < 18.5  # chi-square with 4 degrees of freedom, p = 0.001


def test_the_same_seed_gives_the_same_set_and_taken_questions_stay_out():
    one, two = (generated_bench(FAMILIES[:1], 20, 7) for _ in range(2))
    assert one == two
    assert one != generated_bench(FAMILIES[:1], 20, 8)
    taken = {s.question for s in one}
    assert not taken & {s.question for s in generated_bench(FAMILIES[:1], 20, 7, exclude=taken)}
    assert len(taken) == 20


def test_pairs_of_right_and_wrong():
    pairs = right_and_wrong(FAMILIES[:2], 5, 0)
    assert len(pairs) == 20
    for right, wrong in zip(pairs[::2], pairs[1::2], strict=True):
        assert right.question == wrong.question
        assert (right.first_error, wrong.first_error >= 0) == (-1, True)


def test_what_cannot_be_made_is_said():
    with pytest.raises(ConfigError, match="error_rate") as refused:
        generated_bench(FAMILIES, 4, 0, 1.5)
    assert refused.value.key == "error_rate"
    with pytest.raises(DataError, match="little more than"):
        generated_bench([ChainSettings(steps=1, ops="+", low=0, high=1)], 50, 0)


def test_a_family_that_occurs_twice_gets_a_number():
    bench = generated_bench([ChainSettings(steps=3), ChainSettings(steps=5)], 2, 0)
    assert [s.meta["subset"] for s in bench] == ["chain", "chain", "chain-2", "chain-2"]


def test_its_problems_are_not_the_first_training_problems_of_the_same_seed():
    task = ChainSettings(steps=6)
    trained = {prompt.question for prompt in generate(task, 300, 1)[0]}
    asked = {solution.question for solution in generated_bench([task], 100, task.seed)}
    assert not trained & asked  # a million problems: two streams of chance hardly ever meet
