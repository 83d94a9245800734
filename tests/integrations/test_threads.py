"""A user's reward model that is not thread-safe, called from eight threads in every host: exact rewards."""

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from fastapi.testclient import TestClient

from guerdon.integrations.gymnasium import RewardModelWrapper
from guerdon.integrations.nemo_gym import build_app
from guerdon.integrations.openrlhf import reward_function as openrlhf_function
from guerdon.integrations.retries import RetriedModel
from guerdon.integrations.text import TextScorer, rollout_of, step_source
from guerdon.policies.language.tiny_text import byte_tokenizer
from guerdon.types import RewardInfo, Score

pytestmark = pytest.mark.usefixtures("frequent_switches")
THREADS, CALLS = 8, 48
QUESTIONS = [f"{k}?" for k in range(CALLS)]
ANSWERS = ["8" * (1 + k % 7) for k in range(CALLS)]
LENGTHS = [float(len(answer)) for answer in ANSWERS]


class Stateful:
    """Keeps the current episode in an attribute, and is interrupted between writing and reading it."""

    info = RewardInfo("stateful", (0.0, 100.0), granularity="total", modality="text", frames_needed=0)

    def __init__(self):
        self.episode, self.total, self.calls = None, 0, 0

    def value(self):
        return float(len("".join(self.episode.texts)))

    def score(self, episodes):
        found = []
        for episode in episodes:
            self.episode, total = episode, self.total
            for _ in range(20):
                os.sched_yield()
            found.append(Score(total=self.value()))
            self.total = total + 1
        self.calls += 1
        return found


def in_threads(call, items=range(CALLS)):
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(call, items))


def at_once(call):
    async def every():
        return await asyncio.gather(*map(call, range(CALLS)))

    return list(asyncio.run(every()))


def check(model, found):
    assert list(found) == LENGTHS
    assert (model.total, model.calls) == (CALLS, CALLS)


def test_scorers_of_one_model():
    model = Stateful()
    check(model, in_threads(lambda k: TextScorer(RetriedModel(model)).numbers([QUESTIONS[k]], [ANSWERS[k]])[0]))


def test_objects_that_cannot_hold_an_attribute():
    class Kept:
        """Its attributes are elsewhere."""

        __slots__ = ()
        info, inner = Stateful.info, Stateful()

        def score(self, episodes):
            return self.inner.score(episodes)

    model = Kept()
    check(Kept.inner, in_threads(lambda k: TextScorer(model).numbers([QUESTIONS[k]], [ANSWERS[k]])[0]))

    class Methods(Stateful):
        episode, total, calls = None, 0, 0
        score = classmethod(Stateful.score)
        value = classmethod(Stateful.value)

    check(Methods, in_threads(lambda k: TextScorer(Methods).numbers([QUESTIONS[k]], [ANSWERS[k]])[0]))


def test_trl():
    trl = pytest.importorskip("guerdon.integrations.trl", reason="TRL is not installed: pip install guerdon[trl]")
    model = Stateful()
    plain = trl.reward_function(TextScorer(model))
    check(model, in_threads(lambda k: plain([QUESTIONS[k]], [ANSWERS[k]])[0]))
    model = Stateful()
    waiting = trl.async_reward_function(TextScorer(model))
    check(model, [one[0] for one in at_once(lambda k: waiting([QUESTIONS[k]], [ANSWERS[k]]))])


def test_verifiers():
    pytest.importorskip("verifiers.v1", reason="verifiers is not installed: pip install guerdon[verifiers]")
    from verifiers_traces import trace_of

    from guerdon.integrations.verifiers import trace_reward

    model = Stateful()
    check(model, at_once(lambda k: trace_reward(TextScorer(model), trace_of(QUESTIONS[k], ANSWERS[k]))))


def test_openenv():
    pytest.importorskip("openenv.core.rubrics", reason="OpenEnv is not installed: pip install guerdon[openenv]")
    from guerdon.integrations.openenv import AsyncResponseRubric, ResponseRubric

    def seen(k):
        return SimpleNamespace(text=ANSWERS[k]), SimpleNamespace(question=QUESTIONS[k])

    reads = {"question": lambda a, o: o.question, "response": lambda a, o: a.text}
    model = Stateful()
    rubric = ResponseRubric(TextScorer(model), **reads)
    check(model, in_threads(lambda k: rubric.forward(*seen(k))))
    model = Stateful()
    waiting = AsyncResponseRubric(TextScorer(model), **reads)
    check(model, at_once(lambda k: waiting.forward(*seen(k))))


def test_nemo_gym():
    model = Stateful()
    with TestClient(build_app(TextScorer(model))) as client:

        def verified(k):
            answer = {"role": "assistant", "content": ANSWERS[k]}
            row = {"responses_create_params": {"input": QUESTIONS[k]}, "response": {"output": [answer]}}
            return client.post("/verify", json=row).json()["reward"]

        check(model, in_threads(verified))


def test_openrlhf():
    model = Stateful()
    reward = openrlhf_function(TextScorer(model))
    check(model, in_threads(lambda k: float(reward([QUESTIONS[k] + ANSWERS[k]], [QUESTIONS[k]])["rewards"][0])))


def test_verl():
    pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed: pip install verl")
    from guerdon.integrations.verl import score_function

    model = Stateful()
    score = score_function(TextScorer(model))
    check(model, in_threads(lambda k: score("x", ANSWERS[k], "8", {"question": QUESTIONS[k]})))


def test_sources_of_one_model():
    """As the trainers of TRL, verl and verifiers measure them."""
    tokenizer, model = byte_tokenizer(), Stateful()

    def measured(k):
        ids = np.array([*tokenizer(ANSWERS[k])["input_ids"], tokenizer.eos_token_id])
        source = step_source("own", model, reward_mode="terminal")
        return float(source.measure(rollout_of([QUESTIONS[k]], [np.array([1])], [ids], tokenizer)).values.sum())

    check(model, in_threads(measured))


class Brightness(Stateful):
    info = RewardInfo("brightness", (0.0, 255.0), granularity="total")

    def value(self):
        return float(self.episode.frames.max())


class Lamp(gymnasium.Env):
    """One step long, with a picture of one brightness."""

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"
    observation_space = action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, brightness):
        self.brightness = brightness

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {}

    def render(self):
        return np.full((2, 2, 3), self.brightness, np.uint8)


def test_environments_that_share_a_model():
    model = Brightness()

    def paid(k):
        env = RewardModelWrapper(Lamp(int(LENGTHS[k])), model, reward_mode="episode", shaping="raw")
        env.reset()
        return env.step(np.zeros(1, np.float32))[1]

    check(model, in_threads(paid))


def test_copies_of_stable_baselines_that_share_a_model():
    pytest.importorskip("stable_baselines3", reason="stable-baselines3 is not installed")
    from stable_baselines3.common.vec_env import DummyVecEnv

    from guerdon.integrations.sb3 import KeepTerminalFrame, RewardModelVecEnv

    model = Brightness()

    def paid(k):
        inside = DummyVecEnv([lambda: KeepTerminalFrame(Lamp(int(LENGTHS[k])))])
        venv = RewardModelVecEnv(inside, model, reward_mode="episode", shaping="raw")
        venv.reset()
        return float(venv.step(np.zeros((1, 1), np.float32))[1][0])

    check(model, in_threads(paid))
