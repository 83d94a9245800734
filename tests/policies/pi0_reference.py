"""Writes `pi0_reference.json`: what LeRobot's pi0 and pi0.5 make of weights, pictures and noise that are drawn here.

It needs Python 3.12 and `pip install 'lerobot[pi]==0.6.1'` in an environment of its own:

    python tests/policies/pi0_reference.py

The models are LeRobot's own classes with small networks inside. Weights are drawn name by name, in the order of names.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch import nn

FILE = Path(__file__).parent / "pi0_reference.json"
WIDTH, EXPERT, HEADS, HEAD, LAYERS, WORDS, VISION, CHUNK = 16, 12, 8, 4, 2, 40, 8, 6
IDS = [[1, 5, 9, 4], [1, 7, 4]]


def drawn(shape, seed, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def filled(shapes):
    """Weights of these names and shapes; those of norms are near the 0 that Gemma's stand for 1 with."""
    generator = torch.Generator().manual_seed(0)
    return {name: 0.3 * torch.randn(shapes[name], generator=generator) for name in sorted(shapes)}


def pictures():
    """(2, 2, 16, 16, 3) uint8: two decisions, two cameras."""
    return np.random.default_rng(0).integers(0, 256, (2, 2, 16, 16, 3), dtype=np.uint8)


def small_networks(module, adaptive):
    """Replaces the networks that a module of LeRobot makes by small ones of the same classes."""
    from transformers import GemmaConfig, PaliGemmaConfig

    def sizes(width):
        return {
            "hidden_size": width, "intermediate_size": 20, "num_attention_heads": HEADS, "head_dim": HEAD,
            "num_hidden_layers": LAYERS, "num_key_value_heads": 1, "vocab_size": WORDS,
            "hidden_activation": "gelu_pytorch_tanh",
        }  # fmt: skip

    def init(self, *_given, **_options):
        nn.Module.__init__(self)
        self.freeze_vision_encoder = self.train_expert_only = False
        vision = {
            "hidden_size": VISION, "intermediate_size": 10, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
            "image_size": 16, "patch_size": 4, "projection_dim": WIDTH, "vision_use_head": False,
            "model_type": "siglip_vision_model",
        }  # fmt: skip
        config = PaliGemmaConfig(
            text_config={"model_type": "gemma", **sizes(WIDTH)}, vision_config=vision, projection_dim=WIDTH
        )
        config.text_config.use_adarms, config.text_config.adarms_cond_dim = False, None
        self.paligemma = module.PaliGemmaForConditionalGenerationWithPiGemma(config=config)
        expert = GemmaConfig(**sizes(EXPERT))
        expert.use_adarms, expert.adarms_cond_dim = adaptive, EXPERT if adaptive else None
        self.gemma_expert = module.PiGemmaForCausalLM(config=expert)
        self.gemma_expert.model.embed_tokens = None
        self.float()

    module.PaliGemmaWithExpertModel.__init__ = init
    module.get_gemma_config = lambda variant: module.GemmaConfig(
        WIDTH if variant == "gemma_2b" else EXPERT, LAYERS, 20, HEADS, 1, HEAD
    )


def reference(kind):
    from lerobot.configs import FeatureType, PolicyFeature

    whole = parameters(kind)
    if kind == "pi0":
        from lerobot.policies.pi0 import modeling_pi0 as module
        from lerobot.policies.pi0.configuration_pi0 import PI0Config as Config

        small_networks(module, adaptive=False)
        policy_class = module.PI0Policy
    else:
        from lerobot.policies.pi05 import modeling_pi05 as module
        from lerobot.policies.pi05.configuration_pi05 import PI05Config as Config

        small_networks(module, adaptive=True)
        policy_class = module.PI05Policy
    views = ("observation.images.base", "observation.images.wrist")
    features = {name: PolicyFeature(type=FeatureType.VISUAL, shape=(3, 16, 16)) for name in views}
    features["observation.state"] = PolicyFeature(type=FeatureType.STATE, shape=(3,))
    config = Config(
        chunk_size=CHUNK, n_action_steps=CHUNK, image_resolution=(16, 16), device="cpu", empty_cameras=1,
        input_features=features, output_features={"action": PolicyFeature(type=FeatureType.ACTION, shape=(3,))},
    )  # fmt: skip
    policy = policy_class(config).eval()
    shapes = {name: tuple(tensor.shape) for name, tensor in policy.state_dict().items()}
    policy.load_state_dict(filled(shapes))
    saved = FILE.parent / f"{kind}_saved"
    policy.save_pretrained(saved)
    from safetensors import safe_open

    with safe_open(saved / "model.safetensors", "pt") as file:
        stored = sorted(file.keys())
    written = json.loads((saved / "config.json").read_text())
    for file in saved.iterdir():
        file.unlink()
    saved.rmdir()
    longest = max(map(len, IDS)) + 1  # LeRobot pads on the right
    ids = torch.tensor([one + [0] * (longest - len(one)) for one in IDS])
    mask = torch.tensor([[True] * len(one) + [False] * (longest - len(one)) for one in IDS])
    frames = torch.from_numpy(pictures()).permute(0, 1, 4, 2, 3).float() / 255
    batch = {name: frames[:, i] for i, name in enumerate(views)}
    batch |= {"observation.language.tokens": ids, "observation.language.attention_mask": mask}
    batch["observation.state"] = drawn((2, 3), 2)
    found = policy.predict_action_chunk(batch, noise=drawn((2, CHUNK, 32), 1), num_steps=3)
    return {
        "processors": processors(kind, config),
        "shapes": {name: list(shape) for name, shape in shapes.items()}, "left_out": sorted(set(shapes) - set(stored)),
        "config": written, "actions": found.tolist(), "parameters": whole,
    }  # fmt: skip


def parameters(kind):
    """Weights of the published size, those that are tied counted once for each name."""
    from importlib import import_module

    module = import_module(f"lerobot.policies.{kind}.modeling_{kind}")
    config = import_module(f"lerobot.policies.{kind}.configuration_{kind}")
    made, form = getattr(module, f"{kind.upper()}Pytorch"), getattr(config, f"{kind.upper()}Config")
    with torch.device("meta"):
        model = made(form(device="cpu"))
    return sum(tensor.numel() for tensor in model.state_dict().values())


def processors(kind, config):
    """The files of LeRobot's processors, without the tokenizer, which would be downloaded."""
    from importlib import import_module

    from lerobot.processor import TokenizerProcessorStep

    TokenizerProcessorStep.__post_init__ = lambda self: None
    make = getattr(import_module(f"lerobot.policies.{kind}.processor_{kind}"), f"make_{kind}_pre_post_processors")
    folder = FILE.parent / f"{kind}_processors"
    numbers = {"mean": torch.zeros(3), "std": torch.ones(3), "q01": -torch.ones(3), "q99": torch.ones(3)}
    for one in make(config, dict.fromkeys(("action", "observation.state"), numbers)):
        one.save_pretrained(folder)
    found = {file.name: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    return found


def prompts():
    """The prompts of pi0.5 for tasks and normalised states."""
    from lerobot.policies.pi05.processor_pi05 import Pi05PrepareStateTokenizerProcessorStep, TransitionKey

    tasks = ["open the_drawer\n", " put the cup\non the plate "]
    states = torch.tensor([[-1.0, -0.999, 0.0], [0.5, 1.0, 1.7]])
    given = {TransitionKey.OBSERVATION: {"observation.state": states},
             TransitionKey.COMPLEMENTARY_DATA: {"task": list(tasks)}}  # fmt: skip
    found = Pi05PrepareStateTokenizerProcessorStep()(given)
    return {"tasks": tasks, "states": states.tolist(), "prompts": found[TransitionKey.COMPLEMENTARY_DATA]["task"]}


def padded():
    """A picture of 6 x 10 pixels as `resize_with_pad_torch` makes it one of 8 x 8, in grey levels."""
    from lerobot.policies.common.vla_utils import resize_with_pad_torch

    picture = np.random.default_rng(1).integers(0, 256, (6, 10, 3), dtype=np.uint8)
    found = resize_with_pad_torch(torch.from_numpy(picture)[None].float() / 255, 8, 8)
    return {"picture": picture.tolist(), "found": (found.squeeze(0) * 255).tolist()}


if __name__ == "__main__":
    found = {"pi0": reference("pi0"), "pi05": reference("pi05"), "prompts": prompts(), "padded": padded()}
    FILE.write_text(json.dumps(found, separators=(",", ":")) + "\n")
