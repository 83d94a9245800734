"""The same 200 responses with 20 failures through every library: the same rewards, missing at the same places.

A library that can carry a failure has None or an error record there; the others raise `RewardFailure` exactly there,
after the retries. `test_text_scorer.py` checks the reference itself in closed form.
"""

import asyncio
import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from text_episodes import FAILED, QUESTIONS, RESPONSES, Scripted, expected

from guerdon.errors import RewardFailure
from guerdon.integrations.retries import RetriedModel
from guerdon.integrations.text import TextScorer, rollout_of, step_source
from guerdon.policies.language.tiny_text import byte_tokenizer

torch.set_num_threads(1)
REWARDS, STEPS = expected()


@pytest.fixture
def retried():
    """A model that fails always on 20 responses, tried three times."""
    model = Scripted()
    yield TextScorer(RetriedModel(model, tries=3), aggregation="min")
    if not model.calls:  # the library is not installed
        return
    assert {n: model.calls[n] for n in FAILED} == dict.fromkeys(FAILED, 3)
    assert {model.calls[n] for n in model.calls.keys() - FAILED.keys()} == {1}


def each(one):
    """A call per response; None where it raised `RewardFailure`."""
    found = []
    for question, response in zip(QUESTIONS, RESPONSES, strict=True):
        found.append(None)
        with contextlib.suppress(RewardFailure):
            found[-1] = one(question, response)
    return found


@pytest.mark.parametrize("name", ["reward_function", "async_reward_function"])
def test_trl(name, retried):
    pytest.importorskip("trl", reason="TRL is not installed: pip install guerdon[trl]")
    from guerdon.integrations import trl

    found = getattr(trl, name)(retried)(prompts=QUESTIONS, completions=RESPONSES)
    assert (asyncio.run(found) if asyncio.iscoroutine(found) else found) == REWARDS


def test_openrlhf(retried):
    from guerdon.integrations.openrlhf import reward_function

    reward_func = reward_function(retried)

    def one(question, response):
        prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        found = reward_func([f"{prompt}{response}<|im_end|>\n"], [prompt], ["8"])
        assert found["scores"].shape == (1,)
        assert found["extra_logs"] == {}
        return found["rewards"].item()

    assert each(one) == pytest.approx(REWARDS, abs=1e-7)


def test_verifiers(retried):
    pytest.importorskip("verifiers.v1", reason="verifiers is not installed: pip install guerdon[verifiers]")
    from verifiers_traces import scored

    traces = [scored(retried, q, r) for q, r in zip(QUESTIONS, RESPONSES, strict=True)]
    assert [t.rewards["prm"] and t.rewards["prm"].score for t in traces] == REWARDS


def test_openenv(retried):
    pytest.importorskip("openenv.core.rubrics", reason="OpenEnv is not installed: pip install guerdon[openenv]")
    from guerdon.integrations.openenv import ResponseRubric

    rubric = ResponseRubric(retried, question=lambda a, o: o.question, response=lambda a, o: a.text)
    found = each(lambda q, r: rubric(SimpleNamespace(text=r), SimpleNamespace(question=q)))
    assert found == REWARDS


def test_openenv_steps():
    """Per step, where the steps are actions."""
    pytest.importorskip("openenv.core.rubrics", reason="OpenEnv is not installed: pip install guerdon[openenv]")
    from guerdon.integrations.openenv import StepsRubric

    scorer = TextScorer(RetriedModel(Scripted()), aggregation="min")

    def one(question, response):
        rubric = StepsRubric(scorer, question=lambda a, o: question, step=lambda a, o: a)
        pieces = response.split("\n\n")
        actions = [piece + "\n\n" for piece in pieces[:-1]] + pieces[-1:]
        last = None
        for n, action in enumerate(actions):
            last = rubric(action, SimpleNamespace(done=n == len(actions) - 1))
        return rubric.compute_step_rewards(), last

    found = each(one)
    assert [one and one[0] for one in found] == STEPS
    assert [one and one[1] for one in found] == REWARDS


def test_verl(retried):
    pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install verl")
    from guerdon.integrations.verl import score_function

    compute_score = score_function(retried)
    found = each(lambda q, r: compute_score("x", r, "8", {"question": q}))
    assert found == REWARDS


def test_nemo_gym(retried):
    pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install guerdon[serve]")
    from starlette.testclient import TestClient

    from guerdon.integrations.nemo_gym import build_app

    client = TestClient(build_app(retried))
    found = []
    for question, response in zip(QUESTIONS, RESPONSES, strict=True):
        row = {"responses_create_params": {"input": [{"role": "user", "content": question}]}, "id": 1}
        assert client.post("/seed_session", json=row).json() == {}
        output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": response}]}]
        reply = client.post("/verify", json=row | {"response": {"output": output}})
        assert reply.status_code in (200, 422)
        body = reply.json()
        if reply.status_code == 200:
            assert body.keys() == {"responses_create_params", "id", "response", "reward"}
        else:
            assert body["error"]["code"] == "failed_measurement"
        found.append(body.get("reward"))
    assert found == REWARDS


def test_rewards_at_tokens():
    """What the trainers that take rewards of tokens get: each step's value at its last token."""
    tokenizer = byte_tokenizer()
    ids = [np.array([*tokenizer(text)["input_ids"], tokenizer.eos_token_id]) for text in RESPONSES]
    rollout = rollout_of(QUESTIONS, [np.array([1])] * 200, ids, tokenizer)
    rewards = step_source("prm", Scripted()).measure(rollout)
    assert np.flatnonzero(rewards.failed_B).tolist() == list(FAILED)
    assert {row: why.reason for row, _, why in rewards.failures} == FAILED
    for row, steps in enumerate(STEPS):
        values = rewards.values[row][rewards.values[row] != 0]
        assert values.tolist() == ([] if steps is None else [v for v in steps if v])
