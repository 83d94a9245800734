"""Vision-language models behind an endpoint, and by vLLM: the same answers as in this process, or a reason."""

import sys
import types

import numpy as np
import pytest
from chat_server import DROP, NOT_JSON, question_of, serving
from vlm_samples import batch_of, episode, tiny_backend

from guerdon.errors import CheckpointError, ConfigError, MissingDependencyError
from guerdon.models.load import load_reward_model
from guerdon.models.vlm.vlm import VLMRewardModel
from guerdon.models.vlm.vlm_chat import OpenAIBackend, chat_messages, group_log_probs
from guerdon.models.vlm.vlm_prompts import NO, PROMPTS, YES, GenerationOptions, Picture, Video, VLMReply, make_question
from guerdon.network.retry import Clock
from guerdon.settings.vlm import EndpointSettings, VLLMSettings, VLMSettings
from guerdon.types import Failure
from tables import cases, first


class YesOrNo:
    """The tiny model, made to say yes or no; which of them it says is its own."""

    def __init__(self, model, words):
        self._model, self._words = model, words

    def __call__(self, **inputs):
        found = self._model(**inputs)
        found.logits[..., self._words] += 60.0
        return found

    def __getattr__(self, name):
        return getattr(self._model, name)


@pytest.fixture
def sharp(monkeypatch):
    """A backend whose answers begin with yes or no nearly always."""
    backend = tiny_backend()
    words = backend.word_ids(YES)[:2] + backend.word_ids(NO)[:2]
    monkeypatch.setattr(backend, "model", YesOrNo(backend.model, words))
    return backend


def endpoint(server, **settings):
    return EndpointSettings(base_url=server.url, model="tiny", **settings)


def question(prompt="completed", rows=1, **options):
    return make_question(
        PROMPTS[prompt].fill("close the door"), episode(rows).frames, **{"nframes": 4, "max_pixels": 10**6, **options}
    )


class Hourglass:
    """Time that passes only while somebody sleeps."""

    def __init__(self):
        self.time, self.slept = 0.0, []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.time += seconds

    @property
    def clock(self):
        return Clock(lambda: self.time, self.sleep)


@pytest.mark.parametrize(
    ("kind", "settings"),
    first([
        ("qwen_vl", {"question": "completed"}),
        ("qwen_vl", {"question": "completed", "input": "video", "nframes": 3}),
        ("qwen_vl", {"question": "completed", "answer": "hard", "max_tokens": 4}),
        ("qwen_vl", {"question": "progress", "nframes": 2, "max_tokens": 6}),
        ("primo_r1", {"nframes": 3, "max_tokens": 6}),
        ("trend", {"window": 2, "max_tokens": 4}),
    ], 3, several=True),
)  # fmt: skip
def test_an_endpoint_gives_what_the_model_gives_here(sharp, kind, settings):
    """Through HTTP and data URLs, from the 20 likeliest tokens: the same scores, texts, counts and failures."""
    as_images = {} if settings == {"question": "completed"} or "answer" in settings else {"video_as": "images"}
    local = VLMRewardModel(kind, VLMSettings(path="x", **as_images, **settings), sharp)
    episodes = [episode(3), episode(2, seed=1)]
    with serving(sharp) as server:
        vlm = {"backend": "openai", "openai": endpoint(server).model_dump(), **settings}
        found = load_reward_model(kind, vlm=vlm)
        for ours, theirs in zip(_judge(local, episodes), _judge(found, episodes), strict=True):
            assert ours[1:] == theirs[1:]
            assert ours[0] == pytest.approx(theirs[0], abs=1e-6)
        assert {path for path, _ in server.requests} == {"/v1/chat/completions"}


def _judge(model, episodes):
    from guerdon.models.explained_score import JudgeOptions

    found = []
    for judged in model.judge(episodes, JudgeOptions()):
        values = [] if judged.score.failure else [judged.score.total]
        failure = judged.score.failure
        found.append((values, failure and failure.reason, judged.tokens))
    return found


def test_messages_carry_lossless_pictures_and_the_words():
    asked = question("primo_r1", rows=5, video_as="images")
    messages = chat_messages(asked)
    assert [m["role"] for m in messages] == ["system", "user"]
    assert [p["type"] for p in messages[1]["content"]] == ["image_url"] * 6 + ["text"]
    back = question_of(messages)
    assert (back.prompt.text, back.prompt.system) == (asked.prompt.text, asked.prompt.system)
    for a, b in zip(asked.media, back.media, strict=True):
        np.testing.assert_array_equal(a.pixels, b.pixels)
    video = chat_messages(question("completion_percentage", rows=5))[0]["content"][0]
    assert video["video_url"]["url"].startswith("data:video/jpeg;base64,")
    (part,) = question_of(chat_messages(question("completion_percentage", rows=5))).media
    assert isinstance(part, Video)
    assert part.frames.shape == (4, 20, 24, 3)
    for prompt in ("completed", "completion_percentage"):
        (part,) = question_of(chat_messages(question(prompt, rows=2, max_pixels=120))).media
        assert (part.pixels if isinstance(part, Picture) else part.frames[0]).shape == (10, 12, 3)


def test_what_may_pass_is_tried_again_with_pauses(sharp):
    glass = Hourglass()
    script = [DROP, 503, (429, {"Retry-After": "7"}), NOT_JSON]
    with serving(sharp, script) as server:
        found = OpenAIBackend(endpoint(server, retries=4), glass.clock).generate([question()], GenerationOptions(3))
        assert isinstance(found[0], VLMReply)
        assert len(server.requests) == 5
    assert 7.0 <= glass.slept[2] <= 7.7
    assert all(0 <= pause <= longest for pause, longest in zip(glass.slept, (1.0, 2.0, 7.7, 8.0), strict=True))


@cases(
    ("script", "reason", "asked"),
    [
        ([500] * 9, "server_error", 3),
        ([429] * 9, "rate_limited", 3),
        ([DROP] * 9, "connection", 3),
        ([NOT_JSON] * 9, "bad_reply", 3),
        ([(400, {}, {"error": {"param": "messages"}})], "rejected", 1),
        ([(422, {}, {"detail": [{"loc": ["body", "model"]}]})], "rejected", 1),
        ([{"choices": []}] * 9, "bad_reply", 3),
        ([{"choices": [{"message": {"content": None}}]}] * 9, "bad_reply", 3),
        ([{"choices": [{"message": {"content": "8"}, "finish_reason": "abort"}]}] * 9, "server_error", 3),
        ([{"choices": [{"message": {"content": "8"}, "error": {"code": 429}}]}] * 9, "rate_limited", 3),
        ([{"error": {"code": 502, "message": "no provider"}}] * 9, "server_error", 3),
        ([{"choices": [{"message": {"content": "", "refusal": "no"}}]}], "refusal", 1),
        ([(429, {"Retry-After": "9999"})] * 9, "rate_limited", 1),
    ],
)  # fmt: skip
def test_what_stays_is_a_failure_with_its_reason(script, reason, asked):
    glass = Hourglass()
    with serving(None, script) as server:
        found = OpenAIBackend(endpoint(server, retries=2, deadline=60), glass.clock).generate(
            [question()], GenerationOptions(3)
        )
        assert isinstance(found[0], Failure)
        assert found[0].reason == reason
        assert len(server.requests) == asked


@cases(("reason", "whole"), [
    ("stop", True), ("STOP", True), ("eos", True), ("length", False), ("MAX_TOKENS", False), ("tool_calls", False),
    ("banana", False), (None, False),
])  # fmt: skip
def test_only_an_answer_that_ended_by_itself_is_whole(reason, whole):
    payload = {"choices": [{"message": {"content": "8"}, "finish_reason": reason}]}  # 8, or the first half of 85
    with serving(None, [payload]) as server:
        settings = VLMSettings(backend="openai", openai=endpoint(server), question="progress")
        judged = VLMRewardModel("qwen_vl", settings, OpenAIBackend(endpoint(server))).score([episode(2)])[0]
    assert judged.total == pytest.approx(0.08) if whole else judged.failure.reason == "truncated"


@pytest.mark.parametrize(("choice", "text", "whole"), [
    ({"message": {"content": [{"type": "thinking", "thinking": "9"}, {"type": "text", "text": "85"}]},
      "finish_reason": "stop"}, "85", True),
    ({"message": {"content": "85", "reasoning_content": "maybe 9"}, "finish_reason": "stop"}, "85", True),
    ({"message": {"content": '{"score": 85}'}}, '{"score": 85}', True),
    ({"message": {"content": '```json\n{"a": 85}\n```'}, "finish_reason": None}, '```json\n{"a": 85}\n```', True),
    ({"message": {"content": '{"score": 8'}, "finish_reason": None}, '{"score": 8', False),
    ({"message": {"content": '{"score": 85}'}, "finish_reason": "max_tokens"}, '{"score": 85}', False),
    ({"message": {"content": None, "reasoning": "85"}, "finish_reason": "stop"}, "", True),
])  # fmt: skip
def test_shapes_of_replies(choice, text, whole):
    with serving(None, [{"choices": [choice], "model": "tiny-2", "usage": {"prompt_tokens": 3}}]) as server:
        backend = OpenAIBackend(endpoint(server, retries=0))
        (found,) = backend.generate([question()], GenerationOptions(3))
        assert (found.text, found.whole, found.tokens) == (text, whole, 3)
        assert backend.models.counts == {"tiny-2": 1}
        assert server.requests[0][1]["stream"] is False


def test_azure_has_its_own_header_and_a_query(monkeypatch, sharp):
    monkeypatch.setenv("VISION_KEY", "sesame")
    with serving(sharp) as server:
        url = server.url + "/deployments/d?api-version=2024-10-21"
        settings = EndpointSettings(base_url=url, model="tiny", api_key_env="VISION_KEY")
        assert isinstance(OpenAIBackend(settings).generate([question()], GenerationOptions(1))[0], VLMReply)
        assert server.requests[0][0] == "/v1/deployments/d/chat/completions?api-version=2024-10-21"
        assert (server.headers[0].get("api-key"), server.headers[0].get("Authorization")) == ("sesame", None)


def test_a_spent_credit_stops_everything():
    with serving(None, [(402, {})] * 9) as server:
        with pytest.raises(ConfigError, match="quota or credit there is spent"):
            OpenAIBackend(endpoint(server)).generate([question()], GenerationOptions(3))
        assert len(server.requests) == 1


def test_errors_in_place_of_log_probs_are_tried_again():
    glass, payloads = Hourglass(), [{"choices": []}, {"choices": [{"error": {"code": 502}}]}, {"error": {"code": 503}}]
    top = [{"token": "Yes", "logprob": -0.01}, {"token": "No", "logprob": -5.0}]
    good = {"choices": [{"message": {"content": "Yes"}, "logprobs": {"content": [{"top_logprobs": top}]}}]}
    refused = {"choices": [{"message": {"content": ""}, "finish_reason": "content_filter"}]}
    with serving(None, [*payloads, good, refused]) as server:
        backend = OpenAIBackend(endpoint(server), glass.clock)
        (found,) = backend.word_log_probs([question()], (YES, NO))
        np.testing.assert_allclose(found.log_probs, [-0.01, -5.0])
        assert len(server.requests) == 4
        assert backend.word_log_probs([question()], (YES, NO))[0].reason == "refusal"


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_refused_key_or_model_stops_everything(status):
    with serving(None, [status]) as server, pytest.raises(ConfigError, match=r"vlm\.openai"):
        OpenAIBackend(endpoint(server)).generate([question()], GenerationOptions(3))


def test_an_endpoint_without_log_probs_says_so():
    reply = {"choices": [{"message": {"content": "Yes"}}]}
    with serving(None, [reply]) as server:
        found = OpenAIBackend(endpoint(server)).word_log_probs([question()], (YES, NO))
        assert found[0].reason == "no_logprobs"


def test_keys_come_from_the_environment(monkeypatch, sharp, tmp_path):
    monkeypatch.chdir(tmp_path)
    with serving(sharp) as server:
        with pytest.raises(ConfigError, match="VISION_KEY"):
            OpenAIBackend(endpoint(server, api_key_env="VISION_KEY"))
        monkeypatch.setenv("VISION_KEY", "sesame")
        OpenAIBackend(endpoint(server, api_key_env="VISION_KEY")).generate([question()], GenerationOptions(1))
        monkeypatch.setenv("OPENAI_API_KEY", "not for you")
        OpenAIBackend(endpoint(server)).generate([question()], GenerationOptions(1))
        assert [h.get("Authorization") for h in server.headers] == ["Bearer sesame", None]


def test_listed_tokens_must_settle_the_question():
    def logs(**p):
        return [(token, float(np.log(v))) for token, v in p.items()]

    found = group_log_probs(logs(Yes=0.5, yes=0.25, No=0.2, x=1e-6), (YES, NO), 3)
    np.testing.assert_allclose(np.exp(found.log_probs), [0.75, 0.2])
    assert found.tokens == 3
    assert group_log_probs(logs(Yes=0.5, x=0.3, y=0.01), (YES, NO), 0).reason == "low_probability"  # many may follow y
    assert group_log_probs(logs(Yes=0.7, x=0.3), (YES, NO), 0).log_probs[1] == -np.inf  # nothing is left to list
    assert group_log_probs(logs(x=1.0), (YES, NO), 0).reason == "low_probability"
    assert group_log_probs([("Yes", 0.5)], (YES, NO), 0).reason == "no_logprobs"
    assert group_log_probs([("Yes", float("nan"))], (YES, NO), 0).reason == "no_logprobs"
    assert group_log_probs([], (YES, NO), 0).reason == "no_logprobs"


def test_an_uncertain_random_model_is_no_measurement():
    with serving(tiny_backend()) as server:
        found = OpenAIBackend(endpoint(server)).word_log_probs([question()], (YES, NO))
        assert found[0].reason == "low_probability"


def test_prompts_without_a_chat_template_do_not_go_over_chat():
    settings = {"backend": "openai", "openai": {"base_url": "http://127.0.0.1:1/v1", "model": "m"}}
    assert load_reward_model("true_logprob", vlm=settings)._plan.prompt.name == "true_logprob_chat"
    with pytest.raises(ConfigError, match="chat template"):
        load_reward_model("true_logprob", vlm={**settings, "prompt": "true_logprob"})


class FakeVLLM:
    """vLLM's names, answered by the tiny model: what is sent is what an endpoint would get."""

    def __init__(self, backend):
        self.backend = backend
        self.module = types.ModuleType("vllm")
        self.module.LLM, self.module.SamplingParams = self._engine, lambda **options: options
        self.options, self.calls = None, []

    def _engine(self, **options):
        self.options = options
        return self

    def chat(self, messages, sampling, *, lora_request, use_tqdm):
        self.calls.append((sampling, lora_request))
        out = []
        for conversation in messages:
            asked = question_of(conversation)
            if "logprobs" in sampling:
                payload = _serve_log_probs(self.backend, asked, sampling["logprobs"])
                written = types.SimpleNamespace(logprobs=[payload], text="", finish_reason="length")
            else:
                reply = self.backend.generate([asked], GenerationOptions(sampling["max_tokens"]))[0]
                written = types.SimpleNamespace(text=reply.text, finish_reason="stop" if reply.whole else "length")
            ids = self.backend.inputs.batch([asked])["input_ids"][0].tolist()
            out.append(types.SimpleNamespace(outputs=[written], prompt_token_ids=ids, prompt="..."))
        return out


def _serve_log_probs(backend, asked, count):
    import torch

    with torch.no_grad():
        logits = backend.model(**batch_of(backend, asked), use_cache=False).logits[0, -1]
    best = logits.double().log_softmax(-1).topk(count)
    entry = types.SimpleNamespace
    decode = backend.inputs.tokenizer.decode
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return {i: entry(decoded_token=decode([i]), logprob=v) for i, v in pairs}


@pytest.mark.parametrize(
    ("kind", "settings"),
    first(
        [("qwen_vl", {}), ("qwen_vl", {"question": "progress", "max_tokens": 5}), ("primo_r1", {"max_tokens": 5})],
        1,
        several=True,
    ),
)
def test_vllm_in_process_gives_the_same(monkeypatch, sharp, kind, settings):
    fake = FakeVLLM(sharp)
    monkeypatch.setitem(sys.modules, "vllm", fake.module)
    found = load_reward_model(
        kind, vlm={"backend": "vllm", "path": "somewhere", "vllm": {"tensor_parallel_size": 2}, **settings}
    )
    as_images = {} if kind == "qwen_vl" and not settings else {"video_as": "images"}
    local = VLMRewardModel(kind, VLMSettings(path="x", **as_images, **settings), sharp)
    episodes = [episode(3), episode(2, seed=1)]
    for ours, theirs in zip(_judge(local, episodes), _judge(found, episodes), strict=True):
        assert ours[1:] == theirs[1:]
        assert ours[0] == pytest.approx(theirs[0], abs=1e-6)
    assert (fake.options["model"], fake.options["tensor_parallel_size"]) == ("somewhere", 2)
    assert fake.options["max_model_len"] == 16384


def test_vllm_takes_an_adapter(monkeypatch, tmp_path):
    from guerdon.models.vlm.vlm_chat import VLLMBackend

    fake = FakeVLLM(None)
    requests = types.ModuleType("vllm.lora.request")
    requests.LoRARequest = lambda *args: args
    monkeypatch.setitem(sys.modules, "vllm", fake.module)
    monkeypatch.setitem(sys.modules, "vllm.lora.request", requests)
    (tmp_path / "adapter_config.json").write_text('{"r": 20}')
    backend = VLLMBackend("base", str(tmp_path), VLLMSettings(max_model_len=None))
    assert (fake.options["enable_lora"], fake.options["max_lora_rank"]) == (True, 32)
    assert "max_model_len" not in fake.options
    assert backend._lora == ("reward", 1, str(tmp_path))


@pytest.mark.parametrize("made", ["pissa", "pissa_niter_4", "olora", "loftq", "corda"])
def test_vllm_reads_no_adapter_that_changes_its_base(monkeypatch, tmp_path, made):
    from guerdon.models.vlm.vlm_chat import VLLMBackend

    monkeypatch.setitem(sys.modules, "vllm", FakeVLLM(None).module)
    (tmp_path / "adapter_config.json").write_text(f'{{"r": 20, "init_lora_weights": "{made}"}}')
    with pytest.raises(CheckpointError, match=f"{made}.*backend transformers"):
        VLLMBackend("base", str(tmp_path), VLLMSettings())


def test_template_arguments_go_to_vllm_and_into_requests(sharp, monkeypatch):
    fake, arguments = FakeVLLM(sharp), {"enable_thinking": False}
    sent, chat = [], fake.chat
    fake.chat = lambda *given, chat_template_kwargs=None, **more: (
        sent.append(chat_template_kwargs) or chat(*given, **more)
    )
    monkeypatch.setitem(sys.modules, "vllm", fake.module)
    for given in ({}, {"chat_template_kwargs": arguments}):
        load_reward_model("qwen_vl", vlm={"backend": "vllm", "path": "somewhere", **given}).score([episode(1)])
        with serving(sharp) as server:
            where = {"backend": "openai", "openai": endpoint(server).model_dump()}
            load_reward_model("qwen_vl", vlm={**where, **given}).score([episode(1)])
            assert [body.get("chat_template_kwargs") for _, body in server.requests] == [(given and arguments) or None]
    assert sent == [None, arguments]


@pytest.mark.parametrize("message", ["Unknown parameter: 'chat_template_kwargs'.", "context length is 8"])
def test_an_endpoint_that_refuses_template_arguments_stops_by_name(sharp, message):
    with serving(sharp, script=[(400, {}, {"error": {"message": message}})] * 9) as server:
        backend = OpenAIBackend(endpoint(server, retries=0), template={"enable_thinking": False})
        if "chat_template" in message:
            with pytest.raises(ConfigError, match=r"refuses vlm\.chat_template_kwargs .*remove it") as refused:
                backend.generate([question()], GenerationOptions(3))
            assert refused.value.key == "vlm.chat_template_kwargs"
        else:
            (found,) = backend.generate([question()], GenerationOptions(3))
            assert found == Failure("rejected", f"400: {message}")


def test_vllm_that_is_not_there_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)
    with pytest.raises(MissingDependencyError, match="pip install vllm"):
        load_reward_model("qwen2_5_vl_vllm", "somewhere")
