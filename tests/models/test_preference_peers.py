"""A folder of `train: {type: preference}` in the packages that read such folders: the same values as guerdon's.

TRL and transformers where they are installed. vLLM in an environment of its own:

    GUERDON_VLLM=/path/to/vllm pytest -m slow tests/models/test_preference_peers.py

OpenRLHF installs nowhere without a GPU; what its loader needs was read in OpenRLHF/OpenRLHF, openrlhf/models/model.py
(get_llm_for_sequence_regression, _get_reward_model) and openrlhf/cli/serve_rm.py, at 3c3be62.
"""

import json
import math

import httpx2 as httpx
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoTokenizer
from vllm_process import NEEDS_VLLM, vllm_server

from guerdon.models.text.sequence_classifier import PreferenceModel
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_load import load_text_model
from guerdon.policies.language.text_files import load_policy
from guerdon.processes.progress import log_once
from guerdon.settings.text_policy import TextPolicySettings
from guerdon.types import Episode

torch.set_num_threads(1)
# AutoTokenizer gives Qwen2 the pre-tokenizer of its own, whatever the folder says; on single bytes it changes nothing.
# vLLM's attention on a CPU has no heads of 16.
TINY = {"tokenizer": "bytes", "hidden_size": 128, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 96}
ROWS = [
    {
        "prompt": [{"role": "user", "content": "a bad cab" + " head" * k + "?"}],
        "chosen": [{"role": "assistant", "content": "feed a beach" + " deaf" * (k % 3) + "."}],
        "rejected": [{"role": "assistant", "content": "face" + " cage" * (5 - k)}],
    }
    for k in range(6)
]
CHATS = [row["prompt"] + row[which] for row in ROWS for which in ("chosen", "rejected")]


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def folder(request, tmp_path_factory):
    """Random weights, large enough that values differ."""
    place = tmp_path_factory.mktemp("preference") / request.param
    policy = load_policy(TextPolicySettings(tiny={**TINY, "architecture": request.param}, bf16=False), seed=3)
    with torch.no_grad():
        for parameter in policy.parameters():
            drawn = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            parameter.add_(0.2 * drawn.to(parameter.device))
    card = TextModelCard("preference", "conversation", "bradley_terry", threshold=None, bf16=False)
    return PreferenceModel(policy, card).write(place)


@pytest.fixture(scope="module")
def values(folder):
    """(12,) guerdon's own."""
    episodes = [Episode(id=str(k), task=c[0]["content"], texts=(c[1]["content"],)) for k, c in enumerate(CHATS)]
    found = np.array([score.total for score in load_text_model(str(folder), device="cpu").score(episodes)])
    assert found.std() > 0.05
    return found


@pytest.fixture(scope="module")
def ids(folder):
    """Token ids of each conversation."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer.apply_chat_template(chat, return_dict=False) for chat in CHATS]


def test_trls_reward_trainer(folder, values, tmp_path):
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl", reason="TRL is not installed: pip install guerdon[trl]")
    rows = datasets.Dataset.from_list(ROWS)
    arguments = trl.RewardConfig(
        str(tmp_path), use_cpu=True, bf16=False, gradient_checkpointing=False, per_device_eval_batch_size=len(ROWS),
        report_to="none", disable_tqdm=True,
    )  # fmt: skip
    trainer = trl.RewardTrainer(model=str(folder), args=arguments, train_dataset=rows, eval_dataset=rows)
    (batch,) = trainer.get_eval_dataloader()
    trainer.model.eval()
    with torch.no_grad():
        logits = trainer.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 0]
    np.testing.assert_allclose(logits, np.concatenate([values[::2], values[1::2]]), atol=1e-4)
    losses = [math.log1p(math.exp(b - a)) for a, b in zip(values[::2], values[1::2], strict=True)]
    assert trainer.evaluate()["eval_loss"] == pytest.approx(np.mean(losses), abs=1e-4)


def test_trls_grpo_trainer_takes_it_as_a_reward(folder, tmp_path):
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl", reason="TRL is not installed: pip install guerdon[trl]")
    load_policy(TextPolicySettings(tiny=TINY, bf16=False), seed=0).base.model.save_pretrained(tmp_path / "policy")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    seen = []

    def remembered(prompts, completions, **_):
        seen.extend(zip(prompts, completions, strict=True))
        return [0.0] * len(prompts)

    trainer = trl.GRPOTrainer(
        model=str(tmp_path / "policy"), reward_funcs=[str(folder), remembered], processing_class=tokenizer,
        train_dataset=datasets.Dataset.from_list([{"prompt": row["prompt"]} for row in ROWS]),
        args=trl.GRPOConfig(
            str(tmp_path / "out"), max_steps=1, per_device_train_batch_size=4, num_generations=2, use_cpu=True,
            bf16=False, max_completion_length=8, logging_steps=1, report_to="none", save_strategy="no",
            disable_tqdm=True, mask_truncated_completions=False,
        ),
    )  # fmt: skip
    trainer.train()
    episodes = [Episode(id=str(k), task=p[-1]["content"], texts=(c[0]["content"],)) for k, (p, c) in enumerate(seen)]
    own = [score.total for score in load_text_model(str(folder), device="cpu").score(episodes)]
    logged = next(log for log in trainer.state.log_history if "rewards/remembered/mean" in log)
    (name,) = {key for key in logged if key.startswith("rewards/") and key.endswith("/mean")} - {
        "rewards/remembered/mean"
    }
    assert len(own) == 4
    assert logged[name] == pytest.approx(np.mean(own), abs=1e-4)


def test_what_openrlhf_requires(folder, values, ids):
    config = AutoConfig.from_pretrained(folder)
    assert not hasattr(config, "value_head_prefix")  # so that its default, `score`, holds
    assert not hasattr(config, "mean")  # its own normalisation
    base = AutoModel.from_config(config, trust_remote_code=False).eval()
    stored = load_file(folder / "model.safetensors")
    head = stored.pop("score.weight")
    assert head.shape == (1, config.hidden_size)  # a layer to one value, without a bias
    prefix = f"{base.base_model_prefix}."
    base.load_state_dict({name.removeprefix(prefix): tensor for name, tensor in stored.items()}, strict=True)
    assert all(name.startswith(prefix) for name in stored)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.padding_side = "left"
    texts = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in CHATS]
    batch = tokenizer(texts, return_tensors="pt", add_special_tokens=False, padding=True)
    mask = batch["attention_mask"]
    assert [row[m.bool()].tolist() for row, m in zip(batch["input_ids"], mask, strict=True)] == ids
    positions = (mask.cumsum(-1) - 1).masked_fill(mask == 0, 1)
    with torch.no_grad():
        hidden = base(input_ids=batch["input_ids"], attention_mask=mask, position_ids=positions).last_hidden_state
    np.testing.assert_allclose((hidden[:, -1] @ head.T)[:, 0], values, atol=1e-4)  # the last attended token


@pytest.mark.parametrize(
    ("architecture", "tokenizer", "told"),
    [("qwen2", {"alphabet": "abc? "}, True), ("qwen2", {"tokenizer": "bytes"}, False), ("llama", {}, False)],
)
def test_a_tokenizer_that_other_packages_read_otherwise_is_said(tmp_path, capsys, architecture, tokenizer, told):
    log_once.cache_clear()
    tiny = {"architecture": architecture, "hidden_size": 16, "layers": 1, "heads": 2, **tokenizer}
    policy = load_policy(TextPolicySettings(tiny=tiny, bf16=False), seed=0)
    folder = PreferenceModel(policy, TextModelCard("preference", "conversation", "bradley_terry")).write(
        tmp_path / "rm"
    )
    read = [
        t("a b", add_special_tokens=False)["input_ids"]
        for t in (policy.tokenizer, AutoTokenizer.from_pretrained(folder))
    ]
    assert (read[0] != read[1]) == told
    assert ("AutoTokenizer reads qwen2 folders" in capsys.readouterr().err) == told


@pytest.mark.slow
@pytest.mark.timeout(900)
@NEEDS_VLLM[2]
def test_vllms_pooling_without_its_activation(folder, values, ids):
    serving = ["--runner", "pooling", "--served-model-name", "rm", "--dtype", "float32", "--max-model-len", "512"]
    with vllm_server(folder, *serving) as address:

        def classified(**keys):
            asked = {"model": "rm", "input": ids, **keys}
            answer = httpx.post(f"{address}/classify", json=asked, timeout=120)
            assert answer.status_code == 200, answer.text
            return np.array([one["probs"] for one in answer.json()["data"]])[:, 0]

        found = classified(use_activation=False)
        print("VLLM", json.dumps({"largest difference": float(np.abs(found - values).max())}))
        np.testing.assert_allclose(found, values, atol=1e-3)
        np.testing.assert_allclose(classified(), 1 / (1 + np.exp(-values)), atol=1e-3)  # what it does by default
