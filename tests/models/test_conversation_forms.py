"""Which reward models of steps are given a conversation, and which refuse it by name."""

import numpy as np
import pytest
from adapter_models import FAMILIES, QUESTION, STEPS
from chat_families import tokenizer_of

from guerdon.episodes.solutions import Solution
from guerdon.models.text.adapters import load_adapter
from guerdon.models.text.text_inputs import read_steps
from guerdon.policies.batches.tokens import prompt_ids, response_ids
from guerdon.tasks.trained_questions import question_name
from guerdon.types import Episode

SYSTEM, HELLO = {"role": "system", "content": "Be exact."}, {"role": "user", "content": "Hello"}
HI, LAST = {"role": "assistant", "content": "Hi."}, {"role": "user", "content": QUESTION}
CONTEXTS = {"system": (SYSTEM, LAST), "turns": (HELLO, HI, LAST)}
READS = {"qwen_prm", "implicit"}


def test_steps_stand_behind_the_whole_conversation():
    tokenizer = tokenizer_of("chatml")
    lone = read_steps(tokenizer, QUESTION, STEPS)
    np.testing.assert_array_equal(lone.ids[: lone.start], prompt_ids(tokenizer, [LAST]))
    for context in CONTEXTS.values():
        told = read_steps(tokenizer, QUESTION, STEPS, context=context)
        np.testing.assert_array_equal(told.ids[: told.start], prompt_ids(tokenizer, context))
        np.testing.assert_array_equal(told.ids[told.start :], lone.ids[lone.start :])
        np.testing.assert_array_equal(told.ends_S - told.start, lone.ends_S - lone.start)
    own = read_steps(tokenizer, QUESTION, STEPS, context=CONTEXTS["system"], system_prompt="Another one.")
    np.testing.assert_array_equal(own.ids, read_steps(tokenizer, QUESTION, STEPS, context=CONTEXTS["system"]).ids)
    set_by_card = read_steps(tokenizer, QUESTION, STEPS, system_prompt="Be exact.")
    np.testing.assert_array_equal(set_by_card.ids, own.ids)
    closed = read_steps(tokenizer, QUESTION, ["8"], closed=True)
    np.testing.assert_array_equal(
        closed.ids, np.concatenate([prompt_ids(tokenizer, [LAST]), response_ids(tokenizer, "8")])
    )


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_a_family_reads_a_conversation_or_refuses_it_by_name(family, tmp_path):
    family(tmp_path)
    model = load_adapter(family.name, str(tmp_path), 4)
    episodes = [Episode("x", QUESTION, texts=STEPS, context=c) for c in ((), *CONTEXTS.values(), (LAST,), ())]
    lone, *told, same, again = model.score(episodes)
    np.testing.assert_allclose(lone.steps, again.steps, atol=1e-6)
    np.testing.assert_allclose(lone.steps, same.steps, atol=1e-6)
    for context, score in zip(CONTEXTS.values(), told, strict=True):
        if family.name not in READS:
            assert score.failure.reason == "unreadable_chat"
            assert family.name in score.failure.detail
            continue
        assert np.abs(score.steps - lone.steps).max() > 1e-4
        reading = model.tokenize(QUESTION, STEPS, context=context)
        text = model.tokenizer.decode(reading.ids)
        assert all(m["content"] in text for m in context)
        assert ("Please reason step by step" in text) == (family.name == "qwen_prm" and SYSTEM not in context)
    tools = ({"type": "function", "function": {"name": "f"}},)
    (called,) = model.score([Episode("x", QUESTION, texts=STEPS, tools=tools)])
    assert called.failure.reason == "unreadable_chat"


def test_solutions_to_different_conversations_are_never_paired():
    names = {question_name(Solution("x", QUESTION, STEPS, context=c)) for c in ((), *CONTEXTS.values())}
    assert len(names) == 3
