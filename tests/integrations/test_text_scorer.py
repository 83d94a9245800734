"""How responses reach a reward model: prompts read back, steps cut, failures kept apart from numbers."""

import numpy as np
import pytest
from text_episodes import FAILED, KINDS, QUESTIONS, RESPONSES, STEPS, Scripted, expected

from guerdon.errors import ConfigError, DataError, RewardFailure
from guerdon.integrations.retries import RetriedModel
from guerdon.integrations.text import (
    TextScorer,
    as_prompt,
    outcome_rewards,
    rollout_of,
    step_source,
    token_advantages,
)
from guerdon.models.constant import ConstantModel
from guerdon.policies.tiny_text import byte_tokenizer
from guerdon.rl.advantages import last_valid
from guerdon.rl.reward_source import SourceTerms
from guerdon.types import Failure, RewardInfo, Score
from guerdon.worlds.prompts import Prompt

CHATML = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n"


def test_rewards_and_failures_are_those_of_the_model():
    rewards, steps = expected()
    scorer = TextScorer(Scripted(), aggregation="min")
    found = scorer.rewards(QUESTIONS, RESPONSES)
    assert [None if isinstance(one, Failure) else one for one in found] == rewards
    assert {n: one.reason for n, one in enumerate(found) if isinstance(one, Failure)} == FAILED
    assert len(FAILED) == 20
    assert set(FAILED.values()) == set(KINDS)
    scores = scorer.score(QUESTIONS, RESPONSES)
    assert [None if s.failure else s.steps.tolist() for s in scores] == steps


def test_numbers_are_never_made_up():
    scorer = TextScorer(Scripted(), aggregation="min")
    with pytest.raises(RewardFailure, match="20 of 200 rewards") as caught:
        scorer.numbers(QUESTIONS, RESPONSES)
    assert caught.value.reasons.keys() == FAILED.keys()
    assert [n for n, value in enumerate(caught.value.result) if np.isnan(value)] == list(FAILED)
    retried = TextScorer(RetriedModel(Scripted(times=1), tries=2), aggregation="min")
    rewards = retried.numbers(QUESTIONS, RESPONSES)  # what failed once only
    assert np.isfinite(rewards).all()


@pytest.mark.parametrize("prompt", ["3+5=?", CHATML, [{"role": "user", "content": "3+5=?"}]])
def test_prompts_are_read_back(prompt):
    assert as_prompt(prompt).question == "3+5=?"


def test_what_cannot_be_read_is_a_failure():
    scorer = TextScorer(Scripted(), aggregation="min")
    only_system = [{"role": "system", "content": "Be brief."}]
    two = [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}]
    found = scorer.rewards([only_system, "q", "q"], ["a", two, [{"role": "assistant", "content": "a"}]])
    assert [one.reason if isinstance(one, Failure) else "" for one in found] == ["no_prompt", "no_prompt", ""]


def test_settings_that_do_not_fit_are_refused():
    for model, options, message in (
        (ConstantModel(), {}, "not at text"),
        (Scripted(), {}, "say by aggregation"),
        (Scripted(), {"aggregation": "min", "separator": ";"}, "give both, or neither"),
    ):
        with pytest.raises(ConfigError, match=message):
            TextScorer(model, **options)
    whole = Scripted()
    whole.info = RewardInfo("whole", (0.0, 1.0), granularity="total", modality="text")
    with pytest.raises(ConfigError, match="aggregation would do nothing"):
        TextScorer(whole, aggregation="min")
    with pytest.raises(DataError, match="give a list of each"):
        TextScorer(Scripted(), aggregation="min").score(["a"], [])


def rollout(texts, groups):
    tokenizer = byte_tokenizer()
    ids = [np.array([*tokenizer(text)["input_ids"], tokenizer.eos_token_id]) for text in texts]
    return rollout_of(["q"] * len(texts), [np.array([1])] * len(texts), ids, tokenizer, groups_B=np.array(groups))


def test_advantages_of_tokens_in_closed_form():
    """Leave-one-out of a dense source and of an outcome, added; the failed response has no advantage of the source."""

    class Says:
        info = STEPS
        table = {"a\n\n": 0.5, "b": 0.25, "c": 1.0}

        def score(self, episodes):
            return [
                Score(failure=Failure("timeout")) if e.texts == ("x",)
                else Score.from_values(np.array([self.table[t] for t in e.texts]))
                for e in episodes
            ]  # fmt: skip

    found = rollout(["a\n\nb", "c", "x"], [0, 0, 0])
    source = step_source("prm", Says(), reward_weight=2.0)
    rewards = source.measure(found)
    assert rewards.failed_B.tolist() == [False, False, True]
    ends = [(row, t) for row, t in zip(*np.nonzero(rewards.values), strict=True)]
    assert ends == [(0, 2), (0, 4), (1, 1)]  # the last token, which ends the text, belongs to the last step
    outcome = outcome_rewards([1.0, None, 0.0], found.mask), SourceTerms("right")
    advantages = token_advantages(found, {"prm": (rewards, source.terms), "right": outcome}, {"adv_estimator": "rloo"})
    lengths = found.mask.sum(axis=1)
    mean_0, mean_1 = 0.75 / lengths[0], 1.0 / lengths[1]
    own = np.zeros(found.mask.shape)
    for row, other in ((0, mean_1), (1, mean_0)):
        per_token = np.where(found.mask[row], rewards.values[row] - other, 0.0)
        own[row] = np.cumsum(per_token[::-1])[::-1]
    whole = np.array([1.0, 0.0, -1.0])[:, None] * found.mask
    np.testing.assert_allclose(advantages.per_source["prm"], own * found.mask, atol=1e-6)
    np.testing.assert_allclose(advantages.per_source["right"], whole, atol=1e-6)
    np.testing.assert_allclose(advantages.advantages, 2.0 * own * found.mask + whole, atol=1e-5)
    assert not advantages.known["prm"][2].any()


def test_an_estimator_has_only_its_own_keys():
    found = rollout(["a", "b"], [0, 0])
    outcome = {"right": (outcome_rewards([1.0, 0.0], found.mask), SourceTerms("right"))}
    for keys, message in (
        ({"adv_estimator": "rloo", "learning_rate": 1e-6}, "learning_rate would do nothing"),
        ({"adv_estimator": "gae"}, "needs value heads"),
        ({"adv_estimator": "remax"}, "needs greedy responses"),
        ({"adv_estimator": "grpo", "rloo_form": "paper"}, "rloo_form would do nothing"),
    ):
        with pytest.raises(ConfigError, match=message):
            token_advantages(found, outcome, keys)


def test_outcomes_are_paid_at_the_last_token():
    found = rollout(["ab", "c", "d"], [0, 0, 0])
    rewards = outcome_rewards([0.5, float("nan"), None], found.mask)
    assert (rewards.paid == last_valid(found.mask)).all()
    assert rewards.values.sum(axis=1).tolist() == [0.5, 0.0, 0.0]
    assert rewards.failed_B.tolist() == [False, True, True]
    assert isinstance(found.inputs.prompts[0], Prompt)


class Listening(ConstantModel):
    """Remembers what it was given."""

    info = RewardInfo("listening", (0.0, 1.0), granularity="total", modality="text", frames_needed=0)

    def score(self, episodes):
        self.seen = list(episodes)
        return [Score(total=0.5) for _ in episodes]


def test_the_model_gets_the_conversation_and_its_tools():
    model = Listening(0.5)
    told = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "3+5=?"}]
    function = {"name": "add", "arguments": '{"a": 3}'}
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": function}]}
    used = [*told, call, {"role": "tool", "content": "8"}]
    pictures = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    prompts, tools = ["3+5=?", CHATML, told, used, pictures, told], [None, None, None, [{"name": "add"}], None, "[3]"]
    thought = [{"role": "assistant", "content": "8", "reasoning_content": "so"}]
    found = TextScorer(model).rewards([*prompts, "q"], ["8"] * 6 + [thought], [*tools, None])
    assert [one.reason if isinstance(one, Failure) else one for one in found] == [0.5] * 4 + ["no_prompt"] * 3
    lone, template, messages, called = model.seen
    assert (lone.context, lone.tools) == ((), ())
    assert template.context == messages.context == tuple(told)
    assert [m["role"] for m in called.context] == ["system", "user", "assistant", "tool"]
    assert called.context[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 3}}
    assert called.tools == ({"type": "function", "function": {"name": "add"}},)
    assert {episode.task for episode in model.seen} == {"3+5=?"}
    with pytest.raises(DataError, match="1 lists of tools for 2 responses"):
        TextScorer(model).rewards(["a", "b"], ["c", "d"], [None])
