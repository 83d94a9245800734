"""Half of a surrogate pair from a host: no reward for its item with the reason, and the rest of the batch is kept."""

import json

import numpy as np
import pytest
from fastapi.testclient import TestClient

from guerdon.errors import RewardFailure
from guerdon.integrations.nemo_gym import build_app
from guerdon.integrations.openrlhf import reward_function as openrlhf_function
from guerdon.integrations.text import TextScorer, rollout_of, step_source
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.types import Episode, Failure, RewardInfo, Score

pytestmark = pytest.mark.hostile("texts")

HALF = "eight \ud83d then"


class Lengths:
    """How long a response is; it would say it of anything."""

    info = RewardInfo("lengths", (0.0, 100.0), granularity="total", modality="text", frames_needed=0)

    def score(self, episodes):
        return [Score(total=float(sum(map(len, one.texts)))) for one in episodes]


@pytest.fixture
def scorer():
    return TextScorer(Lengths())


def test_texts_and_messages(scorer):
    chat = [{"role": "system", "content": HALF}, {"role": "user", "content": "3+5=?"}]
    prompts = ["3+5=?", "3+5=?", HALF, chat, "3+5=?"]
    found = scorer.rewards(prompts, ["8", HALF, "8", "8", "eight"])
    assert [found[0], found[4]] == [1.0, 5.0]
    assert all(isinstance(one, Failure) and one.reason == "lone_surrogate" for one in found[1:4])


def test_trl(scorer):
    trl = pytest.importorskip("guerdon.integrations.trl", reason="TRL is not installed: pip install guerdon[trl]")
    assert trl.reward_function(scorer)(prompts=["3+5=?"] * 2, completions=[HALF, "8"]) == [None, 1.0]


def test_openrlhf(scorer):
    prompt = "<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n"
    reward = openrlhf_function(scorer)
    assert float(reward([prompt + "8"], [prompt], ["8"])["rewards"][0]) == 1.0
    with pytest.raises(Exception, match="surrogate"):
        reward([prompt + HALF], [prompt], ["8"])


def answered(text="8", **more):
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}]
    return {"responses_create_params": {"input": "3+5=?"}, "response": {"output": output}, **more}


ROWS = {
    "answer": answered(HALF),
    "question": answered(responses_create_params={"input": HALF}),
    "instructions": answered(responses_create_params={"input": "3+5=?", "instructions": HALF}),
    "tool": answered(responses_create_params={"input": "3+5=?", "tools": [{"name": "f", "description": HALF}]}),
    "metadata": answered(responses_create_params={"input": "3+5=?", "metadata": {"of": HALF}}),
    "field": answered(id=HALF),
    "role": answered(response={"output": [{"role": HALF, "content": "8"}]}),
    "part": answered(response={"output": [{"role": "assistant", "content": [{"type": HALF, "text": "8"}]}]}),
    "name of a field": answered(**{HALF: 1}),
    "no parameters": answered(responses_create_params=HALF),
}


@pytest.mark.parametrize("name", ROWS)
def test_nemo_gym(name, scorer):
    with TestClient(build_app(scorer), raise_server_exceptions=False) as client:
        reply = client.post("/verify", content=json.dumps(ROWS[name]), headers={"content-type": "application/json"})
        assert client.post("/verify", json=answered()).json()["reward"] == 1.0
    expected = "invalid_request" if name in ("name of a field", "no parameters") else "failed_measurement"
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, expected)
    if expected == "failed_measurement":
        assert "lone_surrogate" in reply.json()["error"]["message"]


CALL = {"type": "function", "id": "c1", "function": {"name": "count", "arguments": '{"of": "eggs"}'}}
ASK, RESULT = {"role": "user", "content": "How many?"}, {"role": "tool", "content": "24", "tool_call_id": "c1"}


@pytest.mark.parametrize(
    ("prompt", "tools"),
    [
        ([ASK, {"role": "assistant", "tool_calls": [{**CALL, "id": HALF}]}, RESULT], None),
        ([ASK, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {HALF: 1}}]}, RESULT], None),
        ([ASK, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": '{"of": "\\ud83d"}'}]}, RESULT], None),
        ([ASK, {"role": "assistant", "tool_calls": [CALL]}, {**RESULT, "content": HALF}], None),
        ([ASK, {"role": "assistant", "tool_calls": [CALL], "reasoning_content": HALF}, RESULT], None),
        ([{**ASK, "name": HALF}], None),
        ([{"role": "user", "content": [{"type": "text", "text": HALF}]}], None),
        ([ASK], [{"name": "f", "description": HALF}]),
        ([ASK], json.dumps([{"name": "f", "parameters": {"properties": {HALF: {}}}}])),
    ],
)
def test_calls_and_tools(prompt, tools, scorer):
    found = scorer.rewards([prompt, [ASK]], ["8", "eight"], [tools, None])
    assert (found[0].reason, found[1]) == ("lone_surrogate", 5.0)


@pytest.mark.parametrize("prompt", [HALF, [{"role": "system", "content": HALF}, {"role": "user", "content": "q"}]])
def test_sources_of_trainers(prompt):
    """TRL, verl and verifiers hand over tokens and prompts."""
    tokenizer = byte_tokenizer()
    ids = [np.array([*tokenizer("8")["input_ids"], tokenizer.eos_token_id])] * 2
    source = step_source("lengths", Lengths(), reward_mode="terminal")
    found = source.measure(rollout_of([prompt, "q"], [np.array([1])] * 2, ids, tokenizer))
    assert [(row, why.reason) for row, _, why in found.failures] == [(0, "lone_surrogate")]
    assert found.values.sum(axis=1).tolist() == [0.0, 1.0]


def test_openenv(scorer):
    pytest.importorskip("openenv.core.rubrics", reason="OpenEnv is not installed: pip install guerdon[openenv]")
    from guerdon.integrations.openenv import ResponseRubric

    rubric = ResponseRubric(scorer, question=lambda a, o: o, response=lambda a, o: a)
    assert rubric.forward("8", "3+5=?") == 1.0
    for action, observation in ((HALF, "3+5=?"), ("8", HALF)):
        with pytest.raises(RewardFailure, match="lone_surrogate"):
            rubric.forward(action, observation)


def test_what_no_model_reads_is_no_failure(scorer):
    episode = Episode(id=HALF, task="q", texts=("8",), meta={"of": HALF})
    assert scorer.score_episodes([episode])[0].total == 1.0
