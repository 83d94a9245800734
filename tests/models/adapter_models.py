"""Tiny random models of other people's families, saved to folders as their own training would leave them.

What a family does is worked out here a second time, from its own example code: step by step, a prefix at a time, by
looking for tokens. The tests compare the adapters with that.
"""

import json

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForTokenClassification,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Model,
)

from guerdon.policies.language.tiny_text import byte_tokenizer, character_tokenizer

CORPUS = ["Step 1: 3+5=8. ки\nStep 2: so 8-2=6. ки\nThe answer is 6. ки + - user assistant system"] * 30
QUESTION = "What is 3+5-2?"
STEPS = ("3+5=8.\n\n", "So 8-2\n = 6.\n\n", "The answer is 6.")
QWEN_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA_TEMPLATE = (
    "<|begin_of_text|>{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
)
SHAPE = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 48, "max_position_embeddings": 256, "initializer_range": 0.25,
}  # fmt: skip


def byte_level(special, template=None, *, bos=None, eos=None, pad=None):
    """Byte-level pairs and these special tokens."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    core.train_from_iterator(
        CORPUS, trainers.BpeTrainer(vocab_size=290, initial_alphabet=alphabet, show_progress=False)
    )
    core.add_special_tokens([AddedToken(s, special=True) for s in special])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=bos, eos_token=eos, pad_token=pad, chat_template=template,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip


def qwen_tokenizer(*, marker=True):
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(["<extra_0>"] if marker else [])]
    return byte_level(special, QWEN_TEMPLATE, eos="<|im_end|>", pad="<|endoftext|>")


def llama_tokenizer():
    special = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    return byte_level(special, LLAMA_TEMPLATE, bos="<|begin_of_text|>", eos="<|eot_id|>")


def mistral_tokenizer(corpus=CORPUS):
    """Pieces that carry the space before them, unknown characters as bytes, a beginning of sequence: SentencePiece."""
    spaces = {"replacement": "▁", "prepend_scheme": "first"}
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Metaspace(**spaces)
    words = [text.replace("\n", " ") for text in corpus]  # there, a new line is a byte that joins no piece
    core.train_from_iterator(words, trainers.BpeTrainer(vocab_size=150, show_progress=False))
    learnt = json.loads(core.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *learnt["vocab"]]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    merges = [tuple(pair) for pair in learnt["merges"]]
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.pre_tokenizer = pre_tokenizers.Metaspace(**spaces)
    core.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(**spaces)])
    core.add_special_tokens(["<unk>", "<s>", "</s>"])
    core.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<s>", eos_token="</s>", unk_token="<unk>", clean_up_tokenization_spaces=False
    )


def seeded(make, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().eval().requires_grad_(False)


def logits_of(model, ids):
    return model(input_ids=torch.tensor([list(ids)])).logits[0]


class Qwen:
    """Qwen2.5-Math-PRM: a decoder and a head of two layers, with its own code in the folder."""

    name, room = "qwen_prm", 256

    def __init__(self, folder, *, tokenizer=None, lacks=(), extra=(), bias=None):
        self.folder = folder
        self.tokenizer = tokenizer or qwen_tokenizer()
        config = Qwen2Config(vocab_size=len(self.tokenizer), **SHAPE)
        self.decoder = seeded(lambda: Qwen2Model(config))
        self.head = seeded(lambda: nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 2)), 1)
        self.head[2].weight.mul_(8.0)
        if bias is not None:
            self.head[2].bias.copy_(torch.tensor(bias))
        weights = {f"model.{k}": v for k, v in self.decoder.state_dict().items()}
        weights |= {f"score.{k}": v for k, v in self.head.state_dict().items()}
        weights["lm_head.weight"] = torch.zeros(len(self.tokenizer), 32)  # the real folder has one, and no use for it
        for key in lacks:
            del weights[key]
        weights |= dict.fromkeys(extra, torch.zeros(3))
        write(folder, config, "Qwen2ForProcessRewardModel", weights, self.tokenizer)
        trap = json.loads((folder / "config.json").read_text())
        trap["auto_map"] = {"AutoModel": "modeling_qwen2_rm.Qwen2ForProcessRewardModel"}
        (folder / "config.json").write_text(json.dumps(trap))
        (folder / "modeling_qwen2_rm.py").write_text("raise SystemExit('code of a model was run')\n")

    def prefix_value(self, question, steps):
        """The card's example, for the last of these steps."""
        answer = "<extra_0>".join(s.strip() for s in steps) + "<extra_0>"
        system = "Please reason step by step, and put your final answer within \\boxed{}."
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": question},
            {"role": "assistant", "content": answer},
        ]
        text = self.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=False)
        ids = self.tokenizer.encode(text)
        hidden = self.decoder(input_ids=torch.tensor([ids])).last_hidden_state[0]
        marker = self.tokenizer.encode("<extra_0>")[0]
        places = [i for i, token in enumerate(ids) if token == marker]
        return float(self.head(hidden[places[-1]]).softmax(-1)[1])


class MathShepherd:
    """A Mistral that says + or - after ки."""

    name, room = "math_shepherd", 256

    def __init__(self, folder, *, tokenizer=None):
        self.tokenizer = tokenizer or mistral_tokenizer()
        config = MistralConfig(vocab_size=len(self.tokenizer), sliding_window=None, **SHAPE)
        self.model = seeded(lambda: MistralForCausalLM(config))
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def prefix_value(self, question, steps):
        """The card's example, for the last of these steps."""
        output = "\n".join(f"Step {k + 1}: {s.strip()} ки" for k, s in enumerate(steps))
        candidates = self.tokenizer.encode("+ -")[1:]
        tag = self.tokenizer.encode("ки")[-1]
        ids = self.tokenizer.encode(f"{question} {output}")
        scores = logits_of(self.model, ids)[:, candidates].softmax(-1)[:, 0]
        return float(scores[[i for i, token in enumerate(ids) if token == tag][-1]])


class RLHFlow:
    """A Llama that answers + or - in a chat."""

    name, room = "rlhflow", 256

    def __init__(self, folder, *, tokenizer=None):
        self.tokenizer = tokenizer or llama_tokenizer()
        config = LlamaConfig(vocab_size=len(self.tokenizer), **SHAPE)
        self.model = seeded(lambda: LlamaForCausalLM(config))
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def prefix_value(self, question, steps):
        """prm_evaluate.py, for the last of these steps: the answer is predicted three tokens before the end."""
        conversation = []
        for k, step in enumerate(steps):
            text = f"{question} {step.strip()}" if k == 0 else step.strip()
            conversation += [{"content": text, "role": "user"}, {"content": "+", "role": "assistant"}]
        ids = self.tokenizer.encode(
            self.tokenizer.apply_chat_template(conversation, tokenize=False), add_special_tokens=False
        )
        candidates = [self.tokenizer.encode("+")[-1], self.tokenizer.encode("-")[-1]]
        return float(logits_of(self.model, ids)[-3, candidates].softmax(-1)[0])


class Skywork:
    """A Qwen2 with a value head."""

    name, room = "skywork", 256

    def __init__(self, folder, *, tokenizer=None, lacks=()):
        self.tokenizer = tokenizer or byte_level(["<|endoftext|>"], bos="<|endoftext|>", pad="<|endoftext|>")
        config = Qwen2Config(vocab_size=len(self.tokenizer), **SHAPE)
        self.model = seeded(lambda: Qwen2ForCausalLM(config))
        self.head = seeded(lambda: nn.Linear(32, 1), 1)
        weights = {k: v.contiguous() for k, v in self.model.state_dict().items()}
        weights |= {f"v_head.summary.{k}": v for k, v in self.head.state_dict().items()}
        for key in lacks:
            del weights[key]
        write(folder, config, "Qwen2ForPrmModel", weights, self.tokenizer)

    def prefix_value(self, question, steps):
        """prepare_input and derive_step_rewards, for the last line of the last of these steps."""
        ids = self.tokenizer.encode(self.tokenizer.bos_token + question + "\n")
        line = self.tokenizer.encode("\n")[-1]
        for written in "\n".join(s.strip() for s in steps).split("\n"):
            ids += [*(self.tokenizer.encode(written) if written else []), line]
        hidden = self.model(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0]
        return float(self.head(hidden[-1]).sigmoid()[0])


class Trl:
    """A token classifier of PRMTrainer."""

    name, room = "trl", 256

    def __init__(self, folder, *, tokenizer=None, separator=None, labels=2):
        self.tokenizer = tokenizer or byte_tokenizer()
        self.separator = separator or "\n"
        config = LlamaConfig(vocab_size=len(self.tokenizer), num_labels=labels, **SHAPE)
        self.model = seeded(lambda: LlamaForTokenClassification(config))
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        if separator is not None:
            (folder / "adapter.json").write_text(json.dumps({"adapter": "trl", "separator": separator}))

    def prefix_value(self, question, steps):
        """tokenize_row, for the last of these steps."""
        ids = [self.tokenizer.bos_token_id, *self.tokenizer(question, add_special_tokens=False)["input_ids"]]
        for step in steps:
            ids += self.tokenizer(step.strip(), add_special_tokens=False)["input_ids"]
            ids += self.tokenizer.encode(self.separator, add_special_tokens=False)
        return float(logits_of(self.model, ids)[-1].softmax(-1)[1])


class Implicit:
    """Two Qwen2 and the log-ratio between them."""

    name, room, beta = "implicit", 256, 0.5

    def __init__(self, folder, *, tokenizer=None):
        self.tokenizer = tokenizer or qwen_tokenizer(marker=False)
        config = Qwen2Config(vocab_size=len(self.tokenizer), **SHAPE)
        self.models = [seeded(lambda: Qwen2ForCausalLM(config), seed) for seed in (0, 1)]
        for model, where in zip(self.models, (folder, folder / "reference"), strict=True):
            model.save_pretrained(where)
            self.tokenizer.save_pretrained(where)
        notes = {"adapter": "implicit", "ref_path": "reference", "beta": self.beta}
        (folder / "adapter.json").write_text(json.dumps(notes))

    def prefix_value(self, question, steps, last=False):
        """Log-probability of the text up to the end of the last of these steps, its blank line included."""
        prompt = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        answer = "".join(f"Step {k + 1}: {s.strip()}\n\n" for k, s in enumerate(steps))
        answer = answer.removesuffix("\n\n") + "<|im_end|>" if last else answer
        start = len(self.tokenizer.encode(prompt))
        ids = torch.tensor(self.tokenizer.encode(prompt + answer))
        sums = []
        for model in self.models:
            table = logits_of(model, ids.tolist())[:-1].double().log_softmax(-1)
            sums.append(table[torch.arange(len(ids) - 1), ids[1:]][start - 1 :].sum())
        return float(torch.sigmoid(self.beta * (sums[0] - sums[1])))


FAMILIES = (Qwen, MathShepherd, RLHFlow, Skywork, Trl, Implicit)


def write(folder, config, architecture, weights, tokenizer):
    """A folder as a trainer of another library would leave it."""
    folder.mkdir(parents=True, exist_ok=True)
    config.architectures = [architecture]
    config.save_pretrained(folder)
    save_file({k: v.contiguous().clone() for k, v in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    tokenizer.save_pretrained(folder)


def by_prefix(family, question, steps):
    """Values of all steps, one forward pass each."""
    with torch.no_grad():
        if isinstance(family, Implicit):
            ends = [family.prefix_value(question, steps[: k + 1], last=k + 1 == len(steps)) for k in range(len(steps))]
        else:
            ends = [family.prefix_value(question, steps[: k + 1]) for k in range(len(steps))]
    return np.array(ends, dtype=np.float32)


def characters():
    """A tokenizer that does not know every character."""
    return character_tokenizer("0123456789+-=.? abc\nSteptWhaiswr:")
