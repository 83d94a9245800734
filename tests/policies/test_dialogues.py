"""Prompts that go on from each other, and calls in replies."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from guerdon.errors import DataError
from guerdon.policies.batches.dialogues import Transcript, read_reply, same_message, tool_form, turn_ids
from guerdon.policies.batches.tokens import prompt_ids, response_ids
from guerdon.policies.language.tiny_text import byte_tokenizer
from tables import cases

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add.",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "first"}}},
    },
}
USER = {"role": "user", "content": "1 + 2?"}
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer_with(template, end="<|im_end|>"):
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<|eot_id|>"]})
    tokenizer.eos_token = end
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def chatml():
    return tokenizer_with(CHATML)


def test_a_template_without_tools_gets_them_in_its_system_turn(chatml):
    form = tool_form(chatml)
    assert (form.own, form.grammar, form.appends) == (True, "hermes", True)
    shown, tools = form.shown([{"role": "system", "content": "Be brief."}, USER], [TOOL])
    assert tools == ()
    assert shown[0]["content"].startswith("Be brief.\n\nYou can call functions")
    assert '"name": "add"' in shown[0]["content"]


def test_a_prompt_goes_on_from_the_ids_that_were_sampled(chatml):
    transcript = Transcript(chatml, tool_form(chatml))
    first, goes_on = transcript.prompt([USER], [TOOL])
    assert not goes_on
    sampled = response_ids(chatml, 'so <tool_call>{"name":"add",  "arguments":{"a":1}}</tool_call>')
    reply = read_reply(chatml, tool_form(chatml), sampled, tools=True, first_call=0)
    transcript.answer(sampled, reply.message)
    results = [{"role": "tool", "content": "3 <|im_end|>", "tool_call_id": "call_0", "name": "add"}] * 2
    second, goes_on = transcript.prompt([USER, reply.message, *results], [TOOL])
    assert goes_on
    np.testing.assert_array_equal(second[: len(first) + len(sampled)], np.concatenate([first, sampled]))
    added = chatml.decode(second[len(first) + len(sampled) :].tolist())
    said = "<tool_response>\n3 <|im_end|>\n</tool_response>"
    assert added == f"\n<|im_start|>user\n{said}\n{said}<|im_end|>\n<|im_start|>assistant\n"
    end = chatml.convert_tokens_to_ids("<|im_end|>")
    assert (second == end).sum() == 3 + 1  # system, user, the reply, the results: none of the text of a result


def test_a_rewritten_history_is_a_context_of_its_own(chatml):
    form = tool_form(chatml)
    transcript = Transcript(chatml, form)
    transcript.prompt([USER], ())
    transcript.answer(response_ids(chatml, "3"), {"role": "assistant", "content": "3"})
    more = {"role": "user", "content": "and?"}
    changed = [USER, {"role": "assistant", "content": "4"}, more]
    ids, goes_on = transcript.prompt(changed, ())
    assert not goes_on
    np.testing.assert_array_equal(ids, prompt_ids(chatml, changed))
    transcript.answer(response_ids(chatml, "5"), {"role": "assistant", "content": "5"})
    ids, goes_on = transcript.prompt([*changed, {"role": "assistant", "content": "5"}, more], ())
    assert goes_on
    assert chatml.decode(ids.tolist()).endswith(
        "5<|im_end|>\n<|im_start|>user\nand?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_reply_that_was_cut_is_closed_by_the_template(chatml):
    transcript = Transcript(chatml, tool_form(chatml))
    transcript.prompt([USER], ())
    cut = response_ids(chatml, "three")[:-1]
    transcript.answer(cut, {"role": "assistant", "content": "three"})
    ids, goes_on = transcript.prompt([USER, {"role": "assistant", "content": "three"}, USER], ())
    assert goes_on
    assert "three<|im_end|>\n<|im_start|>user" in chatml.decode(ids.tolist())


HERMES = [
    ('<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>', "", ["add"], 0),
    ('a<tool_call>{"name": "f", "arguments": {}}</tool_call>b<tool_call>{"name": "g"}</tool_call>', "ab", ["f", "g"],
     0),
    ("<think>\nI <tool_call> it\n</think>\n\nplain", "<think>\nI <tool_call> it\n</think>\n\nplain", [], 0),
    ("<tool_call>{bad</tool_call>", "<tool_call>{bad</tool_call>", [], 1),
    ('<tool_call>{"name": "f", "arguments": {}}', '<tool_call>{"name": "f", "arguments": {}}', [], 1),
    ('<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
     '<tool_call>{"name": "f", "arguments": [1]}</tool_call>', [], 1),
    ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', [], 1),
    ("<tool_call>[1]</tool_call>", "<tool_call>[1]</tool_call>", [], 1),
    ("no call", "no call", [], 0),
]  # fmt: skip


@cases("text, content, names, bad", HERMES)
def test_calls_of_qwen_and_hermes(text, content, names, bad):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = CHATML
    form = tool_form(tokenizer)
    reply = read_reply(tokenizer, form, response_ids(tokenizer, text), tools=True, first_call=2)
    calls = reply.message.get("tool_calls", [])
    assert reply.message["content"] == content
    assert [call["function"]["name"] for call in calls] == names
    assert [call["id"] for call in calls] == [f"call_{2 + k}" for k in range(len(names))]
    assert len(reply.bad) == bad
    plain = read_reply(tokenizer, form, response_ids(tokenizer, text), tools=False, first_call=0)
    assert plain.message == {"role": "assistant", "content": text}


LLAMA = [
    ('{"name": "add", "parameters": {"a": 1}}', "", ["add"], 0),
    ('<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"x": {}}}', "", ["f", "g"], 0),
    ('It is {"name": "f"}', 'It is {"name": "f"}', [], 0),
    ('{"name": "f", "parameters": 3}', '{"name": "f", "parameters": 3}', [], 1),
    ('{"answer": 3}', '{"answer": 3}', [], 0),
]


@cases("text, content, names, bad", LLAMA)
def test_calls_of_llama(text, content, names, bad):
    tokenizer = byte_tokenizer()
    form = tool_form(tokenizer).__class__(own=False, grammar="llama")
    reply = read_reply(tokenizer, form, response_ids(tokenizer, text), tools=True, first_call=0)
    assert reply.message["content"] == content
    assert [call["function"]["name"] for call in reply.message.get("tool_calls", [])] == names
    assert len(reply.bad) == bad


LLAMA_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ '<|start_header_id|>' + m.role + '<|end_header_id|>' }}"
    "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{{ m.content + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>' }}{% endif %}"
)


def test_a_template_with_headers_and_without_tool_call_has_the_calls_of_llama():
    form = tool_form(tokenizer_with(LLAMA_TEMPLATE, "<|eot_id|>"))
    assert (form.own, form.grammar, form.appends) == (False, "llama", True)
    assert tool_form(tokenizer_with(LLAMA_TEMPLATE + "{# <tool_call> #}", "<|eot_id|>")).grammar == "hermes"


def test_a_template_that_refuses_a_second_question_makes_contexts_of_its_own():
    refusing = "{% if (messages | length) > 3 %}{{ raise_exception('one question') }}{% endif %}"
    assert tool_form(tokenizer_with(refusing + LLAMA_TEMPLATE, "<|eot_id|>")).appends is False


def test_a_turn_that_the_template_does_not_end_gets_the_end_of_the_tokenizer():
    open_ended = CHATML.replace("m.content + '<|im_end|>\n'", "m.content")
    tokenizer = tokenizer_with(open_ended)
    prompt, said = turn_ids(tokenizer, tool_form(tokenizer), [USER], {"role": "assistant", "content": "3"}, ())
    assert tokenizer.decode(prompt.tolist()) == "<|im_start|>user\n1 + 2?<|im_start|>assistant\n"
    assert tokenizer.decode(said.tolist()) == "3<|im_end|>"


def test_calls_are_compared_as_json():
    def called(arguments):
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": {"name": "f", "arguments": arguments}}],
        }

    assert same_message(called({"a": 1, "b": [2]}), {**called({"b": [2], "a": 1}), "content": " "})
    assert not same_message(called({"a": 1}), called({"a": 2}))


TEMPLATES = [
    ("qwen2_5", "hermes", False, True), ("qwen3", "hermes", False, False), ("qwen3_training", "hermes", False, True),
    ("llama3_1", "llama", False, True), ("llama3_2", "llama", False, True), ("llama3", "hermes", True, True),
]  # fmt: skip


@pytest.mark.skipif(find_spec("trl") is None, reason="TRL, whose chat templates these are, is not installed")
@cases("name, grammar, own, appends", TEMPLATES)
def test_templates_of_models(name, grammar, own, appends):
    folder = Path(next(iter(find_spec("trl").submodule_search_locations))) / "chat_templates"
    template = (folder / f"{name}.jinja").read_text()
    form = tool_form(tokenizer_with(template, "<|eot_id|>" if "llama" in name else "<|im_end|>"))
    assert (form.grammar, form.own, form.appends) == (grammar, own, appends)


MASKED = (
    "{% if tools %}{{ '<|im_start|>system\n' + (tools | tojson) + '<|im_end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ '<tool_call>' + (c.function | tojson) + '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ m.content + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
CALL = {"id": "c0", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
RESULT = {"role": "tool", "content": "3 <|im_end|>", "tool_call_id": "c0", "name": "add"}
TALK = [
    USER, {"role": "assistant", "content": "I add.", "tool_calls": [CALL]}, RESULT,
    {"role": "assistant", "content": "3"}, {"role": "user", "content": "And 2?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]}, RESULT, {"role": "assistant", "content": "5"},
]  # fmt: skip


def spans(tokenizer, talk):
    """Ids of a conversation, which of them the turns of the assistant have, and the mask of transformers."""
    form = tool_form(tokenizer)
    shown, tools = form.shown(talk, [TOOL])
    found = tokenizer.apply_chat_template(
        [dict(m) for m in shown], tools=list(tools) or None, return_dict=True, return_assistant_tokens_mask=True
    )
    ids, own = np.array(found["input_ids"]), np.zeros(len(found["input_ids"]), dtype=bool)
    for k, message in enumerate(talk):
        if message["role"] == "assistant":
            prompt, said = turn_ids(tokenizer, form, talk[:k], message, [TOOL])
            np.testing.assert_array_equal(ids[: len(prompt) + len(said)], np.concatenate([prompt, said]))
            own[len(prompt) : len(prompt) + len(said)] = True
    return ids, own, np.array(found["assistant_masks"]) == 1


def plain(talk):
    """Without a control token, which transformers reads as one."""
    return [{**m, "content": m["content"].replace(" <|im_end|>", "")} for m in talk]


def test_turns_are_the_tokens_that_transformers_marks_as_the_assistants():
    ids, own, masked = spans(tokenizer_with(MASKED), plain(TALK))
    np.testing.assert_array_equal(own, masked)
    assert own.sum() < len(ids) / 2


def test_a_control_token_in_a_result_is_no_end_of_a_turn():
    tokenizer = tokenizer_with(MASKED)
    form = tool_form(tokenizer)
    prompt, said = turn_ids(tokenizer, form, TALK[:3], TALK[3], [TOOL])
    assert tokenizer.decode(said.tolist()) == "3<|im_end|>"
    assert (prompt == tokenizer.convert_tokens_to_ids("<|im_end|>")).sum() == 4  # tools, user, call, result
    np.testing.assert_array_equal(prompt, prompt_ids(tokenizer, TALK[:3], [TOOL]))


def test_a_turn_that_the_template_does_not_open_has_no_tokens():
    tokenizer = tokenizer_with(MASKED.replace("assistant\n' }}{% endif %}", "assistant\n[' }}{% endif %}"))
    with pytest.raises(DataError, match="other tokens than its generation prompt"):
        turn_ids(tokenizer, tool_form(tokenizer), [USER], TALK[3], [TOOL])


MARKING = ("qwen2_5_training", "qwen3_training", "qwen3_instruct_2507_training", "llama3_training")


@pytest.mark.skipif(find_spec("trl") is None, reason="TRL, whose chat templates these are, is not installed")
@cases("name", MARKING)
def test_turns_are_those_that_templates_of_trl_mark_but_for_the_new_lines_around_them(name):
    folder = Path(next(iter(find_spec("trl").submodule_search_locations))) / "chat_templates"
    end = "<|eot_id|>" if "llama" in name else "<|im_end|>"
    tokenizer = tokenizer_with((folder / f"{name}.jinja").read_text(), end)
    ids, own, masked = spans(tokenizer, plain(TALK))
    assert not (own & ~masked).any()
    assert tokenizer.decode(ids[masked & ~own].tolist()).strip("\n") == ""
