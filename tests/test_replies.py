"""The one rule of judges' replies: behind the last closing mark of reasoning, the last object with the asked keys."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.labels.labelers import parse_judgement
from guerdon.models.vlm.answer_parser import Numbers, parse_answer
from guerdon.tasks import replies
from guerdon.tasks.replies import MAX_BROKEN, behind_reasoning, last_object, opened_reasoning
from guerdon.types import Failure
from tables import sample

DRAFT = '{"steps": [{"step_number": 1, "reasoning": "hm", "score": -1}]}'
FINAL = '{"steps": [{"step_number": 1, "reasoning": "ok", "score": 1}]}'
PAIRS = {
    "think": ("<think>", "</think>"),
    "capitals": ("<THINKING>", "</THINKING>"),
    "thought": ("<thought>", "</thought>"),
    "reasoning": ("<reasoning>", "</reasoning>"),
    "analysis": ("<analysis>", "</analysis>"),
    "scratchpad": ("<scratchpad>", "</scratchpad>"),
    "reflection": ("<reflection>", "</reflection>"),
    "inner_monologue": ("<inner_monologue>", "</inner_monologue>"),
    "step by step": ("<chain-of-thought>", "</chain-of-thought>"),
    "attributes": ('<think effort="high">', "</think>"),
    "details": ('<working type="private">', "</working>"),
    "Seed": ("<seed:think>", "</seed:think>"),
    "MiniMax": ("<mm:think>", "</mm:think>"),
    "Magistral": ("[THINK]", "[/THINK]"),
    "square": ("[Scratchpad]", "[/Scratchpad]"),
    "Kimi": ("◁think▷", "◁/think▷"),
    "Sky-T1": ("<|begin_of_thought|>", "<|end_of_thought|>"),
    "Command": ("<|START_THINKING|>", "<|END_THINKING|>"),
    "Apertus": ("<|inner_prefix|>", "<|inner_suffix|>"),
    "Gemma": ("<|channel>thought\n", "<channel|>"),
    "full width": ("＜think＞", "＜／think＞"),
    "DeepSeek's bars": ("<｜begin▁of▁thinking｜>", "<｜end▁of▁thinking｜>"),
    "Chinese": ("<思考>", "</思考>"),
    "a suffix": ("<|think_start|>", "<|think_end|>"),
    "a comment": ("<reasoning:start>", "<!--reasoning:end-->"),
    "braces": ("{think}", "{/think}"),
    "guillemets": ("«think»", "«/think»"),
    "entities": ("&lt;think&gt;", "&lt;/think&gt;"),
    "a backslash": ("\\<think\\>", "\\</think\\>"),
    "LaTeX": ("\\begin{scratchpad}", "\\end{scratchpad}"),
    "a template language": ("{% think %}", "{% endthink %}"),
    "Hunyuan": (f"<think_never_used_{'51bc' * 8}>", f"</think_never_used_{'51bc' * 8}>"),
    "MedGemma": ("<unused94>thought\n", "<unused95>"),
    "s1": ("<|im_start|>think\n", "<|im_start|>answer\n"),
    "a turn of thinking": (
        "<|start_header_id|>thinking<|end_header_id|>", "<|eot_id|><|start_header_id|>assistant<|end_header_id|>",
    ),
    "double": ("<<think>>", "<</think>>"),
    "blanks": ("< think >", "< /think >"),
    "Chinese brackets": ("【思考】", "【/思考】"),
    "a byte order mark": ("\ufeff<think>", "</think>"),
    "gpt-oss": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "gpt-oss in JSON mode": (
        "<|channel|>analysis<|message|>",
        "<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>",
    ),
    "gpt-oss, commentary first": (
        "<|start|>assistant<|channel|>commentary<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
    "gpt-oss without control tokens": ("analysisWe look. ", "assistantfinal"),
}  # fmt: skip


def first_score(reply):
    found = parse_judgement(reply, 1)
    return found.reason if isinstance(found, Failure) else found.values[0]


def percent(reply):
    found = parse_answer(reply, Numbers("percentage"))
    return found.reason if isinstance(found, Failure) else found.value


def misses(read, wanted, replies):
    """Replies that are not read as they should be, and as what they are read."""
    return [(reply, found) for reply in replies if (found := read(reply)) not in wanted]


@pytest.mark.parametrize("space", ["", "\n", " "])
def test_what_follows_closed_reasoning_is_the_answer(space):
    drafts = [f"{begin}{space}It may be {DRAFT}.{space}{end}{space}" for begin, end in PAIRS.values()]
    answers = (FINAL, f"```json\n{FINAL}\n```", f"<answer>\n{FINAL}\n</answer>")
    assert not misses(first_score, [1.0], [draft + answer for draft in drafts for answer in answers])
    percents = [f"{begin}{space}It may be 40%.{space}{end}{space}85" for begin, end in PAIRS.values()]
    assert not misses(percent, [0.85], percents)


@pytest.mark.hostile("verdicts")
@pytest.mark.parametrize("space", ["", "\n"])
def test_reasoning_that_does_not_end_is_truncated(space):
    drafts = (DRAFT, f"So it is ```json\n{DRAFT}\n```", f"<answer>{DRAFT}</answer>", '{"steps": [{"ste')
    begun = [f"{begin}{space}" for begin, _ in PAIRS.values()]
    assert not misses(first_score, ["truncated"], [begin + draft for begin in begun for draft in drafts])
    assert not misses(percent, ["truncated"], [f"{begin}85" for begin in begun])


@pytest.mark.hostile("verdicts")
@pytest.mark.parametrize("space", ["", "\n"])
def test_reasoning_that_no_object_follows_is_a_failure(space):
    drafts = [f"{begin}{space}{DRAFT}{space}{end}{space}" for begin, end in PAIRS.values()]
    assert not misses(first_score, ["not_json"], [draft + rest for draft in drafts for rest in ("", "I cannot say.")])
    drafts = [f"{begin}{space}<answer>85</answer>{space}{end}" for begin, end in PAIRS.values()]
    assert not misses(percent, ["empty"], drafts)


ENDS = [end for name, (_, end) in PAIRS.items() if not name.startswith(("gpt-oss", "s1", "a turn"))]


def test_a_template_may_have_begun_the_reasoning():
    assert not misses(first_score, [1.0], [f"maybe {DRAFT}?\n{end}\n{FINAL}" for end in ENDS])
    assert not misses(first_score, ["not_json"], [f"maybe {DRAFT}?\n{end}\nNo idea." for end in ENDS])


def test_the_last_closing_mark_ends_all_reasoning():
    assert first_score(f"<think>a<analysis>{DRAFT}</analysis>b</think>{FINAL}") == 1.0
    assert first_score(f"<think>\n<think>\nhm\n</think>\n{FINAL}") == 1.0
    assert first_score(f"<think>a</think>{DRAFT}\n<think>b</think>{FINAL}") == 1.0
    assert first_score(f"<think>a</think>{DRAFT}\n<think>b</think>") == "not_json"
    assert first_score(f"<think>a</think>\n<think>{DRAFT}") == "truncated"
    assert first_score(f"{FINAL}\n<think>\nor rather {DRAFT}") == "truncated"
    assert first_score(f"{FINAL} <think>or rather {DRAFT}") == "truncated"


def test_channels():
    start, final = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
    assert first_score(f"{final}{FINAL}<|return|>") == 1.0
    assert first_score(f"{start}{DRAFT}<|end|><|start|>assistant{final}{DRAFT}<|end|>{final}{FINAL}") == 1.0
    assert first_score(f"{start}hm<|end|>{final}<think>{DRAFT}</think>{FINAL}") == 1.0
    assert first_score(f"{start}{DRAFT}<|end|><|start|>assistant") == "truncated"
    assert first_score(f"{start}hm<|end|>{final}<think>{DRAFT}") == "truncated"
    assert first_score(f"{start}hm<|end|><|channel|>commentary<|message|>{DRAFT}") == "truncated"
    quoted = FINAL.replace("ok", "it wrote <|channel|>analysis<|message|> and <|end|> itself")
    assert first_score(f"{start}hm<|end|>{final}{quoted}<|return|>") == 1.0
    assert percent(f"{start}40?<|end|><|start|>assistant{final}85<|return|>") == 0.85


PROMPTS = {
    "Qwen3": ("<|im_start|>assistant\n<think>\n", "<think>\n"),
    "Qwen3 without reasoning": ("<|im_start|>assistant\n<think>\n\n</think>\n\n", ""),
    "DeepSeek": ("<｜Assistant｜><think>\n", "<think>\n"),
    "s1": ("<|im_start|>assistant\n<|im_start|>think\n", "<|im_start|>think\n"),
    "Llama's header": ("<|start_header_id|>thinking<|end_header_id|>\n\n",) * 2,
    "gpt-oss": ("<|start|>assistant<|channel|>analysis<|message|>", "<|channel|>analysis<|message|>"),
    "gpt-oss, final": ("<|start|>assistant<|channel|>final<|message|>", ""),
    "Magistral": ("[INST] q [/INST][THINK]", "[THINK]"),
    "braces": ("<|assistant|>\n{think}\n", "{think}\n"),
    "ChatML": ("<|im_start|>assistant\n", ""),
    "Llama": ("<|start_header_id|>assistant<|end_header_id|>\n\n", ""),
    "a question about a tag": ("say <think><|im_end|>\n<|im_start|>assistant\n", ""),
    "no template": ("What does this do: do not use <think>", ""),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_reasoning_that_the_chat_template_began(name):
    prompt, begun = PROMPTS[name]
    assert opened_reasoning(f"<|im_start|>user\nHow far?<|im_end|>\n{prompt}") == begun
    if begun:
        assert first_score(f"{begun}maybe {DRAFT}") == "truncated"


HONEST = {
    "as it is": "{}",
    "a placeholder": "<your answer>\n{}",
    "another placeholder": "<insert the JSON here>\n{}",
    "a placeholder that is closed": "<my verdict>{}</my verdict>",
    "an empty element": "<think/>\n{}",
    "a switch": "/no_think\n{}",
    "an answer in braces": "{answer}\n{}",
    "an answer in a directive": ":::verdict\n{}\n:::",
    "a labelled fence": "```verdict\n{}\n```",
    "entities in a sentence": "It wrote &lt;think&gt; there.\n{}",
    "a word in code": "It wrote\n```\nthinking\n```\nand stopped.\n{}",
    "labels": "Reasoning:\nIt holds.\n\nThoughts:\nFine.\n{}",
    "a list": "- Analysis\n- Thoughts\n\n1. Reasoning\n2) Reflection\n{}",
    "a small table": "| Analysis |\n|---|\n| fine |\n{}",
    "a symbol before a heading": "🔍 Analysis\nIt holds.\n{}",
    "an underlined heading": "Analysis\n========\nIt holds.\n{}",
    "a bold heading": "**Thought process**\nIt holds.\n**Final verdict**\n{}",
    "a remark": "(see the reasoning above)\n{}",
    "LaTeX": "\\begin{align} x &= 1 \\end{align} and \\[ y = 2 \\]\n{}",
    "a tag in a sentence": "The solution wrote a <think> tag. {}",
    "a tag in a sentence, by name": "The response has an unclosed <scratchpad> here, which is fine.\n{}",
    "a closing tag in a sentence": "The step ends with the </think> tag, which is odd.\n{}",
    "a tag behind a colon": "Note: <think> is never closed in step 1. Also: [THINK] and more.\n{}",
    "quotes": "It says \"<think>\" and '[THINK]'. {}",
    "inline code": "`<think>` is not closed in the step.\n{}",
    "HTML": "<b>Verdict</b><br>\n<br>\n<p>\n{}\n</p>",
    "a table": "<table>\n<tr>\n{}\n</tr>\n</table>",
    "preformatted": "<pre>\n{}\n</pre>",
    "maths": "Since a < b and c > d, x<y and y>z hold; <x, y> = 0 and n <m> k. {}",
    "maths on a line": "<x>\nis the mean.\n{}",
    "generics": "vector<int> v; map<string, double> m;\n{}",
    "an address": "<https://example.org/a> and <a.b@example.org>\n{}",
    "a ruled heading": "--- Analysis ---\nFine.\n--- Verdict ---\n{}",
    "Command's turns": "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{}<|END_OF_TURN_TOKEN|>",
    "shifts": "a << think >> b\n{}",
    "an answer in tags": "<answer>{}</answer>",
    "an answer in unclosed tags": "<answer>\n{}",
    "an output": "<output>\n{}\n</output>",
    "a judgement": "<final_judgment>\n{}\n</final_judgment>",
    "an evaluation": "<evaluation>{}</evaluation>",
    "JSON by name": "<json>\n{}\n</json>",
    "a verdict in square brackets": "[VERDICT]\n{}",
    "headings in square brackets": "[Note] see below.\n[Summary]\nAll is well.\n{}",
    "control tokens": "<|im_start|>assistant\n{}<|im_end|>",
    "other control tokens": "<s><|start_header_id|>assistant<|end_header_id|>\n\n{}<|eot_id|></s>",
    "Gemma's turns": "<start_of_turn>model\n{}<end_of_turn>",
    "a box": "<|begin_of_box|>{}<|end_of_box|>",
    "a solution": "<|begin_of_solution|>{}<|end_of_solution|>",
    "a note behind it": "{}\n<explanation>\nThe step follows.\n</explanation>",
    "an open note behind it": "{}\n<note>\nThe step follows.",
    "an end mark": "{}\n<done>",
    "the words": "Thinking it over, my analysis: the reasoning holds. analysis done.\n{}",
    "headings": "## Analysis\nFine.\n**Reasoning**: it holds.\n{}",
    "a folded note behind it": "{}\n<details><summary>Reasoning</summary>\nIt holds.\n</details>",
    "a folded note": "<details><summary>Step 1</summary>\nI think it holds.\n</details>\n{}",
    "a quoted sentence": "> I think that x = 2\n> and y = 3\n\nholds.\n{}",
    "a quoted step": "> Think of a number.\n> It is 7.\n{}",
    "a quoted answer": "> **Verdict**\n> {}",
    "an environment in a sentence": "The step has a \\begin{reasoning} too many. {}",
    "an empty list": "[ ] and [x] and [1] and [[2]] and [link](http://x)\n{}",
    "the steps repeated": '<step-1a2b3c4d number="1">\nx = 1\n</step-1a2b3c4d>\n{}',
}


def test_honest_replies_are_read():
    replies = [form.replace("{}", FINAL) for form in HONEST.values()]
    replies += [f"<think>{DRAFT}</think>\n{reply}" for reply in replies]
    assert not misses(first_score, [1.0], replies)


@pytest.mark.parametrize("mark", ["<think>", "</think>", "[THINK]", "<|channel|>analysis<|message|>", "\\n<think>\\n"])
def test_a_mark_inside_the_json_is_text(mark):
    reply = FINAL.replace("ok", f"it wrote {mark} here. {mark} so")
    assert first_score(reply) == 1.0
    assert first_score(f"Verdict:\n```json\n{reply}\n```\nDone.") == 1.0
    if "\\n" in mark:  # line breaks in a string are read
        assert first_score("Verdict: " + reply.replace("\\n", "\n")) == 1.0


def test_the_last_object_with_an_asked_key_is_the_answer():
    def read(reply):
        return last_object(reply, ["score"])

    assert read('{"score": 4} or rather {"score": 5}') == {"score": 5}
    assert read('{"score": 4}\n{"mood": "good"}') == {"score": 4}
    assert read('{" Score ": 4}') == {" Score ": 4}
    assert read('[{"score": 4}]') == {"score": 4}
    assert read('{"text": "{", "score": 4}, {x | x > 2} and {}') == {"text": "{", "score": 4}
    assert read('{"score": 4} {"score": +5,}') == {"score": 5}
    assert read('{"result": {"score": 4}}').reason == "bad_schema"
    assert read("4 of 10").reason == "not_json"
    assert read("").reason == "not_json"


@pytest.mark.hostile("verdicts")
def test_an_object_that_is_broken_takes_back_what_was_said_before():
    def reason(reply):
        return last_object(reply, ["score"]).reason

    assert reason('{"score": 4} or {"score": five}') == "not_json"
    assert reason('{"score": 4} or {"score": 4, "score": 5}') == "not_json"
    assert reason('{"score": 4} or {"score": 5') == "truncated"
    assert reason('{"score": 4} or {"reason": "it is') == "truncated"
    assert reason('{"draft": {"score": 4}, "final": {"sc') == "truncated"
    assert last_object('{"score": five}? {"score": 5}', ["score"]) == {"score": 5}


def test_the_failure_says_where():
    assert "'<seed:think>'" in behind_reasoning(f"<seed:think>{DRAFT}").detail
    assert "'<|channel|>analysis'" in behind_reasoning(f"<|channel|>analysis<|message|>{DRAFT}").detail
    assert behind_reasoning("<think>a</think> b") == " b"
    assert "five" in last_object('{"score": five}', ["score"]).detail
    assert "'mood'" in last_object('{"mood": "good"}', ["score"]).detail


pieces = st.sampled_from([*sum(PAIRS.values(), ()), DRAFT, FINAL, "\n", " ", "```", "`", "x", "{", '"', "<", "|>"])


@pytest.mark.hostile("verdicts")
@given(st.lists(pieces, max_size=20).map("".join))
def test_no_reply_breaks_it_and_nothing_is_added(text):
    found = behind_reasoning(text)
    assert isinstance(found, Failure) or text.endswith(found)
    json.dumps(found if isinstance(found, str) else found.detail)


ODD = [
    "th\u0131nk",
    "REA\u017fON",
    "analy\u017fi",
    "&lt;think&gt;",
    "\nend of thought",
    "done reasoning>",
    "worked/",
    "analysisA",
]


@given(st.lists(pieces | st.sampled_from([*ODD, "\u00ab", "/", "é"]), max_size=8).map("".join))
def test_what_is_looked_for_first_is_in_each_text_with_a_mark(text):
    marks = replies._MARK.finditer(text.translate(replies._SAME))
    if next(marks, None) is not None:
        lower = text.translate(replies._SAME).lower()
        for parts in (replies._NEEDED, replies._BEGINNINGS):
            assert any(part in lower for part in parts)


@pytest.mark.hostile("verdicts")
def test_after_many_broken_objects_no_more_are_read():
    assert last_object('{"a"' * (MAX_BROKEN - 1) + FINAL, ["steps"]) == json.loads(FINAL)
    assert last_object('{"a"' * MAX_BROKEN + FINAL, ["steps"]).reason == "not_json"


LONG_PIECES = [
    "<think>", "</think>", "<a_b>", "<|channel|>analysis", '{"a": ', "[THINK]\n", "`<think>", "```a\n", "<x ", "[{",
    '{"a": 1}<think></think>', '{"a": 1}\n<a_b>\n</a_b>\n', "<|end|>", '"', "<|", "assistantfinal", "{}", "analysisA ",
    '{"a', '{"a":"', "<think ", "&lt;think&gt;\n", "\\", ", ", " ",
]  # fmt: skip


@pytest.mark.hostile("verdicts")
@pytest.mark.parametrize("piece", sample(LONG_PIECES, *LONG_PIECES[::4]))
def test_long_replies_take_linear_time(piece):
    """A quadratic scan of these would take minutes."""
    text = piece * (150_000 // len(piece))
    behind_reasoning(text)
    parse_judgement(text, 1)


@pytest.mark.parametrize("prose", [
    'The set {"x", "y"} has two members.', 'Written as {"a": } it would be no object.', "f(x) = {x | x > 0}, {braces}",
    'He said {"no" and {"yes"}} twice.', '{ "quoted" } }',
])  # fmt: skip
@pytest.mark.parametrize("verdict", ['{"reason": "ok", "score": 5}', '```json\n{"score": 5, "reason": "{}"}\n```'])
def test_a_verdict_stands_beside_prose_with_braces(verdict, prose):
    for text in (f"{verdict}\n{prose}", f"{prose}\n{verdict}", f"{prose}\n{verdict}\n{prose} {prose}"):
        found = last_object(text, ["score"])
        assert not isinstance(found, Failure), (text, found)
        assert found["score"] == 5
    assert last_object(f'{verdict} In Python {{"k": 1, "k": 2}} is {{"k": 2}}.', ["score"])["score"] == 5


@pytest.mark.parametrize(("behind", "reason"), [
    ('or rather {"score": }', "not_json"), ('or {"reason": "he said "no"", "score": 4}', "not_json"),
    ('or {"score": 4, "score": 3}', "not_json"), ('or {" Score " 4}', "not_json"), ('or {"reason": "it', "truncated"),
])  # fmt: skip
def test_a_broken_object_that_may_be_the_verdict_counts(behind, reason):
    assert last_object(f'{{"score": 5}} {behind}', ["score"]).reason == reason
    assert last_object(behind, ["score"]).reason == reason
