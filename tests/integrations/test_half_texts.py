"""Half of a surrogate pair from a host: no reward for its item with the reason, and the rest of the batch is kept."""

import json

import pytest
from fastapi.testclient import TestClient

from guerdon.integrations.nemo_gym import build_app
from guerdon.integrations.openrlhf import reward_function as openrlhf_function
from guerdon.integrations.text import TextScorer
from guerdon.types import Failure, RewardInfo, Score

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


def test_nemo_gym(scorer):
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": HALF}]}]
    body = {"responses_create_params": {"input": "3+5=?"}, "response": {"output": output}}
    with TestClient(build_app(scorer), raise_server_exceptions=False) as client:
        reply = client.post("/verify", content=json.dumps(body), headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["code"]) == (422, "failed_measurement")
    assert "surrogate" in reply.json()["error"]["message"]
