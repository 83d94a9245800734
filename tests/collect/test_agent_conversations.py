"""Conversations of several calls: rounds, limits, failures, and what becomes of them in a rollout."""

import json

import numpy as np
import pytest

from agent_parts import Counting, Says
from guerdon.collect.agents import Moment, Request, ToolAgent, check_agent_here
from guerdon.collect.conversations import CUT, ConversationLoop, agent_of, arrays_of
from guerdon.collect.text import Sampler, chat_lengths, conversation_rows, join_shards, take
from guerdon.errors import ConfigError, DataError
from guerdon.policies.batches.dialogues import tool_form
from guerdon.policies.batches.tokens import prompt_ids, stop_ids
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.rewards.source import SourceTerms
from guerdon.rewards.text_sources import VerifiedTurns, turns_of
from guerdon.settings.agent import OwnAgentSettings, ToolAgentSettings
from guerdon.settings.data import FilesDataSettings
from guerdon.tasks.prompts import Prompt
from guerdon.tasks.verifier import verifier_from
from guerdon.types import Failure
from guerdon.worlds.messages import WorldStep, checked_step
from tables import cases

TOKENIZER = byte_tokenizer()
PROMPTS = [Prompt(f"row{k}", ({"role": "user", "content": f"{k} + 1?"},), str(k + 1), "sums") for k in range(3)]


def settings(**given):
    base = {
        "train_files": "unread.jsonl", "verifier": "numeric", "max_response_length": 200, "train_batch_size": 2,
        "n_samples": 2, "filter_accuracy": False, "filter_truncated": False, "unparsable": "wrong",
    }  # fmt: skip
    return FilesDataSettings(**{**base, **given})


def loop_of(write, agent, agent_settings, data=None, room=None, tokenizer=TOKENIZER):
    data = data or settings()
    return ConversationLoop(
        tokenizer, Says(TOKENIZER, write), agent, agent_settings, data, stops=stop_ids(TOKENIZER), room=room
    )


def sampler_of(loop, data):
    return Sampler(data, loop._engine, verifier_from(data), PROMPTS, TOKENIZER, seed=3, agent=loop)


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def asks_twice(prompt, u):
    """Call `add` on the numbers of the question, then answer with its result; some call wrongly first."""
    results = prompt.split("<tool_response>\n")[1:]
    if not results:
        return call("add", a=int(prompt.split("<|user|>")[1][0]), b=1) + (call("sub") if u > 0.5 else "")
    return results[0].split("\n")[0]


@pytest.fixture(scope="module")
def tools():
    chosen = ToolAgentSettings(
        tools=("agent_functions:add", "agent_functions:misbehave"), calls_at_once=2, call_timeout=4.0, max_turns=3,
        max_result_tokens=50,
    )  # fmt: skip
    agent = ToolAgent(chosen)
    yield chosen, agent
    agent.close()


def test_a_turn_that_calls_tools_is_no_answer_and_one_without_an_answer_is_a_hole(tools):
    chosen, agent = tools
    data = settings(unparsable="failure")

    def write(prompt, u):
        if "<tool_response>\n" not in prompt:
            return call("add", a=0, b=1) if u > 0.5 else "7"
        return "1" if u > 0.4 else "no number"

    sampler = sampler_of(loop_of(write, agent, chosen, data), data)
    rollout = sampler.answer([PROMPTS[0]] * 8, 2)
    source = VerifiedTurns(SourceTerms("exact"), verifier_from(data), "failure")
    rewards = source.measure(rollout)
    said = [[m for m in one.messages if m["role"] == "assistant"] for one in rollout.inputs.conversations]
    rows = list(conversation_rows(rollout, {"exact": rewards}, 0, tokens=False))
    known = {"7": 0.0, "1": 1.0, "no number": None}
    for turns, row in zip(said, rows, strict=True):
        paid = [0.0 if turn.get("tool_calls") else known[turn["content"]] for turn in turns]
        assert [one["rewards"]["exact"] for one in row["calls"]] == paid
    assert {len(turns) for turns in said} == {1, 2}
    holes = sum(turns[-1]["content"] == "no number" for turns in said)
    assert holes
    assert len(rewards.failures) == rewards.failed.sum() == holes
    assert rewards.measured == sum(map(len, said))
    asked = turns_of(rollout)
    assert [turn.prompt.messages[-1]["role"] for turn in asked] == [
        role for turns in said for role in ["user", "tool"][: len(turns)]
    ]
    assert all(tool["function"]["name"] in ("add", "misbehave") for turn in asked for tool in turn.prompt.tools)


def test_a_conversation_with_tools_becomes_rows(tools):
    chosen, agent = tools
    data = settings()
    sampler = sampler_of(loop_of(asks_twice, agent, chosen, data), data)
    drawn = sampler.draw()
    assert drawn.mask.shape[0] == 4
    assert len(drawn.inputs) == 8
    assert drawn.outcomes_B.tolist() == [1, 1, 1, 1]
    assert drawn.known_B.all()
    chunks, batch = drawn.chunks, drawn.inputs.batch
    for b in range(4):
        ids = batch.responses_B_T[chunks.decision[b][drawn.mask[b]], chunks.slot[b][drawn.mask[b]]]
        first, second = batch.responses()[2 * b : 2 * b + 2]
        np.testing.assert_array_equal(ids, np.concatenate([first, second]))
        begins = np.concatenate([batch.prompts[2 * b], first])
        np.testing.assert_array_equal(batch.prompts[2 * b + 1][: len(begins)], begins)
    facts = drawn.metrics
    assert (facts["agent/turns"], facts["agent/contexts"], facts["agent/failed"]) == (2.0, 1.0, 0.0)
    assert facts["agent/calls"] == 4 + facts["agent/bad_calls"]
    assert drawn.steps == 4
    rows = list(conversation_rows(drawn, {}, 4, tokens=True))
    assert [row["reward"] for row in rows] == [1.0] * 4
    assert rows[0].keys() == {
        "step", "id", "group", "messages", "calls", "reward", "success", "failure", "truncated",
    }  # fmt: skip
    assert [message["role"] for message in rows[0]["messages"]][:3] == ["user", "assistant", "tool"]
    assert rows[0]["calls"][0]["ids"] == batch.responses()[0].tolist()


def test_numbers_belong_to_the_conversation_and_the_call(tools):
    chosen, agent = tools

    def drawn(prompts):
        loop = loop_of(asks_twice, agent, chosen)
        loop.lead(prompts, root=5)
        return loop._engine

    both, alone = drawn(PROMPTS[:2]), drawn(PROMPTS[:1])
    assert both.rounds == [2, 2]
    assert [numbers[0] for numbers in both.drawn] == [numbers[0] for numbers in alone.drawn]
    assert len({u for numbers in both.drawn for u in numbers}) == 4
    greedy = loop_of(asks_twice, agent, chosen)
    greedy.lead(PROMPTS[:1], root=None)
    assert greedy._engine.drawn == [[0.0], [0.0]]


def asks_once(prompt, u):
    return "4" if "<tool_response>\n" in prompt else call("add", a=1, b=2)


LIMITS = [
    ({"max_turns": 1}, {}, None, True, 1), ({}, {"max_response_length": 20}, None, True, 1),
    ({"max_tokens": 71}, {}, None, True, 2), ({}, {}, 0, True, 1), ({}, {}, 300, False, 2),
]  # fmt: skip


@cases("agent_given, data_given, more_room, truncated, turns", LIMITS)
def test_limits_end_conversations(tools, agent_given, data_given, more_room, truncated, turns):
    chosen, agent = tools
    own, data = chosen.model_copy(update=agent_given), settings(**data_given)
    shown, functions = tool_form(TOKENIZER).shown(PROMPTS[0].messages, agent.schemas)
    first = len(prompt_ids(TOKENIZER, shown, functions)) + data.max_response_length
    room = None if more_room is None else first + more_room
    (one,) = loop_of(asks_once, agent, own, data, room).lead(PROMPTS[:1], root=1)
    assert (one.truncated, len(one.calls), one.failure) == (truncated, turns, None)


@cases("how, reason", [("fail", "tool_failure"), ("die", "tool_died"), ("raise", None)])
def test_what_the_policy_cannot_cause_is_a_failure(tools, how, reason):
    chosen, agent = tools
    data = settings(n_samples=2, train_batch_size=1)

    def write(prompt, u):
        return "4" if "<tool_response>\n" in prompt else call("misbehave", how=how)

    drawn = sampler_of(loop_of(write, agent, chosen, data), data).draw() if reason is None else None
    if reason is None:
        assert not drawn.failed.any()
        assert "ValueError: no such page" in drawn.inputs.conversations[0].messages[2]["content"]
        return
    sampler = sampler_of(loop_of(write, agent, chosen, data), data)
    failed = sampler.answer(PROMPTS[:1], 2)
    assert [(row, why.reason) for row, _, why in failed.failures] == [(0, reason), (1, reason)]
    assert len(failed.inputs) == 0
    assert not failed.known_B.any()
    measured = VerifiedTurns(SourceTerms("exact"), verifier_from(data), "failure").measure(failed)
    row = next(iter(conversation_rows(failed, {"exact": measured}, 2, tokens=False)))
    assert [one["rewards"] for one in row["calls"]] == [{"exact": None}]
    assert next(iter(conversation_rows(failed, {}, 2, tokens=False)))["reward"] is None


def test_a_call_that_cannot_be_read_is_told_to_the_model(tools):
    chosen, agent = tools

    def write(prompt, u):
        return "4" if "<tool_response>\n" in prompt else "<tool_call>{add 1 and 2}</tool_call>"

    (one,) = loop_of(write, agent, chosen).lead(PROMPTS[:1], root=1)
    assert (one.failure, one.counts["calls"], one.counts["bad_calls"]) == (None, 1, 1)
    assert one.messages[2]["role"] == "tool"
    assert one.messages[2]["content"].startswith("error: ")


def test_half_of_a_surrogate_pair_in_a_call_is_no_failure(tools):
    chosen, agent = tools

    def write(prompt, u):
        return "4" if "<tool_response>\n" in prompt else call("add", a="\ud800", b="")

    (one,) = loop_of(write, agent, chosen).lead(PROMPTS[:1], root=1)
    assert (one.failure, one.counts["calls"], one.counts["bad_calls"]) == (None, 1, 1)
    assert one.messages[2]["content"].startswith("error: a call cannot be read: there is half")


def test_tools_that_take_longer_than_an_episode_may_are_a_failure():
    chosen = ToolAgentSettings(tools=("calculator",), calls_at_once=1, episode_timeout=1e-9)
    agent = ToolAgent(chosen)
    (one,) = loop_of(lambda prompt, u: call("calculator", expression="1+2"), agent, chosen).lead(PROMPTS[:1], root=1)
    agent.close()
    assert one.failure == Failure("agent_timeout", "tools took more than 1e-09 s")


def test_long_results_are_cut_and_counted_once(tools):
    chosen, agent = tools

    def write(prompt, u):
        return call("misbehave", how="long") if prompt.count("<tool_response>\n") < 2 else "4"

    (one,) = loop_of(write, agent, chosen).lead(PROMPTS[:1], root=1)
    assert one.messages[2]["content"] == "x" * 50 + CUT
    assert one.counts["cut_results"] == 2
    assert one.contexts == 1


def world(**params):
    chosen = OwnAgentSettings(type="agent_parts:Counting", params=params, max_turns=4)
    return chosen, agent_of(chosen, temperature=1.0)


def says(first, second):
    return lambda prompt, u: second if prompt.count("<|user|>") > 1 else first


def test_worlds_pay_turns_or_outcomes():
    data = settings()
    for paid, rewards in ((True, [0.25, 1.0]), (False, [0.0, 1.0])):
        chosen, agent = world(paid=paid)
        found = sampler_of(loop_of(says("1", "1"), agent, chosen, data), data).answer(PROMPTS[:1], 2)
        at_ends = found.rewards[0][np.append(np.diff(found.chunks.decision[0]) != 0, True)]
        assert at_ends.tolist() == rewards
        assert found.success[0].any()
        assert found.states[0].tolist() == [0, 0, 1, 1]  # of a digit and the end of each reply
    chosen, agent = world(broken="reset")
    (one,) = loop_of(says("1", "1"), agent, chosen).lead(PROMPTS[:1], root=1)
    assert one.failure.reason == "agent_error"
    assert "no game" in one.failure.detail
    chosen, agent = world(broken="outcome")
    (one,) = loop_of(says("0", "1"), agent, chosen).lead(PROMPTS[:1], root=1)
    assert one.failure == Failure("game_lost", "the game ended")


def test_a_world_says_which_tools_there_are_from_now_on():
    chosen, agent = world(offers="look")
    (one,) = loop_of(lambda prompt, u: call("look") + call("open"), agent, chosen).lead(PROMPTS[:1], root=1)
    assert [tool["function"]["name"] for tool in one.calls[0].tools] == ["look"]
    assert (one.counts["calls"], one.counts["bad_calls"]) == (2, 1)


def test_a_world_that_takes_longer_than_an_episode_may_is_a_failure():
    chosen, _ = world()
    slow = chosen.model_copy(update={"episode_timeout": 1e-9})
    (one,) = loop_of(says("1", "1"), agent_of(slow, temperature=1.0), slow).lead(PROMPTS[:1], root=1)
    assert one.failure == Failure("agent_timeout", "the world took more than 1e-09 s")


def test_worlds_under_way_are_closed_with_their_agent():
    before = Counting.open
    _, agent = world()
    agent.start(dict(enumerate(PROMPTS)))
    assert Counting.open == before + 3
    agent.close()
    assert Counting.open == before


class Returns:
    """A world whose step returns what the test wants."""

    given = None

    def reset(self, row):
        return WorldStep(row["messages"])

    def step(self, message):
        return Returns.given


NO_STEPS = [
    (None, "returned NoneType, not"), ({"done": True}, "returned dict, not"), (((), 1.0, True), "returned tuple, not"),
    (WorldStep(reward=float("nan"), done=True), "reward is a finite number or None, this is 'nan'"),
    (WorldStep(reward="1", done=True), "reward is"), (WorldStep(reward=10**400, done=True), "reward is a finite"),
    (WorldStep(done=True, outcome=float("inf")), "outcome is"), (WorldStep(done=True, outcome="1"), "outcome is"),
    (WorldStep(done=True, outcome=[1.0]), "outcome is"), (WorldStep(done=True, outcome=Failure), "outcome is"),
    (WorldStep(reward=1.0, done="no"), "done is True or False"), (WorldStep("hello"), "a chat message needs role"),
    (WorldStep(PROMPTS[0].messages, state=["a"]), "state is"), (WorldStep(state=0, done=True), "state is"),
]  # fmt: skip


@cases("given, words", NO_STEPS)
def test_a_world_that_returns_no_step_is_a_failure_that_says_so(given, words):
    chosen = OwnAgentSettings(type="test_agent_conversations:Returns", max_turns=2)
    Returns.given = given
    (one,) = loop_of(says("1", "1"), agent_of(chosen, temperature=1.0), chosen).lead(PROMPTS[:1], root=1)
    assert one.failure is not None
    assert one.failure.reason == "agent_error"
    assert one.failure.detail.startswith("test_agent_conversations:Returns: step")
    assert words in one.failure.detail


def test_numbers_of_a_world_may_be_those_of_numpy():
    found = checked_step(WorldStep(reward=np.float32(0.5), done=np.bool_(True), outcome=np.int64(1)))
    assert found == WorldStep(reward=0.5, done=True, outcome=1.0)
    assert (type(found.reward), type(found.outcome)) == (float, float)


def test_a_world_that_cannot_be_made_is_a_failure_of_its_conversation():
    chosen, agent = world(broken="made")
    first, second = loop_of(says("1", "1"), agent, chosen).lead(PROMPTS[:2], root=1)
    assert first.failure is None
    assert second.failure.reason == "agent_error"
    assert "no server" in second.failure.detail


def test_a_world_that_cannot_be_closed_is_refused_before_the_run():
    with pytest.raises(ConfigError, match="close of agent_parts:Counting raised: RuntimeError: stays open"):
        check_agent_here(OwnAgentSettings(type="agent_parts:Counting", params={"broken": "close"}))


def test_a_world_that_is_cut_off_is_not_solved():
    chosen, agent = world(paid=False)
    chosen = chosen.model_copy(update={"max_turns": 1})
    (one,) = loop_of(says("1", "1"), agent, chosen).lead(PROMPTS[:1], root=1)
    assert (one.truncated, one.outcome, one.failure) == (True, 0.0, None)


@pytest.mark.parametrize(("params", "turns"), [({}, 4), ({}, 1), ({"broken": "reset"}, 4), ({"broken": "outcome"}, 4)])
def test_a_world_is_closed_however_its_conversation_ends(params, turns):
    before = Counting.open
    chosen, agent = world(**params)
    loop_of(says("1", "1"), agent, chosen.model_copy(update={"max_turns": turns})).lead(PROMPTS[:2], root=1)
    assert Counting.open == before


def test_parts_of_rollouts_can_be_taken_and_joined():
    chosen, agent = world()
    data = settings()

    def write(prompt, u):
        return "1" if u > 0.4 else "000"

    sampler = sampler_of(loop_of(write, agent, chosen, data), data)
    whole = sampler.answer(PROMPTS, 2)
    rows = np.array([3, 0])
    part = take(whole, rows)
    assert [one.prompt.id for one in part.inputs.conversations] == ["row1", "row0"]
    for new, old in enumerate(rows):
        taken, there = part.mask[new], whole.mask[old]
        np.testing.assert_array_equal(part.rewards[new][taken], whole.rewards[old][there])
        mine = part.inputs.batch.responses_B_T[part.chunks.decision[new][taken], part.chunks.slot[new][taken]]
        theirs = whole.inputs.batch.responses_B_T[whole.chunks.decision[old][there], whole.chunks.slot[old][there]]
        np.testing.assert_array_equal(mine, theirs)
    assert part.log_probs.shape == part.inputs.batch.mask_B_T.shape
    both = join_shards([whole, part], TOKENIZER)
    assert len(both.inputs) == len(whole.inputs) + len(part.inputs)
    np.testing.assert_array_equal(take(both, np.arange(6)).chunks.decision, whole.chunks.decision)
    np.testing.assert_array_equal(np.unique(both.groups_B), np.arange(5))


class Asks:
    """Asks for replies in rounds, then ends as it is told."""

    at_once = None

    def __init__(self, *rounds, **ends):
        self.rounds, self.ends = rounds, ends

    def start(self, rows):
        self.replies = []
        return dict.fromkeys(rows, self._next())

    def read(self, replies):
        self.replies.append(replies[0])
        return {0: self._next()}

    def _next(self):
        done = len(self.replies)
        return Moment(self.rounds[done]) if done < len(self.rounds) else Moment(**self.ends)


def request(text, **more):
    return Request(({"role": "user", "content": text},), **more)


JUDGES = OwnAgentSettings(type="agent_parts:Counting")


def test_each_reply_ends_at_its_own_limit_and_before_its_own_stop():
    asks = Asks(
        (request("a", most=3), request("b", stop=("x", "yy")), request("c", stop=("q",)), request("d", most=50))
    )
    (one,) = loop_of(lambda prompt, u: "3é4yyx5", asks, JUDGES).lead(PROMPTS[:1], root=1)
    said = [TOKENIZER.decode(made.ids.tolist()) for made in one.calls]
    assert (said[1], said[2], said[3]) == ("3é4yy", "3é4yyx5<|eos|>", "3é4yyx5<|eos|>")
    assert [len(made.ids) for made in one.calls] == [3, 6, 9, 9]
    assert [made.finished for made in one.calls] == [False, True, True, True]
    assert [reply.message["content"] for reply in asks.replies[0]] == ["3é", "3é4", "3é4yyx5", "3é4yyx5"]


def showing_one_message():
    """A tokenizer whose template leaves out all messages but the first."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}"
    return tokenizer


def test_a_conversation_without_a_call_and_one_that_no_template_shows_are_failures():
    (none,) = loop_of(None, Asks(), JUDGES).lead(PROMPTS[:1], root=1)
    assert none.failure == Failure("agent_error", "the conversation ended without a call of the model")
    both = Request(({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, PROMPTS[0].messages[0]))
    (lost,) = loop_of(None, Asks([both]), JUDGES, tokenizer=showing_one_message()).lead(PROMPTS[:1], root=1)
    assert lost.failure.reason == "agent_error"
    assert "the chat template leaves out" in lost.failure.detail


def test_what_nobody_judges_is_a_hole_unless_a_limit_ended_it():
    data = settings()

    def answered(agent, chosen=JUDGES):
        loop = loop_of(lambda prompt, u: "1", agent, chosen, data)
        return Sampler(data, loop._engine, None, PROMPTS, TOKENIZER, seed=3, agent=loop).answer(PROMPTS[:1], 1)

    found = answered(Asks([request("a")]))
    assert [(b, why.reason) for b, _, why in found.failures] == [(0, "no_reward")]
    cut = answered(Asks([request("a")], [request("b")]), JUDGES.model_copy(update={"max_turns": 1}))
    assert (cut.failures, cut.rewards.sum(), cut.known_B.tolist()) == ((), 0.0, [True])
    paid = answered(Asks([request("a")], [request("b")], rewards=(0.5, None)))
    ends = np.flatnonzero(np.append(np.diff(paid.chunks.decision[0]) != 0, True))
    assert paid.rewards[0].nonzero()[0].tolist() == ends[:1].tolist()
    assert paid.rewards[0].max() == 0.5
    assert [(b, end, why.reason) for b, end, why in paid.failures] == [(0, int(ends[1]), "no_reward")]


def test_the_prompt_that_a_template_leaves_out_is_named():
    tokenizer, said = showing_one_message(), ("user", "assistant", "user")
    chat = tuple({"role": role, "content": f"{role}{k}"} for k, role in enumerate(said))
    prompts = [Prompt("a", chat[:1], "1", "sums"), Prompt("b", chat, "1", "sums")]
    assert chat_lengths(tokenizer, prompts[:1], settings()) == [len("user0")]
    with pytest.raises(DataError, match=r"cannot be given the prompt b: .*; leave it out"):
        chat_lengths(tokenizer, prompts, settings())


class Branching:
    """Two requests at once, of which one goes on from the reply before."""

    at_once = None

    def start(self, rows):
        first = Request(({"role": "user", "content": "a"},))
        return {number: Moment((first, Request(({"role": "user", "content": "b"},)))) for number in rows}

    def read(self, replies):
        moments = {}
        for number, own in replies.items():
            done = len(own) == 1
            said = ({"role": "user", "content": "b"}, own[-1].message, {"role": "user", "content": "c"})
            moments[number] = Moment(outcome=1.0) if done else Moment((Request(said),))
        return moments


class Twice(Branching):
    """Two requests at once; it ends when one of them is answered."""

    def read(self, replies):
        return {number: Moment() for number in replies}


def test_a_request_that_a_limit_refuses_cuts_off_also_where_another_is_answered():
    loop = loop_of(lambda prompt, u: "1", Twice(), ToolAgentSettings(tools=("calculator",), max_turns=1))
    (one,) = loop.lead(PROMPTS[:1], root=1)
    assert (len(one.calls), one.truncated) == (1, True)


def test_branches_go_on_from_their_own_reply():
    loop = loop_of(lambda prompt, u: "1", Branching(), ToolAgentSettings(tools=("calculator",)))
    (one,) = loop.lead(PROMPTS[:1], root=1)
    assert (len(one.calls), one.contexts) == (3, 2)
    begins = np.concatenate([one.calls[1].prompt, one.calls[1].ids])
    np.testing.assert_array_equal(one.calls[2].prompt[: len(begins)], begins)


def test_failed_conversations_are_rows_without_steps():
    chosen, agent = world(broken="reset")
    found = arrays_of(loop_of(says("1", "1"), agent, chosen).lead(PROMPTS, root=1), TOKENIZER)
    assert found.mask.shape == (3, 0)
    assert len(found.batch) == 0
