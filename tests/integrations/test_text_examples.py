"""The examples of libraries for language models, and what is special to one library."""

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from guerdon.errors import DataError, RewardFailure

torch.set_num_threads(1)
EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_openrlhf_loads_and_calls_a_function_file():
    """As `SingleTurnAgentExecutor` does: by path, in a thread, with lists of one item; an exception is not a reward."""
    reward_func = load("openrlhf_reward").reward_func
    prompt = "<|im_start|>user\n3+5=?<|im_end|>\n<|im_start|>assistant\n"

    async def reward(query):
        try:
            (found,) = await asyncio.gather(asyncio.to_thread(reward_func, [query], [prompt], ["8"]))
        except RewardFailure as error:
            return str(error)
        return torch.tensor([found["rewards"]]).tolist(), sum([found["scores"]]).item(), found["extra_logs"]

    assert asyncio.run(reward(f"{prompt}3+5=8\n\n8<|im_end|>\n")) == ([pytest.approx(0.2)], pytest.approx(0.2), {})
    assert "non_finite" in asyncio.run(reward(f"{prompt} <|im_end|>"))
    assert "no_prompt" in asyncio.run(reward("something else"))
    with pytest.raises(DataError, match="2 queries for 1 prompts"):
        reward_func(["a", "b"], ["a"], None)


def test_openenv():
    pytest.importorskip("openenv.core.rubrics", reason="OpenEnv is not installed: pip install guerdon[openenv]")
    steps, missing = load("openenv_rubric").main()
    assert steps == pytest.approx([1 / 5, 1 / 4])
    assert missing.startswith("non_finite")


def test_openenv_async():
    pytest.importorskip("openenv.core.rubrics", reason="OpenEnv is not installed: pip install guerdon[openenv]")
    from text_episodes import Scripted

    from guerdon.errors import ConfigError
    from guerdon.integrations.openenv import AsyncResponseRubric, StepsRubric
    from guerdon.integrations.text import TextScorer
    from guerdon.types import RewardInfo

    scorer = TextScorer(Scripted(), aggregation="min")
    rubric = AsyncResponseRubric(scorer, question=lambda a, o: o, response=lambda a, o: a)
    assert asyncio.run(rubric("an answer", "q")) == scorer.numbers(["q"], ["an answer"])[0] == rubric.last_score
    whole = Scripted()
    whole.info = RewardInfo("whole", (0.0, 1.0), granularity="total", modality="text")
    with pytest.raises(ConfigError, match="take ResponseRubric"):
        StepsRubric(TextScorer(whole), question=lambda a, o: o, step=lambda a, o: a)


CALL = {"type": "function", "id": "c1", "function": {"name": "add", "arguments": {"a": 3, "b": 5}}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "8"}


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        ([CALLED, RESULT, {"role": "assistant", "content": "8"}], "calls of tools"),
        ([RESULT], "role is tool"),
        ("\ud83d", "lone_surrogate"),
        (None, "list of messages"),
    ],
)
def test_openenv_steps_that_cannot_be_read_have_no_reward(step, reason):
    pytest.importorskip("openenv.core.rubrics", reason="OpenEnv is not installed: pip install guerdon[openenv]")
    from text_episodes import Scripted

    from guerdon.integrations.openenv import StepsRubric
    from guerdon.integrations.text import TextScorer

    model, question = Scripted(), [{"role": "system", "content": "Add."}, {"role": "user", "content": "3+5=?"}]
    rubric = StepsRubric(TextScorer(model, aggregation="min"), question=lambda a, o: question, step=lambda a, o: a)
    assert rubric("3+5=8", SimpleNamespace(done=False)) == 0
    with pytest.raises(RewardFailure, match=reason):
        rubric(step, SimpleNamespace(done=True))
    with pytest.raises(RewardFailure, match=reason):
        rubric.compute_step_rewards()
    rubric.reset()
    for one in ("3+5=8", [{"role": "assistant", "content": "so 8"}]):
        rubric(one, SimpleNamespace(done=False))
    assert len(rubric.compute_step_rewards()) == 2


def test_verifiers():
    pytest.importorskip("verifiers.v1", reason="verifiers is not installed: pip install guerdon[verifiers]")
    assert load("verifiers_rewards").main() == [pytest.approx(1 / 7), None]  # the first step has its blank line


def test_nemo_gym():
    pytest.importorskip("fastapi", reason="FastAPI is not installed: pip install guerdon[serve]")
    pytest.importorskip("uvicorn", reason="uvicorn is not installed: pip install guerdon[serve]")
    from starlette.testclient import TestClient

    client = TestClient(load("nemo_gym_server").app)
    row = {"responses_create_params": {"input": "3+5=?"}}

    def verify(*texts):
        output = [{"type": "reasoning", "summary": []}]
        output += [{"type": "message", "content": [{"type": "output_text", "text": text}]} for text in texts]
        return client.post("/verify", json=row | {"response": {"output": output}})

    assert verify("3+5=8").json()["reward"] == pytest.approx(0.2)
    for texts, reason in (((" ",), "non_finite"), ((), "no_prompt"), (("a", "b"), "no_prompt")):
        reply = verify(*texts)
        assert reply.status_code == 422
        assert reason in json.dumps(reply.json())
    assert client.post("/verify", json=row).status_code == 422
    assert "guerdon.integrations.nemo_gym" in sys.modules
