"""Small language models whose random weights are large enough for their answers to differ."""

import torch

from guerdon.policies.language.shared_base import SharedBase
from guerdon.policies.language.text import TextPolicy
from guerdon.policies.language.text_files import load_policy
from guerdon.policies.language.tiny_text import build_model, byte_tokenizer
from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings

SIZES = {"hidden_size": 32, "layers": 2, "heads": 4, "kv_heads": 2, "intermediate": 48}


def enliven(model, seed=0):
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.08 / weight.std() if weight.ndim > 1 else 1).add_(
                0.05 * torch.randn(weight.shape, generator=generator).to(weight.device)
            )


def tiny_policy(architecture="llama", **options):
    settings = TextPolicySettings(tiny=TinyModelSettings(architecture=architecture, **SIZES), bf16=False, **options)
    policy = load_policy(settings, seed=0)
    enliven(policy.base.model)
    return policy


def merging_policy(texts):
    """A tokenizer that has learned to merge the bytes of these texts."""
    tokenizer = byte_tokenizer(texts, vocabulary_size=360)
    tiny = TinyModelSettings(**SIZES, tokenizer="bytes")
    model = build_model(tiny, tokenizer, seed=0)
    enliven(model)
    return TextPolicy(SharedBase(model, tokenizer, TextPolicySettings(tiny=tiny, bf16=False)))
