import json
import math
import shutil
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from guerdon.compute.finite import first_non_finite
from guerdon.config.loading import load
from guerdon.errors import CheckpointError, ConfigError, DataError, NonFiniteError
from guerdon.policies.batches.tokens import prompt_ids, response_texts
from guerdon.policies.language.generate import LocalEngine
from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text_files import load_policy, read_model
from guerdon.policies.language.tiny_text import build_tokenizer
from guerdon.settings.study import Study
from guerdon.settings.text_policy import LocalGenerationSettings, LoraSettings, TextPolicySettings, TinyModelSettings
from guerdon.settings.train import SFTSettings
from guerdon.train import sft
from guerdon.train.sft import (
    ResponseTrainer,
    check_sft,
    split_by_prompt,
    tokenize_pairs,
    train_sft,
    train_sft_study,
    turns_of,
)

sys.path.insert(0, str(Path(__file__).parents[1] / "policies"))
from architectures import build

from tables import first

torch.set_num_threads(1)


def sum_pair(a, b):
    return [{"role": "user", "content": f"{a}+{b}=?"}], f"{a}+{b}={a + b};"


SUMS = [sum_pair(a, b) for a in range(6) for b in range(6)]
TINY = TinyModelSettings(alphabet="0123456789+=?;", hidden_size=32, layers=1, heads=2, intermediate=64)
POLICY = TextPolicySettings(tiny=TINY, bf16=False)


def settings_for(folder, **options):
    usual = {"max_steps": 12, "batch_size": 8, "learning_rate": 3e-3, "val_split": 0.2, "eval_every": 4, "log_every": 1}
    return SFTSettings(save_dir=str(folder), **(usual | options))


def weights(folder):
    return dict(read_model(str(folder))[0].named_parameters())


def assert_same_weights(a, b):
    a, b = weights(a), weights(b)
    assert a.keys() == b.keys()
    assert all(torch.equal(a[name], b[name]) for name in a)


def mean_loss(folder, pairs):
    """Nats per response token, end-of-sequence token included, from the whole model's logits."""
    policy = load_policy(TextPolicySettings(path=str(folder), bf16=False), seed=0)
    tokens = tokenize_pairs(policy.tokenizer, pairs, None)
    total = count = 0
    for prompt, response in zip(tokens.prompts, tokens.responses, strict=True):
        ids = torch.from_numpy(np.concatenate([prompt, response]))
        with torch.no_grad():
            logits = policy.base.model(ids[None].to(policy.device)).logits[0].cpu()
        table = torch.log_softmax(logits[len(prompt) - 1 : -1].double(), -1)
        total -= float(table.gather(1, torch.from_numpy(response)[:, None]).sum())
        count += len(response)
    return total / count


def test_it_learns_what_it_is_shown_and_when_to_stop(tmp_path):
    few = SUMS[:8]
    folder, metrics = train_sft(
        few, settings_for(tmp_path, max_steps=160, val_split=0.0, learning_rate=1e-2, lr_scheduler="linear"), POLICY
    )
    assert metrics["val_loss"] is None
    assert metrics["train_loss"] < 0.1
    assert (metrics["pairs"], metrics["val_pairs"], metrics["steps"]) == (8, 0, 160)
    assert metrics["response_tokens"] == sum(len(text) + 1 for _, text in few)
    policy = load_policy(TextPolicySettings(path=str(folder)), seed=0)
    prompts = [prompt_ids(policy.tokenizer, messages) for messages, _ in few]
    found = LocalEngine(policy, LocalGenerationSettings()).generate(prompts, 1, max_new_tokens=12, greedy=True)
    assert response_texts(policy.tokenizer, found.batch) == [text for _, text in few]
    assert found.batch.finished_B.all()
    assert not (tmp_path / "trainer").exists()


def test_the_losses_are_means_over_response_tokens_only(tmp_path):
    policy = load_policy(POLICY, seed=0)
    tokens = tokenize_pairs(policy.tokenizer, SUMS, None)
    train, val = split_by_prompt(tokens, 0.2, 0)
    trainer = ResponseTrainer(policy, tokens, train, val, settings_for(tmp_path, batch_size=len(train)), tmp_path)
    rows = {"rows": torch.from_numpy(train)}
    policy.base.model.save_pretrained(tmp_path / "start")
    policy.tokenizer.save_pretrained(tmp_path / "start")
    expected = mean_loss(tmp_path / "start", [SUMS[i] for i in train])
    gradients = []
    for micro, tokens_per_pass in ((len(train), None), (4, None), (len(train), 40)):
        trainer._micro, trainer._most = micro, tokens_per_pass
        policy.base.model.zero_grad()
        assert float(trainer.training_step(trainer.model, rows)) == pytest.approx(expected, rel=1e-5)
        gradients.append([p.grad.clone() for p in policy.parameters()])
    for whole, *cut in zip(*gradients, strict=True):
        for gradient in cut:
            torch.testing.assert_close(whole, gradient, atol=1e-6, rtol=1e-4)
    assert len(trainer.parts(train.tolist())) > 1
    held_out = mean_loss(tmp_path / "start", [SUMS[i] for i in val])
    assert trainer.evaluate()["eval_loss"] == pytest.approx(held_out, rel=1e-5)


def test_the_best_weights_are_kept(tmp_path):
    folder, metrics = train_sft(SUMS, settings_for(tmp_path), POLICY)
    tokens = tokenize_pairs(load_policy(POLICY, seed=0).tokenizer, SUMS, None)
    _, val = split_by_prompt(tokens, 0.2, 0)
    assert mean_loss(folder, [SUMS[i] for i in val]) == pytest.approx(metrics["val_loss"], rel=1e-5)
    assert metrics["val_loss"] < math.log(20)
    assert metrics["best_step"] in (4, 8, 12)
    assert json.loads((tmp_path / "metrics.json").read_text()) == metrics


@pytest.mark.parametrize(("key", "drawn"), [(None, True), (True, True), (False, False)])
def test_dropout_is_drawn_unless_a_key_forbids_it(tmp_path, monkeypatch, key, drawn):
    seen, step = [], ResponseTrainer.training_step
    monkeypatch.setattr(ResponseTrainer, "training_step", lambda s, *a, **k: (step(s, *a, **k), seen.append(
        s.model.model.training))[0])  # fmt: skip
    train_sft(SUMS, settings_for(tmp_path, max_steps=2), POLICY.model_copy(update={"dropout": key}))
    assert seen == [drawn, drawn]


def test_no_question_is_on_both_sides():
    doubled = [*SUMS, *((messages, "0") for messages, _ in SUMS)]
    tokens = tokenize_pairs(load_policy(POLICY, seed=0).tokenizer, doubled, None)
    train, val = split_by_prompt(tokens, 0.25, seed=3)
    names = [tuple(p) for p in tokens.prompts]
    assert sorted([*train, *val]) == list(range(len(doubled)))
    assert len(val) == 18
    assert not {names[i] for i in train} & {names[i] for i in val}
    again = split_by_prompt(tokens, 0.25, seed=3)
    np.testing.assert_array_equal(val, again[1])
    assert not np.array_equal(val, split_by_prompt(tokens, 0.25, seed=4)[1])
    with pytest.raises(DataError, match="val_split: 0"):
        split_by_prompt(tokenize_pairs(load_policy(POLICY, seed=0).tokenizer, SUMS[:1], None), 0.1, 0)


def test_long_pairs_are_left_out_and_counted():
    tokenizer = load_policy(POLICY, seed=0).tokenizer
    pairs = [SUMS[0], ([{"role": "user", "content": "1+1=?" * 4}], "2;")]
    tokens = tokenize_pairs(tokenizer, pairs, 20)
    assert (len(tokens.prompts), tokens.left_out) == (1, 1)
    with pytest.raises(DataError, match="longer than 4 tokens"):
        tokenize_pairs(tokenizer, pairs, 4)
    with pytest.raises(DataError, match="solutions"):
        tokenize_pairs(tokenizer, [], None)


@pytest.mark.parametrize(
    "family", ["llama_tied", *(pytest.param(one, marks=pytest.mark.slow) for one in ("qwen3_moe", "gpt2"))]
)
@pytest.mark.parametrize("target", first(["all-linear", ("lm_head",), ("embed_tokens", "wte", "lm_head")], 2), ids=str)
def test_the_folder_has_the_loss_that_was_reported(tmp_path, family, target):
    tokenizer = build_tokenizer(TINY)
    for part in build(family, tokenizer=tokenizer):
        part.save_pretrained(tmp_path / "start")
    policy = TextPolicySettings(
        path=str(tmp_path / "start"), bf16=False, lora=LoraSettings(r=2, alpha=8, target_modules=target)
    )
    folder, metrics = train_sft(SUMS, settings_for(tmp_path / "sft", learning_rate=3e-2), policy)
    _, val = split_by_prompt(tokenize_pairs(tokenizer, SUMS, None), 0.2, 0)
    held = [SUMS[i] for i in val]
    assert mean_loss(folder, held) == pytest.approx(metrics["val_loss"], abs=1e-5)
    assert mean_loss(tmp_path / "start", held) > metrics["val_loss"] + 0.1


def test_a_folder_that_cannot_be_read_leaves_the_checkpoint(tmp_path, monkeypatch):
    policy = POLICY.model_copy(update={"lora": LoraSettings(r=2)})
    whole, stored = train_sft(SUMS, settings_for(tmp_path / "whole"), policy)[0], SharedBase.stored
    lacking = lambda *given: {name: w for name, w in stored(*given).items() if "up_proj" not in name}  # noqa: E731
    monkeypatch.setattr(SharedBase, "stored", lacking)
    with pytest.raises(CheckpointError, match=r"cannot be read back|not the model"):
        train_sft(SUMS, settings_for(tmp_path / "cut"), policy)
    assert sorted(p.name for p in (tmp_path / "cut").iterdir()) == ["trainer", "training.json"]
    monkeypatch.setattr(SharedBase, "stored", stored)
    monkeypatch.setattr(ResponseTrainer, "training_step", lambda *_, **__: pytest.fail("trained again"))
    assert_same_weights(train_sft(SUMS, settings_for(tmp_path / "cut", resume=True), policy)[0], whole)


@pytest.mark.parametrize("lora", [None, LoraSettings(r=2)])
def test_a_full_disk_is_found_out_before_training(tmp_path, monkeypatch, lora):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    monkeypatch.setattr(ResponseTrainer, "training_step", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(ConfigError, match=r"the model in float32 .*a checkpoint.*free some space"):
        train_sft(SUMS, settings_for(tmp_path / "sft"), POLICY.model_copy(update={"lora": lora}))
    assert not (tmp_path / "sft").exists()


class Killed(BaseException):
    pass


@pytest.mark.parametrize("lora", first([LoraSettings(r=2, dropout=0.1), None], 1))
def test_killed_and_resumed_it_gives_the_same_weights(tmp_path, monkeypatch, lora):
    policy = POLICY.model_copy(update={"lora": lora})
    whole, metrics = train_sft(SUMS, settings_for(tmp_path / "whole"), policy)
    step = ResponseTrainer.training_step
    steps = []

    def killed_at_seven(self, *args, **options):
        steps.append(None)
        if len(steps) == 7:
            raise Killed
        return step(self, *args, **options)

    settings = settings_for(tmp_path / "cut", resume=True)
    monkeypatch.setattr(ResponseTrainer, "training_step", killed_at_seven)
    with pytest.raises(Killed):
        train_sft(SUMS, settings, policy)
    half = tmp_path / "cut" / "trainer" / "checkpoint-8"  # cut off while it was written
    shutil.copytree(tmp_path / "cut" / "trainer" / "checkpoint-4", half)
    (half / "complete").unlink()
    (half / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr(ResponseTrainer, "training_step", step)
    resumed, again = train_sft(SUMS, settings, policy)
    assert_same_weights(whole, resumed)
    assert again["val_loss"] == metrics["val_loss"]
    monkeypatch.setattr(ResponseTrainer, "training_step", lambda *_, **__: pytest.fail("trained again"))
    assert train_sft(SUMS, settings, policy) == (resumed, again)  # finished: nothing to do
    with pytest.raises(ConfigError, match="already holds a training; go on with it by --resume"):
        train_sft(SUMS, settings.model_copy(update={"resume": False}), policy)
    assert_same_weights(whole, resumed)
    with pytest.raises(ConfigError, match="other data"):
        train_sft(SUMS[:20], settings, policy)
    with pytest.raises(ConfigError, match="other settings"):
        train_sft(SUMS, settings.model_copy(update={"learning_rate": 1e-4}), policy)


def test_adapters_are_merged_into_a_model_that_stands_by_itself(tmp_path):
    start, _ = train_sft(SUMS, settings_for(tmp_path / "start", max_steps=2), POLICY)
    policy = TextPolicySettings(path=str(start), lora=LoraSettings(r=2), bf16=False, use_remove_padding=True)
    folder, _ = train_sft(SUMS, settings_for(tmp_path / "tuned", max_steps=4, learning_rate=0.05), policy)
    before, after = weights(start), weights(folder)
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all("proj" in name for name in moved)  # embeddings and norms stay frozen


@pytest.mark.parametrize("steps", first([1, 4], 1))
@pytest.mark.parametrize("lora", [None, LoraSettings(r=2, alpha=4)], ids=["whole", "lora"])
def test_a_training_that_diverges_writes_no_weights(lora, steps, tmp_path):
    policy = POLICY.model_copy(update={"lora": lora})
    with pytest.raises(NonFiniteError, match=r"not finite|loss is nan|loss is inf") as caught:
        train_sft(SUMS, settings_for(tmp_path, max_steps=steps, eval_every=1, learning_rate=1e30), policy)
    assert caught.value.exit_code == 3
    stored = [load_file(file) for file in tmp_path.rglob("*.safetensors")]
    assert first_non_finite(pair for tensors in stored for pair in tensors.items()) is None
    assert not (tmp_path / "model").exists()


def test_a_model_whose_weights_are_not_finite_is_not_read(tmp_path):
    folder, _ = train_sft(SUMS, settings_for(tmp_path, max_steps=1, eval_every=1), POLICY)
    (folder / "COMPLETE").unlink()  # as a folder of somebody else
    tensors = load_file(folder / "model.safetensors")
    next(iter(tensors.values())).view(-1)[0] = float("inf")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="not finite"):
        load_policy(TextPolicySettings(path=str(folder), bf16=False), seed=0)


def test_what_the_columns_were_taken_for_is_kept(tmp_path):
    (tmp_path / "sums.csv").write_text("frage,antwort\n" + "".join(f"{a}+1=?,{a + 1}\n" for a in range(8)))
    study = load(
        Study,
        None,
        [
            "data.type=files", f"data.train_files={tmp_path / 'sums.csv'}", "data.val_size=2", "data.verifier=exact",
            "data.columns={prompt: frage, solution: antwort, reference: antwort}", f"sft.save_dir={tmp_path / 'sft'}",
            "sft.max_steps=2", "sft.val_split=0", "policy.type=text", "policy.bf16=false",
            f"policy.tiny={json.dumps(TINY.model_dump())}",
        ],
    )  # fmt: skip
    train_sft_study(study, resume=False)
    kept = json.loads((tmp_path / "sft" / "metrics.json").read_text())
    assert kept["columns"] == {"prompt": "frage", "solution": "antwort", "reference": "antwort"}
    assert [one["used"] for one in kept["read_as"]] == [8]
    sources = {one["column"]: one["from"] for one in kept["read_as"][0]["columns"]}
    assert sources == {"frage": "given", "antwort": "given"}


CALL = {"id": "c0", "type": "function", "function": {"name": "add", "arguments": {"a": 1, "b": 2}}}


def called(k):
    """A row whose problem is solved by one call."""
    return {
        "messages": [
            {"role": "user", "content": f"{k}+2=?"}, {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "3", "tool_call_id": "c0", "name": "add"},
            {"role": "assistant", "content": f"It is {k}"},
        ],
        "reference": f"{k}",
    }  # fmt: skip


def call_study(folder, rows, **given):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Study.model_validate(
        {
            "policy": {"type": "text", "tiny": {"hidden_size": 16, "layers": 1, "heads": 2, "tokenizer": "bytes"},
                       "bf16": False},
            "data": {"type": "files", "train_files": str(folder / "rows.jsonl"), "val_size": 1, "verifier": "exact"},
            "agent": {"type": "tools", "tools": ["agent_functions:add"]}, "algorithm": {"adv_estimator": "rloo"},
            "sft": {"save_dir": str(folder / "sft"), "max_steps": 2, "batch_size": 4, "val_split": 0.4, **given},
        }
    )  # fmt: skip


def test_each_turn_of_a_conversation_with_calls_is_a_row(tmp_path, monkeypatch):
    monkeypatch.setattr(sft, "train_sft", lambda pairs, *rest, **more: pairs)
    rows = [called(k) for k in range(4)] + [{"prompt": "9", "reference": "9", "solution": "9"}]
    pairs = train_sft_study(call_study(tmp_path, rows), resume=False)
    roles = [[m["role"] for m in pair.messages] for pair in pairs]
    assert (roles.count(["user"]), roles.count(["user", "assistant", "tool"])) == (4, 3)
    tokenizer = load_policy(call_study(tmp_path, rows).text_policy, seed=0).tokenizer
    tokens = tokenize_pairs(tokenizer, pairs, None)
    prompts = [tokenizer.decode(ids.tolist()) for ids in tokens.prompts]
    assert all('"name": "add"' in text for text in prompts)  # the tools of the agent, as in the run
    said = {tokenizer.decode(ids.tolist()).removesuffix(tokenizer.eos_token).strip() for ids in tokens.responses}
    assert '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>' in said
    assert "It is 1" in said
    train, val = split_by_prompt(tokens, 0.4, 0)
    assert len(val)
    assert not {tokens.names[i] for i in train} & {tokens.names[i] for i in val}
    asked = [pair.messages[0]["content"] for pair in pairs]
    assert not {asked[i] for i in train} & {asked[i] for i in val}


def test_the_turns_of_a_completion_are_learned_and_those_of_its_prompt_are_not(tmp_path, monkeypatch):
    """TRL's prompt and completion, as messages or texts; no true answer is needed to imitate."""
    monkeypatch.setattr(sft, "train_sft", lambda pairs, *rest, **more: pairs)
    rows = []
    for k in range(4):
        messages = called(k)["messages"]
        rows.append({"prompt": messages[:1], "completion": messages[1:]})
        rows.append({"prompt": [*messages[:3], {"role": "user", "content": f"sure, {k}?"}], "completion": messages[3:]})
    pairs = train_sft_study(call_study(tmp_path, rows), resume=False)
    found = Counter((len(pair.messages), bool(pair.reply.get("tool_calls"))) for pair in pairs)
    assert found in ({(1, True): 4, (3, False): 4, (4, False): 3}, {(1, True): 3, (3, False): 3, (4, False): 4})
    texts = [{"prompt": f"{k}?", "completion": f"{k}."} for k in range(4)]
    pairs = train_sft_study(call_study(tmp_path, texts), resume=False)
    assert [(pair.messages[-1]["content"], pair.reply["content"]) for pair in pairs] == [
        (f"{k}?", f"{k}.") for k in (int(pair.reply["content"][0]) for pair in pairs)
    ]
    assert len(pairs) == 3


def test_rows_without_a_solution_are_counted(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sft, "train_sft", lambda pairs, *rest, **more: pairs)
    rows = [called(k) for k in range(4)] + [{"prompt": f"{k}", "reference": "9"} for k in range(5)]
    train_sft_study(call_study(tmp_path, rows), resume=False)
    assert "training prompts have no worked solution and are left out" in capsys.readouterr().err


@pytest.mark.parametrize("judged", [{"reward": 0.5}, {"correct": False}, {"label": True}, {"advantage": 0.1}], ids=str)
def test_completions_that_something_judges_are_not_imitated(judged, tmp_path):
    rows = [{"prompt": f"{k}?", "completion": f"{k}.", **judged} for k in range(4)]
    with pytest.raises(DataError, match="worked solution"):
        train_sft_study(call_study(tmp_path, rows), resume=False)


def test_a_policy_learns_to_call(tmp_path):
    study = call_study(tmp_path, [called(k) for k in range(4)], max_steps=30, val_split=0.0, learning_rate=0.02)
    check_sft(study)
    _, metrics = train_sft_study(study, resume=False)
    assert metrics["pairs"] == 6
    assert metrics["train_loss"] < 1.0  # nats per token; at the start that of a uniform choice, above 5


def test_worked_examples_before_a_conversation_are_not_learned():
    shown = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "one"}]
    own = called(3)["messages"][:3]
    turns = turns_of([*shown, *own], "three", (), own=3)
    assert [turn.reply["content"] for turn in turns] == ["", "three"]
    assert all(len(turn.begun) == 3 for turn in turns)
    assert [turn.reply["content"] for turn in turns_of(shown, "two", ())] == ["one", "two"]
