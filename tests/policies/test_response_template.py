"""Replies read by the response template of a tokenizer, as transformers reads them; templates that take long."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from agent_parts import Says
from guerdon.collect.agents import ToolAgent
from guerdon.collect.conversations import ConversationLoop, agent_metrics
from guerdon.errors import CheckpointError
from guerdon.policies.batches.dialogues import read_reply, tool_form
from guerdon.policies.batches.tokens import prompt_ids, response_ids, stop_ids
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.policies.pretrained import response_template
from guerdon.policies.pretrained.reading import read_tokenizer
from guerdon.policies.pretrained.response_template import _read, check_response_template, read_by_template
from guerdon.processes.subprocess_worker import WorkerDiedError
from guerdon.settings.agent import ToolAgentSettings
from guerdon.settings.data import FilesDataSettings
from guerdon.tasks.prompts import Prompt
from tables import cases

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "first"},
                "note": {"type": "string", "description": "why"},
            },
        },
    },
}
USER = {"role": "user", "content": "1 + 2?"}
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|think|>", "<|say|>", "<|call|>", "<|end|>"]
FUNCTION = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}

# Calls as elements, and a prompt that opens the reasoning.
ELEMENTS = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|im_start|>assistant\n",
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*"},
        "tool_calls": {
            "open_pattern": r"<call=(?P<name>\w+)>",
            "close_pattern": r"</call>\s*",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {"tag_pattern": r"<(?P<key>\w+)>(?P<value>.*?)</\w+>"},
            "transform": FUNCTION,
        },
        "content": {"close_pattern": r"<\|im_end\|>\s*"},
    },
}
ELEMENTS_CHAT = (
    "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content }}{% for c in m.tool_calls or [] %}"
    "{{ '<call=' + c.function.name + '>' }}{% for k, v in c.function.arguments.items() %}"
    "{{ '<' + k + '>' + (v | string) + '</' + k + '>' }}{% endfor %}{{ '</call>' }}{% endfor %}{{ '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)

# Parts between special tokens; what stands elsewhere is nothing.
PARTS = {
    "start_anchor": "<|im_start|>assistant",
    "fields": {
        "thinking": {"open": "<|think|>", "close": "<|end|>"},
        "tool_calls": {
            "open_pattern": r"<\|call\|>(?P<name>\w+) ",
            "close": "<|end|>",
            "repeats": True,
            "content": "json",
            "transform": FUNCTION,
        },
        "content": {"open": "<|say|>", "close_pattern": r"<\|end\|>|$"},
    },
}
PARTS_CHAT = (
    "{% if tools %}{{ '<|im_start|>system<|say|>' + (tools | tojson) + '<|im_end|>' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role }}{% if m.content %}{{ '<|say|>' + m.content + '<|end|>' }}"
    "{% endif %}{% for c in m.tool_calls or [] %}"
    "{{ '<|call|>' + c.function.name + ' ' + (c.function.arguments | tojson) + '<|end|>' }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant' }}{% endif %}"
)


def with_template(folder, template, chat):
    """A tokenizer with a response template, saved and read again."""
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.eos_token = "<|im_end|>"
    tokenizer.chat_template, tokenizer.response_template = chat, template
    tokenizer.save_pretrained(folder)
    return read_tokenizer(str(folder))


@pytest.fixture(scope="module")
def elements(tmp_path_factory):
    return with_template(tmp_path_factory.mktemp("elements"), ELEMENTS, ELEMENTS_CHAT)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return with_template(tmp_path_factory.mktemp("parts"), PARTS, PARTS_CHAT)


def sampled(tokenizer, text):
    """Ids of a reply as a model writes it: with special tokens."""
    return np.array(tokenizer(text, add_special_tokens=False)["input_ids"])


def read_both(tokenizer, text):
    """A reply of guerdon, and what transformers makes of the same ids."""
    prompt, ids = prompt_ids(tokenizer, [USER], [TOOL]), sampled(tokenizer, text)
    form = tool_form(tokenizer)
    reply = read_reply(tokenizer, form, ids, tools=True, first_call=3, prompt=prompt, shown=[TOOL])
    return reply, tokenizer.parse_response(ids.tolist(), prefix=prompt.tolist(), tools=[TOOL])


ELEMENT_REPLIES = [
    ("I add.\n</think>\n\n<call=add><a>1</a><note>7</note></call>\n<call=add><a>2</a></call><|im_end|>", 2),
    ("I add.\n</think>\n\nLet me see.<call=sub><b>x</b></call><|im_end|>", 1),
    ("I know.\n</think>\n\nIt is <b>3</b>.<|im_end|>", 0),
    ("I do not stop", 0),
    ("</think>3", 0),
    ("\n</think>\n\n<call=add><a>not a number</a></call><|im_end|>", 1),
    ("\n</think>\n\n<call=add><a>1</a>", 1),
    ('</think>\n<tool_call>{"name": "add", "arguments": {}}</tool_call><|im_end|>', 0),
]
PART_REPLIES = [
    ('<|think|>I add.<|end|><|call|>add {"a": 1, "note": "<|say|>"}<|end|><|im_end|>', 1),
    ('<|say|>First:<|end|><|call|>add {"a": 1}<|end|><|call|>sub {}<|end|><|im_end|>', 2),
    ("<|think|>So.<|end|><|say|>3<|end|><|im_end|>", 0),
    ("<|say|>3<|im_end|>", 0),
    ("3<|im_end|>", 0),
]
REPLIES = [("elements", *row) for row in ELEMENT_REPLIES] + [("parts", *row) for row in PART_REPLIES]


@cases("name, text, calls", REPLIES)
def test_calls_text_and_reasoning_are_those_of_transformers(elements, parts, name, text, calls):
    tokenizer = elements if name == "elements" else parts
    reply, theirs = read_both(tokenizer, text)
    found = reply.message.get("tool_calls", [])
    assert [call["function"] for call in found] == [call["function"] for call in theirs.get("tool_calls", [])]
    assert [call["id"] for call in found] == [f"call_{3 + k}" for k in range(calls)]
    thought = theirs.get("thinking") or theirs.get("reasoning_content") or ""
    content = theirs.get("content", "").removesuffix("<|im_end|>")
    assert reply.message["content"] == (f"<think>\n{thought}\n</think>\n\n{content}".strip() if thought else content)
    assert not reply.bad


def test_arguments_have_the_types_of_the_schema(elements):
    reply, _ = read_both(elements, ELEMENT_REPLIES[0][0])
    assert reply.message["content"] == "<think>\nI add.\n</think>"
    assert reply.message["tool_calls"][0]["function"]["arguments"] == {"a": 1, "note": "7"}


MALFORMED = [
    ('<|call|>add {"a": <|end|><|im_end|>', 'add {"a":', "a call cannot be read: Expecting value", 0),
    ("<|call|>add [1]<|end|><|im_end|>", "add [1]", "the arguments of 'add' are not a JSON object", 0),
    ("<|call|>add {}<|end|><|call|>add 3<|end|><|im_end|>", "add {}add 3", "the arguments of 'add' are not", 1),
    ('<|call|>add {<|end|><tool_call>{"name": "add"}</tool_call><|im_end|>', "add {", "", 1),
]


@cases("text, content, why, good", MALFORMED)
def test_a_malformed_call_is_counted_and_stays_text(parts, text, content, why, good):
    ids = sampled(parts, text)
    prompt = prompt_ids(parts, [USER], [TOOL])
    reply = read_reply(parts, tool_form(parts), ids, tools=True, first_call=0, prompt=prompt, shown=[TOOL])
    assert reply.message["content"] == content
    assert len(reply.message.get("tool_calls", [])) == good
    assert [problem.startswith(why) for problem in reply.bad.values()] == [True] * bool(why)


def test_a_reply_that_was_cut_at_a_text_is_read_with_its_special_tokens(parts):
    whole = sampled(parts, "<|think|>Ä.<|end|><|say|>3 €<|end|>Observation: 4<|im_end|>")
    form, prompt = tool_form(parts), prompt_ids(parts, [USER], [TOOL])
    for text, count in (("Ä.3 ", 18), ("Ä.3 €", 24)):  # the first ends before a character of three tokens
        ids = whole[:count]
        reply = read_reply(parts, form, ids, tools=True, first_call=0, prompt=prompt, shown=[TOOL], text=text)
        assert reply.message["content"] == f"<think>\nÄ.\n</think>\n\n{text[2:].strip()}"


def test_without_tools_or_without_a_place_for_them_no_template_is_used(elements, tmp_path):
    text = "<call=add><a>1</a></call>"
    reply = read_reply(elements, tool_form(elements), response_ids(elements, text), tools=False, first_call=0)
    assert reply.message == {"role": "assistant", "content": text}
    plain = "{% for m in messages %}{{ m.role + m.content }}{% endfor %}"
    form = tool_form(with_template(tmp_path, ELEMENTS, plain))
    assert (form.own, form.template, form.grammar) == (True, False, "hermes")
    form = tool_form(elements)
    assert (form.own, form.template, form.grammar) == (False, True, "hermes")


def test_replies_without_text_are_read_by_the_table(tmp_path):
    content = {"open": "<|say|>", "close": "<|end|>", "content": "json"}
    tokenizer = with_template(tmp_path, {**PARTS, "fields": {**PARTS["fields"], "content": content}}, PARTS_CHAT)
    said = '<|say|>{"a": 3}<|end|><tool_call>{"name": "add"}</tool_call>'
    reply, theirs = read_both(tokenizer, said)
    assert theirs["content"] == {"a": 3}
    assert (reply.message["content"], len(reply.message["tool_calls"])) == ('{"a": 3}', 1)
    reply = read_reply(
        tokenizer, tool_form(tokenizer), sampled(tokenizer, "<|say|>three<|end|>"), tools=True, first_call=0
    )
    assert (reply.message["content"], reply.bad) == ("three", {})


@pytest.mark.hostile("models")
def test_an_expression_that_does_not_end_is_refused_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(response_template, "SECONDS", 0.5)
    fields = {**PARTS["fields"], "thinking": {"open_pattern": "(a|a)+b", "close": "<|end|>"}}
    tokenizer = with_template(tmp_path, {**PARTS, "fields": fields}, PARTS_CHAT)
    with pytest.raises(CheckpointError, match=r"takes more than 0.5 s for a reply of 3,000 characters") as error:
        tool_form(tokenizer)
    assert str(tmp_path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.hostile("models")
def test_an_expression_that_does_not_end_for_one_reply_is_an_error_with_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(response_template, "SECONDS", 0.5)
    fields = {**PARTS["fields"], "thinking": {"open_pattern": "(b|b)+c", "close": "<|end|>"}}
    tokenizer = with_template(tmp_path, {**PARTS, "fields": fields}, PARTS_CHAT)
    form, prompt = tool_form(tokenizer), prompt_ids(tokenizer, [USER], [TOOL])
    with pytest.raises(CheckpointError, match=r"takes more than 0.5 s .* correct response_template in") as error:
        read_reply(tokenizer, form, sampled(tokenizer, "b" * 99), tools=True, first_call=0, prompt=prompt)
    assert str(tmp_path) in str(error.value)
    assert read_by_template(tokenizer, "<|say|>3<|end|>", prompt="", tools=[]).message == {"content": "3"}


UNUSABLE = [
    ("no", "is none that transformers reads: .*must be a dict"),
    ({**PARTS, "version": 2}, "is none that transformers reads: .*version: 2"),
    ({**PARTS, "start_anchor_pattern": ":", "start_anchor": ":"}, "is none that transformers reads"),
    ({**PARTS, "fields": {"content": {"open_pattern": "("}}}, "is none that transformers reads: .*regex"),
    ({**PARTS, "start_anchor": "<|im_start|>model"}, "takes the calls of the prompt for those of the reply"),
]


@pytest.mark.hostile("models")
@cases("template, words", UNUSABLE)
def test_a_template_that_cannot_be_used_is_refused_in_one_line(parts, template, words):
    tokenizer = byte_tokenizer()
    tokenizer.response_template, tokenizer.name_or_path = template, "a/b"
    prompt = '<|im_start|>assistant<|call|>add {"a": 1}<|end|><|im_end|><|im_start|>assistant'
    with pytest.raises(CheckpointError, match=f"the response template of 'a/b' {words}") as error:
        check_response_template(tokenizer, prompt, [TOOL])
    assert "\n" not in str(error.value)


def test_a_template_is_tried_once(parts, monkeypatch):
    tool_form(parts)
    monkeypatch.setattr(response_template, "SubprocessPool", None)
    monkeypatch.setattr(response_template, "read_by_template", None)
    assert tool_form(parts).template


READ = [
    ("<|say|>3<|end|>", {"message": {"content": "3"}}),
    (
        "<|call|>add {<|end|>",
        {"why": "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)", "calls": True},
    ),
    ("<|call|>add DEEP", {"why": "maximum recursion depth exceeded", "calls": True}),
]


@cases("text, found", READ)
def test_what_the_process_says_of_a_reply(text, found):
    text = text.replace("DEEP", "[" * 100_000)
    said = _read({"template": PARTS, "text": text, "prompt": "", "tools": [TOOL]})
    if "message" in said:
        said["message"] = json.loads(said["message"])
    assert {key: value if key != "why" else value[: len(found["why"])] for key, value in said.items()} == found


@cases("fields", [{"number": {"content": "int"}}, {"content": {}, "number": {"optional": False, "open": "#"}}])
def test_a_reply_that_cannot_be_read_for_another_reason_has_no_calls(fields):
    template = {"start_anchor": ":", "fields": fields}
    said = _read({"template": template, "text": "three", "prompt": "", "tools": []})
    assert said["calls"] is False
    calls = {"open": "[", "content": "json"}
    said = _read(
        {"template": {**template, "fields": {**fields, "tool_calls": calls}}, "text": "a", "prompt": "", "tools": []}
    )
    assert said["calls"] is False


def dies(*_):
    raise WorkerDiedError


def test_what_ends_the_process_is_an_error_and_a_reply_too_deep_for_this_one_is_not(parts, monkeypatch):
    for answer, said in ((dies, "ends the process that runs it"), (lambda *_: {"problem": "is bad"}, "is bad")):
        monkeypatch.setattr(response_template, "_pool", lambda *_, answer=answer: SimpleNamespace(request=answer))
        with pytest.raises(CheckpointError, match=said):
            read_by_template(parts, "3", prompt="", tools=[])
    deep = SimpleNamespace(request=lambda *_: {"message": "[" * 100_000})
    monkeypatch.setattr(response_template, "_pool", lambda *_: deep)
    assert read_by_template(parts, "3", prompt="", tools=[]).message is None


def test_a_reply_that_takes_too_much_memory_is_a_problem(monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(response_template, "_parsed", full)
    said = _read({"template": PARTS, "text": "3", "prompt": "", "tools": []})
    assert said == {"problem": "needs more than 512 MiB of memory"}


def test_a_conversation_with_calls_in_the_form_of_the_template(elements):
    said = {
        0: "So.\n</think>\n\n<call=add><a>one</a><b>2</b></call><call=sub></call>",
        2: "Right.\n</think>\n\n<call=add><a>1</a><b>2</b></call>",
        3: "It is so.\n</think>\n\n3",
    }

    def write(prompt, u):
        return said[prompt.count("<|im_start|>tool\n")]

    chosen = ToolAgentSettings(tools=("agent_functions:add",), calls_at_once=1, max_turns=4, max_result_tokens=200)
    data = FilesDataSettings(train_files="unread.jsonl", verifier="numeric", max_response_length=200)
    prompts, found = [Prompt("row", (USER,), "3", "sums")], []
    for _ in range(2):
        agent = ToolAgent(chosen)
        loop = ConversationLoop(
            elements, Says(elements, write), agent, chosen, data, stops=stop_ids(elements), room=None
        )
        found.append(loop.lead(prompts, root=1)[0])
        agent.close()
    one, again = found
    assert one.row(tokens=True) == again.row(tokens=True)
    roles = [message["role"] for message in one.messages]
    assert roles == ["user", "assistant", "tool", "tool", "assistant", "tool", "assistant"]
    assert one.messages[-1]["content"] == "<think>\nIt is so.\n</think>\n\n3"
    assert one.messages[5]["content"] == "3"
    assert one.counts == {"calls": 3, "bad_calls": 1, "cut_results": 0}
    assert agent_metrics(found)[0]["agent/bad_calls"] == 2
