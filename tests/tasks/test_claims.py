"""What lines claim: the same fact has one name in every question, whatever else differs."""

import numpy as np
import pytest

from guerdon.errors import ConfigError
from guerdon.settings.data import (
    AutomatonSettings,
    ChainSettings,
    RegisterSettings,
    StorySettings,
    SwapSettings,
)
from guerdon.settings.train import MistakesSettings
from guerdon.tasks.claims import WRONG_OPERATION, WRONG_START, claims
from guerdon.tasks.reasoning import step_truth, task_family
from guerdon.train.sft import demonstrate
from tables import cases


@cases(
    ("settings", "question", "text", "expected"),
    [
        (ChainSettings(), "3+5=?;?*2=?;", "3+5=9;9*2=8;", ("3+5=9", "9*2=8")),
        (ChainSettings(), "3+5=?;?*2=?;", "3+5=9;8*2=6;", ("3+5=9", WRONG_START)),
        (ChainSettings(), "3+5=?;?*2=?;", "4+5=9;9+2=1;", (WRONG_START, WRONG_OPERATION)),
        (ChainSettings(), "3+5=?;", "3+5=8;8+5=3;", ("3+5=8", WRONG_OPERATION)),
        (ChainSettings(any_order=2, ops="+-"), "3+5=?;?-2=?;", "3-2=1;1+5=7;", ("3-2=1", "1+5=7")),
        (ChainSettings(modulus=None), "3-5=?;?*12=?;", "3-5=-2;-2*12=-24;", ("3-5=2", "-2*2=4")),
        (ChainSettings(modulus=100, high=99), "47-75=??;", "47-75=72;", ("7-5=2",)),
        (ChainSettings(), "3+5=?;", "?;;", (WRONG_OPERATION, WRONG_OPERATION)),
        (RegisterSettings(), "a=3;b=4;c=a+b=?;", "c=3+4=7;", ("3+4=7",)),
        (SwapSettings(items=3), "CAB;12=???;23=???;", "12=ACB;23=ABC;", ("12=2,1,3", "23=1,3,2")),
        (SwapSettings(items=3), "CAB;12=???;", "12=CAB", ("12=1,2,3",)),
        (SwapSettings(items=3), "CAB;12=???;", "13=BAC;12=ABC;", (WRONG_OPERATION, WRONG_OPERATION)),
    ],
)
def test_claims_by_hand(settings, question, text, expected):
    assert claims(task_family(settings).prompt(question), text) == expected


@pytest.mark.parametrize(
    "settings", [ChainSettings(steps=5), RegisterSettings(steps=5), SwapSettings(steps=5), StorySettings(steps=3)]
)
def test_a_claim_is_true_everywhere_or_nowhere(settings):
    rng, family, known = np.random.default_rng(0), task_family(settings), {}
    mistakes = MistakesSettings(facts=0.5, rate=0.6)
    for _ in range(150):
        prompt = family.sample(rng)
        text = demonstrate(prompt, mistakes, rng)
        truth = step_truth(prompt, text)
        found = claims(prompt, text)
        assert len(found) == len(truth.spans)
        for claim, follows in zip(found, truth.follows, strict=True):
            assert known.setdefault(claim, follows) == follows
    assert {True, False} == set(known.values())


def test_a_table_of_facts_that_differ_between_questions_is_refused():
    prompt = task_family(AutomatonSettings()).sample(np.random.default_rng(0))
    with pytest.raises(ConfigError, match="cannot be used with the family automaton"):
        claims(prompt, prompt.solution)
