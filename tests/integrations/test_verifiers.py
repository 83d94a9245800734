"""Inside verifiers v1: rewards by method and by configuration, failures as None, advantages of tokens in traces."""

import asyncio
import sys
from types import ModuleType

import numpy as np
import pytest
from text_episodes import FAILED, QUESTIONS, RESPONSES, Scripted, expected

from guerdon.errors import ConfigError, DataError, RewardFailure
from guerdon.integrations.text import TextScorer, step_source
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.types import Failure, RewardInfo, Score

pytest.importorskip("verifiers.v1", reason="verifiers is not installed: pip install guerdon[verifiers]")
import verifiers.v1 as vf
from verifiers.v1.graph import MessageNode
from verifiers_traces import scored_by_config, trace_of

from guerdon.integrations.verifiers import assign_advantages, trace_reward

REWARDS, _ = expected()


@pytest.mark.parametrize("n", [0, next(iter(FAILED))])
def test_a_reward_by_configuration(n, monkeypatch):
    module = ModuleType("my_rewards_of_a_test")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    scorer = TextScorer(Scripted(), aggregation="min")
    trace = scored_by_config(scorer, QUESTIONS[n], RESPONSES[n], module)
    if n in FAILED:
        assert trace.rewards == {"prm": None}
        assert FAILED[n] in trace.info["error"]
    else:
        assert (trace.rewards["prm"].score, trace.rewards["prm"].weight) == (REWARDS[n], 0.5)


def test_a_trace_without_an_answer_has_no_reward():
    trace = trace_of("q", "a")
    trace.nodes = trace.nodes[:1]
    scorer = TextScorer(Scripted(), aggregation="min")
    with pytest.raises(RewardFailure, match="no_response"):
        asyncio.run(trace_reward(scorer, trace))


class Lines:
    """Half the number in a line."""

    info = RewardInfo("lines", (0.0, 1.0), modality="text", frames_needed=0)

    def score(self, episodes):
        return [Score.from_values(np.array([int(t.strip()) / 2 for t in e.texts])) for e in episodes]


def traces(answers, rewards):
    tokenizer = byte_tokenizer()
    found = []
    for (question, text), reward in zip(answers, rewards, strict=True):
        ids = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
        found.append(trace_of(question, text, ids, [1, 2]))
        if reward is None:
            found[-1].rewards["right"] = None
        else:
            found[-1].record_reward("right", reward, weight=3.0)
    return found, tokenizer


def test_advantages_of_tokens_in_closed_form():
    """Leave-one-out of an outcome with weight 3: the failed trace is not in the baseline and gets none."""
    found, tokenizer = traces([("a", "1"), ("a", "0"), ("a", "2"), ("b", "1"), ("b", "1")], [1.0, 0.0, None, 1.0, 1.0])
    assign_advantages(found, [], {"adv_estimator": "rloo"}, tokenizer)
    assert [trace.nodes[1].advantages for trace in found] == [[3.0, 3.0], [-3.0, -3.0], None, [0.0, 0.0], [0.0, 0.0]]
    assert found[0].branches[0].advantages == [0.0, 0.0, 3.0, 3.0]  # aligned with all tokens
    assign_advantages(found, [step_source("lines", Lines())], {"adv_estimator": "rloo"}, tokenizer)
    steps = [(0.5 - 0.25 * (0 + 1)) / 1, (0.0 - 0.25 * (0.5 + 1)), (1.0 - 0.25 * (0.5 + 0))]
    last = [trace.nodes[1].advantages[-1] for trace in found[:3]]
    np.testing.assert_allclose(last, np.array([3.0, -3.0, 0.0]) + steps, atol=1e-6)


def test_what_has_no_meaning_is_refused():
    found, tokenizer = traces([("a", "1"), ("a", "0")], [1.0, 0.0])
    with pytest.raises(ConfigError, match="has the name of a reward"):
        assign_advantages(found, [step_source("right", Lines())], {"adv_estimator": "rloo"}, tokenizer)
    found[0].record_reward("right", 1.0, weight=1.0)
    with pytest.raises(ConfigError, match="several weights"):
        assign_advantages(found, [], {"adv_estimator": "rloo"}, tokenizer)
    found[0].nodes[0].sampled = True
    with pytest.raises(DataError, match="answers with their tokens"):
        assign_advantages(found, [], {"adv_estimator": "rloo"}, tokenizer)


def tools_trace(*messages):
    """A trace of a question and these messages."""
    trace = trace_of("How many eggs?", "")
    trace.nodes = trace.nodes[:1]
    for place, message in enumerate(messages):
        trace.nodes.append(MessageNode(parent=place, message=message, sampled=message.role == "assistant"))
    return trace


class Recorder:
    """Keeps what it is given; the reward is the length of the answer."""

    info = RewardInfo("recorder", (0.0, 100.0), granularity="total", modality="text", frames_needed=0)

    def score(self, episodes):
        self.seen = [(list(episode.context), "".join(episode.texts)) for episode in episodes]
        return [Score(total=float(len(answer))) for _, answer in self.seen]


CALL = vf.ToolCall(id="c1", name="count", arguments='{"of": "eggs"}')


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([vf.AssistantMessage(tool_calls=[CALL])], "tool_calls"),
        ([vf.AssistantMessage(content="Look:", tool_calls=[CALL])], "tool_calls"),
        ([vf.AssistantMessage(tool_calls=[CALL]), vf.ToolMessage(tool_call_id="c1", content="24")], "no_response"),
        (
            [
                vf.AssistantMessage(tool_calls=[CALL]),
                vf.ToolMessage(tool_call_id="c1", content=[]),
                vf.AssistantMessage(content="24."),
            ],
            "content must be",
        ),
        ([vf.AssistantMessage(content="24."), vf.UserMessage(content="Sure?")], "no_response"),
        ([vf.AssistantMessage(content=None)], "content"),
    ],
)
def test_a_trace_that_ends_without_an_answer_in_text_has_no_reward(messages, said):
    with pytest.raises(RewardFailure, match=said):
        asyncio.run(trace_reward(TextScorer(Recorder()), tools_trace(*messages)))


def test_calls_before_an_answer_are_part_of_the_conversation():
    model = Recorder()
    answer = vf.AssistantMessage(content="24.", reasoning_content="of the answer")
    called = vf.AssistantMessage(tool_calls=[CALL], reasoning_content="I count")
    trace = tools_trace(called, vf.ToolMessage(tool_call_id="c1", content="24"), answer)
    assert asyncio.run(trace_reward(TextScorer(model), trace)) == 3.0
    call = {"type": "function", "id": "c1", "function": {"name": "count", "arguments": {"of": "eggs"}}}
    assert model.seen == [([
        {"role": "user", "content": "How many eggs?"},
        {"role": "assistant", "content": "", "reasoning_content": "I count", "tool_calls": [call]},
        {"role": "tool", "content": "24", "tool_call_id": "c1"},
    ], "24.")]  # fmt: skip


class Turns:
    """Half for each turn of the assistant before this one; fails where the reply is `late`."""

    info = RewardInfo("turns", (0.0, 10.0), granularity="total", modality="text", frames_needed=0)

    def score(self, episodes):
        self.seen = [(episode.context, "".join(episode.texts)) for episode in episodes]
        return [
            Score(failure=Failure("late"))
            if "late" in said
            else Score(total=0.5 * sum(m["role"] == "assistant" for m in context))
            for context, said in self.seen
        ]


def talk(tokenizer, *said, reward):
    """A trace whose assistant says these texts, with a result of a tool after each but the last."""

    def ids(text):
        return tokenizer(text)["input_ids"]

    trace = trace_of("q", "", key="task")
    trace.nodes = [MessageNode(message=vf.UserMessage(content="q"), token_ids=ids("q"), mask=[False])]
    for k, text in enumerate(said):
        last = k + 1 == len(said)
        message = vf.AssistantMessage(content=text, tool_calls=None if last else [CALL])
        own = [*ids(">"), *ids(text), tokenizer.eos_token_id]  # the opening of the turn is not sampled
        trace.nodes.append(MessageNode(parent=len(trace.nodes) - 1, message=message, sampled=True, token_ids=own,
                                       mask=[False] + [True] * (len(own) - 1)))  # fmt: skip
        if not last:
            result = vf.ToolMessage(tool_call_id="c1", content="24")
            trace.nodes.append(MessageNode(parent=len(trace.nodes) - 1, message=result, token_ids=ids("24"),
                                           mask=[False] * 2))  # fmt: skip
    trace.record_reward("right", reward, weight=1.0)
    return trace


def of_answers(trace):
    return [node.advantages for node in trace.nodes if node.sampled]


def test_traces_with_several_answers_get_advantages_of_turns():
    tokenizer = byte_tokenizer()
    made = [talk(tokenizer, "ab", "c", reward=1.0), talk(tokenizer, "d", reward=0.0)]
    assign_advantages(made, [], {"adv_estimator": "rloo"}, tokenizer)
    assert of_answers(made[0]) == [[1.0] * 3, [1.0] * 2]
    assert of_answers(made[1]) == [[-1.0] * 2]
    assert made[0].branches[0].advantages == [0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    model = Turns()
    source = step_source("turns", model, reward_mode="per_turn")
    assign_advantages(made, [source], {"adv_estimator": "turn_rloo"}, tokenizer)
    # outcomes: 1 from each turn on, against 0; the source: 0 + 0.5 and 0.5 to go, against 0
    np.testing.assert_allclose(of_answers(made[0])[0], [1.5] * 3)
    np.testing.assert_allclose(of_answers(made[0])[1], [1.5] * 2)
    np.testing.assert_allclose(of_answers(made[1])[0], [-1.0 - 0.5] * 2)
    (context, said) = next(one for one in model.seen if len(one[0]) > 1)
    assert [m["role"] for m in context] == ["user", "assistant", "tool"]
    assert context[1]["tool_calls"][0]["function"] == {"name": "count", "arguments": {"of": "eggs"}}
    assert said == "c"


def test_a_turn_that_was_not_measured_leaves_its_trace_out_of_that_source():
    tokenizer = byte_tokenizer()
    made = [talk(tokenizer, "ab", "late", reward=1.0), talk(tokenizer, "d", reward=0.0)]
    made.append(talk(tokenizer, "e", "f", reward=0.0))
    source = step_source("turns", Turns(), reward_mode="per_turn")
    assign_advantages(made, [source], {"adv_estimator": "turn_rloo"}, tokenizer)
    np.testing.assert_allclose([own[0] for own in of_answers(made[0])], [1.0, 1.0])  # of its outcome alone
    np.testing.assert_allclose([own[0] for own in of_answers(made[2])], [-0.5 + 0.5, -0.5 + 0.5])


def test_what_does_not_go_with_conversations_is_refused():
    tokenizer = byte_tokenizer()
    made = [talk(tokenizer, "ab", "c", reward=1.0), talk(tokenizer, "d", reward=0.0)]
    refused = (
        ([step_source("lines", Lines())], "turn_rloo", "per_step scores steps of one response"),
        ([step_source("turns", Turns(), reward_mode="per_turn")], "rloo", "the source 'turns' pays every turn"),
    )
    for sources, estimator, said in refused:
        with pytest.raises(ConfigError, match=said):
            assign_advantages(made, sources, {"adv_estimator": estimator}, tokenizer)
    single, tokenizer = traces([("a", "1"), ("a", "0")], [1.0, 0.0])
    with pytest.raises(ConfigError, match="these are single responses") as refused:
        assign_advantages(single, [], {"adv_estimator": "turn_rloo"}, tokenizer)
    assert refused.value.key == "adv_estimator"
