r"""Replies of judges as real models write them: which are read, as what, and which are refused.

Labels are written down from what a person reads in the reply, not from what the parser gives.
"""

import json
import re

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from judge_server import judge_server, judgements

from guerdon.endpoints.llm_client import LLMRequest, send
from guerdon.labels.labelers import JUDGEMENT_SCHEMA, PromptedSolution, StepLabels, judgement_request, parse_judgement
from guerdon.settings.label import AnthropicJudgeSettings, LocalJudgeSettings, OpenAIJudgeSettings
from guerdon.types import Failure
from tables import cases, refuses

TWO = (
    '{"steps": [{"step_number": 1, "reasoning": "ok", "score": 1}, {"step_number": 2, "reasoning": "no", "score": -1}]}'
)
BOTH = TWO.replace("-1", "1")
DRAFT = '{"steps": [{"step_number": 1, "score": -1}, {"step_number": 2, "score": -1}]}'

READ = {
    "as asked": TWO,
    "a newline behind it": TWO + "\n",
    "over several lines": json.dumps(json.loads(TWO), indent=2),
    "without overall_correctness": TWO,
    "with overall_correctness": TWO[:-1] + ', "overall_correctness": false}',
    "with keys of its own": TWO[:-1] + ', "confidence": 0.9, "notes": ["a", {"b": null}]}',
    "fence": f"```json\n{TWO}\n```",
    "fence without a language": f"```\n{TWO}\n```",
    "fence in capitals": f"```JSON\n{TWO}\n```",
    "fence without line breaks": f"```json{TWO}```",
    "fence that does not end": f"```json\n{TWO}",
    "a sentence before": f"Here is my assessment of the solution:\n\n{TWO}",
    "a sentence before a fence": f"Sure! Here are the verdicts.\n```json\n{TWO}\n```",
    "a sentence behind": f"{TWO}\n\nLet me know if you need anything else.",
    "a fence between sentences": f"Below is the JSON.\n```json\n{TWO}\n```\nStep 2 divides by zero.",
    "thinking": f"<think>Step 1 is fine. Step 2 is not.</think>\n{TWO}",
    "thinking in longer words": f"<thinking>\nhm\n</thinking>\n\n{TWO}",
    "thinking in capitals": f"<THINK>hm</THINK>{TWO}",
    "thinking that the template began": f"Step 1 is fine, I think. Step 2 is not.\n</think>\n\n{TWO}",
    "thinking, then a fence": f"<think>hm</think>\nThe verdicts:\n```json\n{TWO}\n```",
    "a draft in the thinking": f"<think>maybe {DRAFT}? No.</think>{TWO}",
    "half a draft in the thinking": f'<think>It must look like {{"steps": [{{"step_number": ... </think>{TWO}',
    "empty thinking": f"<think>\n\n</think>\n\n{TWO}",
    "reasoning in tags": f"<reasoning>fine, then wrong</reasoning>{TWO}",
    "LaTeX before it": rf"With \frac{{1}}{{2}} and \boxed{{3}} the second step fails. {TWO}",
    "a set before it": f"The set {{x | x > 2}} is empty. {TWO}",
    "another object before it": f'Input: {{"task": "check"}}. Output: {TWO}',
    "a draft with a step too few": f"{judgements([1])}\nWait, there are two steps.\n{TWO}",
    "another answer, then this": f"{DRAFT}\nWait, step 1 is right.\n{TWO}",
    "another answer, then this in a fence": f"{BOTH}\n```json\n{TWO}\n```",
    "the last of a list of answers": f"I see [{BOTH}, {TWO}]",
    "another object behind it": TWO + ' {"confidence": 0.9}',
    "behind a key that is broken": f'{{"draft": oops, "x": {TWO}}}',
    "the same twice": f"{TWO}\nAgain, as JSON:\n```json\n{json.dumps(json.loads(TWO), indent=1)}\n```",
    "the same with other reasons": f"{TWO.replace('ok', 'it adds up')}\nIn short: {TWO}",
    "plus sign": TWO.replace('"score": 1}', '"score": +1}'),
    "plus sign without a blank": TWO.replace('"score": 1}', '"score":+1}'),
    "floats": TWO.replace('"score": 1}', '"score": 1.0}').replace("-1", "-1.0"),
    "step numbers in quotes": TWO.replace('r": 1,', 'r": "1",').replace('r": 2,', 'r": "2",'),
    "step numbers as floats": TWO.replace('r": 1,', 'r": 1.0,'),
    "LaTeX brackets in a reason": TWO.replace('"ok"', r'"since \(x = 1\) holds"'),
    "a LaTeX command in a reason": TWO.replace('"ok"', r'"\sqrt{4} = 2 \cdot 1"'),
    "LaTeX that JSON half knows": TWO.replace('"ok"', r'"\frac{1}{2}, \underline{x}"'),
    "escaped as it should be": TWO.replace('"ok"', r'"since \\(x = 1\\) holds, \"so\" \u00e9"'),
    "a line break in a reason": TWO.replace('"ok"', '"first\nthen\tmore"'),
    "brackets in a reason": TWO.replace('"ok"', '"the set {1, 2] is } odd"'),
    "JSON in a reason": TWO.replace('"ok"', r'"he wrote {\"score\": -1}"'),
    "a tag in a reason": TWO.replace('"ok"', '"the text has a <think> tag"'),
    "an end of a tag in a reason": TWO.replace('"ok"', '"the text has a </think> tag"'),
    "a comma too many in the list": TWO.replace("}]}", "},]}"),
    "a comma too many in an object": TWO.replace("1}", "1,}"),
    "a comma too many, far from its bracket": TWO.replace("}]}", "}\n  ,\n ]\n}"),
    "all repairs at once": "<think>x</think>Well:\n```json\n" + TWO.replace("1}", "+1,}", 1).replace('"ok"', r'"\(a\)"')
    .replace('r": 1,', 'r": "1",') + "\n```",
    "no reasons": '{"steps":[{"step_number":1,"score":1},{"step_number":2,"score":-1}]}',
    "other languages": TWO.replace('"ok"', '"第一步正确 ✓"'),
    "half a character": TWO.replace('"ok"', r'"\ud83d"'),
    "a byte order mark": "\ufeff" + TWO,
}  # fmt: skip


@cases("name", READ)
def test_a_reply_that_can_mean_one_thing_only_is_read(name):
    found = parse_judgement(READ[name], 2)
    assert isinstance(found, StepLabels), found
    assert found.values == (1.0, 0.0)
    json.dumps(dict(found.meta)).encode()
    "".join(found.meta["reasons"]).encode()


def test_reasons_keep_their_latex():
    def reason(name):
        return parse_judgement(READ[name], 2).meta["reasons"][0]

    assert reason("LaTeX brackets in a reason") == r"since \(x = 1\) holds"
    assert reason("LaTeX that JSON half knows") == r"\frac{1}{2}, \underline{x}"
    assert reason("escaped as it should be") == 'since \\(x = 1\\) holds, "so" é'
    assert reason("a LaTeX command in a reason") == r"\sqrt{4} = 2 \cdot 1"


ROWS = '{"step_number": 1, "score": 1}, {"step_number": 2, "score": -1}'
REFUSED = {
    "nothing": ("", "not_json", ""),
    "a sentence": ("Both steps look right to me.", "not_json", "Both steps"),
    "a refusal": ("I'm sorry, I can't help with that.", "not_json", "sorry"),
    "scores in words": ("Step 1: 1\nStep 2: -1", "not_json", "Step 1"),
    "only a draft in the thinking": (f"<think>{TWO}</think>I cannot decide.", "not_json", "cannot decide"),
    "a draft in thinking without its beginning": (f"maybe {TWO}?</think>", "not_json", ""),
    "thinking that does not end": (f"<think>so {TWO} it is", "truncated", "does not end"),
    "cut off": (TWO[:-2], "truncated", "does not end"),
    "cut off in a string": (TWO[:50], "truncated", "does not end"),
    "cut off, behind a whole draft": (f"{DRAFT}\nBetter:\n{TWO[:-2]}", "truncated", "does not end"),
    "the answer inside an object that is cut off": (f'{{"draft": {TWO}, "final": {{"st', "truncated", "does not end"),
    "the answer under another key": (f'{{"result": {TWO}}}', "bad_schema", "result"),
    "a key twice, the score": (TWO.replace("1}", '1, "score": -1}', 1), "not_json", "'score' is there twice"),
    "a key twice, the steps": (TWO[:-1] + ', "steps": []}', "not_json", "'steps' is there twice"),
    "a key twice, the number": (TWO.replace('r": 1,', 'r": 1, "step_number": 2,'), "not_json", "twice"),
    "a key twice behind repairs": (TWO.replace('"score": 1}', '"score": +1, "score": -1}'), "not_json", "twice"),
    "single quotes": (TWO.replace('"', "'"), "not_json", ""),
    "quotes in a reason": (TWO.replace('"ok"', '"it says "ok" here"'), "not_json", "it says"),
    "a comment": (TWO.replace("1}", "1} // right", 1), "not_json", "right"),
    "no comma between steps": (TWO.replace("}, {", "} {"), "not_json", "delimiter"),
    "keys without quotes": ('{steps: [{step_number: 1, score: 1}]}', "not_json", ""),
    "an ellipsis": ('{"steps": [{"step_number": 1, "score": 1}, ...]}', "not_json", "..."),
    "a score that is not there": (TWO.replace(', "score": 1', ""), "bad_score", "None"),
    "null": (TWO.replace('"score": 1', '"score": null'), "bad_score", "None"),
    "true": (TWO.replace('"score": 1', '"score": true'), "bad_score", "True"),
    "zero": (TWO.replace('"score": 1', '"score": 0'), "bad_score", "0"),
    "a half": (TWO.replace('"score": 1', '"score": 0.5'), "bad_score", "0.5"),
    "two": (TWO.replace('"score": 1', '"score": 2'), "bad_score", "2"),
    "nearly one": (TWO.replace('"score": 1', '"score": 0.9999999'), "bad_score", "0.9999999"),
    "two plus signs": (TWO.replace('"score": 1', '"score": ++1'), "not_json", "++1"),
    "plus minus": (TWO.replace('"score": 1', '"score": +-1'), "not_json", "+-1"),
    "a sum": (TWO.replace('"score": 1', '"score": 1+1'), "not_json", "+1"),
    "a score in words": (TWO.replace('"score": 1', '"score": "right"'), "bad_score", "right"),
    "a score in quotes": (TWO.replace('"score": 1', '"score": "1"'), "bad_score", "1"),
    "a list of scores": (TWO.replace('"score": 1', '"score": [1]'), "bad_score", "[1]"),
    "NaN": (TWO.replace('"score": 1', '"score": NaN'), "bad_score", "nan"),
    "Infinity": (TWO.replace('"score": 1', '"score": -Infinity'), "bad_score", "inf"),
    "a huge number": (TWO.replace('"score": 1', '"score": 1' + "0" * 5000), "not_json", "digits"),
    "one step": ('{"steps": [{"step_number": 1, "score": 1}]}', "missing_steps", "1 judgements, 2 steps"),
    "no step": ('{"steps": []}', "missing_steps", "0 judgements"),
    "three steps": ('{"steps": [' + ROWS + ', {"step_number": 3, "score": 1}]}', "extra_steps", "3 judgements"),
    "swapped": (judgements([1, -1], numbers=[2, 1]), "bad_schema", "judgement 1"),
    "numbers from zero": (TWO.replace('r": 1,', 'r": 0,').replace('r": 2,', 'r": 1,'), "bad_schema", "judgement 1"),
    "no numbers": ('{"steps": [{"score": 1}, {"score": -1}]}', "bad_schema", "None"),
    "a number in words": (TWO.replace('r": 1,', 'r": "Step 1",'), "bad_schema", "Step 1"),
    "a number that is true": (TWO.replace('r": 1,', 'r": true,'), "bad_schema", "True"),
    "a list alone": (f"[{ROWS}]", "bad_schema", "without the keys steps"),
    "an object per line": (ROWS.replace("}, {", "}\n{"), "bad_schema", "without the keys steps"),
    "scores alone": ('{"steps": [1, -1]}', "bad_schema", "no list of steps"),
    "steps by name": ('{"steps": {"1": 1, "2": -1}}', "bad_schema", "no list of steps"),
    "deep": ('{"a":' * 50_000, "not_json", "recursion"),
    "deep and whole": ('{"a":' * 50_000 + "1" + "}" * 50_000, "not_json", ""),
    "many brackets": ("[" * 100_000, "not_json", ""),
    "many strings that do not end": ('{"' + r"\"" * 200_000, "truncated", "does not end"),
    "a number": ("1", "not_json", "no JSON object"),
}  # fmt: skip


@pytest.mark.hostile("verdicts")
@cases("name", REFUSED)
def test_every_other_reply_is_refused_with_its_reason_and_its_place(name):
    text, reason, words = REFUSED[name]
    found = parse_judgement(text, 2)
    assert isinstance(found, Failure), found
    assert found.reason == reason
    assert words in found.detail
    assert len(found.detail) < 400


SCORE = re.compile(r'"score"\s*:\s*([+-]?1)(?:\.0*|\.0*[eE][+-]?0+|[eE][+-]?0+)?\s*[,}]')


def assert_nothing_invented(text, steps):
    """A label is a score of 1 or -1 that stands in the text, in order."""
    found = parse_judgement(text, steps)
    if isinstance(found, Failure):
        return
    assert len(found.values) == steps
    written = [float("-" not in score) for score in SCORE.findall(text)]
    assert "".join(map(str, found.values)) in "".join(map(str, written))


pieces = st.sampled_from([
    TWO, BOTH, DRAFT, ROWS, '{"steps": [', "]}", "{",
    "}", "[", "]", '"', "\\", ",", ":", "+", "-", "1", "-1", " ", "\n",
    '"score": 1', '"score": -1', '"step_number": 1,', '"step_number": "2",', "<think>", "</think>", "```json", "```",
    '{"step_number": 1, "score": 1}', '{"step_number": 2, "score": +1}', "NaN", "\u2212", "\ud83d", "\0", "e5",
])  # fmt: skip


@pytest.mark.hostile("verdicts")
@given(
    st.one_of(st.text(max_size=200), st.lists(pieces | st.text(max_size=4), max_size=30).map("".join)),
    st.integers(1, 3),
)
def test_no_text_breaks_the_parser_or_gives_a_score_that_it_does_not_hold(text, steps):
    assert_nothing_invented(text, steps)


@pytest.mark.hostile("verdicts")
@given(st.sampled_from(sorted(READ)), st.data())
def test_a_reply_with_some_characters_changed_gives_no_score_that_it_does_not_hold(name, data):
    text = READ[name]
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        gone = data.draw(st.integers(0, 6))
        text = (
            text[:at]
            + data.draw(st.sampled_from(["", "1", "-", "+", '"', "{", "}", "]", ",", "0", "e", "\\"]))
            + text[at + gone :]
        )
    assert_nothing_invented(text, 2)


@given(st.lists(st.sampled_from([1, -1]), min_size=1, max_size=6), st.data())
def test_what_is_said_is_what_is_read_whatever_stands_around_it(scores, data):
    reply = judgements(scores)
    if data.draw(st.booleans()):
        reply = reply.replace('"score": 1', '"score": +1')
    if data.draw(st.booleans()):
        reply = reply.replace('"because"', r'"as \(x\) \in [0, 1} \" so"')
    before = data.draw(
        st.sampled_from(["", "<think>{}</think>", "Here:\n", "{x}\n", '{"a": 1}\n', "```json\n", "…</think>"])
    )
    after = data.draw(st.sampled_from(["", "\n```", "\nDone.", "\n}"]))
    found = parse_judgement(before + reply + after, len(scores))
    assert found.values == tuple(float(score == 1) for score in scores)


def sent(api, **given):
    """The body of a request for a judgement."""
    from guerdon.episodes.solutions import Solution
    from guerdon.tasks.prompts import Prompt

    written = PromptedSolution(
        Solution("s", "q?", ("a", "b")), Prompt("p", ({"role": "user", "content": "q?"},), "1", "x")
    )
    with judge_server() as server:
        form = {"openai": OpenAIJudgeSettings, "anthropic": AnthropicJudgeSettings}[api]
        settings = form(model="m", base_url=server.url, **given)
        send(settings, "k", judgement_request(written, settings))
        free = LLMRequest(({"role": "user", "content": "solve"},), 5)
        send(settings, "k", free)
        return server.requests


def test_an_endpoint_that_can_is_held_to_the_schema(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert all("response_format" not in body for body in sent("openai"))
    judgement, free = sent("openai", response_format="json_schema")
    assert judgement["response_format"]["json_schema"] == {
        "name": "judgement",
        "strict": True,
        "schema": JUDGEMENT_SCHEMA,
    }
    assert "response_format" not in free  # solutions are free text
    assert sent("openai", response_format="json_object")[0]["response_format"] == {"type": "json_object"}
    judgement, free = sent("anthropic", response_format="json_schema")
    assert judgement["output_config"] == {"format": {"type": "json_schema", "schema": JUDGEMENT_SCHEMA}}
    assert "output_config" not in free
    with refuses("response_format"):
        AnthropicJudgeSettings(response_format="json_object")


def test_the_schema_is_what_is_read():
    check = jsonschema_rs.validator_for(JUDGEMENT_SCHEMA)
    assert check.is_valid(json.loads(judgements([1, -1])))
    assert not check.is_valid(json.loads(judgements([1, 0])))
    assert not check.is_valid(json.loads('{"steps": [{"score": 1}], "overall_correctness": true}'))


def test_more_fields_go_with_every_request():
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "top_k": 1}
    for body in sent("openai", extra_body=extra):
        assert body["chat_template_kwargs"] == {"enable_thinking": False}
        assert body["top_k"] == 1
    for key in ("model", "messages", "temperature", "max_tokens", "response_format", "stream"):
        with refuses(key):
            OpenAIJudgeSettings(model="m", extra_body={key: 1})
    with refuses("extra_body"):
        LocalJudgeSettings(model="m", extra_body={"a": 1})
