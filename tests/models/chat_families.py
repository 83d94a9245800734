"""Tokenizers with the chat templates of six families, made here: what closes a turn differs in each."""

import torch
from adapter_models import byte_level
from transformers import AutoModelForSequenceClassification, LlamaConfig, LlamaForSequenceClassification

CHATML = (
    "{%- if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}"
    "<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools><|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}{%- if m.role == 'system' and loop.first %}{% elif m.role == 'tool' %}"
    "<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
PHI = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
ZEPHYR = (  # a turn of a tool is dropped in silence
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant'] %}"
    "<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

FAMILIES = {  # template, special tokens, beginning and end of a sequence, what `apply_chat_template` ends with
    "chatml": (CHATML, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], None, "<|im_end|>", "<|im_end|>\n"),
    "llama3": (
        LLAMA, ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"], "<|begin_of_text|>",
        "<|eot_id|>", "<|eot_id|>",
    ),
    "gemma": (GEMMA, ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"], "<bos>", "<eos>", "<end_of_turn>\n"),
    "mistral": (MISTRAL, ["<s>", "</s>", "[INST]", "[/INST]"], "<s>", "</s>", "</s>"),
    "phi": (
        PHI, ["<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"], None, "<|endoftext|>",
        "<|end|>\n<|endoftext|>",
    ),
    "zephyr": (ZEPHYR, ["<s>", "</s>"], "<s>", "</s>", "</s>\n"),
}  # fmt: skip


def tokenizer_of(family, *, pad=None, side="right"):
    """The tokenizer of a family.

    Args:
        family: its name.
        pad: the token for padding; None: it names none.
        side: on which transformers would pad.
    """
    template, special, bos, eos, _ = FAMILIES[family]
    extra = [] if pad is None or pad in special else [pad]
    tokenizer = byte_level([*special, *extra], template, bos=bos, eos=eos, pad=pad)
    tokenizer.padding_side = side
    return tokenizer


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def folder_of(path, family, pad, *, labels=1, side="right", dtype=torch.float32):
    """A classifier as TRL's `RewardTrainer` saves it: the configuration has the tokenizer's token for padding."""
    name = {"own": "<pad>", "eos": FAMILIES[family][3], None: None}[pad]
    tokenizer = tokenizer_of(family, pad=name, side=side)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        num_labels=labels, pad_token_id=tokenizer.pad_token_id, initializer_range=0.4, max_position_embeddings=1024,
    )  # fmt: skip
    torch.manual_seed(0)
    LlamaForSequenceClassification(config).to(dtype).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path), tokenizer


def alone(path, tokenizer, messages, tools=None):
    """Transformers' own value of one conversation, in a row of its own, without padding."""
    model = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32).eval()
    ids = tokenizer.apply_chat_template(list(messages), tools=tools)["input_ids"]
    with torch.no_grad():
        return float(model(input_ids=torch.tensor([ids])).logits[0, 0])
