"""How responses reach a reward model: prompts read back, steps cut, failures kept apart from numbers."""

import numpy as np
import pytest
import torch
from text_episodes import FAILED, KINDS, QUESTIONS, RESPONSES, STEPS, Scripted, expected

from guerdon.errors import ConfigError, DataError, RewardFailure
from guerdon.integrations.retries import RetriedModel
from guerdon.integrations.text import (
    AnsweredTurn,
    TextScorer,
    as_prompt,
    conversations_of,
    or_none,
    outcome_rewards,
    ragged,
    rollout_of,
    step_source,
    tiny_model,
    token_advantages,
)
from guerdon.models.constant import ConstantModel
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.rewards.source import SourceTerms
from guerdon.tasks.prompts import Prompt
from guerdon.types import Failure, RewardInfo, Score, last_valid
from tables import cases, refuses

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


@pytest.mark.hostile("parts")
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
    for model, options, key, message in (
        (ConstantModel(), {}, None, "scores states, not text"),
        (Scripted(), {}, "aggregation", "say by aggregation"),
        (Scripted(), {"aggregation": "min", "separator": ";"}, "separator", "give both, or neither"),
    ):
        with pytest.raises(ConfigError, match=message) as refused:
            TextScorer(model, **options)
        assert refused.value.key == key
    whole = Scripted()
    whole.info = RewardInfo("whole", (0.0, 1.0), granularity="total", modality="text")
    with pytest.raises(ConfigError, match="aggregation would do nothing") as refused:
        TextScorer(whole, aggregation="min")
    assert refused.value.key == "aggregation"
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
    for keys, key, words in (
        ({"adv_estimator": "rloo", "learning_rate": 1e-6}, "learning_rate", "has its own loss and optimiser"),
        ({"adv_estimator": "gae"}, "adv_estimator", "needs value heads"),
        ({"adv_estimator": "remax"}, "adv_estimator", "needs greedy responses"),
        ({"adv_estimator": "grpo", "rloo_form": "paper"}, "rloo_form", ""),
    ):
        with refuses(key) as refused:
            token_advantages(found, outcome, keys)
        assert words in str(refused.value)


def test_outcomes_are_paid_at_the_last_token():
    found = rollout(["ab", "c", "d"], [0, 0, 0])
    rewards = outcome_rewards([0.5, float("nan"), None], found.mask)
    assert (rewards.paid == last_valid(found.mask)).all()
    assert rewards.values.sum(axis=1).tolist() == [0.5, 0.0, 0.0]
    assert rewards.failed_B.tolist() == [False, True, True]
    assert isinstance(found.inputs.prompts[0], Prompt)


# Conversations of several answers.

ADD = {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}
ASKED_TO_ADD = {"role": "assistant", "content": "I add.", "tool_calls": [ADD]}


def talked(*replies, ends=True):
    """The answers of a conversation: each but the last calls `add`, and all end by themselves, or none does."""
    tokenizer = byte_tokenizer()
    messages, turns = [{"role": "user", "content": "1+2?"}], []
    for k, text in enumerate(replies):
        last = k + 1 == len(replies)
        reply = {"role": "assistant", "content": text} if last else {**ASKED_TO_ADD, "content": text}
        before = np.array(tokenizer("".join(m["content"] for m in messages))["input_ids"])
        end = [tokenizer.eos_token_id] if ends else []
        turns.append(AnsweredTurn(list(messages), reply, before, np.array([*tokenizer(text)["input_ids"], *end])))
        messages += [reply, {"role": "tool", "tool_call_id": "c1", "content": "=3"}]
    return turns


def test_conversations_are_rows_of_calls_that_follow_one_another():
    tools = [[{"name": "add"}], None]
    found = conversations_of(
        [talked("ab", "c"), talked("d", ends=False)], byte_tokenizer(), groups_B=np.array([4, 4]), tools=tools
    )
    assert found.mask.tolist() == [[True] * 5, [True] + [False] * 4]  # ab, its end, c and its end; d
    assert found.chunks.decision.tolist() == [[0, 0, 0, 1, 1], [2, -1, -1, -1, -1]]
    assert (found.steps, found.conversations, found.group_ids.tolist()) == (2, True, [4, 4])
    assert not found.success_known.any()
    assert found.terminated.tolist() == last_valid(found.mask).tolist()
    assert found.inputs.texts == ("ab", "c", "d")
    assert found.inputs.batch.finished_B.tolist() == [True, True, False]
    assert [prompt.question for prompt in found.inputs.prompts] == ["1+2?"] * 3
    first, second = found.inputs.conversations
    assert [m["role"] for m in first.messages] == ["user", "assistant", "tool", "assistant"]
    assert first.calls[0].messages[-1]["tool_calls"][0]["function"] == ADD["function"]
    assert [tool["function"]["name"] for tool in first.calls[1].tools] == ["add"]
    assert second.calls[0].tools == ()


class Tools:
    """Half for each result of a tool that a reply could see."""

    info = RewardInfo("tools", (0.0, 10.0), granularity="total", modality="text", frames_needed=0)

    def score(self, episodes):
        return [Score(total=0.5 * sum(m["role"] == "tool" for m in one.context)) for one in episodes]


def test_tokens_of_a_turn_share_its_advantage():
    """A_ik = G_ik minus the mean return of the turns of the other conversation, for the source and the outcome."""
    found = conversations_of([talked("ab", "c", "d"), talked("e")], byte_tokenizer(), groups_B=np.array([0, 0]))
    source = step_source("tools", Tools(), reward_mode="per_turn")
    rewards = source.measure(found)
    assert rewards.values.sum(axis=1).tolist() == [0.5 + 1.0, 0.0]
    outcome = outcome_rewards([1.0, 0.0], found.mask), SourceTerms("right")
    sources = {"tools": (rewards, source.terms), "right": outcome}
    advantages = token_advantages(found, sources, {"adv_estimator": "turn_rloo"})
    own = [[1.5] * 5 + [1.0] * 2, [-(1.5 + 1.5 + 1.0) / 3] * 2 + [0.0] * 5]
    np.testing.assert_allclose(advantages.per_source["tools"], own, atol=1e-6)
    right = [[1.0] * 7, [-1.0] * 2 + [0.0] * 5]
    np.testing.assert_allclose(advantages.per_source["right"], right, atol=1e-6)
    np.testing.assert_allclose(advantages.advantages, np.add(own, right), atol=1e-6)
    assert advantages.known["tools"].tolist() == found.mask.tolist()
    with refuses("adv_estimator", "'tools' pays every turn, for which rloo is biased"):
        token_advantages(found, sources, {"adv_estimator": "rloo"})


def test_single_responses_have_no_turns_to_compare():
    found = rollout(["a", "b"], [0, 0])
    outcome = {"right": (outcome_rewards([1.0, 0.0], found.mask), SourceTerms("right"))}
    with refuses("adv_estimator", "these are single responses"):
        token_advantages(found, outcome, {"adv_estimator": "turn_rloo"})


def test_what_trainers_hand_over_and_get_back():
    assert or_none([0.5, Failure("timeout"), 0.0]) == [0.5, None, 0.0]
    ids, mask = torch.tensor([[9, 1, 2], [3, 4, 9]]), torch.tensor([[0, 1, 1], [1, 1, 0]])
    assert [row.tolist() for row in ragged(ids, mask)] == [[1, 2], [3, 4]]


def test_a_tiny_model_is_of_its_alphabet_and_its_seed():
    model, tokenizer = tiny_model("01+", hidden_size=16, layers=2)
    assert tokenizer.decode(tokenizer("1+0")["input_ids"]) == "1+0"
    assert tokenizer("2")["input_ids"] == [tokenizer.unk_token_id]
    assert (model.config.hidden_size, model.config.num_hidden_layers) == (16, 2)
    assert model.config.vocab_size == len(tokenizer)
    other, again = (tiny_model("01+", hidden_size=16, layers=2, seed=seed)[0] for seed in (1, 0))
    first, others, same = (next(one.parameters()) for one in (model, other, again))
    assert torch.equal(first, same)
    assert not torch.equal(first, others)


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
    assert [one.reason if isinstance(one, Failure) else one for one in found] == [0.5] * 4 + ["no_prompt"] * 2 + [0.5]
    lone, template, messages, called, thoughtful = model.seen
    assert (thoughtful.task, thoughtful.texts) == ("q", ("8",))  # reasoning in a field of its own is not an answer
    assert (lone.context, lone.tools) == ((), ())
    assert template.context == messages.context == tuple(told)
    assert [m["role"] for m in called.context] == ["system", "user", "assistant", "tool"]
    assert called.context[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 3}}
    assert called.tools == ({"type": "function", "function": {"name": "add"}},)
    assert {episode.task for episode in model.seen[:4]} == {"3+5=?"}
    with pytest.raises(DataError, match="1 lists of tools for 2 responses"):
        TextScorer(model).rewards(["a", "b"], ["c", "d"], [None])


CALL = {"type": "function", "id": "c1", "function": {"name": "count", "arguments": {"of": "eggs"}}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
CALLED = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "24"}
ASKED = {"role": "user", "content": "How many eggs?"}
SAID = {"role": "assistant", "content": "24."}


class Conversations:
    """Keeps what it is asked; the reward is the length of the answer."""

    info = RewardInfo("conversations", (0.0, 100.0), granularity="total", modality="text", frames_needed=0)

    def score(self, episodes):
        self.seen = [(list(e.context) or [{"role": "user", "content": e.task}], "".join(e.texts)) for e in episodes]
        return [Score(total=float(len(answer))) for _, answer in self.seen]


def as_arrow(messages):
    """Messages as pandas reads them from Parquet: arrays, and None for what a message does not have."""
    keys = {key for message in messages for key in message}
    rows = [{key: message.get(key) for key in keys} for message in messages]
    for row in rows:
        if row.get("tool_calls") is not None:
            row["tool_calls"] = np.array(row["tool_calls"], dtype=object)
    return np.array(rows, dtype=object)


@cases("read", [list, tuple, as_arrow])
@cases(
    ("prompt", "response", "conversation"),
    [
        ([ASKED], [CALLS, RESULT, SAID], [ASKED, CALLED, RESULT]),
        ([ASKED, CALLS, RESULT], [SAID], [ASKED, CALLED, RESULT]),
        ([ASKED], [{**CALLS, "content": []}, RESULT, SAID], [ASKED, CALLED, RESULT]),
        ([ASKED], [SAID, ASKED, CALLS, RESULT, SAID], [ASKED, SAID, ASKED, CALLED, RESULT]),
        ([ASKED], [{"content": "24."}], [ASKED]),
    ],
)
def test_calls_of_tools_before_the_answer_are_part_of_the_conversation(prompt, response, conversation, read):
    model = Conversations()
    assert TextScorer(model).rewards([read(prompt)], [read(response)]) == [3.0]
    assert model.seen == [(conversation, "24.")]


UNREADABLE = {
    "a call": ([ASKED], [CALLS], "tool_calls"),
    "a call with words": ([ASKED], [{**CALLS, "content": "Look:"}], "tool_calls"),
    "a result": ([ASKED], [CALLS, RESULT], "role is tool"),
    "a call without a result": ([ASKED], [CALLS, SAID], "end with the user's turn or a tool's"),
    "a prompt that ends with a call": ([ASKED, CALLS], [SAID], "end with the user's turn or a tool's"),
    "two answers": ([ASKED], [SAID, SAID], "end with the user's turn or a tool's"),
    "no content": ([ASKED], [{"role": "assistant", "content": None}], "content"),
    "a picture": ([ASKED], [{"role": "assistant", "content": [{"type": "image_url"}]}], "parts of type text"),
    "no JSON": ([ASKED], [{**CALLS, "tool_calls": [{"name": "f", "arguments": "x = 1"}]}, RESULT, SAID], "not a map"),
    "nothing": ([ASKED], [], "list of messages"),
    "None": ([ASKED], None, "list of messages"),
    "a number": ([ASKED], 5, "list of messages"),
    "None in a list": ([ASKED], [None], "role and content"),
    "no prompt": (None, [SAID], "list of messages"),
}  # fmt: skip


@cases("name", UNREADABLE)
def test_what_cannot_be_read_is_a_failure_of_its_item_and_the_others_are_scored(name):
    prompt, response, said = UNREADABLE[name]
    found = TextScorer(Conversations()).rewards([[ASKED], prompt, [ASKED]], ["24", response, [SAID]])
    assert (found[0], found[2]) == (2.0, 3.0)
    assert isinstance(found[1], Failure)
    assert said in found[1].detail
