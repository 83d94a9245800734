"""The sides of `preference_training.py`: pairs and a small model made in code, training, scoring.

make_shared(folder, SIZES["3M"])
train_once("trl", folder, "half", settings, steps=12, warm=2)
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import Stopwatch

SEED = 0
PLACES = ("harbour", "station", "library", "market", "garden", "museum", "bridge", "school")
THINGS = ("boat", "letter", "window", "lamp", "bicycle", "basket", "picture", "clock", "chair", "kettle")
ADVICE = ("check", "clean", "carry", "paint", "repair", "measure", "wrap", "store")
WORTH = {
    "carefully": 1.0, "slowly": 0.5, "twice": 0.3, "together": 0.8, "today": 0.0,
    "somehow": -1.0, "never": -0.8, "maybe": -0.5, "blindly": -0.7, "later": -0.2,
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    """A model."""

    hidden: int
    layers: int
    heads: int
    intermediate: int


SIZES = {"0.4M": Size(128, 2, 4, 384), "3M": Size(256, 4, 8, 768), "360M": Size(960, 32, 15, 2560)}


@dataclass(frozen=True)
class Shape:
    """Sentences of a prompt and of a response, drawn evenly between two numbers."""

    prompt: tuple[int, int]
    response: tuple[int, int]


SHAPES = {
    "short": Shape((1, 3), (2, 6)),  # to learn from
    "half": Shape((5, 15), (5, 15)),  # prompts have half of the tokens
    "none": Shape((0, 0), (5, 25)),  # prompts are one word
}


def response(rng: np.random.Generator, sentences: int) -> tuple[str, float]:
    """Advice, and its worth by the gold reward: the mean worth of how things are to be done, times 4."""
    said, worth = [], 0.0
    for _ in range(sentences):
        how = str(rng.choice(list(WORTH)))
        worth += WORTH[how]
        said.append(f"You should {rng.choice(ADVICE)} the {rng.choice(THINGS)} {how}.")
    return " ".join(said), 4.0 * worth / sentences


def make_pairs(number: int, shape: Shape, seed: int) -> list[dict[str, Any]]:
    """Pairs as messages; which is chosen is drawn from the gold reward by Bradley and Terry's model."""
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(number):
        facts = [
            f"There is a {rng.choice(THINGS)} in the {rng.choice(PLACES)}, {rng.integers(2, 90)} steps from the door."
            for _ in range(int(rng.integers(shape.prompt[0], shape.prompt[1] + 1)))
        ]
        prompt = " ".join([*facts, "What now?"]) if facts else str(rng.choice(PLACES))
        (a, worth_a), (b, worth_b) = (
            response(rng, int(rng.integers(shape.response[0], shape.response[1] + 1))) for _ in range(2)
        )
        if rng.random() > 1 / (1 + math.exp(worth_b - worth_a)):
            a, b = b, a
        rows.append({
            "prompt": [{"role": "user", "content": prompt}],
            "chosen": [{"role": "assistant", "content": a}],
            "rejected": [{"role": "assistant", "content": b}],
        })  # fmt: skip
    return rows


def make_shared(folder: Path, size: Size) -> None:
    """A Llama of random weights with a byte-level tokenizer that writes these texts in few tokens."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from guerdon.policies.language.tiny_text import byte_tokenizer

    corpus = [m["content"] for row in make_pairs(300, SHAPES["half"], SEED + 99) for part in row.values() for m in part]
    tokenizer = byte_tokenizer(corpus, vocabulary_size=600)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=size.hidden, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.heads, intermediate_size=size.intermediate,
        max_position_embeddings=2048, initializer_range=size.hidden**-0.5, tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(SEED)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_rows(path: Path, rows: Sequence[Any]) -> None:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """JSON lines."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class PeakMemory:
    """Most memory of this process since it was made, over what it had then, in MiB (Linux).

    Args:
        gpu: that of the GPU's allocator.
    """

    def __init__(self, gpu: bool = False) -> None:
        self.gpu = gpu
        if gpu:
            import torch

            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated() / 2**20
            return
        Path("/proc/self/clear_refs").write_text("5")
        self.before = self._read("VmRSS")

    @staticmethod
    def _read(name: str) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(f"{name}:"))

    def read(self) -> dict[str, float]:
        """MiB over the beginning, and in all."""
        if self.gpu:
            import torch

            peak = torch.cuda.max_memory_allocated() / 2**20
        else:
            peak = self._read("VmHWM")
        return {"mib": peak - self.before, "mib_in_all": peak}


def train_once(
    side: str, folder: Path, data: str, *, steps: int, warm: int, batch: int = 8, rate: float = 1e-4, seed: int = 0,
    micro: int | None = None, bf16: bool = False, checkpointing: bool = False, save: Path | None = None,
    gpu: bool = False, profiler: Any = None,
) -> dict[str, Any]:  # fmt: skip
    """Train by one of the sides from the same folder on the same pairs.

    Args:
        side: guerdon or trl.
        folder: the language model and tokenizer that both start from.
        data: name of the file of pairs in it.
        steps: gradient steps.
        warm: of them not timed.
        batch: pairs per gradient step.
        rate: learning rate, falling evenly to 0.
        seed: of the order of the pairs and of the fresh head.
        micro: pairs per forward pass; None: the batch.
        bf16: bfloat16 as each side does it.
        checkpointing: recompute activations.
        save: folder for the trained classifier.
        gpu: on the GPU.
        profiler: of torch, which records the steps behind the warm-up; None: nothing is recorded.

    Returns:
        Times and memory of the steps behind the warm-up, and the pairs of these steps.
    """
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    start = _start_guerdon if side == "guerdon" else _start_trl
    given = {"steps": steps, "batch": batch, "rate": rate, "seed": seed, "micro": micro}
    trainer, write = start(folder, data, bf16=bf16, checkpointing=checkpointing, **given)
    from clocked import Clocked

    clock = Clocked(warm, 0.0)
    trainer.add_callback(clock)
    if profiler is not None:
        trainer.add_callback(_recording(profiler, warm))
    memory = PeakMemory(gpu)
    trainer.train()
    if profiler is not None:
        profiler.stop()
    found = memory.read()
    seconds, core = clock.spent()
    if save is not None:
        write(save)
    return {
        "seconds": seconds, "core_seconds": core, "pairs": batch * (len(clock.marks) - warm), "steps": len(clock.marks),
        "gpu": gpu, **found,
    }  # fmt: skip


def _recording(profiler: Any, warm: int) -> Any:
    """A callback of Trainer that starts a profiler behind the warm-up."""
    from transformers import TrainerCallback

    class Recording(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == warm:
                profiler.start()

    return Recording()


def _start_guerdon(
    folder: Path, data: str, *, steps: int, batch: int, rate: float, seed: int, micro: int | None, bf16: bool,
    checkpointing: bool,
) -> tuple[Any, Callable[[Path], Any]]:  # fmt: skip
    from guerdon.settings.text_policy import TextPolicySettings
    from guerdon.settings.train import PreferenceTrainSettings
    from guerdon.train.preferences import PreferenceTrainer, read_preference_data
    from guerdon.train.text import start_model

    settings = PreferenceTrainSettings(
        save_dir=str(folder / "guerdon"), path=str(folder), data_path=str(folder / f"{data}.jsonl"), bf16=bf16,
        gradient_checkpointing=checkpointing, learning_rate=rate, batch_size=batch, micro_batch_size=micro,
        max_steps=steps, val_split=0.0, lr_scheduler="linear", warmup=0.0, weight_decay=0.0, save_steps=steps + 1,
        log_every=10, seed=seed,
    )  # fmt: skip
    model = start_model(settings, TextPolicySettings(path=str(folder)), separator="")
    lessons, none = read_preference_data(settings).lessons(model, settings)
    trainer = PreferenceTrainer(model, lessons, none, settings, folder / f"guerdon{os.getpid()}")
    trainer._save_checkpoint = lambda *args, **kwargs: Path(  # type: ignore[method-assign]
        trainer.args.output_dir, f"checkpoint-{trainer.state.global_step}"
    ).mkdir(parents=True)
    return trainer, model.write


def _start_trl(
    folder: Path, data: str, *, steps: int, batch: int, rate: float, seed: int, micro: int | None, bf16: bool,
    checkpointing: bool,
) -> tuple[Any, Callable[[Path], Any]]:  # fmt: skip
    import datasets
    import torch
    from trl import RewardConfig, RewardTrainer

    datasets.disable_progress_bars()
    micro = micro or batch
    arguments = RewardConfig(
        output_dir=str(folder / f"trl{os.getpid()}"), per_device_train_batch_size=micro,
        gradient_accumulation_steps=batch // micro, learning_rate=rate, max_steps=steps, lr_scheduler_type="linear",
        weight_decay=0.0, max_grad_norm=1.0, bf16=bf16, gradient_checkpointing=checkpointing,
        use_cpu=not torch.cuda.is_available(), logging_steps=10, save_strategy="no", report_to="none",
        disable_tqdm=True, seed=seed, optim="adamw_torch_fused", dataloader_pin_memory=False,
    )  # fmt: skip
    rows = datasets.Dataset.from_list(read_rows(folder / f"{data}.jsonl"))
    trainer = RewardTrainer(model=str(folder), args=arguments, train_dataset=rows)

    def write(to: Path) -> None:
        trainer.save_model(str(to))

    return trainer, write


def right_order(folder: Path, rows: Sequence[dict[str, Any]]) -> list[bool]:
    """Whether transformers' own classifier of a folder ranks each pair as it was drawn."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    values = []
    for start in range(0, len(rows), 32):
        some = rows[start : start + 32]
        chats = [row["prompt"] + row[which] for row in some for which in ("chosen", "rejected")]
        batch = tokenizer.apply_chat_template(chats, padding=True, return_tensors="pt", return_dict=True)
        with torch.inference_mode():
            logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[:, 0]
        values += (logits[::2] > logits[1::2]).tolist()
    return values


def score_guerdon(model: Path, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Rewards of all responses by the loaded model, as `guerdon score` asks it."""
    import torch

    from guerdon.models.text.text_load import load_text_model
    from guerdon.types import Episode

    torch.set_num_threads(1)
    loaded = load_text_model(str(model))
    asked = [
        Episode(id=f"{k}", task=row["prompt"][0]["content"], texts=(row[which][0]["content"],))
        for k, row in enumerate(rows)
        for which in ("chosen", "rejected")
    ]
    loaded.score(asked[:4])
    watch = Stopwatch()
    values = [one.total for one in loaded.score(asked)]
    return {**watch.read(), "pairs": len(rows), "values": values}


def score_loop(model: Path, rows: Sequence[dict[str, Any]], *, batch: int) -> dict[str, Any]:
    """RewardBench's loop with the installed transformers: its call of tokenizer and model, padding, batch size."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.padding_side = "left"
    network = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32).eval()

    def pipe(samples: list[str]) -> list[float]:
        inputs = tokenizer(samples, truncation=False, padding=True, return_tensors="pt", return_token_type_ids=False)
        with torch.no_grad():
            return network(**inputs).logits[:, 0].tolist()  # type: ignore[no-any-return]

    texts = {
        which: [tokenizer.apply_chat_template(row["prompt"] + row[which], tokenize=False) for row in rows]
        for which in ("chosen", "rejected")
    }
    pipe(texts["chosen"][:2])
    watch, values = Stopwatch(), []
    for start in range(0, len(rows), batch):
        both = [pipe(texts[which][start : start + batch]) for which in ("chosen", "rejected")]
        values += [value for pair in zip(*both, strict=True) for value in pair]
    return {**watch.read(), "pairs": len(rows), "values": values}
