"""Drafts in reasoning are not answers, whatever the reasoning is marked with; a mark that is only mentioned is none."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guerdon.labels.labelers import parse_judgement
from guerdon.models.vlm.answer_parser import Numbers, parse_answer
from guerdon.tasks.replies import final_part, json_objects, opened_reasoning
from guerdon.types import Failure
from tables import cases

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
    "a name that nobody knows": ("<deliberations>", "</deliberations>"),
    "another": ("<pre_work.v2>", "</pre_work.v2>"),
    "unknown bars": ("<|muse|>", "<|/muse|>"),
    "unknown square": ("[WORKINGS]", "[/WORKINGS]"),
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
    return found if isinstance(found, Failure) else found.values[0]


def percent(reply):
    found = parse_answer(reply, Numbers("percentage"))
    return found if isinstance(found, Failure) else found.value


@cases("name", PAIRS)
@cases("space", ["", "\n", " "])
def test_what_follows_closed_reasoning_is_the_answer(name, space):
    begin, end = PAIRS[name]
    draft = f"{begin}{space}It may be {DRAFT}.{space}{end}{space}"
    assert first_score(draft + FINAL) == 1.0
    assert first_score(f"{draft}```json\n{FINAL}\n```") == 1.0
    assert first_score(f"{draft}<answer>\n{FINAL}\n</answer>") == 1.0
    assert percent(f"{begin}{space}It may be 40%.{space}{end}{space}85") == 0.85


@cases("name", PAIRS)
@cases("space", ["", "\n"])
def test_reasoning_that_does_not_end_or_that_nothing_follows_is_a_failure(name, space):
    begin, end = PAIRS[name]
    for reply in (
        f"{begin}{space}{DRAFT}",
        f"{begin}{space}So it is ```json\n{DRAFT}\n```",
        f"{begin}{space}{DRAFT}{space}{end}",
        f"{begin}{space}{DRAFT}{space}{end}{space}I cannot say.",
        f"{begin}{space}<answer>{DRAFT}</answer>",
    ):
        if name == "unknown square" and not reply.startswith(f"{begin}\n") and not reply.endswith(end):
            continue  # a word in square brackets may be the first of a sentence
        found = first_score(reply)
        assert isinstance(found, Failure), reply
        assert found.reason == "not_json"
    assert isinstance(percent(f"{begin}{space}85"), Failure)
    assert isinstance(percent(f"{begin}{space}<answer>85</answer>{space}{end}"), Failure)


@cases("name", [name for name in PAIRS if not name.startswith("gpt-oss without")])
def test_a_mark_on_a_line_of_its_own_begins_reasoning_too(name):
    begin, end = PAIRS[name]
    lead = "The solution has one step.\n"
    if name != "unknown square":  # a word in square brackets may be a heading
        assert isinstance(first_score(f"{lead}{begin}\n{DRAFT}\n"), Failure)
    assert isinstance(first_score(f"{lead}{begin}\n{DRAFT}\n{end}\n"), Failure)
    assert first_score(f"{lead}{begin}\n{DRAFT}\n{end}\n{FINAL}") == 1.0


@cases("name", [name for name in PAIRS if not name.startswith(("gpt-oss", "s1", "a turn"))])
def test_a_template_may_have_begun_the_reasoning(name):
    end = PAIRS[name][1]
    assert first_score(f"maybe {DRAFT}?\n{end}\n{FINAL}") == 1.0
    assert isinstance(first_score(f"maybe {DRAFT}?\n{end}\nNo idea."), Failure)


def test_channels():
    start, final = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
    assert first_score(f"{final}{FINAL}<|return|>") == 1.0
    assert first_score(f"{start}{DRAFT}<|end|><|start|>assistant{final}{FINAL}<|end|>{start}or {DRAFT}") == 1.0
    assert first_score(f"{start}{DRAFT}<|end|><|start|>assistant{final}{DRAFT}<|end|>{final}{FINAL}") == 1.0
    assert first_score(f"{start}hm<|end|>{final}<think>{DRAFT}</think>{FINAL}") == 1.0
    assert first_score(f"{start}{DRAFT}<|end|>{FINAL}") == 1.0
    assert isinstance(first_score(f"{start}{DRAFT}<|end|><|start|>assistant"), Failure)
    assert isinstance(first_score(f"{start}hm<|end|>{final}<think>{DRAFT}"), Failure)
    assert isinstance(first_score(f"{start}hm<|end|><|channel|>commentary<|message|>{DRAFT}"), Failure)
    quoted = FINAL.replace("ok", "it wrote <|channel|>analysis<|message|> and <|end|> itself")
    assert first_score(f"Here:\n{quoted}") == 1.0
    assert first_score(f"{start}hm<|end|>{final}{quoted}<|return|>") == 1.0
    assert percent(f"{start}40?<|end|><|start|>assistant{final}85<|return|>") == 0.85


def test_reasoning_that_a_final_mark_ends():
    assert first_score(f"[THINK]{DRAFT}\n[FINAL ANSWER]\n{FINAL}") == 1.0
    assert first_score(f"[Analysis]\n{DRAFT}\n[Verdict]\n{FINAL}") == 1.0
    assert first_score(f"<|begin_of_thought|>{DRAFT}\n<|begin_of_solution|>{FINAL}<|end_of_solution|>") == 1.0
    assert isinstance(first_score(f"[Analysis]\n{DRAFT}\n[Step 1]\n{DRAFT}"), Failure)
    assert isinstance(first_score(f"<think>{DRAFT}\n<answer>{FINAL}</answer>"), Failure)  # the tag is not closed


def test_reasoning_inside_reasoning():
    assert first_score(f"<think>a<analysis>{DRAFT}</analysis>b</think>{FINAL}") == 1.0
    assert first_score(f"<think>\n<think>\nhm\n</think>\n{FINAL}") == 1.0
    assert first_score(f"<think>a\n<analysis>\nb</think>{FINAL}") == 1.0
    assert first_score(f"<think>a</think>\n<analysis>{DRAFT}</analysis>\n{FINAL}") == 1.0
    assert first_score(f"<think>a</think>\n<think>b</think>{FINAL}") == 1.0
    assert isinstance(first_score(f"<think>a<analysis>b</analysis>{DRAFT}"), Failure)
    assert isinstance(first_score(f"<think>a</think>\n<think>{DRAFT}"), Failure)


LINES = [  # marks on a line of their own, and what ends them
    ("<!--reasoning:start-->", "<!--reasoning:end-->"), ("BEGIN THINKING", "END THINKING"),
    ("{think}", "{/think}"), ("{{reasoning}}", "{{/reasoning}}"), ("{% think %}", "{% endthink %}"),
    ("(thinking)", "(end thinking)"), ("«think»", "«/think»"), ("『思考』", "『/思考』"),
    ("&lt;think&gt;", "&lt;/think&gt;"), ("&#60;scratchpad&#62;", "&#60;/scratchpad&#62;"),
    ("\\<think\\>", "\\</think\\>"), ("<%think%>", "<%/think%>"), ("<#think#>", "<#/think#>"),
    ("<?reflection?>", "<?/reflection?>"), ("@@think", "@@/think"), ("@@think id=3", "@@"),
    ("%%analysis%%", "%%/analysis%%"), (":::thinking", ":::"), ("::: reasoning {open=1}", ":::"),
    ("#thinking", "#endthinking"), ("\\begin{scratchpad}", "\\end{scratchpad}"), ("<!-- thinking", "-->"),
    ("<!-- inner thoughts -->", "<!-- /inner thoughts -->"), ("/* reasoning", "*/"), ("```thinking", "```"),
    ("~~~thoughts", "~~~"), ("=== THINKING ===", "=== VERDICT ==="),
    ("--- thoughts ---", "--- end thoughts ---"), ("Thinking...", "...done thinking."),
    ("🤔 thinking", "🤔 done thinking"), ("[[think]]", "[[/think]]"), ("!reasoning", "!answer"),
    ("→think", "→/think"),
]  # fmt: skip


@cases(("begin", "end"), LINES)
@cases("lead", ["", "The solution has one step.\n\n"])
def test_a_line_that_says_only_that_reasoning_begins(begin, end, lead):
    for draft in (f"maybe {DRAFT}", f"So it is\n```json\n{DRAFT}\n```"):
        assert isinstance(first_score(f"{lead}{begin}\n{draft}\n"), Failure)
        assert first_score(f"{lead}{begin}\n{draft}\n{end}\n{FINAL}") == 1.0
        assert isinstance(first_score(f"{lead}{begin}\n{draft}\n{end}\nNo idea."), Failure)
    assert percent(f"{begin}\nmaybe 40%\n{end}\n85") == 0.85


FRAMES = {
    "folded": ("<details><summary>Thinking</summary>\n", "\n</details>\n", ""),
    "as Open WebUI writes it": (
        '<details type="reasoning" done="true" duration="5">\n<summary>Thought for 5 seconds</summary>\n> ',
        "\n</details>\n",
        "",
    ),
    "a quoted tag": ("> <think>\n> ", "\n> </think>\n\n", "> "),
    "a callout": ("> [!thinking]-\n> ", "\n\n", "> "),
    "a quoted title": ("> **Thoughts**\n>\n> ", "\n", "> "),
    "LaTeX on one line": ("\\begin{thinking}", "\\end{thinking}", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMES)
def test_reasoning_in_a_frame_that_the_reply_begins_with(name):
    begin, end, each = FRAMES[name]
    draft = f"maybe {DRAFT}?\n{each}or not"
    assert first_score(f"{begin}{draft}{end}{FINAL}") == 1.0
    assert first_score(f"\n{begin}{draft}{end}```json\n{FINAL}\n```") == 1.0
    assert percent(f"{begin}maybe 40%{end}85") == 0.85
    for rest in ("", "No idea."):
        assert isinstance(first_score(f"{begin}{draft}{end}{rest}"), Failure)
    assert isinstance(first_score(f"{begin}{draft}"), Failure)


@pytest.mark.parametrize(
    "begin", ["thought\n", "analysis\n", "think\n", "commentary to=functions.grade ", "analysis to=x\n"]
)
def test_marks_that_lost_their_control_tokens(begin):
    assert isinstance(first_score(f"{begin}maybe {DRAFT}"), Failure)
    assert first_score(f"{begin}maybe {DRAFT}assistantfinal{FINAL}") == 1.0
    assert first_score(f"{begin}maybe {DRAFT}\nanswer\n{FINAL}") == 1.0  # as s1 writes its turns


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


@cases("name", PROMPTS)
def test_reasoning_that_the_chat_template_began(name):
    prompt, begun = PROMPTS[name]
    assert opened_reasoning(f"<|im_start|>user\nHow far?<|im_end|>\n{prompt}") == begun
    if begun:
        assert isinstance(first_score(f"{begun}maybe {DRAFT}"), Failure)


HONEST = {
    "as it is": "{}",
    "a placeholder": "<your answer>\n{}",
    "another placeholder": "<insert the JSON here>\n{}",
    "a placeholder that is closed": "<my verdict>{}</my verdict>",
    "reasoning that is empty": "{}\n<think>\n\n</think>\n",
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
    "a closing tag behind it": "{}\nIts text has a `</think>` and the </think> tag.",
    "a channel in a sentence": "The step contains the <|channel|>analysis marker. {}",
    "a tag behind a colon": "Note: <think> is never closed in step 1. Also: [THINK] and more.\n{}",
    "a quoted line": "The step says\n> <think>\nwhich is text.\n{}",
    "quotes": "It says \"<think>\" and '[THINK]'. {}",
    "inline code": "`<think>` is not closed in the step.\n{}",
    "a block of code": "The step is\n```xml\n<think>\n</foo>\n```\n{}",
    "a block of tildes": "~~~\n<analysis>\n~~~\n{}",
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


@cases("name", HONEST)
def test_honest_replies_are_read(name):
    assert first_score(HONEST[name].replace("{}", FINAL)) == 1.0
    assert first_score("<think>" + DRAFT + "</think>\n" + HONEST[name].replace("{}", FINAL)) == 1.0


@pytest.mark.parametrize("mark", ["<think>", "</think>", "[THINK]", "<|channel|>analysis<|message|>", "\\n<think>\\n"])
def test_a_mark_inside_the_json_is_text(mark):
    reply = FINAL.replace("ok", f"it wrote {mark} here. {mark} so")
    assert first_score(reply) == 1.0
    assert first_score(f"Verdict:\n```json\n{reply}\n```\nDone.") == 1.0
    if "\\n" in mark:  # line breaks in a string are repaired
        assert first_score("Verdict: " + reply.replace("\\n", "\n")) == 1.0


def test_an_answer_that_is_changed_in_reasoning_is_not_taken():
    assert isinstance(first_score(f"{FINAL}\n<think>\nor rather {DRAFT}"), Failure)
    assert isinstance(first_score(f"{FINAL}\n<second_look>\nrather {DRAFT}\n</second_look>"), Failure)
    assert isinstance(first_score(f"{FINAL} <think>or rather {DRAFT}"), Failure)
    assert isinstance(first_score(f"```\n<think>\n{FINAL}\n```"), Failure)  # in code, but with the JSON


def test_the_failure_names_the_mark():
    assert "'<seed:think>'" in final_part(f"<seed:think>{DRAFT}").detail
    assert "'<|channel|>analysis'" in final_part(f"<|channel|>analysis<|message|>{DRAFT}").detail
    assert final_part("<think>a</think> b") == " b"
    assert json_objects('<think>{"a": 4}</think>{"a": 5}') == [{"a": 5}]


CLOSING = {"end", "stop", "close", "suffix"}
names = st.from_regex(r"[a-z]{3,12}(?:_[a-z]{3,8})?", fullmatch=True).filter(lambda s: "tag" not in s)


@given(names, st.sampled_from(["<{}>", "<|{}|>", "◁{}▷"]))
def test_a_draft_behind_a_tag_that_is_not_closed_is_never_read_unless_the_tag_is_of_an_answer(name, form):
    from guerdon.tasks.replies import _ANSWER, _PLAIN_NAME

    found = first_score(f"{form.format(name)}\nso {DRAFT}")
    words = set(name.split("_"))
    if isinstance(found, float):
        rest = "_".join(word for word in name.split("_") if word not in ("begin", "start", "open", "prefix"))
        assert not rest or _ANSWER.search(rest) or _PLAIN_NAME.fullmatch(rest) or words & CLOSING or len(rest) < 3


pieces = st.sampled_from([*sum(PAIRS.values(), ()), DRAFT, FINAL, "\n", " ", "```", "`", "x", "{", '"', "<", "|>"])


@given(st.lists(pieces, max_size=20).map("".join))
def test_no_reply_breaks_it_and_nothing_is_added(text):
    found = final_part(text)
    assert isinstance(found, Failure) or found in text
    json.dumps(found if isinstance(found, str) else found.detail)


@pytest.mark.parametrize("piece", [
    "<think>", "</think>", "<a_b>", "<|channel|>analysis", '{"a": ', "[THINK]\n", "`<think>", "```a\n", "<x ", "[{",
    '{"a": 1}<think></think>', '{"a": 1}\n<a_b>\n</a_b>\n', "<|end|>", '"', "<|", "assistantfinal", "{}", "analysisA ",
])  # fmt: skip
def test_long_replies_take_linear_time(piece):
    """A quadratic scan of these would take minutes."""
    final_part(piece * (150_000 // len(piece)))
    parse_judgement(piece * (150_000 // len(piece)), 1)


def test_a_ruled_line_that_says_that_reasoning_begins():
    assert isinstance(first_score(f"--- BEGIN THINKING ---\n{DRAFT}\n"), Failure)
    assert first_score(f"--- BEGIN THINKING ---\n{DRAFT}\n--- END THINKING ---\n{FINAL}") == 1.0
