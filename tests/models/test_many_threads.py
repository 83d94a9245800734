"""Every kind of model, called from eight threads at a time: each item gets what it gets alone."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import adapter_models
import numpy as np
import pytest
import torch
from chat_families import folder_of
from tiny_text_policies import tiny_policy
from vlm_samples import episode as video
from vlm_samples import tiny_backend

from guerdon.models.images.backbone import ImageScorer
from guerdon.models.images.image import ImageModelConfig, ImageRewardModel
from guerdon.models.images.online import OnlineImageModel
from guerdon.models.text.adapters import load_adapter
from guerdon.models.text.implicit_text import ImplicitModel
from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_heads import OutcomeModel, StepwiseModel
from guerdon.models.text.text_inputs import read_steps
from guerdon.models.text.verdict import FORM, VerdictModel
from guerdon.models.vlm.vlm import VLMRewardModel
from guerdon.models.vlm.vlm_prompts import PROMPTS, GenerationOptions, make_question
from guerdon.policies.batches.tokens import token_batch
from guerdon.policies.language.text import TextPolicy, add_policy, reference
from guerdon.settings.text_policy import LoraSettings
from guerdon.settings.vlm import VLMSettings
from guerdon.types import Episode
from tables import first, sample

pytestmark = [pytest.mark.usefixtures("frequent_switches"), pytest.mark.usefixtures("narrow_resnets")]
torch.set_num_threads(1)
THREADS = 8


def in_threads(call, items):
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(call, items))


def moved(parameters, seed=1):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in parameters:
            p.add_(0.1 * torch.randn(p.shape, generator=generator).to(p.device))


def card(kind, **changes):
    return replace(TextModelCard(kind, "chat", "bce", bf16=False), **changes)


def headed(kind, model_class, **options):
    model = model_class(tiny_policy(**options), card(kind))
    moved(model.head.parameters())
    return model


def implicit(lora):
    policy = add_policy(tiny_policy().base, "policy", LoraSettings(r=2), seed=0) if lora else tiny_policy()
    moved(policy.parameters())
    ref = None if lora else TextPolicy(tiny_policy().base, trainable=False)
    return ImplicitModel(policy, card("implicit", loss="ce", beta=0.5, read="cumulative"), ref=ref)


TEXT_MODELS = {
    "stepwise": lambda: headed("stepwise", StepwiseModel),
    "stepwise_packed": lambda: headed("stepwise", StepwiseModel, use_remove_padding=True),
    "outcome": lambda: headed("outcome", OutcomeModel),
    "verdict": lambda: VerdictModel(tiny_policy(), card("verdict", form=FORM)),
    "implicit_lora": lambda: implicit(lora=True),
    "implicit_full": lambda: implicit(lora=False),
}


def solutions(count):
    """Of very different lengths, so that some are read by plain matrix products and some by fused attention."""
    rng = np.random.default_rng(0)
    found = []
    for k in range(count):
        steps = tuple(f"{rng.integers(99)}+{i}={'1' * int(rng.choice([1, 20, 90]))};\n" for i in range(1 + k % 4))
        found.append(Episode(id=str(k), task=f"{k}+{k}=?", texts=steps))
    return found


def values(score):
    assert score.failure is None, score.failure
    return score.steps if score.steps is not None else np.array([score.total])


def check_model(model, episodes, tolerance=2e-6):
    together = [in_threads(lambda one: model.score([one])[0], episodes) for _ in range(2)]  # the first time too
    alone = [values(model.score([one])[0]) for one in episodes]
    assert np.concatenate(alone).std() > 1e-4  # they can be told from each other
    for scores in together:
        for found, wanted in zip(scores, alone, strict=True):
            np.testing.assert_allclose(values(found), wanted, atol=tolerance, rtol=1e-5)


@pytest.mark.parametrize("make", first(TEXT_MODELS.values(), 2), ids=TEXT_MODELS)
def test_reward_models_of_text(make):
    check_model(make(), solutions(48))


@pytest.mark.usefixtures("by_hand")  # in bfloat16 a value depends on what is read with it
@pytest.mark.parametrize("family", first(adapter_models.FAMILIES, 2), ids=lambda f: f.name)
def test_published_models(family, tmp_path):
    family(tmp_path)
    numbers = [f"Is it {k}" + " + 1" * (k % 7) + "?" for k in range(48)]
    steps = [adapter_models.STEPS[: 1 + k % 3] for k in range(48)]
    episodes = [Episode(id=q, task=q, texts=s) for q, s in zip(numbers, steps, strict=True)]
    check_model(load_adapter(family.name, str(tmp_path), 8), episodes, tolerance=1e-5)


@pytest.mark.usefixtures("by_hand")
def test_sequence_classifiers(tmp_path):
    for pad in ("own", None):  # without a token for padding, the configuration is changed for each pass
        path, _ = folder_of(tmp_path / str(pad), "chatml", pad)
        check_model(SequenceClassifier(path, micro_batch_size=8), solutions(48), tolerance=2e-5)


def test_models_of_pictures():
    torch.manual_seed(0)
    scorer = ImageScorer("resnet18", hidden_dim=8, dropout=0.5).eval()
    config = ImageModelConfig("resnet", hidden_dim=8, image_size=(3, 32, 32), threshold=0.5, label="done")
    pictures = [video(1 + k % 3, seed=k, size=(32, 32)) for k in range(24)]
    check_model(ImageRewardModel(scorer, config, bf16=False), pictures)


def states(count):
    rng = np.random.default_rng(0)
    return [Episode(id=str(k), task="walk", states=rng.normal(size=(2, 3)).astype(np.float32), outcome=bool(k % 2))
            for k in range(count)]  # fmt: skip


def state_model():
    torch.manual_seed(0)
    config = ImageModelConfig("resnet", arch="mlp", hidden_dim=8, state_size=3, threshold=0.5, label="done")
    return ImageRewardModel(ImageScorer("mlp", hidden_dim=8, dropout=0.5, state_size=3).eval(), config, bf16=False)


def test_models_of_states():
    check_model(state_model(), states(48))


def test_a_model_is_never_scored_in_the_middle_of_an_update():
    """While it learns, dropout is on: every score is that of the weights before an update or after one."""
    online, seen = OnlineImageModel(state_model(), steps=3, learning_rate=1e-2), states(8)
    known = [[score.total for score in online.score(seen)]]

    def work(turn):
        if turn % 6:
            return [score.total for score in (online.model if turn % 2 else online).score(seen)]
        online.learn(seen)
        return None

    scored = [found for found in in_threads(work, range(60)) if found is not None]
    fresh = OnlineImageModel(state_model(), steps=3, learning_rate=1e-2)
    for _ in range(10):
        fresh.learn(seen)
        known.append([score.total for score in fresh.score(seen)])
    for found in scored:
        assert min(np.abs(np.subtract(found, one)).max() for one in known) < 1e-6


@pytest.mark.parametrize("kind", first(["qwen_vl", "true_logprob"], 1))
def test_vision_language_models(kind):
    model = VLMRewardModel(kind, VLMSettings(path="unused"), tiny_backend())
    check_model(model, [video(1, seed=k, task=f"close door {k}") for k in range(24)], tolerance=1e-5)


@pytest.mark.parametrize("temperature", sample([0.0, 1.0], 0.0))
def test_what_a_vision_language_model_writes(temperature):
    """What is drawn depends on the random state, which no other thread changes meanwhile."""
    asked = [make_question(PROMPTS["primo_r1"].fill(f"open {k}"), video(2, seed=k).frames, nframes=2, max_pixels=10**6)
             for k in range(12)]  # fmt: skip
    backend = tiny_backend()

    def written(k):
        return backend.generate([asked[k]], GenerationOptions(12, temperature, 0.9, k % 3 if temperature else 0))[
            0
        ].text

    together = in_threads(written, range(12))
    assert together == [written(k) for k in range(12)]
    assert len(set(together)) > 1


def test_policies_on_one_base():
    """Two adapters and none, each in threads of its own: each thread gets the answers of its own."""
    base = tiny_policy().base
    first, second = (add_policy(base, name, LoraSettings(r=2), seed=k) for k, name in enumerate("ab"))
    moved(first.parameters())
    moved(second.parameters(), seed=2)
    policies = [first, second, reference(base, remove_padding=True), reference(base)]
    batches = []
    for one in solutions(24):
        read = read_steps(base.tokenizer, one.task, one.texts)
        batches.append(
            token_batch([read.ids[: read.start]], [read.ids[read.start :]], np.ones(1, dtype=bool), pad_id=0)
        )

    def log_probs(k):
        with torch.no_grad():
            return policies[k % 4].log_probs(batches[k % 24])

    alone = [log_probs(k) for k in range(96)]
    assert (alone[0] - first.log_probs(batches[0])).abs().max() < 1e-6
    for found, wanted in zip(in_threads(log_probs, range(96)), alone, strict=True):
        torch.testing.assert_close(found, wanted, atol=2e-6, rtol=1e-5)
