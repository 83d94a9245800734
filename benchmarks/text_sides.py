"""What `text_rl.py` compares: a process makes one of these measurements and tells it.

The model, the problems and the checker of answers are the same on all sides.

    one("trl_grpo", model_folder, SIZES["0.4M"])
"""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from harness import Stopwatch


@dataclass(frozen=True)
class Size:
    """A model and how much of it is measured."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocabulary: int | None  # None: the tokenizer's 103
    prompts: int
    samples: int
    length: int
    warm: int
    steps: int
    lora: int | None = None  # rank; None: all weights are trained
    at_once: int = 256  # prompts that are answered at once, where generation alone is measured
    written: int | None = None  # tokens of each of those answers; None: length


SIZES = {
    "0.4M": Size(128, 2, 4, 4, 384, None, 16, 4, 64, 2, 6),
    "3M": Size(256, 4, 8, 8, 768, None, 16, 4, 64, 1, 2),
    "smollm2": Size(576, 30, 9, 3, 1536, 49_152, 8, 8, 16, 1, 1, lora=16, at_once=64, written=32),  # its shape
    "0.5B": Size(896, 24, 14, 2, 4864, 151_936, 2, 4, 16, 1, 1),  # the shape of Qwen2-0.5B
}
TASK = {"family": "chain", "steps": 10}
PROBLEMS, SEED, RATE = 512, 0, 1e-6
ALGORITHM = {  # every key that the name of an estimator would decide, so that a measured table stays what it was
    "adv_estimator": "rloo", "normalize_advantages": True, "loss": "ppo", "loss_agg": "token", "learning_rate": RATE,
}  # fmt: skip


def make_model(folder: Path, size: Size) -> str:
    """A Qwen2 of random weights that never ends a response, with a tokenizer of one token per character."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config

    from guerdon.policies.language.tiny_text import build_tokenizer
    from guerdon.settings.text_policy import TinyModelSettings

    tokenizer = build_tokenizer(TinyModelSettings())
    config = Qwen2Config(
        vocab_size=size.vocabulary or len(tokenizer), hidden_size=size.hidden, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, num_key_value_heads=size.kv_heads, intermediate_size=size.intermediate,
        max_position_embeddings=4096, tie_word_embeddings=True, bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():  # direction 0 is constant and positive in every hidden state; the end points against it
        weight = model.get_input_embeddings().weight
        weight[:, 0] = 3.0
        weight[[tokenizer.eos_token_id, tokenizer.pad_token_id], 0] = -30.0
        for layer in model.get_decoder().layers:
            layer.self_attn.o_proj.weight[0] = 0.0
            layer.mlp.down_proj.weight[0] = 0.0
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def data_section(size: Size) -> dict[str, Any]:
    """Problems, answers and sizes, as guerdon's configuration has them."""
    return {
        "task": TASK, "train_size": PROBLEMS, "val_size": 1, "max_response_length": size.length,
        "train_batch_size": size.prompts, "n_samples": size.samples, "filter_accuracy": False,
        "filter_truncated": False,
    }  # fmt: skip


def policy_section(model: str, size: Size, *, matched: bool) -> dict[str, Any]:
    """A model as guerdon's configuration has it."""
    lora = {"lora": {"r": size.lora, "alpha": 2 * size.lora}} if size.lora else {}
    return {"type": "text", "path": model, **lora, **({"bf16": False, "attention": "sdpa"} if matched else {})}


def between(marks: list[dict[str, float]], warm: int) -> dict[str, float]:
    """Both times from the end of the warm-up to the end."""
    return {name: marks[-1][name] - marks[warm - 1][name] for name in marks[-1]}


class Phases:
    """Seconds of this process by name of what it did, reset after the warm-up."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Any:
        """Count the time inside a block."""
        start = time.process_time()
        yield
        self.seconds[name] += time.process_time() - start

    def timed(self, owner: Any, method: str, name: str) -> None:
        """Count the time inside a method of this object."""
        inner = getattr(owner, method)

        def outer(*args: Any, **kwargs: Any) -> Any:
            with self(name):
                return inner(*args, **kwargs)

        setattr(owner, method, outer)


def timed_updates(study: dict[str, Any], folder: Path, *, profile: int = 0) -> list[dict[str, float]]:
    """The watch after every update of guerdon's loop; no evaluation, no checkpoint.

    Args:
        study: a configuration.
        folder: of the run.
        profile: updates to record; 0: none.
    """
    from guerdon.rl.loop import Loop
    from guerdon.settings.study import Study

    marks = []

    class Timed(Loop):
        """Reads the watch after every update."""

        def iterate(self) -> None:
            super().iterate()
            marks.append(watch.read())

    loop = Timed(Study.model_validate(study), folder, profile=profile)
    loop._save = lambda *_: None  # type: ignore[method-assign]  # the end of a run is not part of a step
    loop._complete = dict  # type: ignore[method-assign]
    loop._evaluate = lambda *_: None  # type: ignore[method-assign]
    watch = Stopwatch()
    loop.run()
    return marks


def run_guerdon(
    model: str,
    size: Size,
    *,
    matched: bool,
    prime: bool = False,
    algorithm: dict[str, Any] | None = None,
    traces: Path | None = None,
) -> dict[str, Any]:
    """Updates of guerdon's loop, logs included; no evaluation, no checkpoint.

    Args:
        model: its folder.
        size: how much of it is measured.
        matched: as the other sides compute.
        prime: with a process reward.
        algorithm: keys instead of `ALGORITHM`'s.
        traces: receives the profile of all updates but the first; None: nothing is recorded.
    """
    rows = size.prompts * size.samples
    never = 10**12
    study: dict[str, Any] = {
        "runner": {
            "total_steps": rows * (size.warm + size.steps), "eval_every": never, "eval_episodes": 1, "seed": SEED,
            "checkpoint_every": never, "logger": {"tensorboard": False},
        },
        "policy": policy_section(model, size, matched=matched),
        "data": data_section(size),
        "algorithm": ALGORITHM | (algorithm or {}),
    }  # fmt: skip
    if prime:
        micro = {"mini_batch_size": rows, "micro_batch_size": rows}
        study["reward_model"] = {"rm_type": "prime", **micro, "prime_model": {"update": "after"}}
    with tempfile.TemporaryDirectory() as folder:
        recorded = 0 if traces is None else size.warm + size.steps - 1
        marks = timed_updates(study, Path(folder), profile=recorded)
        log = [json.loads(line) for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
        times = [json.loads(line) for line in (Path(folder) / "timings.jsonl").read_text().splitlines()][size.warm :]
        if traces is not None:
            shutil.copytree(Path(folder) / "profile", traces, dirs_exist_ok=True)
    tokens = [row["tokens_generated"] for row in log if "tokens_generated" in row][-1]
    names = {name for row in times for name in row if name.startswith("seconds/")}
    phases = {name.removeprefix("seconds/"): sum(row.get(name, 0.0) for row in times) for name in sorted(names)}
    return {
        **between(marks, size.warm), "samples": rows * size.steps, "tokens": tokens, "updates": size.steps,
        "phases": phases,
    }  # fmt: skip


def run_trl(model: str, size: Size, *, kind: str, bf16: bool) -> dict[str, Any]:
    """Steps of TRL's trainer."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    from guerdon.policies.pretrained.reading import read_tokenizer
    from guerdon.settings.data import GeneratedDataSettings
    from guerdon.tasks.prompt_files import load_prompts
    from guerdon.tasks.verifier import outcome, verifier_from

    torch.set_num_threads(1)
    data = GeneratedDataSettings.model_validate(data_section(size))
    prompts, _ = load_prompts(data)
    verifier = verifier_from(data)
    rows, phases, marks, written = size.prompts * size.samples, Phases(), [], []
    watch = Stopwatch()

    def reward(completions: list[Any], completion_ids: list[Any], number: list[int], **_: Any) -> list[float]:
        written.append(sum(len(ids) for ids in completion_ids))
        texts = [c[0]["content"] for c in completions]
        found = [outcome(j, data.unparsable) for j in verifier.check_batch(texts, [prompts[i] for i in number])]
        return [f if isinstance(f, float) else 0.0 for f in found]

    class Marks(TrainerCallback):
        """Reads the watch after every step."""

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            marks.append(watch.read())
            if len(marks) == size.warm:
                phases.seconds.clear()

    adapters = None
    if size.lora:
        from peft import LoraConfig

        adapters = LoraConfig(r=size.lora, lora_alpha=2 * size.lora, target_modules="all-linear", task_type="CAUSAL_LM")
    config, trainer = (GRPOConfig, GRPOTrainer) if kind == "grpo" else (RLOOConfig, RLOOTrainer)
    with tempfile.TemporaryDirectory() as folder:
        arguments = config(
            output_dir=folder, per_device_train_batch_size=rows, gradient_accumulation_steps=1,
            generation_batch_size=rows, num_generations=size.samples, max_completion_length=size.length,
            num_iterations=1, beta=0.0, temperature=1.0, learning_rate=RATE, lr_scheduler_type="constant",
            max_steps=size.warm + size.steps, bf16=bf16, use_cpu=not torch.cuda.is_available(),
            gradient_checkpointing=False, use_vllm=False, logging_strategy="no", save_strategy="no", report_to="none",
            disable_tqdm=True, seed=SEED,
        )  # fmt: skip
        network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
        trainer_ = trainer(
            model=network,
            reward_funcs=reward,
            args=arguments,
            processing_class=read_tokenizer(model),
            train_dataset=Dataset.from_list(
                [{"prompt": [dict(m) for m in p.messages], "number": i} for i, p in enumerate(prompts)]
            ),
            callbacks=[Marks()],
            peft_config=adapters,
        )
        phases.timed(trainer_, "_generate_single_turn", "generate")
        phases.timed(trainer_, "_calculate_rewards", "verify")
        trainer_.train()
    verifier.close()
    return {
        **between(marks, size.warm), "samples": rows * size.steps, "tokens": written[-1], "updates": size.steps,
        "phases": dict(phases.seconds),
    }  # fmt: skip


def requests(model: str, size: Size) -> tuple[Any, list[np.ndarray]]:
    """The tokenizer, and token ids of as many different prompts as are written to at once."""
    from guerdon.policies.batches.tokens import prompt_ids
    from guerdon.policies.pretrained.reading import read_tokenizer
    from guerdon.settings.data import GeneratedDataSettings
    from guerdon.tasks.prompt_files import load_prompts

    prompts, _ = load_prompts(GeneratedDataSettings.model_validate(data_section(size)))
    tokenizer = read_tokenizer(model)
    return tokenizer, [prompt_ids(tokenizer, p.messages) for p in prompts[: size.at_once]]


def run_write(model: str, size: Size, *, dtype: str, vllm: bool = False) -> dict[str, Any]:
    """Generation by guerdon; on a CPU with its own engine also where its time goes, and what arithmetic alone takes."""
    import torch

    from guerdon.policies.language.generate import LocalEngine
    from guerdon.policies.language.text_files import load_policy
    from guerdon.settings.text_policy import LocalGenerationSettings, TextPolicySettings, VLLMGenerationSettings

    torch.set_num_threads(1)
    _, prompts = requests(model, size)
    rng = np.random.default_rng(SEED)
    policy = load_policy(TextPolicySettings(path=model, bf16=dtype == "bfloat16"), seed=SEED)
    if vllm:
        from guerdon.policies.language.generate_vllm import VLLMEngine

        engine: Any = VLLMEngine(policy, VLLMGenerationSettings(engine="vllm"), max_length=1024)
    else:
        engine = LocalEngine(policy, LocalGenerationSettings(batch_size=size.at_once))

    def write() -> int:
        found = engine.generate(prompts, 1, max_new_tokens=size.written or size.length, rng=rng)
        return int(found.batch.mask_B_T.sum())

    write()
    watch = Stopwatch()
    tokens = sum(write() for _ in range(size.steps))
    result = {**watch.read(), "samples": len(prompts) * size.steps, "tokens": tokens, "runs": size.steps}
    if vllm and torch.cuda.is_available():
        free = torch.cuda.mem_get_info()[0]
        engine.rest()
        result["given_back"] = torch.cuda.mem_get_info()[0] - free
        write()
    alone = vllm or torch.cuda.is_available()
    return result if alone else {**result, **_composition(write, size, max(len(p) for p in prompts), dtype)}


def _composition(write: Callable[[], int], size: Size, prompt: int, dtype: str) -> dict[str, Any]:
    """Shares of a request's time by what it is for, and the `floor` of the measured requests."""
    from torch.profiler import ProfilerActivity, profile

    before = floor_seconds(size, prompt, dtype)
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        write()
    spent: dict[str, float] = defaultdict(float)
    for event in seen.key_averages():
        spent[_part_of(event.key)] += event.self_cpu_time_total
    return {
        "shares": {name: value / sum(spent.values()) for name, value in spent.items()},
        "floor": size.steps * (before + floor_seconds(size, prompt, dtype)) / 2,
    }


def _part_of(operation: str) -> str:
    """What an operation of torch is for, while a response is written."""
    parts = {
        "weights": ("aten::addmm", "aten::mm", "mkldnn", "aten::linear"),
        "attention": ("aten::bmm", "aten::baddbmm", "aten::_softmax", "aten::softmax", "flash", "scaled_dot"),
        "sampling": ("_log_softmax", "cumsum", "searchsorted", "aten::exp", "aten::gather", "logsumexp"),
    }
    return next((name for name, marks in parts.items() if any(m in operation for m in marks)), "the rest")


def floor_seconds(size: Size, prompt: int, dtype: str) -> float:
    """Core-seconds of one request's products with weights alone, in the same shapes, each layer with its own."""
    import torch

    from guerdon.policies.language.decoding import READ_AT_ONCE

    head, kind, written = size.hidden // size.heads, getattr(torch, dtype), size.written or size.length
    shapes = [
        (size.hidden, (size.heads + 2 * size.kv_heads) * head),
        (size.heads * head, size.hidden),
        (size.hidden, 2 * size.intermediate),
        (size.intermediate, size.hidden),
    ] * size.layers
    weights = [torch.randn(outward, inward, dtype=kind) for inward, outward in shapes]
    last = torch.randn(size.vocabulary or 103, size.hidden, dtype=kind)

    def seconds(rows: int, *of: torch.Tensor) -> float:
        best = float("inf")
        given = {w.shape[1]: torch.randn(rows, w.shape[1], dtype=kind) for w in of}
        for _ in range(4):
            watch = Stopwatch()
            for w in of:
                torch.nn.functional.linear(given[w.shape[1]], w)
            best = min(best, watch.read()["core_seconds"])
        return best

    tokens = size.at_once * prompt
    rows = min(READ_AT_ONCE, tokens)
    reading = seconds(rows, *weights) * tokens / rows
    return reading + (written - 1) * seconds(size.at_once, *weights) + written * seconds(size.at_once, last)


def run_hf(model: str, size: Size, *, dtype: str) -> dict[str, Any]:
    """Generation by transformers' `generate`, from the same prompts."""
    import torch
    from transformers import AutoModelForCausalLM

    from guerdon.policies.batches.tokens import pad_left

    torch.set_num_threads(1)
    tokenizer, prompts = requests(model, size)
    network = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype), attn_implementation="sdpa")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    network.eval().to(device)
    ids, real = pad_left(prompts, tokenizer.pad_token_id)
    torch.manual_seed(SEED)

    @torch.inference_mode()
    def write() -> int:
        found = network.generate(
            input_ids=torch.from_numpy(ids).to(device), attention_mask=torch.from_numpy(real).long().to(device),
            do_sample=True, temperature=1.0, top_k=0, max_new_tokens=size.written or size.length,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        return int((found[:, ids.shape[1] :] != tokenizer.pad_token_id).sum())

    write()
    watch = Stopwatch()
    tokens = sum(write() for _ in range(size.steps))
    return {**watch.read(), "samples": len(prompts) * size.steps, "tokens": tokens, "runs": size.steps}


def one(side: str, model: str, size: Size) -> dict[str, Any]:
    """One measurement, in this process, its peak memory in MB, and that of torch on the GPU in bytes."""
    import torch

    found = _measured(side, model, size)
    gpu = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return {**found, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "gpu_peak": gpu}


def _measured(side: str, model: str, size: Size) -> dict[str, Any]:
    kind, _, how = side.partition("_")
    if kind == "trl":
        return run_trl(model, size, kind=how.split("_")[0], bf16=how.endswith("bf16"))
    if kind == "verl":
        from verl_side import run_verl

        return run_verl(model, size)
    if kind == "hf":
        return run_hf(model, size, dtype=how)
    if kind in ("write", "vllm"):
        return run_write(model, size, dtype=how, vllm=kind == "vllm")
    return run_guerdon(model, size, matched=how in ("matched", "float32"), prime=kind == "prime")
