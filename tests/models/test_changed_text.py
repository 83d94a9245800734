"""Markers are the tokens that they become within a text; text that a chat template changes is a `Failure` by name."""

import json
from dataclasses import replace

import numpy as np
import pytest
from adapter_models import (
    LLAMA_TEMPLATE,
    QUESTION,
    QWEN_TEMPLATE,
    STEPS,
    MathShepherd,
    Qwen,
    RLHFlow,
    byte_level,
    logits_of,
)
from tiny_text_policies import tiny_policy
from transformers import LlamaConfig, LlamaForSequenceClassification

from guerdon.errors import CheckpointError, ConfigError
from guerdon.models.text.adapters import load_adapter, read_notes
from guerdon.models.text.implicit_text import ImplicitModel
from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_load import load_text_model
from guerdon.policies.batches.tokens import chat_text
from guerdon.policies.language.text import reference
from guerdon.policies.language.text_files import outline
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.policies.pretrained.chat_template import set_arguments
from guerdon.policies.pretrained.reading import read_tokenizer
from guerdon.reading.chats import ChatError
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.settings.train import StepwiseTrainSettings
from guerdon.settings.vlm import VLMSettings
from guerdon.types import Episode
from tables import cases, refuses

THINKS = QWEN_TEMPLATE.replace(
    "{{ m['content'] }}", "{{ m['content'].split('</think>')[-1] if m['role'] == 'assistant' else m['content'] }}"
)
OTHERS = {
    "drops reasoning": (THINKS, "Let me see</think>3+5=8."),
    "strips lines": (QWEN_TEMPLATE.replace("m['content']", "m['content'].replace('\\n\\n', '\\n')"), "3+5\n\n=8."),
    "lower case": (QWEN_TEMPLATE.replace("m['content']", "m['content'] | lower"), "So it is 8."),
    "escapes": (QWEN_TEMPLATE.replace("m['content']", "m['content'] | e"), "3 < 5"),
    "cuts": (QWEN_TEMPLATE.replace("{{ m['content'] }}", "{{ m['content'][:120] }}"), "3+5=8. " * 40),
}
REFUSES = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
REFUSES += QWEN_TEMPLATE


def qwen(template=QWEN_TEMPLATE):
    return byte_level(
        ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<extra_0>"], template, eos="<|im_end|>", pad="<|endoftext|>"
    )


def episode(*steps):
    return Episode(id="1", task="what is it?", texts=steps)


@pytest.mark.hostile("texts")
@pytest.mark.parametrize(("template", "text"), OTHERS.values(), ids=OTHERS)
def test_a_step_that_the_template_changes_is_a_failure_and_its_neighbours_are_not(template, text, tmp_path):
    Qwen(tmp_path, tokenizer=qwen(template))
    if "lower" in template:  # its own system turn
        with pytest.raises(CheckpointError, match="cannot read a solution: the chat template changes message"):
            load_adapter("qwen_prm", str(tmp_path), 8)
        return
    reader = load_adapter("qwen_prm", str(tmp_path), 8)
    changed, plain = reader.score([episode("one", text, "two"), episode("one", "two")])
    assert changed.failure.reason == ("unreadable_chat" if "120" in template else "changed_by_template")  # left out
    assert "message 3 (role assistant)" in changed.failure.detail
    assert len(plain.steps) == 2


def classifier(folder, template):
    tokenizer = qwen(template)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        num_labels=1, pad_token_id=tokenizer.pad_token_id, max_position_embeddings=512,
    )  # fmt: skip
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return SequenceClassifier(str(folder))


@pytest.mark.hostile("texts")
@pytest.mark.parametrize(("template", "text"), OTHERS.values(), ids=OTHERS)
def test_a_classifier_reads_no_changed_text_either(template, text, tmp_path):
    model = classifier(tmp_path, template)
    changed, plain = model.score([episode("one ", text), episode("one\n", "8")])
    assert changed.failure.reason == ("unreadable_chat" if "120" in template else "changed_by_template")  # left out
    assert np.isfinite(plain.total)


def test_spaces_around_a_message_may_go_and_reasoning_of_earlier_turns(tmp_path):
    model = classifier(tmp_path, THINKS.replace("m['content'] %}", "m['content'] | trim %}"))
    context = (
        {"role": "user", "content": "a?"}, {"role": "assistant", "content": "hm</think>b"},
    )  # fmt: skip
    scores = model.score([Episode(id="1", task=" what? \n", texts=("c\n\n",), context=context)])
    assert scores[0].failure is None


@pytest.mark.parametrize(("family", "name"), [(Qwen, "qwen_prm")])
def test_a_template_that_refuses_the_familys_system_turn_is_refused_when_it_is_read(family, name, tmp_path):
    family(tmp_path, tokenizer=qwen(REFUSES))
    with pytest.raises(CheckpointError, match=r"cannot read a solution: the chat template refuses .*System role"):
        load_adapter(name, str(tmp_path), 8)


def test_rlhflow_fails_by_name_too(tmp_path):
    template = LLAMA_TEMPLATE.replace("m['content'] | trim", "m['content'].replace('8', 'eight') | trim")
    special = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    RLHFlow(tmp_path, tokenizer=byte_level(special, template, bos=special[0], eos=special[-1]))
    with pytest.raises(CheckpointError, match="cannot read a solution: the chat template changes message 1"):
        load_adapter("rlhflow", str(tmp_path), 8)


@pytest.mark.usefixtures("by_hand")
def test_the_marks_of_math_shepherd_with_a_byte_level_tokenizer(tmp_path):
    """Its mark and its verdicts are other tokens behind a space than alone; values are read at the former."""
    family = MathShepherd(tmp_path, tokenizer=byte_level(["<s>", "</s>"], bos="<s>", eos="</s>"))
    tokenizer = family.tokenizer
    tag, right, wrong = (
        tokenizer.convert_tokens_to_ids(t) for t in ("\u0120\u00d0\u00ba\u00d0\u00b8", "\u0120+", "\u0120-")
    )
    assert tag not in tokenizer.encode("\u043a\u0438")
    found = load_adapter("math_shepherd", str(tmp_path), 8).score([Episode(id="1", task=QUESTION, texts=STEPS)])[0]
    output = "\n".join(f"Step {k + 1}: {s.strip()} \u043a\u0438" for k, s in enumerate(STEPS))
    ids = tokenizer.encode(f"{QUESTION} {output}")
    wanted = logits_of(family.model, ids)[:, [right, wrong]].softmax(-1)[:, 0]
    np.testing.assert_allclose(found.steps, wanted[[i for i, t in enumerate(ids) if t == tag]], atol=1e-5)


SWITCH = QWEN_TEMPLATE.replace(
    "{% if add_generation_prompt %}",
    "{% if enable_thinking is defined and enable_thinking is false %}<|im_start|>off{% endif %}{{ style or '' }}"
    "{% if add_generation_prompt %}",
)
CHAT = [{"role": "user", "content": "a?"}]


def given(**arguments):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = SWITCH
    set_arguments(tokenizer, arguments, "policy.chat_template_kwargs")
    return tokenizer


def test_arguments_of_a_template_are_those_that_are_given_and_are_saved(tmp_path):
    plain = chat_text(given(), CHAT, answered=False)
    off = given(enable_thinking=False, style="it's {{ 1 }} %}\n")
    text = chat_text(off, CHAT, answered=False)
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = SWITCH
    wanted = {"enable_thinking": False, "style": "it's {{ 1 }} %}\n", "tokenize": False, "add_generation_prompt": True}
    assert text == tokenizer.apply_chat_template(CHAT, **wanted) != plain
    off.save_pretrained(tmp_path)
    again = read_tokenizer(str(tmp_path))
    assert chat_text(again, CHAT, answered=False) == text
    set_arguments(again, {"enable_thinking": True, "style": None}, "policy.chat_template_kwargs")
    assert chat_text(again, CHAT, answered=False) == plain
    assert given().chat_template == SWITCH


@pytest.mark.parametrize("name", ["enable_thinkin", "a-b", "x"])
def test_an_argument_that_the_template_does_not_have_is_refused(name):
    with pytest.raises(
        ConfigError, match=rf"policy.chat_template_kwargs: the chat template has no argument '{name}'"
    ) as refused:
        given(**{name: True})
    assert refused.value.key == "policy.chat_template_kwargs"


def test_a_study_and_a_folder_give_arguments(tmp_path):
    settings = {"tiny": {}, "chat_template": SWITCH, "chat_template_kwargs": {"enable_thinking": False}}
    policy = TextPolicySettings.model_validate(settings)
    start = StepwiseTrainSettings(save_dir="unused").start(policy)
    apart = StepwiseTrainSettings(save_dir="unused", tiny={}, chat_template_kwargs={"style": "x"}).start(policy)
    assert (start.chat_template_kwargs, apart.chat_template_kwargs) == ({"enable_thinking": False}, {"style": "x"})
    for one in (policy, start):
        tokenizer = outline(one).tokenizer
        assert "<|im_start|>off" in chat_text(tokenizer, CHAT, answered=False)
    Qwen(tmp_path, tokenizer=qwen(SWITCH))
    without = load_adapter("qwen_prm", str(tmp_path), 8).tokenize("a?", ["b"])
    (tmp_path / "adapter.json").write_text('{"chat_template_kwargs": {"enable_thinking": false}}')
    assert len(load_adapter("qwen_prm", str(tmp_path), 8).tokenize("a?", ["b"])) > len(without)
    (tmp_path / "adapter.json").write_text('{"chat_template_kwargs": {"enable": false}}')
    with refuses(f"chat_template_kwargs of {str(tmp_path)!r}"):
        load_adapter("qwen_prm", str(tmp_path), 8)


def test_an_own_model_whose_template_refuses_its_system_turn_is_refused_when_it_is_read(tmp_path):
    policy = tiny_policy()
    card = TextModelCard("implicit", "chat", "ce", beta=1.0, read="cumulative", system_prompt="Be brief.")
    ref = reference(tiny_policy().base)
    folder = ImplicitModel(policy, card, ref=ref).write(tmp_path / "taken")
    assert load_text_model(str(folder)).score([episode("3+5=8")])[0].failure is None
    policy.tokenizer.chat_template = REFUSES
    folder = ImplicitModel(policy, card, ref=ref).write(tmp_path / "refused")
    with pytest.raises(CheckpointError, match=r"refused cannot read a solution: .*System role not supported"):
        load_text_model(str(folder))
    folder = ImplicitModel(policy, replace(card, system_prompt=None), ref=ref).write(tmp_path / "without")
    load_text_model(str(folder))


@pytest.mark.parametrize(
    "name", ["messages", "tools", "add_generation_prompt", "tokenize", "bos_token", "conversation"]
)
def test_what_renders_a_template_gives_some_names_itself(name, tmp_path):
    for kind, needed in ((TextPolicySettings, {}), (VLMSettings, {}), (StepwiseTrainSettings, {"save_dir": "unused"})):
        with refuses(name):
            kind.model_validate({**needed, "chat_template_kwargs": {name: False}})
    (tmp_path / "adapter.json").write_text(json.dumps({"chat_template_kwargs": {name: False}}))
    with pytest.raises(CheckpointError, match=f"adapter.json: chat_template_kwargs: .*{name} is given"):
        read_notes(str(tmp_path), "classifier", {"chat_template_kwargs"})


@cases(
    ("template", "known"),
    [
        ("{% set think = think | default(true) %}{{ messages[0].content }}{{ think }}", True),
        ("{% if think is not defined %}{% set think = 1 %}{% endif %}{{ think }}", True),
        ("{% generation %}{{ messages[0].content }}{{ think }}{% endgeneration %}", True),
        ("{% macro shown(x) %}{{ x }}{{ think }}{% endmacro %}{{ shown(messages[0].content) }}", True),
        ("{# think #}{{ messages[0].content }}think", False),
        ("{% set think = 1 %}{{ messages[0].content }}{{ think }}", False),
        ("{% for think in messages %}{{ think.content }}{% endfor %}", False),
        ("{{ messages[0].think }}{{ strftime_now('think') }}", False),
    ],
)
def test_an_argument_is_what_a_template_reads_and_does_not_set(template, known):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    for _ in range(2):  # the second time it is set in front of the template
        if known:
            set_arguments(tokenizer, {"think": 7}, "policy.chat_template_kwargs")
            assert "7" in tokenizer.apply_chat_template(CHAT, tokenize=False)
        else:
            with refuses("policy.chat_template_kwargs"):
                set_arguments(tokenizer, {"think": 7}, "policy.chat_template_kwargs")


@pytest.mark.parametrize(
    ("template", "chat", "kept"),
    [
        # the answer stands in the question, and the template drops it, or changes it to what stands before
        ("{{ messages[0].content }}|", [("user", "is it 4?"), ("assistant", "4")], False),
        ("{% for m in messages %}{{ m.content | lower }}|{% endfor %}", [("user", "is a?"), ("assistant", "A")], False),
        ("{% for m in messages %}{{ m.content }}|{% endfor %}", [("user", "is it 4?"), ("assistant", "4")], True),
        ("{% for m in messages | reverse %}{{ m.content }}|{% endfor %}", [("user", "b"), ("assistant", "a b")], False),
        # Mistral's place of a system turn
        ("{% for m in messages[1:] %}{{ messages[0].content if loop.last }} {{ m.content }}|{% endfor %}",
         [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "a")], True),
    ],
)  # fmt: skip
def test_messages_follow_each_other(template, chat, kept):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    messages = [{"role": role, "content": content} for role, content in chat]
    if kept:
        assert chat_text(tokenizer, messages, answered=True)
    else:
        with pytest.raises(ChatError, match=r"chat template (changes|leaves out)"):
            chat_text(tokenizer, messages, answered=True)
