"""Rotary positions that depend on a whole pass: every row has the values that it has alone, or those of its run."""

import numpy as np
import pytest
import torch
from architectures import build
from tiny_models import oracle
from transformers import AutoModelForSequenceClassification

import fake_vllm
from guerdon.errors import ConfigError, DataError
from guerdon.models.text.sequence_classifier import SequenceClassifier
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_heads import OutcomeModel, StepwiseModel
from guerdon.models.text.verdict import VerdictModel
from guerdon.policies.batches.passes import passes
from guerdon.policies.batches.ropes import Ropes, sides_of, switch_of
from guerdon.policies.batches.tokens import token_batch
from guerdon.policies.language.generate import LocalEngine
from guerdon.policies.language.generate_vllm import VLLMEngine
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy
from guerdon.processes.progress import log_once
from guerdon.rl.build_text import build_learning
from guerdon.settings.study import Study
from guerdon.settings.text_policy import (
    LocalGenerationSettings,
    TextPolicySettings,
    TinyModelSettings,
    VLLMGenerationSettings,
)
from guerdon.types import Episode
from tables import cases

SWITCH, EXACT = 24, 1e-6
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": SWITCH,
    "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.5, 4.0, 8.0], "attention_factor": 1.2,
}  # fmt: skip
FAMILIES = {
    "phi3": {"rope_parameters": LONGROPE, "original_max_position_embeddings": SWITCH},
    "llama": {"rope_parameters": LONGROPE},
    "gemma": {"rope_parameters": LONGROPE},
}
WAYS = {
    "padded": {"share_prompts": False},
    "packed": {"use_remove_padding": True},
    "shared prompts": {},
}


def policy_of(family="phi3", *, rope=None, **options):
    changes = FAMILIES[family] if rope is None else {"rope_parameters": rope}
    model, tokenizer = build(family, **changes)
    settings = TextPolicySettings(tiny=TinyModelSettings(), bf16=False, **options)
    return TextPolicy(SharedBase(model, tokenizer, settings))


def always_long(family):
    """The same weights with the long frequencies for every row, by transformers' own code."""
    rope = LONGROPE | {"original_max_position_embeddings": 1}
    changes = dict.fromkeys(FAMILIES[family].keys() - {"rope_parameters"}, 1)  # Phi-3 names the switch once more
    return build(family, **changes, rope_parameters=rope)[0]


def batch_of(lengths, prompts, seed=0):
    rng = np.random.default_rng(seed)
    asked = [p for n, times in prompts for p in [rng.integers(7, 103, n)] * times]
    return token_batch(asked, [rng.integers(7, 103, n) for n in lengths], np.ones(len(lengths), bool), pad_id=0)


MIXED = batch_of((4, 30, 9, 12, 20), [(6, 2), (8, 3)])  # rows of 10, 36, 17, 20 and 28 tokens


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_rows_of_files_have_the_values_that_they_have_alone(family, way):
    policy = policy_of(family, **WAYS[way])
    alone = oracle(policy.base.model, MIXED)[0]
    with torch.no_grad():
        found = policy.evaluate(MIXED, entropy=True)
        np.testing.assert_allclose(found.log_probs, alone, atol=EXACT)
        np.testing.assert_allclose(found.entropy, oracle(policy.base.model, MIXED)[1], atol=10 * EXACT)
        for row in (0, 3):  # alone after a long pass, too
            one = MIXED.take([row])
            np.testing.assert_allclose(policy.log_probs(one), alone[[row], : one.mask_B_T.shape[1]], atol=EXACT)
    np.testing.assert_allclose(policy.evaluate_all(MIXED, micro=5).log_probs, alone, atol=EXACT)


def test_gradients_of_rows_apart_are_those_of_each_row():
    policy = policy_of()
    policy.log_probs(MIXED).sum().backward()
    found = {name: p.grad.clone() for name, p in policy.named_parameters().items()}
    policy.base.model.zero_grad()
    for row in range(len(MIXED)):
        policy.log_probs(MIXED.take([row])).sum().backward()
    for name, p in policy.named_parameters().items():
        torch.testing.assert_close(found[name], p.grad, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_a_run_has_one_side(family, way, capsys):
    log_once.cache_clear()
    policy = policy_of(family, **WAYS[way])
    policy.base.reach(SWITCH + 1)
    assert "long rotary frequencies (longrope) for all rows of this run" in capsys.readouterr().err
    with torch.no_grad():
        found = policy.evaluate(MIXED)
    np.testing.assert_allclose(found.log_probs, oracle(always_long(family), MIXED)[0], atol=EXACT)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_sampled_is_what_is_evaluated(family):
    policy = policy_of(family)
    engine = LocalEngine(policy, LocalGenerationSettings())
    prompts = list(MIXED.prompts[::2])
    for room, side in ((10, False), (40, True)):  # where the switch is in reach, and where it is not
        found = engine.generate(prompts, 3, max_new_tokens=room, rng=np.random.default_rng(0))
        assert policy.base.ropes.long is side
        with torch.no_grad():
            again = policy.log_probs(found.batch)
        np.testing.assert_allclose(found.log_probs_B_T, again, atol=10 * EXACT)
        wanted = always_long(family) if side else policy.base.model
        np.testing.assert_allclose(again, oracle(wanted, found.batch)[0], atol=EXACT)


def test_a_run_on_the_short_side_takes_no_longer_row():
    policy = policy_of()
    policy.base.reach(SWITCH)
    assert policy.base.ropes.long is False
    with pytest.raises(DataError, match=r"a row has 36 tokens, and this run has the short .* at most 24"):
        policy.evaluate(MIXED)


EPISODES = [
    Episode(id=str(n), task="3+5=?", texts=("3+5 is 8;" * n, "so the answer is 8")) for n in (1, 6, 2)
]  # fmt: skip


@cases("kind", (("stepwise", StepwiseModel), ("outcome", OutcomeModel), ("verdict", VerdictModel)))
def test_reward_models_score_a_solution_alike_beside_others(kind):
    name, made = kind
    switch = 100 if name == "verdict" else 60  # between the lengths of the solutions
    policy = policy_of("llama", rope=LONGROPE | {"original_max_position_embeddings": switch})
    reward = made(policy, TextModelCard(name, "chat", "bce"), micro_batch_size=8)
    lengths = [reward.reading_of(episode).reach for episode in EPISODES]
    assert min(lengths) < switch < max(lengths)
    together = reward.score(EPISODES)
    for one, episode in zip(together, EPISODES, strict=True):
        (alone,) = reward.score([episode])
        wanted, found = (x.steps if reward.per_step else [x.total] for x in (alone, one))
        np.testing.assert_allclose(found, wanted, atol=EXACT)


def test_a_classifier_scores_a_response_alike_beside_others(tmp_path):
    model, tokenizer = build("phi3", **FAMILIES["phi3"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = model.config
        config.num_labels = 1
        AutoModelForSequenceClassification.from_config(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    reward = SequenceClassifier(str(tmp_path), device="cpu")
    together = [score.total for score in reward.score(EPISODES)]
    alone = [reward.score([episode])[0].total for episode in EPISODES]
    np.testing.assert_allclose(together, alone, atol=EXACT)


DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


def test_dynamic_positions_are_refused_beyond_their_limit():
    model, tokenizer = build("llama", rope_parameters=DYNAMIC, max_position_embeddings=32)
    policy = TextPolicy(SharedBase(model, tokenizer, TextPolicySettings(tiny=TinyModelSettings(), bf16=False)))
    short = MIXED.take([0, 2, 4])
    with torch.no_grad():
        np.testing.assert_allclose(policy.log_probs(short), oracle(model, short)[0], atol=EXACT)
    with pytest.raises(DataError, match=r"a row has 36 tokens, and its rotary positions \(dynamic\) .* beyond 32"):
        policy.log_probs(MIXED)
    with pytest.raises(DataError, match="do not fit the model's 32 positions"):
        LocalEngine(policy, LocalGenerationSettings()).generate(
            [np.arange(7, 27)], 1, max_new_tokens=20, rng=np.random.default_rng(0)
        )
    with pytest.raises(ConfigError, match=r"may have 33 tokens, and its rotary positions \(dynamic\)"):
        policy.base.ropes.decide(33, "this run")


def test_other_positions_have_no_sides():
    model, _ = build("llama")
    ropes = Ropes(model)
    assert ropes.switch is None is ropes.most
    assert switch_of(build("gpt2")[0].config) is None
    assert [rows.tolist() for rows in sides_of([3, 30, 4], None)] == [[0, 1, 2]]
    assert [rows.tolist() for rows in sides_of([3, 30, 4], 4)] == [[0, 2], [1]]
    assert [rows.tolist() for rows in passes([3, 30, 4, 5], apart=4)] == [[0, 2], [3, 1]]


@pytest.mark.parametrize("longest", [SWITCH, SWITCH + 1])
def test_vllm_and_the_policy_have_the_same_side(longest, monkeypatch):
    """vLLM has the long frequencies where its `max_model_len` is beyond the switch."""
    fake_vllm.install(monkeypatch)
    policy = policy_of()
    engine = VLLMEngine(policy, VLLMGenerationSettings(), max_length=longest)
    assert engine._llm.options["max_model_len"] == longest
    assert policy.base.ropes.long is (longest > SWITCH)
    other = policy_of()
    engine = VLLMEngine(other, VLLMGenerationSettings())
    assert engine._llm.options["max_model_len"] == other.base.positions > SWITCH
    assert other.base.ropes.long


def test_a_run_decides_for_its_reference_and_its_reward_models(tmp_path):
    """By the longest prompt and response that its data allow."""
    model, tokenizer = build("phi3", **FAMILIES["phi3"])
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    task = {"family": "chain", "steps": 1, "ops": "+"}
    data = {"task": task, "train_size": 4, "val_size": 2, "max_prompt_length": 60, "filter_accuracy": False}
    for response in (8, 100):
        study = Study.model_validate(
            {
                "policy": {"type": "text", "path": str(tmp_path / "model"), "bf16": False, "device": "cpu"},
                "data": {**data, "max_response_length": response},
                "algorithm": {"kl_coef": 0.1},
            }
        )
        learning = build_learning(study, fresh=True)
        reference = learning.learner.reference
        assert learning.policy.base.ropes.long is True is reference.base.ropes.long
