"""An implicit reward model that was learned in a run scores the same wherever it is used again."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from guerdon.errors import CheckpointError
from guerdon.models.text.text_card import read_card
from guerdon.models.text.text_load import load_text_model
from guerdon.policies.batches.tokens import prompt_ids, response_ids, token_batch
from guerdon.policies.language.text_files import load_policy, save_policy
from guerdon.policies.language.tiny_text import build_tokenizer
from guerdon.rewards.prime import LabelledBatch
from guerdon.rl.run import run_folder
from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings
from guerdon.tasks.prompts import Prompt, shared_system_prompt
from guerdon.types import Episode
from text_rl import LORA, SUMS, lines, prime, start, sum_study

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("serve", "policies")]
from architectures import build
from processes import start_server

from tables import sample

torch.set_num_threads(1)
BETA = 0.7
OPTIM = {"optim": {"lr": 3e-2}, "beta_train": BETA}
LIMIT = 10  # tokens of a response, one per character
SOLUTIONS = (("1+2=3;", "3"), ("4;", "4+4=8;", "8"), ("9",), ("",), ("1+2=3;", "3+1="))  # the last one was cut
FORMS = {
    "whole": {},
    "lora": {"policy": {"lora": LORA}},
    "system_prompt": {"data": {"system_prompt": "1+1=2"}, "generation": {"temperature": 0.7}},
    "by_policy": {"model": {"ref_type": "policy"}},
    "lora_by_policy": {"model": {"ref_type": "policy"}, "policy": {"lora": LORA}},
    "lora_embeddings": {"policy": {"lora": {**LORA, "target_modules": ["lm_head", "embed_tokens", "q_proj"]}}},
    "lora_embedding_by_policy": {
        "model": {"ref_type": "policy"},
        "policy": {"lora": {**LORA, "target_modules": ["embed_tokens"]}},
    },
    "dpo": {"model": {"loss_type": "dpo"}},
}


def learnt(folder, *, model=None, name="run", **given):
    """A finished run with PRIME."""
    section = prime(prime_model={**OPTIM, **(model or {})})
    loop = start(sum_study(folder, name=name, reward_model=section, runner={"total_steps": 32}, **given))
    loop.run()
    return loop


def values_in_run(loop, prompt, steps):
    """The model's probability that a response is right, at the end of each step, from the run's own log-ratios."""
    model, tokenizer = loop.sources["prime"], loop.learner.policy.tokenizer
    ids = response_ids(tokenizer, "".join(steps))
    cut = len(ids) > LIMIT  # as generation cuts: without an end
    ids = ids[:-1] if cut else ids
    batch = token_batch([prompt_ids(tokenizer, prompt.messages)], [ids], np.array([not cut]), pad_id=0)
    old = loop.learner.policy.evaluate_all(batch, micro=1, temperature=model.temperature).log_probs
    ref = old if model.ref is None else model.ref.evaluate_all(batch, micro=1, temperature=model.temperature).log_probs
    given = LabelledBatch(batch, torch.zeros(1), torch.ones(1, dtype=torch.bool), torch.zeros(1), ref)
    sums = np.cumsum(model.log_ratios(given)[0].numpy())
    ends = np.cumsum([len(response_ids(tokenizer, step)) - 1 for step in steps]) - 1
    ends[-1] = len(ids) - 1  # the end-of-sequence token belongs to the last step
    return 1 / (1 + np.exp(-BETA * sums[ends].astype(np.float64)))


def prompts_of(loop):
    return loop.collector.sampler.stream.prompts[:2]


def episodes(prompts):
    return [Episode(id="", task=p.question, texts=steps) for p in prompts for steps in SOLUTIONS]


def expected_of(loop, prompts):
    return [values_in_run(loop, p, steps) for p in prompts for steps in SOLUTIONS]


@pytest.mark.parametrize("form", sample(FORMS, "whole", "lora_by_policy"))
def test_it_scores_as_in_its_run(form, tmp_path):
    loop = learnt(tmp_path, **FORMS[form])
    prompts = prompts_of(loop)
    expected = expected_of(loop, prompts)
    assert np.ptp(np.concatenate(expected)) > 0.01, "it has learnt something"
    folder = run_folder(loop.study) / "reward_models" / "prime"
    scores = load_text_model(str(folder)).score(episodes(prompts))
    for score, values in zip(scores, expected, strict=True):
        np.testing.assert_allclose(score.steps, values, atol=2e-5)
    card = read_card(folder)
    assert card.length_limit == loop.study.data.max_response_length == LIMIT
    assert (card.threshold is None) == (form == "dpo")
    assert (folder / "reference").exists() == (form not in ("lora", "lora_embeddings"))


@pytest.mark.parametrize("ref_type", sample(["freeze", "policy"], "freeze"))
def test_adapters_on_experts_score_as_in_their_run(ref_type, tmp_path):
    tokenizer = build_tokenizer(TinyModelSettings(alphabet=SUMS))
    for part in build("qwen3_moe", tokenizer=tokenizer):
        part.save_pretrained(tmp_path / "start")
    policy = {"tiny": None, "path": str(tmp_path / "start"), "lora": LORA}
    loop = learnt(tmp_path, policy=policy, model={"ref_type": ref_type})
    prompts, folder = prompts_of(loop), run_folder(loop.study)
    scores = load_text_model(str(folder / "reward_models" / "prime")).score(episodes(prompts))
    for score, values in zip(scores, expected_of(loop, prompts), strict=True):
        np.testing.assert_allclose(score.steps, values, atol=2e-5)
    batch = token_batch([np.array([3, 4])] * 2, [np.array([5, 6, 7])] * 2, np.ones(2, bool), pad_id=0)
    written = load_policy(TextPolicySettings(path=str(folder / "policy"), bf16=False), seed=0)
    with torch.no_grad():
        torch.testing.assert_close(
            written.log_probs(batch), loop.learner.policy.log_probs(batch, temperature=1.0), atol=2e-5, rtol=0
        )


def test_with_a_reference_of_its_own_under_adapters(tmp_path):
    first = learnt(tmp_path, name="first")
    other = save_policy(first.learner.policy, tmp_path / "other")
    loop = learnt(tmp_path, name="second", policy={"lora": LORA}, model={"ref_path": str(other)})
    prompts = prompts_of(loop)
    scores = load_text_model(str(run_folder(loop.study) / "reward_models" / "prime")).score(episodes(prompts))
    for score, values in zip(scores, expected_of(loop, prompts), strict=True):
        np.testing.assert_allclose(score.steps, values, atol=2e-5)


@pytest.mark.slow
def test_a_server_and_another_run_get_the_same_scores(tmp_path):
    loop = learnt(tmp_path, **FORMS["system_prompt"])
    prompts, folder = prompts_of(loop), run_folder(loop.study) / "reward_models" / "prime"
    expected = expected_of(loop, prompts)
    running = start_server(tmp_path, models={"prime": {"model_path": str(folder), "backend": "text"}})
    written = [(e, values) for e, values in zip(episodes(prompts), expected, strict=True) if any(e.texts)]
    items = [{"prompt": e.task, "steps": list(e.texts)} for e, _ in written]  # the protocol has no empty text
    try:
        found = running.post("/v1/rewards", {"items": items}).json()
    finally:
        assert running.stop(60) == 0
    for item, (_, values) in zip(found["results"], written, strict=True):
        np.testing.assert_allclose(item["step_scores"], values, atol=2e-5)
    source = {
        "model": {"model_type": "text", "checkpoint_path": str(folder)},
        "reward_mode": "per_step",
        "shaping": "raw",
    }
    second = start(
        sum_study(
            tmp_path, name="second", runner={"total_steps": 32},
            reward={"use_reward_model": True, "combine_mode": "add", "sources": {"prm": source}},
        )
    )  # fmt: skip
    for score, values in zip(second.sources["prm"].model.score(episodes(prompts)), expected, strict=True):
        np.testing.assert_allclose(score.steps, values, atol=2e-5)
    second.run()
    train = [row for row in lines(second.study) if row["kind"] == "train"]
    assert all(row["reward_model/prm/step_value"] is not None for row in train)
    assert not lines(second.study, "failures")


def test_a_run_goes_on_from_it(tmp_path):
    loop = learnt(tmp_path)
    folder = run_folder(loop.study) / "reward_models" / "prime"
    again = learnt(tmp_path, name="again", model={"path": str(folder), "ref_path": str(folder / "reference")})
    assert (run_folder(again.study) / "COMPLETE").is_file()


def test_prompts_that_one_card_cannot_describe_are_said(tmp_path):
    def asked(*roles):
        return Prompt("", tuple({"role": role, "content": role} for role in roles), "1", "")

    assert shared_system_prompt([asked("user"), asked("user")]) == (True, None)
    assert shared_system_prompt([asked("system", "user")] * 2) == (True, "system")
    assert shared_system_prompt([asked("system", "user"), asked("user")]) == (False, None)
    assert shared_system_prompt([asked("user", "assistant", "user")]) == (False, None)


def test_a_card_that_lacks_a_field_is_refused(tmp_path):
    import json

    from guerdon.files.atomic import sha256

    loop = learnt(tmp_path)
    folder = run_folder(loop.study) / "reward_models" / "prime"
    card, seal = folder / "reward_model.json", folder / "COMPLETE"
    record = {k: v for k, v in json.loads(card.read_text()).items() if k not in ("closed", "outputs")}
    card.write_text(json.dumps(record))
    seal.write_text(json.dumps(json.loads(seal.read_text()) | {"reward_model.json": sha256(card)}))
    with pytest.raises(CheckpointError, match=r"reward_model\.json lacks closed, outputs"):
        read_card(folder)
