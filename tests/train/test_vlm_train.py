"""Fine-tuning a vision-language reward: what it learns, writes, resumes and refuses."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file

from guerdon.compute.finite import first_non_finite
from guerdon.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from guerdon.models.load import load_reward_model
from guerdon.models.vlm import tiny_vlm
from guerdon.models.vlm.tiny_vlm import CHAT_TEMPLATE, write_tiny_vlm
from guerdon.models.vlm.vlm import find_card, load_vlm
from guerdon.models.vlm.vlm_prompts import PROMPTS, make_question
from guerdon.models.vlm.vlm_transformers import read_vlm
from guerdon.policies.language import text_files
from guerdon.settings.text_policy import LoraSettings
from guerdon.settings.train import VLMTrainSettings
from guerdon.settings.vlm import TinyVLMSettings, VLMSettings
from guerdon.train.vlm import _AnswerLoss, _backend, train_vlm, vlm_examples
from guerdon.types import Episode
from pretend_cuda import pretended
from tables import first, refuses

TINY = TinyVLMSettings(hidden_size=32, intermediate=64, layers=1, vision_layers=1)


def lamp(number, *, lit, rows=6, task="light the lamp"):
    """An episode in which a lamp is lit (a bright square) from some row on, or never."""
    rng = np.random.default_rng(number)
    frames = rng.integers(0, 60, (rows, 32, 32, 3), dtype=np.uint8)
    start = int(rng.integers(2, rows)) if lit else rows
    frames[start:, 8:24, 8:24] = 250
    success = np.arange(rows) >= start
    return Episode(id=f"e{number}", task=task, frames=frames, success=success, outcome=lit)


def lamps(count=12):
    return [lamp(n, lit=n % 2 == 0) for n in range(count)]


def settings(folder, **changes):
    given = {
        "data_path": "memory", "save_dir": str(folder), "tiny": TINY, "learning_rate": 5e-3, "batch_size": 8,
        "max_steps": 4, "max_epochs": 50, "val_split": 0.34, "eval_every": 2, "log_every": 1, "tensorboard": False,
        "bf16": False, "lora": LoraSettings(r=4),
    }  # fmt: skip
    return VLMTrainSettings(**{**given, **changes})


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A judge that has learned what a lit lamp looks like."""
    folder = tmp_path_factory.mktemp("judge")
    return folder, train_vlm(settings(folder, max_steps=40, eval_every=20), lamps(16), data_hash="abc")


def test_it_learns_to_tell_done_from_undone(trained):
    folder, result = trained
    assert result.metrics["auroc"] >= 0.95
    assert result.metrics["failures"] == 0
    assert result.metrics["steps"] == 40
    model = load_reward_model("qwen_vl", folder)
    fresh = [lamp(100, lit=True), lamp(101, lit=False)]
    done, undone = model.score(fresh)
    assert np.array_equal(done.steps > 0.5, fresh[0].success)
    assert np.array_equal(undone.steps > 0.5, fresh[1].success)
    assert not (folder / "trainer").exists()
    assert json.loads((folder / "metrics.json").read_text())["auroc"] == result.metrics["auroc"]


def test_a_checkpoint_says_how_it_is_asked(trained):
    folder, _ = trained
    where, card = find_card(folder)
    assert where == folder / "model"
    assert card.asked == {"question": "completed", "input": "image", "max_pixels": 200704}
    assert (card.threshold, card.adapter, card.base, card.data_hash) == (0.5, True, "base", "abc")
    assert card.transformers_version == transformers.__version__
    assert (where / "base" / "video_preprocessor_config.json").is_file()
    model = load_vlm("qwen_vl", folder)
    assert model.info.success_threshold == 0.5
    assert load_vlm("qwen_vl", folder, vlm=VLMSettings(question="completed")).settings.question == "completed"
    for name, value in (("question", "progress"), ("max_pixels", 1000)):
        with pytest.raises(CheckpointError, match=f"{name} mismatch"):
            load_vlm("qwen_vl", folder, vlm=VLMSettings(**{name: value}))
    for name, value in (("prompt", "completed"), ("path", "other")):
        with pytest.raises(ConfigError, match="both given; remove one") as refused:
            load_vlm("qwen_vl", folder, vlm=VLMSettings(**{name: value}))
        assert refused.value.key == f"vlm.{name}"
    with refuses("checkpoint_path", "would do nothing with backend openai"):
        endpoint = {"base_url": "http://127.0.0.1:9", "model": "m"}
        load_vlm("qwen_vl", folder, vlm={"backend": "openai", "openai": endpoint})
    with pytest.raises(ConfigError, match="no checkpoints") as refused:
        load_vlm("trend", folder)
    assert refused.value.key == "vlm.path"


def test_the_adapter_is_kept_apart_and_makes_the_difference(trained):
    folder, _ = trained
    base, adapter = folder / "model" / "base", folder / "model" / "adapter"
    bare = load_reward_model("qwen_vl", base)
    ours = load_reward_model("qwen_vl", vlm={"path": str(base), "adapter": str(adapter)})
    whole = load_reward_model("qwen_vl", folder)
    scores = [m.score([lamp(100, lit=True)])[0].steps for m in (bare, ours, whole)]
    np.testing.assert_array_equal(scores[1], scores[2])
    assert np.abs(scores[0] - scores[1]).max() > 0.01
    assert "lora" in " ".join(n for n, _ in read_vlm(base, adapter).model.named_parameters())


@pytest.mark.parametrize("lora", first([LoraSettings(r=4), None], 1))
def test_arguments_of_the_template_are_those_of_the_training(tmp_path, monkeypatch, lora):
    template = CHAT_TEMPLATE + "{% if think is defined and not think %}<|im_start|>off{% endif %}"
    monkeypatch.setattr(tiny_vlm, "CHAT_TEMPLATE", template)
    base = write_tiny_vlm(TINY, tmp_path / "vlm", seed=0)
    train_vlm(settings(tmp_path / "a", tiny=None, path=str(base), lora=lora, chat_template_kwargs={"think": False},
                       max_steps=1), lamps(4))  # fmt: skip
    judge = load_vlm("qwen_vl", tmp_path / "a")
    asked = judge.backend.inputs
    said = make_question(
        PROMPTS["completed"].fill("light the lamp"), lamp(1, lit=True).frames[:1], nframes=1, max_pixels=784
    )
    assert asked.render(said).endswith("<|im_start|>off")
    assert not read_vlm(base).inputs.render(said).endswith("off")
    again = load_vlm("qwen_vl", base, vlm={"chat_template_kwargs": {"think": False}})
    assert again.backend.inputs.render(said) == asked.render(said)
    with pytest.raises(CheckpointError, match="chat_template_kwargs mismatch"):
        load_vlm("qwen_vl", tmp_path / "a", vlm={"chat_template_kwargs": {"think": True}})
    with refuses("vlm.chat_template_kwargs"):
        load_vlm("qwen_vl", base, vlm={"chat_template_kwargs": {"thinks": True}})
    with pytest.raises(ConfigError, match=r"has no chat template: remove vlm\.chat_template_kwargs") as refused:
        load_vlm("true_logprob", base, vlm={"prompt": "true_logprob", "chat_template_kwargs": {"think": True}})
    assert refused.value.key == "vlm.chat_template_kwargs"


def test_a_disk_without_room_is_refused_before_the_first_step(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    for lora in (None, LoraSettings(r=4)):
        with pytest.raises(ConfigError, match=r"the disk of .*what is trained .* free some space"):
            train_vlm(settings(tmp_path / "a", lora=lora), lamps(4))
        assert not list(tmp_path.rglob("checkpoint-*"))


def test_what_was_altered_or_cut_off_is_refused(trained, tmp_path):
    import shutil

    folder, _ = trained
    shutil.copytree(folder / "model", tmp_path / "m")
    weights = tmp_path / "m" / "adapter" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00\x01")
    with pytest.raises(CheckpointError, match="corrupt"):
        load_vlm("qwen_vl", tmp_path / "m")
    (tmp_path / "m" / "COMPLETE").unlink()
    with pytest.raises(CheckpointError, match="incomplete"):
        load_vlm("qwen_vl", tmp_path / "m")
    with pytest.raises(CheckpointError, match="guerdon train"):
        find_card(tmp_path / "nothing")
    with pytest.raises(CheckpointError, match="no such folder"):
        load_vlm("qwen_vl", tmp_path / "nothing")


def weights(folder):
    from safetensors.torch import load_file

    return load_file(folder / "model" / "adapter" / "adapter_model.safetensors")


def test_a_training_that_was_cut_off_goes_on_to_the_same_bytes(tmp_path):
    from guerdon.train import vlm

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    first = train_vlm(settings(whole), lamps())

    class Stop(Exception):
        pass

    original = vlm.AnswerTrainer.training_step
    calls = iter(range(100))

    def dies(self, *args, **kwargs):
        if next(calls) == 3:
            raise Stop
        return original(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vlm.AnswerTrainer, "training_step", dies)
        with pytest.raises(Stop):
            train_vlm(settings(cut), lamps())
    assert not (cut / "model").exists()
    second = train_vlm(settings(cut), lamps(), resume=True)
    a, b = weights(whole), weights(cut)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert {k: v for k, v in first.metrics.items() if k != "seconds"} == {
        k: v for k, v in second.metrics.items() if k != "seconds"
    }
    with pytest.raises(ConfigError, match="already holds a training; go on with it by --resume"):
        train_vlm(settings(cut), iter(()))
    again = train_vlm(settings(cut), iter(()), resume=True)  # finished: nothing is read
    assert again.metrics == second.metrics
    with pytest.raises(ConfigError, match=r"learning_rate 0\.005 -> 0\.1"):
        train_vlm(settings(cut, learning_rate=0.1), lamps(), resume=True)


def test_the_same_seed_gives_the_same_weights_however_batches_are_cut(tmp_path):
    train_vlm(settings(tmp_path / "a", max_steps=2), lamps())
    train_vlm(settings(tmp_path / "b", max_steps=2, micro_batch_size=4), lamps())
    a, b = weights(tmp_path / "a"), weights(tmp_path / "b")
    assert max(float((a[n] - b[n]).abs().max()) for n in a) < 1e-3  # Adam's first steps are signs of gradients


@pytest.mark.parametrize("architecture", first(["qwen2_vl", "qwen3_vl"], 1))
def test_other_families_videos_and_progress_without_lora(tmp_path, architecture):
    tiny = TINY.model_copy(update={"architecture": architecture})
    how = settings(
        tmp_path, tiny=tiny, question="progress", input="video", nframes=3, lora=None, max_steps=2, fps=2.0,
        num_samples_per_episode=2,
    )  # fmt: skip
    result = train_vlm(how, lamps())
    assert 0 <= result.metrics["failures"] <= result.metrics["val_rows"] == 4 * 2
    assert (result.metrics["mae"] is None) == (result.metrics["failures"] == result.metrics["val_rows"])
    _, card = find_card(tmp_path)
    assert card.asked["nframes"] == 3
    assert not card.adapter
    model = load_reward_model("qwen_vl", tmp_path)
    assert model.info.granularity == "total"
    assert model.settings.fps == 2.0
    score = model.score([lamp(0, lit=True)])[0]
    assert (score.total is None) == (score.failure is not None)


def test_examples_are_the_questions_asked_later():
    examples = vlm_examples(lamps(4), settings("x", val_split=0.5))
    success = np.concatenate([e.success for e in lamps(4)])
    assert [examples.answer(i) for i in range(len(examples))] == ["Yes" if s else "No" for s in success]
    assert examples.question(7).prompt.text == "The task is light the lamp, is it completed?"
    np.testing.assert_array_equal(examples.question(7).media[0].pixels, lamps(4)[1].frames[1])
    for episode in range(4):
        assert len(set(examples.held[examples.episode == episode])) == 1
    video = vlm_examples(lamps(4), settings("x", val_split=0.5, input="video", nframes=2, question="progress"))
    np.testing.assert_array_equal(video.question(9).media[0].frames, lamps(4)[1].frames[[0, 3]])
    assert {video.answer(i) for i in range(len(video)) if not video.positive[i]} == {"0"}
    assert "100" in {video.answer(i) for i in range(len(video))}


def test_data_that_teaches_nothing_is_refused(tmp_path):
    blind = Episode(id="b", task="x", states=np.zeros((2, 1), np.float32), outcome=True)
    for episodes, why in (
        ([], "none of 0"),
        ([blind], "none of 1"),
        ([lamp(1, lit=False)], "no success frame"),
        ([lamp(1, lit=True, task=" ")], "none of 1"),
        ([lamp(1, lit=False), lamp(2, lit=True)], "too few"),
    ):
        with pytest.raises(DataError, match=why):
            train_vlm(settings(tmp_path), episodes)


def test_settings_that_do_nothing_are_refused():
    for changes, key, words in (
        ({"path": "x"}, "path", "one of them"),
        ({"nframes": 4}, "nframes", ""),
        ({"horizon": 3.0}, "horizon", ""),
        ({"question": "progress", "reward_threshold": 0.4}, "reward_threshold", ""),
        ({"micro_batch_size": 3}, "batch_size", "multiple"),
    ):
        with refuses(key) as refused:
            settings("x", **changes)
        assert words in str(refused.value)


@pytest.mark.parametrize("steps", first([1, 4], 1))
@pytest.mark.parametrize("lora", [None, LoraSettings(r=4)], ids=["whole", "lora"])
def test_a_training_that_diverges_writes_no_weights(lora, steps, tmp_path):
    chosen = settings(tmp_path, lora=lora, max_steps=steps, eval_every=1, learning_rate=1e30)
    with pytest.raises(NonFiniteError, match=r"not finite|loss is nan|loss is inf") as caught:
        train_vlm(chosen, lamps(), data_hash="abc")
    assert caught.value.exit_code == 3
    stored = [load_file(file) for file in tmp_path.rglob("*.safetensors")]
    assert first_non_finite(pair for tensors in stored for pair in tensors.items()) is None
    assert not (tmp_path / "model").exists()


def test_on_a_gpu_frozen_matrices_are_kept_in_bfloat16_and_the_adapter_learns_the_same(tmp_path, request):
    if request.config.getoption("--pretend-cuda", False):
        pytest.skip("this test pretends by itself")
    found = []
    for device in ("cpu", "cuda"):
        chosen = settings(tmp_path / device, bf16=True, device=device, max_steps=2)
        with pretended() if device == "cuda" else nullcontext():
            backend, _ = _backend(chosen, str(write_tiny_vlm(TINY, tmp_path / f"base_{device}", seed=0)))
            examples = vlm_examples(lamps(4), chosen)
            _AnswerLoss(backend, examples, None)([0, 1, 2]).backward()
            weights = dict(backend.model.named_parameters())
            kinds = {p.dtype for n, p in weights.items() if n.endswith("mlp.up_proj.base_layer.weight")}
            assert kinds == {torch.bfloat16 if device == "cuda" else torch.float32}
            found.append({n: p.grad.cpu() for n, p in weights.items() if p.requires_grad})
    assert found[0].keys() == found[1].keys()
    amx = torch.cpu.get_capabilities().get("amx_bf16")  # where bfloat16 has kernels of its own, the last bits differ
    for name, gradient in found[0].items():
        within = 2**-6 * float(gradient.abs().max()) if amx else 0.0
        torch.testing.assert_close(found[1][name], gradient, rtol=0.0, atol=within)
