"""Small language models made in code: tokenizer, chat template and a random Llama or Qwen2, with no download.

They are ordinary transformers models: `save_pretrained` writes folders that `AutoModelForCausalLM` and `AutoTokenizer`
read back. (For Qwen2, transformers puts Qwen's own tokenizer in place of any other; `pretrained.read_tokenizer` and
`PreTrainedTokenizerFast` read what is there.)

    tokenizer = build_tokenizer(settings)
    model = build_model(settings, tokenizer, seed=0)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from guerdon.compute.devices import seeded
from guerdon.settings.text_policy import TinyModelSettings

PAD, BOS, EOS, UNKNOWN = "<|pad|>", "<|bos|>", "<|eos|>", "<|unknown|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def build_tokenizer(settings: TinyModelSettings) -> Any:
    """The tokenizer of `settings`: one token per character of the alphabet, or byte-level."""
    return character_tokenizer(settings.alphabet) if settings.tokenizer == "characters" else byte_tokenizer()


def character_tokenizer(alphabet: str) -> Any:
    """One token per character. Roles, beginning and end of a text are single tokens of their own.

    Args:
        alphabet: the characters; repeated ones count once. Others become `<|unknown|>`.

    Returns:
        A `PreTrainedTokenizerFast` with a chat template.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    vocabulary = {token: i for i, token in enumerate([PAD, BOS, EOS, UNKNOWN, *ROLES, *dict.fromkeys(alphabet)])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return _wrapped(core, unk_token=UNKNOWN)


def byte_tokenizer(corpus: Iterable[str] = (), *, vocabulary_size: int = 262) -> Any:
    """Byte-level byte-pair encoding: encodes every text.

    Args:
        corpus: texts to learn merges from; none gives a token per byte.
        vocabulary_size: tokens after the merges, the 256 bytes and the special ones included.

    Returns:
        A `PreTrainedTokenizerFast` with a chat template.
    """
    return _wrapped(byte_pairs(corpus, vocabulary_size, [PAD, BOS, EOS, *ROLES]))


def byte_pairs(corpus: Iterable[str], vocabulary_size: int, special: Sequence[str]) -> Any:
    """A `tokenizers.Tokenizer` of byte-level byte pairs learned from texts; special tokens have the first ids."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(special),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(list(corpus), trainer)
    return core


def build_model(settings: TinyModelSettings, tokenizer: Any, *, seed: int) -> Any:
    """A causal language model with random weights drawn from the seed; global random state is left alone.

    Args:
        settings: shape and architecture.
        tokenizer: gives the vocabulary and the special ids.
        seed: of the weights.

    Returns:
        A `LlamaForCausalLM` or `Qwen2ForCausalLM` in float32 on the CPU.
    """
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen2Config

    config_type = LlamaConfig if settings.architecture == "llama" else Qwen2Config
    config = config_type(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads or settings.heads,
        intermediate_size=settings.intermediate,
        max_position_embeddings=settings.max_positions,
        tie_word_embeddings=settings.tie_embeddings,
        initializer_range=settings.hidden_size
        ** -0.5,  # the libraries' 0.02 suits wide models; narrow ones crawl with it
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with seeded(seed):
        return AutoModelForCausalLM.from_config(config, dtype=torch.float32, trust_remote_code=False)


def _wrapped(core: Any, **special: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token=BOS,
        eos_token=EOS,
        pad_token=PAD,
        additional_special_tokens=list(ROLES),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        **special,
    )
