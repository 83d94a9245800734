"""What `prm.py` compares, on guerdon's side and on that of plain transformers: a process makes one measurement.

The models and the solutions are made in code, the same for all sides. TRL's side is `prm_trl.py`,
which needs an environment of its own.

    score_once("one_verdict", folder, SIZES["0.4M"], dtype="float32")
    train_once(model, folder, ["test"], seed=0, rate=1e-3, batch=16, budget=20.0, steps=10**6, warm=2, matched=True)
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import Stopwatch

STEPS, SEED = 8, 0
THINGS = ("apples", "boxes", "pencils", "marbles", "tickets", "cookies", "books", "coins", "stamps", "cards")
PEOPLE = ("Anna", "Ben", "Clara", "David", "Eva", "Felix", "Grace", "Henry")


@dataclass(frozen=True)
class Size:
    """A model, and how many solutions are scored."""

    hidden: int
    layers: int
    heads: int
    intermediate: int
    solutions: int


SIZES = {
    "0.4M": Size(128, 2, 4, 384, 64),
    "3M": Size(256, 4, 8, 768, 32),
    "25M": Size(512, 8, 8, 1408, 8),
    "0.5B": Size(1024, 24, 16, 4864, 64),  # for a GPU
}


def word_problem(rng: np.random.Generator) -> tuple[str, tuple[str, ...]]:
    """A question and a solution in 8 steps, about as long as those of GSM8K."""
    who, other = rng.choice(PEOPLE, 2, replace=False)
    thing = rng.choice(THINGS)
    a, b, c, d = (int(n) for n in rng.integers(3, 40, 4))
    question = (
        f"{who} has {a} shelves with {b} {thing} on each of them and buys {c} more {thing} at the market. Then {other} "
        f"takes {d} of the {thing} home and the rest is shared between both of them. How many {thing} does {who} have?"
    )
    steps = [f"There are {a} shelves with {b} {thing} on each, so there are {a} * {b} = {a * b} {thing} at first.\n"]
    left = a * b
    for k in range(STEPS - 2):
        change = int(rng.integers(2, 30))
        steps.append(f"After step {k + 1} there are {left} + {change} = {left + change} {thing} that they can share.\n")
        left += change
    steps.append(f"So {who} has {left} - {d} = {left - d} {thing} in the end. #### {left - d}")
    return question, tuple(steps)


def episodes(number: int) -> list[Any]:
    """Solutions as reward models score them."""
    from guerdon.types import Episode

    rng = np.random.default_rng(SEED)
    made = [word_problem(rng) for _ in range(number)]
    return [Episode(id=str(k), task=question, texts=steps) for k, (question, steps) in enumerate(made)]


def make_scorer(folder: Path, size: Size) -> str:
    """A Llama of random weights and a byte-level tokenizer that writes these solutions in few tokens."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    from guerdon.episodes.solution_formats import training_text
    from guerdon.policies.language.tiny_text import byte_tokenizer

    corpus = [training_text(e.task, e.texts) for e in episodes(200)]
    tokenizer = byte_tokenizer([*corpus, "CORRECT (+1) INCORRECT (-1)"], vocabulary_size=600)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=size.hidden, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.heads, intermediate_size=size.intermediate,
        max_position_embeddings=2048, initializer_range=size.hidden**-0.5, tie_word_embeddings=True,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(SEED)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def score_once(side: str, model: str, size: Size, *, dtype: str, micro: int) -> dict[str, Any]:
    """Score all solutions by one of the sides.

    Args:
        side: one_verdict, one_stepwise, prefix_guerdon, prefix_batched or prefix_single.
        model: folder of the language model.
        size: how many solutions.
        dtype: float32, or bfloat16 (autocast) on all sides.
        micro: solutions (or prompts, for guerdon's own form by prefixes) per forward pass.

    Returns:
        Times, solutions and tokens read, and the first solution's scores.
    """
    import torch

    torch.set_num_threads(1)
    asked = episodes(size.solutions)
    score, tokens = _scorer(side, model, dtype=dtype, micro=micro)
    score(asked[: max(2, micro // 4)])
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    runs, watch = 0, Stopwatch()
    while runs == 0 or watch.read()["core_seconds"] < 1.0:
        found = score(asked)
        runs += 1
    return {
        **watch.read(), "solutions": runs * len(asked), "tokens": tokens(asked) / len(asked),
        "scores": [float(x) for x in found[0]],
    }  # fmt: skip


def _scorer(side: str, path: str, *, dtype: str, micro: int) -> tuple[Any, Any]:
    """A function from solutions to their scores, and one to the tokens that it reads for them."""
    from verdict_prefixes import prefix_scores

    from guerdon.models.text.text_card import TextModelCard
    from guerdon.models.text.text_heads import StepwiseModel
    from guerdon.models.text.verdict import FORM, VerdictModel
    from guerdon.policies.language.text_files import load_policy
    from guerdon.settings.text_policy import TextPolicySettings

    if side in ("prefix_batched", "prefix_single"):
        return _by_transformers(path, dtype=dtype, micro=1 if side == "prefix_single" else micro * STEPS)
    policy = load_policy(TextPolicySettings(path=path, bf16=dtype == "bfloat16"), seed=SEED)
    kind = StepwiseModel if side == "one_stepwise" else VerdictModel
    form = "chat" if side == "one_stepwise" else FORM
    model = kind(policy, TextModelCard(kind="stepwise", form=form, loss="bce"), micro_batch_size=micro)  # type: ignore[abstract]
    if side == "prefix_guerdon":
        model.micro_batch_size = micro * STEPS
        return lambda asked: prefix_scores(model, asked), lambda asked: _prefix_tokens(model.tokenizer, asked)
    return (
        lambda asked: [s.steps for s in model.score(asked)],
        lambda asked: sum(len(model.reading_of(e)) for e in asked),
    )


def _by_transformers(path: str, *, dtype: str, micro: int) -> tuple[Any, Any]:
    """The seed's form with transformers alone: a prompt per step, the like-long together, the verdict's two logits."""
    import torch
    from transformers import AutoModelForCausalLM

    from guerdon.episodes.solution_formats import TARGETS, training_text
    from guerdon.policies.pretrained.reading import read_tokenizer

    tokenizer = read_tokenizer(path)
    tokenizer.padding_side = "left"
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="sdpa")
    network.to(device).eval()
    right, wrong = (tokenizer.encode(TARGETS[x], add_special_tokens=False)[0] for x in (True, False))

    @torch.inference_mode()
    def score(asked: Sequence[Any]) -> list[np.ndarray]:
        prompts = [training_text(e.task, e.texts[: k + 1]) for e in asked for k in range(len(e.texts))]
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
        values = np.zeros(len(prompts), dtype=np.float32)
        for start in range(0, len(order), micro):
            rows = order[start : start + micro]
            batch = tokenizer([prompts[i] for i in rows], return_tensors="pt", padding=True, add_special_tokens=False)
            with torch.autocast(device, torch.bfloat16, enabled=dtype == "bfloat16"):
                logits = network(
                    input_ids=batch["input_ids"].to(device), attention_mask=batch["attention_mask"].to(device),
                    logits_to_keep=1, use_cache=False,
                ).logits[:, -1].float()  # fmt: skip
            values[rows] = torch.sigmoid(logits[:, right] - logits[:, wrong]).cpu().numpy()
        return np.split(values, np.cumsum([len(e.texts) for e in asked])[:-1])

    return score, lambda asked: _prefix_tokens(tokenizer, asked)


def _prefix_tokens(tokenizer: Any, asked: Sequence[Any]) -> int:
    from guerdon.episodes.solution_formats import training_text

    texts = [training_text(e.task, e.texts[: k + 1]) for e in asked for k in range(len(e.texts))]
    return sum(len(tokenizer.encode(text, add_special_tokens=False)) for text in texts)


# training


def training_rows(family: dict[str, Any], number: int, seed: int, taken: Sequence[str] = ()) -> list[Any]:
    """Solutions of generated problems, half of them with a slip, every step labelled by its truth."""
    from pydantic import TypeAdapter

    from guerdon.evaluation.benchmarks.step_benchmarks import generated_bench
    from guerdon.settings.data import TaskSettings

    return generated_bench([TypeAdapter(TaskSettings).validate_python(family)], number, seed, exclude=taken)


def start_from(folder: Path, size: Size, family: dict[str, Any], *, sft_steps: int) -> str:
    """A small Llama that has seen worked solutions of these problems, as both sides start from it."""
    from guerdon.policies.language.text_files import load_policy, save_policy
    from guerdon.settings.study import Study
    from guerdon.settings.text_policy import TextPolicySettings, TinyModelSettings
    from guerdon.train.sft import train_sft_study

    shape = TinyModelSettings(
        hidden_size=size.hidden, layers=size.layers, heads=size.heads, intermediate=size.intermediate
    )
    if sft_steps == 0:
        save_policy(load_policy(TextPolicySettings(tiny=shape), seed=SEED), folder / "start")
        return str(folder / "start")
    study = Study.model_validate({
        "work_dir": str(folder),
        "policy": {"type": "text", "tiny": shape.model_dump(exclude_unset=True)},
        "data": {"type": "generated", "task": family, "train_size": 20000, "val_size": 32, "max_response_length": 128},
        "algorithm": {},
        "runner": {"total_steps": 1},
        "sft": {"save_dir": str(folder / "sft"), "max_steps": sft_steps, "learning_rate": 2e-3, "val_split": 0.01},
    })  # fmt: skip
    model, _ = train_sft_study(study, resume=False)
    return str(model)


def labelled_rows(path: str, part: int) -> list[Any]:
    """Labelled solutions up to their first wrong step; of five parts by question, 0: three, 1 and 2: one each."""
    from dataclasses import replace

    from guerdon.episodes.solution_files import read_solutions

    every = [s for s in read_solutions(path) if s.first_error is not None or None in s.labels]
    places = {q: k for k, q in enumerate(dict.fromkeys(s.question for s in every))}
    rows = []
    for s in every:
        known = s.labels.index(None) if None in s.labels else len(s.labels)
        if known and {0: 0, 1: 0, 2: 0, 3: 1, 4: 2}[places[s.question] % 5] == part:
            rows.append(replace(s, steps=s.steps[:known], labels=s.labels[:known], rewards=()))
    return rows


def shared_inputs(model: str, solutions: Sequence[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The same solutions as TRL's rows, and as guerdon's ids and places of labels.

    TRL puts the beginning of the sequence in front by itself, and a separator behind every step.
    """
    from guerdon.models.text.text_inputs import read_steps
    from guerdon.policies.pretrained.reading import read_tokenizer

    tokenizer = read_tokenizer(model)
    rows, readings = [], []
    for s in solutions:
        chat = tokenizer.apply_chat_template(
            [{"role": "user", "content": s.question}], tokenize=False, add_generation_prompt=True
        )
        rows.append({
            "prompt": chat.removeprefix(tokenizer.bos_token),
            "completions": [step.removesuffix(s.separator) for step in s.steps],
            "labels": [bool(label) for label in s.labels],
        })  # fmt: skip
        reading = read_steps(tokenizer, s.question, s.steps)
        readings.append({"ids": reading.ids.tolist(), "places": reading.ends_S.tolist(), "labels": rows[-1]["labels"]})
    return rows, readings


def train_once(
    model: str,
    data: str,
    parts: Sequence[str],
    *,
    seed: int,
    rate: float,
    batch: int,
    budget: float,
    steps: int,
    warm: int,
    matched: bool,
    packed: bool = False,
) -> dict[str, Any]:
    """Train guerdon's stepwise reward model for a time or a number of steps, then judge solutions.

    Args:
        model: folder of the language model to start from.
        data: folder with `train.jsonl` and others, of solutions.
        parts: which of the others are judged.
        seed: of the order of the solutions and of the fresh head.
        rate: learning rate.
        batch: solutions per gradient step.
        budget: stop after so many core-seconds of training; 0: after `steps`.
        steps: gradient steps at most.
        warm: steps that are not timed.
        matched: float32 as on the other side; else guerdon's defaults.
        packed: without padding.

    Returns:
        Times of the steps behind the warm-up, steps taken, and for each part a probability per step of its solutions.
    """
    import torch
    from clocked import Clocked

    from guerdon.episodes.solution_files import read_solutions
    from guerdon.settings.text_policy import TextPolicySettings
    from guerdon.settings.train import StepwiseTrainSettings
    from guerdon.train.reward_trainer import RewardTrainer
    from guerdon.train.text import Lessons, make_lessons, start_model

    torch.set_num_threads(1)
    train, *tests = (read_solutions(Path(data) / f"{name}.jsonl") for name in ("train", *parts))
    with tempfile.TemporaryDirectory() as folder:
        settings = StepwiseTrainSettings(
            save_dir=folder, path=model, bf16=False if matched else "auto", use_remove_padding=packed,
            learning_rate=rate, batch_size=batch,
            max_steps=steps, val_split=0.0, lr_scheduler="constant", warmup=0.0, weight_decay=0.0, save_steps=steps,
            log_every=10**6, seed=seed,
        )  # fmt: skip
        start = TextPolicySettings(path=model)
        network = start_model(settings, start, separator=train[0].separator)
        lessons, none = make_lessons(network, train, settings), Lessons([], [], [], [], [])
        trainer = RewardTrainer(network, lessons, none, settings, Path(folder))
        clock = Clocked(warm, budget)
        trainer.add_callback(clock)
        trainer._save_checkpoint = lambda *args, **kwargs: None
        trainer.train()
    judged = [network.score([s.as_episode() for s in test]) for test in tests]
    seconds, core = clock.spent()
    taken = len(clock.marks)
    return {
        "seconds": seconds, "core_seconds": core, "steps": taken, "solutions": batch * (taken - warm),
        "probabilities": [[[float(p) for p in s.steps] for s in scores if s.steps is not None] for scores in judged],
    }  # fmt: skip


def write_rows(path: Path, rows: Sequence[Any]) -> None:
    """Rows as JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
