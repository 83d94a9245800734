"""The tabular reference: logistic regression in closed form, what it learns, and its rewards."""

import numpy as np
import pytest
from scipy.special import expit

from guerdon.collect.text import Responses
from guerdon.errors import ConfigError
from guerdon.policies.batches.tokens import response_ids, token_batch
from guerdon.policies.language.tiny_text import build_tokenizer
from guerdon.rewards.source import SourceTerms
from guerdon.rewards.tabular import OutcomeTable, TabularReward
from guerdon.settings.data import ChainSettings
from guerdon.settings.reward_models import TabularModelSettings
from guerdon.settings.text_policy import TinyModelSettings
from guerdon.settings.train import MistakesSettings
from guerdon.tasks.reasoning import step_truth, task_family
from guerdon.train.sft import demonstrate
from text_rl import as_rollout, sum_study

TOKENIZER = build_tokenizer(TinyModelSettings(alphabet="0123456789+-*=?;"))


def test_one_claim_has_the_log_odds_of_its_outcomes():
    table = OutcomeTable(l2=1e-9)
    table.add([["a"]] * 8, np.array([1.0] * 6 + [0.0] * 2))
    loss = table.fit()
    assert table.weights["a"] == pytest.approx(np.log(3), abs=1e-4)
    assert loss == pytest.approx(-(0.75 * np.log(0.75) + 0.25 * np.log(0.25)), abs=1e-6)


def test_weights_are_where_the_gradient_is_zero_and_do_not_depend_on_order():
    rng = np.random.default_rng(0)
    rows = [[f"c{j}" for j in rng.integers(0, 5, 3)] for _ in range(40)]
    right = rng.integers(0, 2, 40).astype(np.float32)
    table, other = OutcomeTable(l2=0.3), OutcomeTable(l2=0.3)
    table.add(rows, right)
    table.fit()
    gradient = {claim: 0.3 * weight for claim, weight in table.weights.items()}
    for row, outcome in zip(rows, right, strict=True):
        for claim in row:
            gradient[claim] += expit(sum(table.weights[c] for c in row)) - outcome
    assert max(map(abs, gradient.values())) < 1e-2
    order = rng.permutation(40)
    for part in np.split(order, 4):
        other.add([rows[i] for i in part], right[part])
        other.fit()
    for claim, weight in table.weights.items():
        assert other.weights[claim] == pytest.approx(weight, abs=1e-2)


def test_nothing_known_is_nothing_claimed():
    table = OutcomeTable(l2=0.1)
    assert table.fit() is None
    assert table.of(["a", "b"]).tolist() == [0, 0]


def rollout_of(count, seed, family, mistakes):
    rng = np.random.default_rng(seed)
    prompts = tuple(family.sample(rng) for _ in range(count))
    texts = tuple(demonstrate(p, mistakes, rng) for p in prompts)
    rows = [response_ids(TOKENIZER, text) for text in texts]
    batch = token_batch([np.array([0])] * count, rows, np.ones(count, bool), pad_id=0)
    right = [step_truth(p, t).outcome for p, t in zip(prompts, texts, strict=True)]
    return as_rollout(Responses(batch, prompts, texts, TOKENIZER), right, np.arange(count))


def test_a_few_hundred_outcomes_say_which_steps_are_wrong():
    family = task_family(ChainSettings(steps=6, ops="+-"))
    mistakes = MistakesSettings(facts=0.25, rate=0.7)
    source = TabularReward(SourceTerms("tabular"), TabularModelSettings())
    fresh = rollout_of(128, 1, family, mistakes)
    unknown = source.measure(fresh)
    assert np.array_equal(np.unique(unknown.values), [0.0, 0.5])  # 0 outside of responses
    metrics = source.learn(rollout_of(512, 0, family, mistakes))
    assert metrics["table_claims"] > 100
    rewards = source.measure(fresh)
    assert rewards.metrics["step_auroc"] > 0.95
    again = TabularReward(SourceTerms("tabular"), TabularModelSettings())
    again.restore(*source.state())
    assert np.array_equal(again.measure(fresh).values, rewards.values)


def test_every_token_of_a_line_is_paid_its_probability():
    family = task_family(ChainSettings(steps=2))
    source = TabularReward(SourceTerms("tabular"), TabularModelSettings())
    source.table.weights = {"3+5=8": 2.0, "8*2=7": -1.0}
    prompt, text = family.prompt("3+5=?;?*2=?;"), "3+5=8;8*2=7;"
    batch = token_batch([np.array([0])], [response_ids(TOKENIZER, text)], np.ones(1, bool), pad_id=0)
    rewards = source.measure(as_rollout(Responses(batch, (prompt,), (text,), TOKENIZER), [0.0], [0]))
    expected = [expit(2.0)] * 6 + [expit(-1.0)] * 6
    np.testing.assert_allclose(rewards.values[0, :12], expected, rtol=1e-6)
    assert rewards.metrics["step_auroc"] == 1


@pytest.mark.parametrize("task", [{"family": "automaton"}])
def test_a_family_without_such_facts_is_refused_before_the_run(task, tmp_path):
    with pytest.raises((ConfigError, ValueError), match="facts that hold in every question"):
        sum_study(tmp_path, data={"task": task}, reward_model={"rm_type": "tabular"})
