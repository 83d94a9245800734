"""Estimates of memory against what tiny runs hold, alone and as one of two processes, counted by storage."""

import json

import pytest
import test_vla_pi0 as pi0
import torch

from guerdon.plan import gpu
from guerdon.plan.gpu import GATHERED, decision_bytes, update_memory, vla_state
from guerdon.plan.text_size import Shape
from guerdon.settings.vla_policy import VLAPolicySettings
from learners import TESTS, run_together
from sharded_steps import ROWS, main

torch.set_num_threads(1)

LENGTH, LAYERS, RANK = 32, 6, 4
WIDE = {"hidden_size": 64, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 352}  # fmt: skip
TEXT = {"family": "qwen2", "changes": WIDE, "bf16": True, "length": LENGTH, "steps": 1, "attention": "sdpa",
        "share_prompts": False}  # fmt: skip
LANGUAGE = {"all": {}, "lora": {"lora": {"r": RANK}}, "checkpointed": {"gradient_checkpointing": True}}
MADE = {"tiny": {"hidden_size": 64, "layers": LAYERS, "heads": 4, "words": 48, "vision": "vit", "n_action_bins": 16}}
LORA = {"use_lora": True, "lora_rank": RANK}
ROBOTS = {"vla": {}, "vla_checkpointed": {"gradient_checkpointing": True}, "vla_lora": LORA, "pi0_lora": LORA}
SHAPE = Shape(64, LAYERS, 352, 64, 32, 103, False)  # of a Qwen2 with the tokenizer's words
SEES = Shape(64, LAYERS, 128, 64, 64, 64, False)  # of a VLA's language part
SEEN = 1 + 4 + 3 + 6  # tokens of a decision: the first, patches of 8 in 16 pixels, the sentence, 3 actions of 2


def facts(folder, count):
    """What every process of a training held."""
    trainings = [[name, "text", {**TEXT, **more}] for name, more in LANGUAGE.items()]
    read = {"folder": str(folder), "vla_path": str(pi0.lerobot(folder / "pi0", "pi0")), "num_steps": 1}
    pi0.tokenizer(folder)
    trainings += [[name, "vla", {**(read if name == "pi0_lora" else MADE), "bf16": True, "steps": 1, **more}]
                  for name, more in ROBOTS.items()]  # fmt: skip
    if count == 1:
        main(folder / "out", trainings)
    else:
        run_together(TESTS / "sharded_steps.py", folder / "out", json.dumps(trainings), count=count)
    return {
        name: [json.loads((folder / "out" / f"{name}_{rank}.json").read_text()) for rank in range(count)]
        for name, *_ in trainings
    }


def check(found, count, monkeypatch):
    """Weights, gradients and moments within 5 %, activations within 25 %, at most what is gathered on top of them."""
    rows, cases = ROWS // count, []
    for name, more in LANGUAGE.items():
        parts = update_memory(
            SHAPE, rank=RANK if "lora" in more else None, tokens=rows * LENGTH, answered=rows * LENGTH // 2,
            checkpointing="gradient_checkpointing" in more, halved=False, processes=count,
        )  # fmt: skip
        state = parts["weights"] + parts["gradients"] + parts["Adam"]
        cases.append((name, state, parts.get(GATHERED, 0.0), parts["activations"]))
    monkeypatch.setitem(gpu.TOWERS, "token", ((32, 64, 2, 9), (32, 64, 2, 4)))  # nothing of the third block is used
    for name, more in ROBOTS.items():
        own, policy = found[name][0], VLAPolicySettings(tiny={}, **({"use_lora": False} | more))
        p = own["parameters"] - own["trained"] * policy.use_lora
        parts = vla_state(policy, SEES, p, own["trained"], count)
        gathered = parts.get(GATHERED, 0.0)
        kept = None if name in ("vla_checkpointed", "pi0_lora") else rows * decision_bytes(policy, SEES, SEEN)
        float32 = name == "vla_lora"  # made in code: only what is read is kept in bfloat16
        state = None if float32 else parts["weights, gradients and moments"]
        cases.append((name, state, gathered, kept))
    for own in found["vla_checkpointed"]:
        assert own["kept"] < found["vla"][0]["kept"] / 4
    for name, state, gathered, kept in cases:
        for own in found[name]:
            if state is not None:
                assert own["resting"] == pytest.approx(state, rel=0.05), name
                assert own["held"] < 1.05 * (state + gathered), name
            if kept is not None:
                assert own["kept"] == pytest.approx(kept, rel=0.25), name


def test_one_process_holds_what_is_estimated(tmp_path, monkeypatch):
    pi0.shrink(monkeypatch)  # which a training does, too, and this takes back
    check(facts(tmp_path, 1), 1, monkeypatch)


@pytest.mark.slow
def test_each_of_two_processes_holds_what_is_estimated(tmp_path, monkeypatch):
    check(facts(tmp_path, 2), 2, monkeypatch)
