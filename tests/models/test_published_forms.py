"""Published classifiers read the ids of `apply_chat_template`, at the place where transformers reads them."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from chat_families import FAMILIES, alone, assistant, folder_of, tokenizer_of, user

from guerdon.errors import CheckpointError
from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.models.text.text_load import load_text_model
from guerdon.policies.batches.tokens import conversation_ids, prompt_ids, prompt_lengths
from guerdon.reading.chats import ChatError
from guerdon.types import Episode, RewardModel
from tables import first, refuses

torch.set_num_threads(1)
TEXTS = ("8", "It is eight, or so.", "12", "3+5 is 8.\nSo: 8", " 9 ")
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


ASKED = user("What is 3+5?")
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 3, "b": 5}}}
CHATS = {
    "alone": (ASKED,),
    "turns": (user("Hello"), assistant("Hi."), ASKED),
    "system": ({"role": "system", "content": "Be brief."}, ASKED),
    "tool": (ASKED, assistant("", tool_calls=[CALL]), {"role": "tool", "content": "8"}),
}


def episode(text, chat="alone", tools=()):
    messages = CHATS[chat]
    return Episode(
        id="x", task=ASKED["content"], texts=(text,), context=() if chat == "alone" else messages, tools=tools
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_ids_are_those_of_the_template_trailing_tokens_included(family):
    tokenizer = tokenizer_of(family)
    for chat in ("alone", "turns"):
        whole = [*CHATS[chat], assistant("It is 8.")]
        ids = conversation_ids(tokenizer, whole).tolist()
        assert ids == tokenizer.apply_chat_template(whole)["input_ids"]
        assert tokenizer.decode(ids).endswith(f"It is 8.{FAMILIES[family][4]}")
        opened = tokenizer.apply_chat_template(list(CHATS[chat]), add_generation_prompt=True)["input_ids"]
        assert prompt_ids(tokenizer, CHATS[chat]).tolist() == opened
        assert prompt_lengths(tokenizer, [CHATS[chat]]) == [len(opened)]


@pytest.mark.hostile("texts")
@pytest.mark.parametrize(
    ("family", "chat", "why"),
    [
        ("gemma", "system", "System role not supported"),
        ("mistral", "system", "Only user and assistant"),
        ("mistral", "tool", "Only user and assistant"),
        ("gemma", "tool", "must alternate"),
        ("zephyr", "tool", r"leaves out tool_calls of message 2 \(role assistant\)"),
        ("llama3", "tool", "leaves out tool_calls of message 2"),
        ("phi", "tool", "leaves out tool_calls of message 2"),
    ],
)
def test_a_template_that_leaves_something_out_refuses(family, chat, why):
    tokenizer = tokenizer_of(family)
    with pytest.raises(ChatError, match=why):
        prompt_ids(tokenizer, CHATS[chat])
    with pytest.raises(ChatError, match=why):
        conversation_ids(tokenizer, [*CHATS[chat], assistant("8")])


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "chatml"])
def test_tools_that_a_template_does_not_write_are_refused(family):
    with pytest.raises(ChatError, match="leaves out the tools"):
        prompt_ids(tokenizer_of(family), CHATS["alone"], [TOOL])


def test_what_a_template_writes_is_there():
    tokenizer = tokenizer_of("chatml")
    for chat in CHATS:
        for tools in ([], [TOOL]):
            ids = conversation_ids(tokenizer, [*CHATS[chat], assistant("8")], tools).tolist()
            assert (
                ids == tokenizer.apply_chat_template([*CHATS[chat], assistant("8")], tools=tools or None)["input_ids"]
            )
    assert '"name": "add", "arguments": {"a": 3, "b": 5}' in tokenizer.decode(prompt_ids(tokenizer, CHATS["tool"]))


def test_a_template_may_drop_the_reasoning_of_earlier_turns_but_not_the_turns():
    said = "<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>"
    tokenizer = tokenizer_of("chatml")
    tokenizer.chat_template = "{% for m in messages %}" + said + "{% endfor %}"
    told = [user("a"), assistant("<think>long</think>b"), user("c")]
    assert "long" not in tokenizer.decode(prompt_ids(tokenizer, told))
    tokenizer.chat_template = "{{ messages[-1].content }}"
    with pytest.raises(ChatError, match=r"leaves out message 1 \(role user\)"):
        prompt_ids(tokenizer, told)


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("pad", ["own", *(pytest.param(pad, marks=pytest.mark.slow) for pad in ("eos", None))])
@pytest.mark.parametrize("family", first(FAMILIES, 2))
def test_a_value_is_that_of_transformers_alone_and_in_any_batch(family, pad, tmp_path):
    path, tokenizer = folder_of(tmp_path, family, pad, side="left" if pad == "own" else "right")
    judge = SequenceClassifier(path)
    cases = [(text, chat) for chat in ("alone", "turns") for text in TEXTS]
    expected = [alone(path, tokenizer, [*CHATS[chat], assistant(text)]) for text, chat in cases]
    episodes = [episode(text, chat) for text, chat in cases]
    for size in (1, 3, 16):
        judge.micro_batch_size = size
        np.testing.assert_allclose([s.total for s in judge.score(episodes)], expected, rtol=1e-4, atol=1e-5)
        backwards = [s.total for s in judge.score(episodes[::-1])][::-1]
        np.testing.assert_allclose(backwards, expected, rtol=1e-4, atol=1e-5)
    assert np.std(expected) > 0.01
    assert judge.model.config.pad_token_id == tokenizer.pad_token_id  # it is left as it was


@pytest.mark.usefixtures("by_hand")
@pytest.mark.parametrize("family", FAMILIES)
def test_without_a_token_for_padding_the_last_token_is_read(family, tmp_path):
    path, tokenizer = folder_of(tmp_path, family, None)
    judge = SequenceClassifier(path)
    ids = tokenizer.apply_chat_template([ASKED, assistant("8")])["input_ids"]
    with torch.no_grad():
        hidden = judge.model.model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        at_each = judge.model.score(hidden)[:, 0].numpy()
    scores = judge.score([episode("8"), episode("a much longer answer than that")])
    np.testing.assert_allclose(scores[0].total, at_each[-1], rtol=1e-4, atol=1e-5)
    assert abs(at_each[-1] - at_each[-2]) > 1e-3  # one token earlier is another value


@pytest.mark.hostile("texts")
def test_a_conversation_that_the_template_refuses_is_a_failure_of_its_item(tmp_path):
    path, _ = folder_of(tmp_path, "gemma", "own")
    scores = SequenceClassifier(path).score([episode("8"), episode("8", "system"), episode("9", tools=(TOOL,))])
    assert scores[0].failure is None
    assert [s.failure.reason for s in scores[1:]] == ["unreadable_chat"] * 2
    assert "System role not supported" in scores[1].failure.detail


@pytest.mark.usefixtures("by_hand")
def test_tools_reach_the_template(tmp_path):
    path, tokenizer = folder_of(tmp_path, "chatml", "own")
    judge = SequenceClassifier(path)
    found = judge.score([episode("8", chat, tools=(TOOL,)) for chat in CHATS])
    expected = [alone(path, tokenizer, [*CHATS[chat], assistant("8")], [TOOL]) for chat in CHATS]
    np.testing.assert_allclose([s.total for s in found], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("labels", [1, 2])
def test_a_folder_is_recognised(labels, tmp_path):
    path, _ = folder_of(tmp_path, "llama3", "own", labels=labels, dtype=torch.bfloat16)
    model = load_text_model(path, device="cpu")
    assert isinstance(model, RewardModel)
    assert (model.info.granularity, model.form) == ("total", "conversation")
    direct = SequenceClassifier(path, device="cpu").score([episode("8")])[0].total
    assert load_text_model(path, adapter="classifier", device="cpu").score([episode("8")])[0].total == direct
    assert model.score([episode("8")])[0].total == direct


def test_a_folder_without_a_template_or_with_other_labels_is_refused(tmp_path):
    path, tokenizer = folder_of(tmp_path, "llama3", "own", labels=3)
    with pytest.raises(CheckpointError, match="3 labels"):
        load_text_model(path)
    folder_of(tmp_path, "llama3", "own")
    tokenizer.chat_template = None
    (Path(path) / "chat_template.jinja").unlink()
    tokenizer.save_pretrained(path)
    with pytest.raises(CheckpointError, match="no chat template"):
        load_text_model(path)
    config = json.loads((Path(path) / "config.json").read_text())
    (Path(path) / "config.json").write_text(json.dumps({**config, "architectures": ["LlamaForTokenClassification"]}))
    with refuses("adapter"):
        load_text_model(path, adapter="classifiers")
    with pytest.raises(CheckpointError):
        load_text_model(path, adapter="classifier")
