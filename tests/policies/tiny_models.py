"""Small policies, prompts and responses for the tests of language models."""

import numpy as np
import torch

from guerdon.policies.batches.tokens import token_batch
from guerdon.policies.language.text_files import load_policy
from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings

torch.set_num_threads(1)

VOCABULARY = 103  # 96 characters and 7 special tokens


def tiny_settings(architecture="llama", *, tie=True, **options):
    tiny = TinyModelSettings(
        architecture=architecture, hidden_size=32, layers=2, heads=4, kv_heads=2, intermediate=48, tie_embeddings=tie
    )
    return TextPolicySettings(**({"tiny": tiny, "bf16": False} | options))


def tiny_policy(architecture="llama", *, seed=0, lively=True, tie=True, **options):
    """A policy whose random weights are large enough for its distributions to differ from uniform ones."""
    policy = load_policy(tiny_settings(architecture, tie=tie, **options), seed=seed)
    if lively:
        enliven(policy.base.model, seed)
    return policy


def enliven(model, seed=0):
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.08 / weight.std() if weight.ndim > 1 else 1).add_(
                0.05 * torch.randn(weight.shape, generator=generator).to(weight.device)
            )


def random_batch(rows=6, *, seed=0, longest_prompt=9, longest=12):
    rng = np.random.default_rng(seed)
    prompts = [rng.integers(7, VOCABULARY, rng.integers(1, longest_prompt)) for _ in range(rows)]
    responses = [rng.integers(7, VOCABULARY, rng.integers(1, longest)) for _ in range(rows)]
    return token_batch(prompts, responses, np.ones(rows, bool), pad_id=0)


def oracle(model, batch, temperature=1.0):
    """Log-probabilities and entropies (B, T) in float64, one sequence at a time, from all of the model's logits."""
    log_probs, entropies = np.zeros(batch.mask_B_T.shape), np.zeros(batch.mask_B_T.shape)
    for i, (prompt, response) in enumerate(zip(batch.prompts, batch.responses(), strict=True)):
        with torch.no_grad():
            ids = torch.from_numpy(np.concatenate([prompt, response]))[None].to(getattr(model, "device", "cpu"))
            logits = model(ids).logits[0].double().cpu().numpy()
        logits = logits[len(prompt) - 1 : -1] / temperature
        table = logits - np.log(np.exp(logits - logits.max(-1, keepdims=True)).sum(-1, keepdims=True))
        table -= logits.max(-1, keepdims=True)
        log_probs[i, : len(response)] = table[np.arange(len(response)), response]
        entropies[i, : len(response)] = -(np.exp(table) * table).sum(-1)
    return log_probs, entropies
