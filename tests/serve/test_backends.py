"""From a name or a folder to the model that is served: the real loaders, on tiny models."""

import numpy as np
import pytest
import torch

from guerdon.errors import ConfigError
from guerdon.models.images.backbone import ImageScorer
from guerdon.models.images.image import ImageModelConfig, save_checkpoint
from guerdon.models.load import kind_at
from guerdon.network.hub import model_folder
from guerdon.serve.backends import factory, model_loader, vlm_options
from guerdon.settings.serve import ServedModelSettings
from guerdon.types import Episode
from tables import refuses

pytestmark = pytest.mark.usefixtures("narrow_resnets")

torch.set_num_threads(1)


def options(backend, **settings):
    return vlm_options("m", backend, ServedModelSettings(backend=backend, model_path="/m", **settings))


def test_the_first_servers_defaults():
    assert options("qwen2_5_vl_vllm") == {
        "temperature": 0.0, "max_tokens": 64,
        "vllm": {"tensor_parallel_size": 2, "max_model_len": 16384, "gpu_memory_utilization": 0.8},
    }  # fmt: skip
    assert options("PRIMO-R1", tensor_parallel_size=4, max_tokens=1024) == {
        "temperature": 0.1, "top_p": 0.9, "max_tokens": 1024,
        "vllm": {"tensor_parallel_size": 4, "max_model_len": 16384, "gpu_memory_utilization": 0.9},
    }  # fmt: skip
    assert options("PRIMO-R1", temperature=0.0) == {
        "temperature": 0.0, "max_tokens": 4096,
        "vllm": {"tensor_parallel_size": 1, "max_model_len": 16384, "gpu_memory_utilization": 0.9},
    }  # fmt: skip
    on_cpu = options("PRIMO-R1", options={"vlm": {"backend": "transformers", "nframes": 4}})
    assert on_cpu == {
        "temperature": 0.1, "top_p": 0.9, "max_tokens": 4096, "backend": "transformers", "nframes": 4,
    }  # fmt: skip
    assert options("qwen_vl") == {}
    with refuses("models.m.max_tokens"):
        options("PRIMO-R1", max_tokens=3, options={"vlm": {"max_tokens": 4}})


@pytest.fixture
def checkpoint(tmp_path):
    torch.manual_seed(0)
    config = ImageModelConfig("resnet", hidden_dim=8, image_size=(3, 16, 16), threshold=0.5)
    return save_checkpoint(tmp_path / "rm", ImageScorer("resnet18", hidden_dim=8, dropout=0.0).eval(), config)


EPISODE = Episode(id="", task="t", frames=np.full((2, 16, 16, 3), 100, np.uint8))


@pytest.mark.parametrize("backend", [None, "resnet", "resnet_reward"])
def test_an_image_model_by_name_and_by_folder(checkpoint, backend):
    model = model_loader("m", ServedModelSettings(backend=backend, model_path=str(checkpoint))).load()
    assert model.info.name == "resnet"
    assert 0 < model.score([EPISODE])[0].total < 1


def test_an_image_model_that_learns(checkpoint, tmp_path):
    settings = ServedModelSettings(
        model_path=str(checkpoint), update_dir=str(tmp_path / "states"), options={"steps": 1, "batch_size": 4}
    )
    source = model_loader("m", settings)
    assert (source.update_dir, source.keep_updates) == (tmp_path / "states", 2)
    model = source.load()
    assert model.steps == 1
    assert hasattr(model, "learn")


# the implicit text model, over HTTP


def implicit_folder(folder):
    """An implicit process reward model as `guerdon train` would write it."""
    from guerdon.models.text.implicit_text import ImplicitModel
    from guerdon.models.text.text_card import TextModelCard
    from guerdon.policies.language.shared_base import SharedBase
    from guerdon.policies.language.text import TextPolicy
    from guerdon.policies.language.text_files import load_policy
    from guerdon.policies.language.tiny_text import build_model, build_tokenizer
    from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings

    tiny = TinyModelSettings(hidden_size=32, layers=2, heads=4, kv_heads=2, intermediate=48)
    settings = TextPolicySettings(tiny=tiny, bf16=False)
    policy = load_policy(settings, seed=0)
    tokenizer = build_tokenizer(tiny)
    other = TextPolicy(SharedBase(build_model(tiny, tokenizer, seed=1), tokenizer, settings), trainable=False)
    card = TextModelCard(
        "implicit", "chat", "ce", beta=2.0, read="cumulative", bf16=False,
        learning={"learning_rate": 3e-3, "batch_size": 4, "seed": 0},
    )  # fmt: skip
    return ImplicitModel(policy, card, ref=other).write(folder)


ROLLOUTS = [("3+5=?", ("3+5=8;", "8"), True), ("3+5=?", ("3+5=9;", "9"), False), ("2+2=?", ("4",), True)]


def as_episodes():
    return [Episode(id=str(n), task=q, texts=steps, outcome=ok) for n, (q, steps, ok) in enumerate(ROLLOUTS)]


def as_items():
    return [{"prompt": q, "steps": list(steps), "outcome": ok} for q, steps, ok in ROLLOUTS]


def steps_of(scores):
    return [score.steps.tolist() for score in scores]


@pytest.mark.slow
def test_the_implicit_model_served_and_taught_says_what_the_local_one_says(server, tmp_path):
    from guerdon.models.text.text_load import load_text_model

    folder = implicit_folder(tmp_path / "prm")
    local = load_text_model(str(folder), device="cpu")
    settings = {"model_path": str(folder), "update_dir": str(tmp_path / "states"), "options": {"device": "cpu"}}
    env = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1"}

    def ask(running, route, **more):
        answer = running.post(route, {"items": as_items(), "aggregation": "last", **more})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def scores(answer):
        return [result["step_scores"] for result in answer["results"]]

    def close(found, wanted):
        for one, other in zip(found, wanted, strict=True):
            assert one == pytest.approx(other, abs=1e-6)

    running = server(models={"prm": settings}, env=env)
    start = steps_of(local.score(as_episodes()))
    assert len({round(v, 4) for steps in start for v in steps}) > 3
    close(scores(ask(running, "/v1/rewards")), start)
    after = ask(running, "/v1/update", update="after")
    close(scores(after), start)
    metrics = local.learn(as_episodes())
    assert after["metrics"]["loss"] == pytest.approx(metrics["loss"], abs=1e-6)
    learnt = steps_of(local.score(as_episodes()))
    assert (
        max(abs(a - b) for one, other in zip(start, learnt, strict=True) for a, b in zip(one, other, strict=True))
        > 1e-3
    )
    close(scores(ask(running, "/v1/rewards")), learnt)
    before = ask(running, "/v1/update", update="before")
    local.learn(as_episodes())
    close(scores(before), steps_of(local.score(as_episodes())))
    assert running.stop() == 0


def test_a_factory_takes_the_settings_or_does_not_say_what_it_takes():
    assert factory("builtins:dict") is dict  # written in C, without a signature
    with pytest.raises(ConfigError, match="must take the model's settings") as refused:
        factory("builtins:locals")
    assert refused.value.key == "custom_backend"


def test_what_is_neither_a_folder_nor_a_hub_id_is_one_line():
    with pytest.raises(ConfigError, match="--backend my_rewards:make_redness") as refused:
        kind_at("my_rewards:make_redness")
    assert refused.value.key == "model_path"
    assert [model_folder(name) for name in ("a b", "a--b", "-a/b", "a/b.git", "a" * 97, "../a")] == [None] * 6
