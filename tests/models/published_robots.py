"""Checkpoints of robot reward models in their published layouts, small, with weights drawn from a seed.

Names and files are those of LeRobot 0.6.1 (huggingface/lerobot at 7427f318, `lerobot/rewards/{sarm,robometer}`) and of
robometer/robometer at c7f38e2; `lerobot_rewards_side.py` checks them against the package.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import torch
import yaml
from safetensors.torch import save_file

CAMERA = "observation.images.top"
STATES = 5
CLIP_SIZE, CLIP_WIDE = 32, 24
SARM = {
    "type": "sarm", "annotation_mode": "dual", "n_obs_steps": 4, "frame_gap": 2, "max_rewind_steps": 2,
    "image_dim": CLIP_WIDE, "text_dim": CLIP_WIDE, "hidden_dim": 16, "num_heads": 2, "num_layers": 2,
    "max_state_dim": 8, "num_sparse_stages": 3, "sparse_subtask_names": ["reach", "grasp", "lift"],
    "sparse_temporal_proportions": [0.2, 0.5, 0.3], "num_dense_stages": 4,
    "dense_subtask_names": ["a", "b", "c", "d"], "dense_temporal_proportions": [0.1, 0.2, 0.3, 0.4],
    "image_key": CAMERA, "state_key": "observation.state",
    "normalization_mapping": {
        "VISUAL": "IDENTITY", "STATE": "MEAN_STD", "LANGUAGE": "IDENTITY", "REWARD": "IDENTITY"
    },
}  # fmt: skip


def drawn(shapes, seed, spread=0.5):
    """Weights of these shapes by name, in an order that does not depend on anything."""
    random, found = np.random.default_rng(seed), {}
    for name in sorted(shapes):
        noise = spread * random.standard_normal(shapes[name])
        plain = len(shapes[name]) == 1
        noise = 1 + 0.2 * noise if plain and name.endswith("weight") else 0.2 * noise if plain else noise
        found[name] = torch.tensor(noise, dtype=torch.float32)
    return found


def sarm_shapes(config):
    """Names and shapes of the weights that LeRobot stores."""
    wide, layers = config["hidden_dim"], config["num_layers"]
    dual = config["annotation_mode"] == "dual"
    sparse = config["num_sparse_stages"] if dual else 1
    classes = {"sparse": sparse, "dense": config["num_dense_stages"] or sparse}
    shapes = {}
    for model, streams, sizes in (("stage_model", 3, classes), ("subtask_model", 4, {"sparse": 1, "dense": 1})):
        linear = {
            "lang_proj": (wide, config["text_dim"]), "visual_proj": (wide, config["image_dim"]),
            "state_proj": (wide, config["max_state_dim"]), "fusion_backbone.1": (wide, streams * wide),
            **{f"heads.{name}": (size, wide) for name, size in sizes.items()},
        }  # fmt: skip
        shapes[f"{model}.first_pos"] = (1, wide)
        for k in range(layers):
            inside = f"transformer.layers.{k}."
            linear |= {
                f"{inside}self_attn.out_proj": (wide, wide), f"{inside}linear1": (4 * wide, wide),
                f"{inside}linear2": (wide, 4 * wide),
            }  # fmt: skip
            shapes[f"{model}.{inside}self_attn.in_proj_weight"] = (3 * wide, wide)
            shapes[f"{model}.{inside}self_attn.in_proj_bias"] = (3 * wide,)
            for norm in ("norm1", "norm2"):
                shapes |= {f"{model}.{inside}{norm}.{one}": (wide,) for one in ("weight", "bias")}
        shapes |= {f"{model}.fusion_backbone.0.{one}": (streams * wide,) for one in ("weight", "bias")}
        for name, shape in linear.items():
            shapes |= {f"{model}.{name}.weight": shape, f"{model}.{name}.bias": shape[:1]}
    return shapes


def preprocessor(norm_map=None):
    """`policy_preprocessor.json` of SARM."""
    normalizer = {
        "eps": 1e-8, "features": {}, "norm_map": norm_map or SARM["normalization_mapping"],
    }  # fmt: skip
    steps = [
        {"registry_name": "to_batch_processor", "config": {}},
        {"registry_name": "rename_observations_processor", "config": {"rename_map": {}}},
        {
            "registry_name": "normalizer_processor", "config": normalizer,
            "state_file": "policy_preprocessor_step_2_normalizer_processor.safetensors",
        },
        {"class": "lerobot.rewards.sarm.processor_sarm.SARMEncodingProcessorStep", "config": {}},
        {"registry_name": "device_processor", "config": {"device": "cpu", "float_dtype": None}},
    ]  # fmt: skip
    return {"name": "policy_preprocessor", "steps": steps}


def statistics(size=STATES):
    """All statistics of the states, as LeRobot's normaliser stores them; it uses mean and standard deviation."""
    random = np.random.default_rng(7)
    mean, std = random.normal(size=size), random.uniform(0.5, 2, size)
    found = {"count": [11.0], "max": mean + 3 * std, "mean": mean, "min": mean - 3 * std, "std": std}
    return {f"observation.state.{name}": torch.tensor(np.float32(value)) for name, value in found.items()}


def write_sarm(folder, *, seed=0, states=STATES, **changes):
    """A SARM checkpoint for states of so many numbers."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = SARM | changes
    (folder / "config.json").write_text(json.dumps(config))
    save_file(drawn(sarm_shapes(config), seed), folder / "model.safetensors")
    (folder / "policy_preprocessor.json").write_text(json.dumps(preprocessor()))
    save_file(statistics(states), folder / "policy_preprocessor_step_2_normalizer_processor.safetensors")
    return folder


def write_clip(folder):
    """A CLIP model with its image processor and tokenizer."""
    from transformers import CLIPConfig, CLIPModel
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    letters = [chr(c) for c in range(33, 127)]
    tokens = [*letters, *(f"{c}</w>" for c in letters), "<|startoftext|>", "<|endoftext|>"]
    shared = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    text = {
        **shared, "vocab_size": len(tokens), "max_position_embeddings": 16, "projection_dim": CLIP_WIDE,
        "bos_token_id": len(tokens) - 2, "eos_token_id": len(tokens) - 1, "pad_token_id": len(tokens) - 1,
    }  # fmt: skip
    vision = {**shared, "image_size": CLIP_SIZE, "patch_size": 8, "projection_dim": CLIP_WIDE}
    model = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=CLIP_WIDE))
    model.load_state_dict(drawn({name: tuple(w.shape) for name, w in model.named_parameters()}, 3), strict=False)
    model.save_pretrained(folder)
    size = {"height": CLIP_SIZE, "width": CLIP_SIZE}
    CLIPImageProcessorPil(size={"shortest_edge": CLIP_SIZE}, crop_size=size).save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({token: n for n, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "CLIPTokenizer", "model_max_length": 16})
    )
    return folder


def recording(rows=11, *, size=(CLIP_SIZE, CLIP_SIZE), seed=1):
    """Frames (T, H, W, 3) and states (T, S) of an episode."""
    random = np.random.default_rng(seed)
    blocks = random.integers(0, 256, (rows, 4, 4, 3), dtype=np.uint8)
    frames = blocks.repeat(-(-size[0] // 4), 1).repeat(-(-size[1] // 4), 2)[:, : size[0], : size[1]]
    return frames, (3 * random.normal(size=(rows, STATES))).astype(np.float32)


QWEN_TEMPLATE = (  # of Qwen3-VL, as far as text and pictures of a user go
    "{%- set n = namespace(value=0) %}{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}{% set n.value = n.value + 1 %}"
    "{% if add_vision_id %}Picture {{ n.value }}: {% endif %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ADDED = ("<|split_token|>", "<|reward_token|>", "<|pref_token|>", "<|sim_token|>", "<|prog_token|>")


def write_base(folder):
    """A Qwen3-VL that Robometer starts from, with its tokenizer and processors."""
    from guerdon.models.vlm.tiny_vlm import write_tiny_vlm
    from guerdon.settings.vlm import TinyVLMSettings

    settings = TinyVLMSettings(architecture="qwen3_vl", hidden_size=32, intermediate=64)
    folder = write_tiny_vlm(settings, Path(folder), seed=0)
    (folder / "chat_template.jinja").write_text(QWEN_TEMPLATE)
    return folder


def robometer_weights(config, bins, seed):
    """Weights by the authors' names."""
    from transformers import AutoModel

    backbone = AutoModel.from_config(config)
    shapes = {f"model.{name}": tuple(weight.shape) for name, weight in backbone.named_parameters()}
    wide = config.text_config.hidden_size
    for head, outputs in (("progress_head", bins), ("preference_head", 1), ("success_head", 1)):
        for place, shape in (("0", (wide // 2, wide)), ("1", (wide // 2,)), ("4", (outputs, wide // 2))):
            shapes |= {f"{head}.{place}.weight": shape, f"{head}.{place}.bias": shape[:1]}
    return drawn({**shapes, "frame_pool_attn.weight": (1, wide)}, seed, spread=0.3)


def write_robometer(folder, base, *, layout="lerobot", discrete=True, seed=0, **changes):
    """A Robometer checkpoint, in the layout of LeRobot or of its authors."""
    from transformers import AutoConfig, AutoTokenizer

    folder = Path(folder)
    config = AutoConfig.from_pretrained(base)
    config.text_config.vocab_size = len(AutoTokenizer.from_pretrained(base)) + len(ADDED)
    weights = robometer_weights(config, 10 if discrete else 1, seed)
    loss = {"progress_loss_type": "discrete" if discrete else "l2", "progress_discrete_bins": 10}
    tokens = {"use_multi_image": True, "use_per_frame_progress_token": True}
    if layout == "lerobot":
        folder.mkdir(parents=True, exist_ok=True)
        card = {
            "type": "robometer", "image_key": CAMERA, "task_key": "task", "max_frames": 4,
            "reward_output": "progress", "success_threshold": 0.4, "base_model_id": str(base),
            "torch_dtype": "float32", "vlm_config": config.to_dict(), **tokens, **loss, **changes,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(card))
        words = weights.pop("model.language_model.embed_tokens.weight")
        inside = {(f"model.{k}" if k.startswith("model.") else k): v for k, v in weights.items()}
        save_file(inside | {"model.lm_head.weight": words}, folder / "model.safetensors")
        return folder
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config.architectures = ["RFM"]
    config.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_tokens(list(ADDED), special_tokens=True)
    tokenizer.save_pretrained(folder)
    model = {"base_model_id": "Qwen/Qwen3-VL-4B-Instruct", **tokens, **loss, **changes}
    said = {"mode": "train", "model": model, "data": {"max_frames": 4, "use_multi_image": True}, "loss": loss}
    (folder / "config.yaml").write_text(yaml.dump(said))
    names = sorted(weights)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, own in parts.items():
        save_file({name: weights[name] for name in own}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, own in parts.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder
