"""Ten families of language models give the numbers that transformers' own forward pass gives, whichever way is taken.

Two families are tried in every run of the tests, all ten among the slow ones, and there also through the commands.
"""

import json
from contextlib import contextmanager

import numpy as np
import pytest
import torch
import yaml
from architectures import FAMILIES, WINDOW, build, save
from fastapi.testclient import TestClient
from tiny_models import oracle
from typer.testing import CliRunner

from guerdon.cli import app
from guerdon.episodes.solution_files import write_solutions
from guerdon.episodes.solutions import Solution
from guerdon.errors import ConfigError
from guerdon.models.text.text_card import TextModelCard
from guerdon.models.text.text_heads import OutcomeModel, StepwiseModel
from guerdon.models.text.text_load import load_text_model
from guerdon.models.text.verdict import VerdictModel
from guerdon.policies.batches.tokens import pad_left, prompt_ids, token_batch
from guerdon.policies.language.generate import HFDecoder, LocalEngine
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy, add_policy, reference
from guerdon.policies.language.text_files import load_policy
from guerdon.policies.language.tiny_text import CHAT_TEMPLATE
from guerdon.processes.progress import log_once
from guerdon.serve.app import build_app
from guerdon.serve.backends import model_loader
from guerdon.serve.served_models import ServedModels
from guerdon.settings.serve import ServeSettings
from guerdon.settings.text_policy import LocalGenerationSettings, LoraSettings, TextPolicySettings, TinyModelSettings
from guerdon.types import Episode
from tables import refuses

QUICK = ("gemma2", "gpt2")
EXACT = 1e-5
every_family = pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in FAMILIES]
)
WAYS = {
    "padded": {"share_prompts": False},
    "padded, fused": {"share_prompts": False, "attention": "sdpa"},
    "packed": {"use_remove_padding": True},
    "packed, fused": {"use_remove_padding": True, "attention": "sdpa"},
    "shared prompts": {},
    "shared prompts, fused": {"attention": "sdpa"},
}
EPISODES = [
    Episode(id="1", task="3+5=?", texts=("3+5 is 8 as we know;", "so the answer is 8")),
    Episode(id="2", task="3+5+1=?", texts=("8;", "8+1 is nine I believe;", "so")),
]


def settings(**options):
    return TextPolicySettings(**({"tiny": TinyModelSettings(), "bf16": False} | options))


def policy_of(family, **options):
    model, tokenizer = build(family)
    return TextPolicy(SharedBase(model, tokenizer, settings(**options)))


def responses(lengths, prompts, *, seed=0):
    """A batch of random ids; `prompts`: length of each prompt and how many responses it has."""
    rng = np.random.default_rng(seed)
    asked = [p for n, times in prompts for p in [rng.integers(7, 103, n)] * times]
    return token_batch(asked, [rng.integers(7, 103, n) for n in lengths], np.ones(len(lengths), bool), pad_id=0)


APART = responses((25, 2, 18, 30, 7), [(20, 1), (3, 1), (30, 1), (9, 1), (1, 1)])  # longer than the window, and shorter
ALIKE = responses((9, 4, 11, 2, 6, 8), [(WINDOW, 3), (5, 3)])


@every_family
@pytest.mark.parametrize("way", WAYS)
def test_log_probs_are_those_of_transformers(family, way):
    policy = policy_of(family, **WAYS[way])
    for batch in (APART, ALIKE):
        with torch.no_grad():
            found = policy.evaluate(batch, entropy=True)
        log_probs, entropies = oracle(policy.base.model, batch)
        np.testing.assert_allclose(found.log_probs, log_probs, atol=EXACT)
        np.testing.assert_allclose(found.entropy, entropies, atol=EXACT)


@pytest.mark.usefixtures("shares_on_gpus")
@every_family
def test_prompts_are_shared_where_no_window_is_shorter(family):
    base = policy_of(family).base
    short = responses((3, 4, 2, 3), [(6, 4)])
    assert base.shares_prompts(short, 10)
    with torch.no_grad():
        found = TextPolicy(base).log_probs(short)
    np.testing.assert_allclose(found, oracle(base.model, short)[0], atol=EXACT)
    windowed = base.window is not None
    assert base.shares_prompts(short, WINDOW + 1) != windowed
    assert windowed == (family in ("gemma2", "gemma3", "mistral"))


@every_family
def test_decoding_gives_the_logits_of_transformers(family):
    """With a cache, prompts of several lengths padded on the left, rows repeated and dropped."""
    policy = policy_of(family)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(7, 103, n) for n in (20, 3, WINDOW)]
    texts = [prompts[k].tolist() for k in (0, 0, 1, 2)]
    decoder = HFDecoder(policy)
    ids, real = (torch.from_numpy(x) for x in pad_left(prompts, 0))
    with torch.inference_mode():
        logits = decoder.prefill(ids, real, room=20)[torch.tensor([0, 0, 1, 2])]
        decoder.select(torch.tensor([0, 0, 1, 2]))
        for step in range(16):
            for text, row in zip(texts, logits, strict=True):
                own = policy.base.model(torch.tensor([text])).logits[0, -1]
                torch.testing.assert_close(row, own, atol=EXACT, rtol=EXACT)
            if step == 8:
                decoder.select(torch.tensor([3, 1]))
                texts = [texts[3], texts[1]]
            tokens = rng.integers(7, 103, len(texts))
            texts = [[*text, int(token)] for text, token in zip(texts, tokens, strict=True)]
            logits = decoder.step(torch.from_numpy(tokens))


@every_family
def test_generation_records_the_log_probs_of_training(family):
    policy = policy_of(family)
    engine = LocalEngine(policy, LocalGenerationSettings(temperature=0.8))
    found = engine.generate(list(APART.prompts), 2, max_new_tokens=20, rng=np.random.default_rng(1))
    np.testing.assert_allclose(found.log_probs_B_T, oracle(policy.base.model, found.batch, 0.8)[0], atol=EXACT)


@every_family
@pytest.mark.parametrize("packed", [False, True])
def test_heads_read_the_last_hidden_states(family, packed):
    policy = policy_of(family, use_remove_padding=packed)
    model = policy.base.model
    for kind, name in ((StepwiseModel, "stepwise"), (OutcomeModel, "outcome")):
        reward = kind(policy, TextModelCard(name, "chat", "bce"))
        for score, episode in zip(reward.score(EPISODES), EPISODES, strict=True):
            reading = reward.reading_of(episode)
            with torch.no_grad():
                hidden = model.base_model(torch.from_numpy(reading.ids)[None]).last_hidden_state[0]
                wanted = torch.sigmoid(reward.head(hidden[reward.places(reading)])).squeeze(-1)
            np.testing.assert_allclose(score.steps if reward.per_step else [score.total], wanted, atol=EXACT)
        reward.lesson_logits([reward.reading_of(e) for e in EPISODES]).sum().backward()
        assert all(p.grad is not None for p in model.base_model.parameters())
        model.zero_grad()


@every_family
def test_verdicts_are_those_of_a_pass_per_step(family):
    policy = policy_of(family)
    reward = VerdictModel(policy, TextModelCard("verdict", "evaluate_this_step", "bce"))
    for score, episode in zip(reward.score(EPISODES), EPISODES, strict=True):
        reading = reward.reading_of(episode)
        for value, end in zip(score.steps, reading.ends_S, strict=True):
            ids = np.concatenate([reading.ids[: end + 1], reward.tail])
            with torch.no_grad():
                logits = policy.base.model(torch.from_numpy(ids)[None]).logits[0, -1]
            assert value == pytest.approx(float(torch.sigmoid(logits[reward.verdicts[0]] - logits[reward.verdicts[1]])),
                                          abs=EXACT)  # fmt: skip


@every_family
def test_adapters_and_value_heads_learn(family):
    base = policy_of(family).base
    plain = oracle(base.model, APART)[0]
    policy = add_policy(base, "policy", LoraSettings(r=3), seed=0, value_heads=2)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator))
    found = policy.evaluate(APART, entropy=True)
    (found.log_probs.sum() + found.values.sum()).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.parameters())
    base.model.eval()  # gradients switch dropout on, which GPT-2 has by default
    with torch.no_grad(), base.adapter("policy"):
        adapted = oracle(base.model, APART)[0]
    with torch.no_grad():
        np.testing.assert_allclose(policy.log_probs(APART), adapted, atol=EXACT)
        np.testing.assert_allclose(reference(base).log_probs(APART), plain, atol=EXACT)
    assert np.abs(adapted - plain).max() > 0.01
    assert {name for name, _ in policy.merged_weights()} == {name for name, _ in build(family)[0].named_parameters()}


def test_soft_capping_is_seen_also_where_logits_are_small():
    model, tokenizer = build("gemma2", final_logit_softcapping=30.0)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.01)
    assert not SharedBase(model, tokenizer, settings()).plain_head
    assert SharedBase(build("gemma2", final_logit_softcapping=None)[0], tokenizer, settings()).plain_head


def test_a_family_without_fused_attention_says_so_once(capsys):
    log_once.cache_clear()
    for _ in range(2):
        assert policy_of("gemma2").base.fused == "eager"
    assert policy_of("llama").base.fused == "sdpa"
    assert capsys.readouterr().err.count("Gemma2ForCausalLM has no sdpa attention") == 1


def test_what_is_no_causal_model_is_refused():
    from transformers import BertConfig, BertLMHeadModel

    _, tokenizer = build("llama")
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    for is_decoder in (False, True):
        model = BertLMHeadModel(BertConfig(vocab_size=len(tokenizer), **shape, is_decoder=is_decoder)).eval()
        if is_decoder:
            assert SharedBase(model, tokenizer, settings()).fused == "sdpa"
            continue
        with pytest.raises(ConfigError, match=r"BertLMHeadModel: its logits depend on later tokens"):
            SharedBase(model, tokenizer, settings())


def test_rounding_errors_of_a_large_model_are_no_dependence_on_later_tokens():
    """Two passes of SmolLM2 differ by 2e-5 of the largest logit, also where a logit is near 0."""
    model, tokenizer = build("llama")
    generator = torch.Generator().manual_seed(0)

    def rounded(_, __, logits):
        return logits + 2e-5 * logits.abs().max() * (2 * torch.rand(logits.shape, generator=generator) - 1)

    model.get_output_embeddings().weight.data *= 100
    model.get_output_embeddings().register_forward_hook(rounded)
    assert SharedBase(model, tokenizer, settings()).plain_head


def test_a_verdict_needs_a_mask_that_decides():
    from transformers import MptConfig, MptForCausalLM

    _, tokenizer = build("llama")
    model = MptForCausalLM(MptConfig(vocab_size=len(tokenizer), d_model=16, n_heads=2, n_layers=1)).eval()
    base = SharedBase(model, tokenizer, settings())
    with pytest.raises(ConfigError, match="type: verdict does not work with MptForCausalLM"):
        VerdictModel(TextPolicy(base), TextModelCard("verdict", "evaluate_this_step", "bce"))


# Chat templates.


def test_a_study_names_the_template_as_text_or_as_a_file(tmp_path):
    folder, template = save("gpt2", tmp_path / "gpt2")
    messages = [{"role": "user", "content": "3+5=?"}]
    with refuses("policy.chat_template", "the tokenizer has no chat template"):
        prompt_ids(load_policy(settings(tiny=None, path=str(folder)), seed=0).tokenizer, messages)
    found = [
        prompt_ids(load_policy(settings(tiny=None, path=str(folder), chat_template=given), seed=0).tokenizer, messages)
        for given in (str(template), CHAT_TEMPLATE)
    ]
    assert found[0].tolist() == found[1].tolist() == prompt_ids(build("gpt2")[1], messages).tolist()
    with refuses("policy.chat_template", "neither a template nor a file"):
        load_policy(settings(tiny=None, path=str(folder), chat_template=str(tmp_path / "nowhere.jinja")), seed=0)


# Commands.


def lessons():
    """Labelled solutions of sums in two steps, some of them wrong."""
    for a in range(1, 5):
        for b in range(1, 5):
            for slip in (0, 1):
                first = a + b + slip
                steps = (f"{a}+{b}={first};", f"{first}+1={first + 1};")
                yield Solution(
                    id=f"{a}{b}{slip}", question=f"{a}+{b}+1=?", steps=steps, labels=(1.0 - slip, 1.0 - slip),
                    is_correct=not slip, separator=";",
                )  # fmt: skip


@contextmanager
def served(path):
    """A client of the server's application with a model from a folder."""
    given = ServeSettings(models={"rm": {"model_path": path}})
    engine = ServedModels({"rm": model_loader("rm", given.models["rm"])}, default=None, batch=given.batch,
                          limits=given.limits)  # fmt: skip
    with TestClient(build_app(engine, given), base_url="http://localhost") as client:
        yield client


def sums(folder):
    """Prompts of one-digit sums with worked solutions."""
    rows = [{"question": f"{a}+{b}=?", "answer": str(a + b), "solution": f"{a}+{b}={a + b};"}
            for a in range(1, 5) for b in range(1, 5)]  # fmt: skip
    (folder / "sums.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "sums.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_goes_through_every_command(family, tmp_path):
    """`train policy=sft`, `train` of step and outcome models, `run` with LoRA and PRIME, `serve`."""
    folder, template = save(family, tmp_path / family)
    named = {} if template is None else {"chat_template": str(template)}
    common = {"max_steps": 2, "batch_size": 4, "learning_rate": 1e-3, "bf16": False, "lr_scheduler": "constant"}
    model = {**common, **named, "path": str(folder), "data_path": str(tmp_path / "steps.jsonl")}
    write_solutions(tmp_path / "steps.jsonl", lessons(), "seed")
    study = {
        "policy": {"type": "text", "path": str(folder), "bf16": False, **named},
        "data": {"type": "files", "train_files": sums(tmp_path), "val_size": 2, "verifier": "exact",
                 "unparsable": "wrong", "max_response_length": WINDOW + 4, "train_batch_size": 2, "n_samples": 4,
                 "filter_accuracy": False, "filter_truncated": False},
        "sft": {"save_dir": str(tmp_path / "sft"), **{k: v for k, v in common.items() if k != "bf16"}},
        "train": {
            "step": {**model, "type": "stepwise", "save_dir": str(tmp_path / "step")},
            "outcome": {**model, "type": "outcome", "save_dir": str(tmp_path / "outcome"), "lora": {"r": 2}},
        },
        "algorithm": {"learning_rate": 1e-3},
        "runner": {"total_steps": 16, "eval_episodes": 2, "eval_every": 16, "checkpoint_every": 16,
                   "logger": {"log_path": str(tmp_path), "experiment_name": "run", "tensorboard": False}},
        "reward_model": {"mini_batch_size": 8, "micro_batch_size": 4, "prime_model": {"optim": {"lr": 1e-3}}},
    }  # fmt: skip
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))

    def call(*words):
        result = CliRunner().invoke(app, [words[0], str(tmp_path / "study.yaml"), *words[1:]])
        assert result.exit_code == 0, result.output + repr(result.exception)

    call("train", "policy=sft")
    call("train")
    call("run", f"policy.path={tmp_path / 'sft' / 'model'}", "policy.chat_template=null", "policy.lora.r=2")
    tuned = load_policy(settings(tiny=None, path=str(tmp_path / "sft" / "model")), seed=0)
    with torch.no_grad():
        found = tuned.log_probs(APART)
    np.testing.assert_allclose(found, oracle(tuned.base.model, APART)[0], atol=EXACT)
    for name in ("step", "outcome"):
        path = str(tmp_path / name / "final_checkpoint")
        here = load_text_model(path).score(EPISODES)
        with served(path) as client:
            items = [{"prompt": e.task, "steps": list(e.texts)} for e in EPISODES]
            reply = client.post("/v1/rewards", json={"items": items})
        assert reply.status_code == 200, reply.text
        for result, score in zip(reply.json()["results"], here, strict=True):
            wanted = score.steps.tolist() if name == "step" else [score.total]
            found = result["step_scores"] if name == "step" else [result["score"]]
            assert found == pytest.approx(wanted, abs=EXACT)
