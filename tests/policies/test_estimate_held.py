"""Estimates of memory against what tiny runs hold, alone and as one of two processes, counted by storage."""

import json

import pytest
import test_vla_checkpoints as checkpoints
import test_vla_pi0 as pi0
import torch

from guerdon.plan import gpu
from guerdon.plan.gpu import GATHERED, decision_bytes, update_memory, vla_state
from guerdon.plan.text_size import Shape
from guerdon.policies.vla import published, published_pi0
from guerdon.policies.vla.smolvla import ExpertSize, SmolVLANetwork
from guerdon.settings.vla_policy import VLAPolicySettings
from learners import TESTS, run_together
from sharded_steps import GEMMAS, LAYERS, ROWS, SIGLIP, main, widen

torch.set_num_threads(1)

LENGTH, RANK = 32, 4
WIDE = {"hidden_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 352}  # fmt: skip
TEXT = {"family": "qwen2", "changes": WIDE, "bf16": True, "length": LENGTH, "steps": 1, "attention": "sdpa",
        "share_prompts": False}  # fmt: skip
LANGUAGE = {"all": {}, "lora": {"lora": {"r": RANK}}, "checkpointed": {"gradient_checkpointing": True}}
SHAPE = Shape(64, 6, 352, 64, 32, 103, False)  # of a Qwen2 with the tokenizer's words

TINY = {"hidden_size": 64, "layers": LAYERS, "heads": 4, "words": 48, "vision": "vit"}
FLOW = {"family": "flow", "num_steps": 3}
LORA, AGAIN = {"use_lora": True, "lora_rank": RANK}, {"gradient_checkpointing": True}
ROBOTS = {  # by name: a kind, and what is trained
    "made": {}, "oft_lora": LORA, "pi0_lora": LORA, "smolvla_lora_again": LORA | AGAIN, "flow": {}, "oft_again": AGAIN,
    "oft_lora_again": LORA | AGAIN, "pi0": {}, "pi0_again": AGAIN, "pi0_lora_again": LORA | AGAIN, "pi05": {},
    "pi05_lora": LORA, "pi05_lora_again": LORA | AGAIN, "flow_again": AGAIN,
    "smolvla": {}, "smolvla_lora": LORA, "smolvla_again": AGAIN,
    "smolvla-expert": {}, "smolvla-expert_again": AGAIN, "smolvla-expert_lora": LORA, "smolvla-tower": {},
    "pi0-expert": {}, "pi0-tower": {},
}  # fmt: skip
QUICK, TOGETHER = list(ROBOTS)[:3], [*list(ROBOTS)[:4], "smolvla-expert"]
FROZEN = {  # what a checkpoint freezes
    "": {"freeze_vision_encoder": False, "train_expert_only": False},
    "tower": {"freeze_vision_encoder": True, "train_expert_only": False},
    "expert": {"freeze_vision_encoder": True, "train_expert_only": True},
}
LLAMA = {
    "model_type": "llama", "vocab_size": checkpoints.VOCABULARY + checkpoints.PADDING, "hidden_size": 128,
    "intermediate_size": 352, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "pad_token_id": 0,
}  # fmt: skip
SMOL = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": LAYERS, "head_dim": 16,
        "num_attention_heads": 4, "num_key_value_heads": 2}  # fmt: skip
TWO = ((32, 64, 2, 9), (32, 64, 2, 4))  # of models made in code; nothing of the third block is used
ONE = ((*(SIGLIP[key] for key in ("hidden_size", "intermediate_size", "num_hidden_layers")), 16),)
READS, ACTS = (Shape(*GEMMAS[name][:3], 64, 16, 64, True) for name in ("gemma_2b", "gemma_300m"))
SEES = {  # the language part, tokens of a decision, towers, the expert
    # the first token, patches of 8 in 16 pixels, the sentence, 3 actions of 2
    "made": (Shape(64, LAYERS, 128, 64, 64, 64, False), 1 + 4 + 3 + 6, {"token": TWO}, {}),
    # the first token, patches of 4 in 16 pixels, the prompt, 3 actions of 3
    "oft": (Shape(128, LAYERS, 352, 128, 128, 384, False), 1 + 16 + 13 + 9,
            {"token": ((32, 64, 3, 21), (32, 64, 3, 16))}, {}),
    # patches, the sentence
    "flow": (Shape(64, LAYERS, 128, 64, 64, 48, True), 4 + 3, {"flow": TWO},
             {"flow": Shape(64, LAYERS, 256, 64, 64, 0, True)}),
    # a quarter of the patches of 4 in 32 pixels, the sentence, the state
    "smolvla": (Shape(64, LAYERS, 256, 64, 32, 40, True), 16 + 4 + 1, {"flow": ((64, 256, 4, 64),)},
                {"flow": Shape(48, LAYERS, 256, 64, 32, 0, True)}),
    # patches of two pictures, the sentence
    "pi0": (READS, 2 * 16 + 4, {"pi0": ONE}, {"pi0": ACTS}),
    "pi05": (READS, 2 * 16 + 4, {"pi0": ONE}, {"pi0": ACTS}),
}  # fmt: skip


def kind_of(name):
    return name.partition("_")[0].partition("-")[0]


def settings(folder, name):
    """The `policy` section; a checkpoint is written with random weights where it is not there."""
    kind, path = kind_of(name), folder / name.partition("_")[0]
    frozen = FROZEN[path.name.partition("-")[2]]
    if kind in ("made", "flow"):
        return {"tiny": TINY | ({} if kind == "flow" else {"n_action_bins": 16}), **(FLOW if kind == "flow" else {}),
                "num_action_chunks": 3, **ROBOTS[name]}  # fmt: skip
    if kind == "oft":
        if not path.exists():
            shapes = checkpoints.openvla_shapes(128, 352, LAYERS, ((32, 64, 16, 4), (32, 64, 16, 4)))
            checkpoints.write_openvla(
                path, checkpoints.filled(shapes), image_sizes=[16, 16], n_action_bins=16, text_config=LLAMA
            )
        return {"vla_path": str(path), "num_action_chunks": 3, **ROBOTS[name]}
    if kind == "smolvla":
        if not path.exists():
            write_smolvla(folder, path, **frozen)
        return {"vla_path": str(path), "vlm_path": str(folder / "vlm"), "use_proprio": True, "num_action_chunks": 3,
                **FLOW, **ROBOTS[name]}  # fmt: skip
    if not path.exists():
        form = published_pi0.Pi0Config if kind == "pi0" else published_pi0.Pi05Config
        config = form.model_validate(pi0.REFERENCE[kind]["config"])
        own = published_pi0._network(path, config, READS.vocabulary, 3, adaptive=kind == "pi05").state_dict()
        tensors = checkpoints.filled({name: tensor.shape for name, tensor in own.items()})
        pi0.lerobot(path, kind, tensors=tensors, **frozen)
    return {"vla_path": str(path), "vlm_path": pi0.tokenizer(folder), "num_images_in_input": 2, **FLOW, **ROBOTS[name]}


def write_smolvla(folder, path, **frozen):
    """Its files have the names of the network."""
    from transformers.models.smolvlm.modeling_smolvlm import SmolVLMConnector, SmolVLMVisionTransformer

    tower = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4}
    vlm = published._vlm_config(
        str(checkpoints.write_vlm(folder / "vlm", text=SMOL, vision={**tower, "image_size": 32}))
    )
    see = published._SmolVLMEyes(SmolVLMVisionTransformer(vlm.vision_config), SmolVLMConnector(vlm))
    network = SmolVLANetwork(see, vlm.text_config, ExpertSize(), image_size=32, proprio_size=3)
    checkpoints.write_smolvla(
        path, network.state_dict(), num_vlm_layers=LAYERS, resize_imgs_with_padding=[32, 32], **frozen
    )


def facts(folder, count, language, robots):
    """What every process of a training held."""
    trainings = [[name, "text", {**TEXT, **LANGUAGE[name]}] for name in language]
    for name in robots:
        more = {"pi0": {"folder": str(folder)}, "pi05": {"folder": str(folder)}, "smolvla": {"measured": 3}}
        more = {"wide": True, **more.get(kind_of(name), {})} if kind_of(name) not in ("made", "flow") else {}
        trainings.append([name, "vla", {**settings(folder, name), "bf16": True, "steps": 1, **more}])
    if count == 1:
        main(folder / "out", trainings)
    else:
        run_together(TESTS / "sharded_steps.py", folder / "out", json.dumps(trainings), count=count)
    return {
        name: [json.loads((folder / "out" / f"{name}_{rank}.json").read_text()) for rank in range(count)]
        for name, *_ in trainings
    }


def check(folder, count, monkeypatch, language, robots):
    """Weights, gradients and moments within 5 %, activations within 25 %, at most what is gathered on top of them."""
    widen(monkeypatch)  # which a training does, too, and this takes back
    found, rows, cases = facts(folder, count, language, robots), ROWS // count, []
    for name in language:
        more = LANGUAGE[name]
        parts = update_memory(
            SHAPE, rank=RANK if "lora" in more else None, tokens=rows * LENGTH, answered=rows * LENGTH // 2,
            checkpointing="gradient_checkpointing" in more, halved=False, processes=count,
        )  # fmt: skip
        state = parts["weights"] + parts["gradients"] + parts["Adam"]
        cases.append((name, state, parts.get(GATHERED, 0.0), parts["activations"], 0.0))  # transformers computes again
    for name in robots:
        shape, tokens, towers, experts = SEES[kind_of(name)]
        policy = VLAPolicySettings.model_validate({"type": "vla", **settings(folder, name)})
        own = found[name][0]
        p = own["parameters"] - own["trained"] * policy.use_lora
        parts = vla_state(policy, shape, p, own["trained"], count)
        with monkeypatch.context() as patch:
            patch.setattr(gpu, "TOWERS", towers)
            patch.setattr(gpu, "EXPERTS", experts)
            kept, again = (rows * bytes_ for bytes_ in decision_bytes(policy, shape, tokens))
        cases.append((name, parts["weights, gradients and moments"], parts.get(GATHERED, 0.0), kept, again))
    for name, state, gathered, kept, again in cases:
        for own in found[name]:
            assert own["resting"] == pytest.approx(state, rel=0.05), name
            assert own["held"] < 1.05 * (state + gathered), name
            assert own["kept"] == pytest.approx(kept, rel=0.25), name
            assert own["again"] == pytest.approx(again, rel=0.25), name


def test_one_process_holds_what_is_estimated(tmp_path, monkeypatch):
    check(tmp_path, 1, monkeypatch, LANGUAGE, QUICK)


@pytest.mark.slow
def test_one_process_holds_what_is_estimated_of_other_robots(tmp_path, monkeypatch):
    check(tmp_path, 1, monkeypatch, [], [name for name in ROBOTS if name not in QUICK])


@pytest.mark.slow
def test_each_of_two_processes_holds_what_is_estimated(tmp_path, monkeypatch):
    check(tmp_path, 2, monkeypatch, LANGUAGE, TOGETHER)
