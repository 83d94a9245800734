"""Small vision-language models made in code: tokenizer, chat template, image processor and random weights.

They are ordinary transformers models of the Qwen-VL families: `write_tiny_vlm` leaves a folder that
`AutoModelForImageTextToText` reads back. No torchvision is needed.

    folder = write_tiny_vlm(TinyVLMSettings(architecture="qwen3_vl"), Path("runs/tiny"), seed=0)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from guerdon.compute.devices import seeded
from guerdon.models.vlm.video_processor import video_processor
from guerdon.policies.language.tiny_text import byte_pairs
from guerdon.settings.vlm import TinyVLMSettings

END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VISION_START, VISION_END, IMAGE, VIDEO = "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"
_SPECIAL = [END, START, STOP, VISION_START, VISION_END, IMAGE, VIDEO]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif c['type'] == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_CORPUS = (
    "Yes", "No", " Yes", " No", " True", " False", "user", "assistant", "system",
    "The task is open the drawer, is it completed?", "The task is close the door, is it completed?",
    "The task is push the button, pick up the cup and place it on the table, is it completed?",
    "Answer with a number between 1 and 100, the percentage of completion, and nothing else.",
)  # fmt: skip


def build_tokenizer() -> Any:
    """Byte-level byte-pair encoding of any text, with the special tokens of Qwen-VL and a chat template."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=byte_pairs([text for text in _CORPUS for _ in range(4)], 512, _SPECIAL),
        eos_token=STOP,
        pad_token=END,
        additional_special_tokens=_SPECIAL[1:],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def build_image_processor(settings: TinyVLMSettings) -> Any:
    """The families' image processor for these patches."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    unit = (2 * settings.patch_size) ** 2
    return Qwen2VLImageProcessorPil(
        size={"shortest_edge": unit, "longest_edge": 1024 * unit},
        patch_size=settings.patch_size,
        temporal_patch_size=2,
        merge_size=2,
    )


def build_video_processor(settings: TinyVLMSettings) -> Any:
    """The family's video processor for these patches; Qwen3-VL limits the pixels of all frames together."""
    unit = (2 * settings.patch_size) ** 2
    most = 1024 * unit * (64 if settings.architecture == "qwen3_vl" else 1)
    return video_processor(settings.architecture)(
        size={"shortest_edge": unit, "longest_edge": most},
        patch_size=settings.patch_size,
        temporal_patch_size=2,
        merge_size=2,
    )


def build_vlm(settings: TinyVLMSettings, tokenizer: Any, *, seed: int) -> Any:
    """A model with random weights drawn from the seed, scaled to its width; global random state is left alone.

    Returns:
        A `Qwen2VLForConditionalGeneration` or one of its successors, in float32 on the CPU.
    """
    from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig, Qwen2VLConfig, Qwen3VLConfig

    wide, heads = settings.hidden_size, settings.heads
    ids = tokenizer.convert_tokens_to_ids
    half = wide // heads // 2
    spread = wide**-0.5  # the library's 0.02 suits wide models; narrow ones hardly learn from it
    text: dict[str, Any] = {
        "vocab_size": len(tokenizer), "hidden_size": wide, "intermediate_size": settings.intermediate,
        "num_hidden_layers": settings.layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "max_position_embeddings": 8192, "initializer_range": spread, "tie_word_embeddings": True,
        "bos_token_id": ids(END), "eos_token_id": ids(STOP), "pad_token_id": ids(END),
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 1e4, "mrope_section": [half - 2 * (half // 3), half // 3, half // 3]
        },
    }  # fmt: skip
    vision: dict[str, Any] = {
        "depth": settings.vision_layers, "hidden_size": wide, "num_heads": heads, "in_channels": 3,
        "patch_size": settings.patch_size, "temporal_patch_size": 2, "spatial_merge_size": 2,
        "initializer_range": spread,
    }  # fmt: skip
    shared = {"intermediate_size": settings.intermediate, "out_hidden_size": wide}
    whole = {
        "image_token_id": ids(IMAGE), "video_token_id": ids(VIDEO), "vision_start_token_id": ids(VISION_START),
        "vision_end_token_id": ids(VISION_END), "tie_word_embeddings": True,
    }  # fmt: skip
    if settings.architecture == "qwen3_vl":
        text |= {"head_dim": wide // heads}
        text["rope_parameters"] |= {"mrope_interleaved": True}
        vision |= shared | {"num_position_embeddings": 256, "deepstack_visual_indexes": [0]}
        config = Qwen3VLConfig(text_config=text, vision_config=vision, **whole)
    elif settings.architecture == "qwen2_5_vl":
        window = 4 * 2 * settings.patch_size
        vision |= shared | {"window_size": window, "tokens_per_second": 2}
        vision |= {"fullatt_block_indexes": [settings.vision_layers - 1]}
        config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, **whole)
    else:
        vision |= {"embed_dim": wide, "mlp_ratio": max(settings.intermediate // wide, 1)}
        config = Qwen2VLConfig(text_config=text, vision_config=vision, **whole)
    with seeded(seed):
        return AutoModelForImageTextToText.from_config(config, dtype=torch.float32, trust_remote_code=False)


def write_tiny_vlm(settings: TinyVLMSettings, folder: Path, *, seed: int) -> Path:
    """Write model, tokenizer and processors into a folder, as they would come from the hub."""
    tokenizer = build_tokenizer()
    build_vlm(settings, tokenizer, seed=seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    build_image_processor(settings).save_pretrained(folder)
    build_video_processor(settings).save_pretrained(folder)
    return folder
