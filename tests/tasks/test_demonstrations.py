import numpy as np
import pytest

from guerdon.errors import DataError
from guerdon.settings.data import AutomatonSettings, ChainSettings, RegisterSettings, SwapSettings
from guerdon.settings.train import MistakesSettings
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.reasoning import step_truth, task_family
from guerdon.train.sft import believed, demonstrate

FAMILIES = [
    ChainSettings(steps=8),
    ChainSettings(steps=8, modulus=100, high=99),
    ChainSettings(steps=5, modulus=None, high=99),
    ChainSettings(steps=8, modulus=2, high=1),
    RegisterSettings(steps=8),
    SwapSettings(steps=8),
    AutomatonSettings(steps=8),
]
NAMES = [f"{s.family}-{i}" for i, s in enumerate(FAMILIES)]


def slips(family, mistakes, number=60):
    """For each of some problems: for each line of a demonstration, whether it follows from the lines before."""
    problems, rng = np.random.default_rng(0), np.random.default_rng(1)
    for _ in range(number):
        prompt = family.sample(problems)
        text = demonstrate(prompt, mistakes, rng)
        yield prompt, text, step_truth(prompt, text)


@pytest.mark.parametrize("settings", FAMILIES, ids=NAMES)
def test_a_demonstration_has_all_lines_in_good_form_and_some_are_wrong(settings):
    family = task_family(settings)
    wrong = total = 0
    for prompt, text, truth in slips(family, MistakesSettings(facts=0.5, rate=0.9)):
        assert len(truth.correct) == truth.expected
        assert truth.answer is not None
        assert len(text) == len(prompt.solution) or settings == FAMILIES[2]  # plain integers have no fixed width
        wrong += truth.follows.count(False)
        total += truth.expected
    assert 0.05 * total < wrong < 0.95 * total


@pytest.mark.parametrize("settings", FAMILIES, ids=NAMES)
def test_a_false_belief_is_always_the_same_one(settings):
    family, mistakes = task_family(settings), MistakesSettings(facts=0.4, rate=1.0)
    facts = {}
    for prompt, text, truth in slips(family, mistakes):
        lines = text.split(";")[:-1]
        problem = family.solve(prompt.question)
        for k, line in enumerate(lines):
            right = problem.follow(k, lines[:k])
            assert believed(family, right, mistakes) == line  # at rate 1 a belief always shows
            assert facts.setdefault(family.fact(right), truth.follows[k]) == truth.follows[k]
    assert set(facts.values()) == {True, False} or len(facts) < 6


def test_facts_of_the_families_by_hand():
    assert task_family(ChainSettings()).fact("3*7=1") == "3*7"
    assert task_family(ChainSettings(modulus=100, high=99)).fact("37+08=45") == "7+8"
    assert task_family(RegisterSettings()).fact("d=4*3=2") == "4*3"
    assert task_family(SwapSettings()).fact("12=BACDE") == "12"
    assert task_family(AutomatonSettings()).fact("0a=1") == "0a"


def test_the_rate_is_how_often_a_belief_shows():
    family = task_family(ChainSettings(steps=50))
    mistakes = MistakesSettings(facts=0.5, rate=0.3)
    shown, held = 0, 0
    for prompt, text, _ in slips(family, mistakes, number=100):
        lines = text.split(";")[:-1]
        problem = family.solve(prompt.question)
        rights = [problem.follow(k, lines[:k]) for k in range(len(lines))]
        mistaken = [believed(family, right, mistakes) != right for right in rights]
        held += sum(mistaken)
        shown += sum(line != right for line, right in zip(lines, rights, strict=True))
    assert abs(shown / held - 0.3) < 4 * (0.3 * 0.7 / held) ** 0.5


def test_only_generated_problems_can_be_demonstrated():
    prompt = Prompt(id="a", messages=({"role": "user", "content": "2+2"},), ground_truth="4", data_source="x")
    with pytest.raises(DataError, match="not a generated problem"):
        demonstrate(prompt, MistakesSettings(), np.random.default_rng(0))
