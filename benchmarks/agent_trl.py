"""Training on conversations of four turns with calls of a tool: guerdon next to TRL's GRPOTrainer, on one core.

    python benchmarks/agent_trl.py --core=0 --repetitions=5

Both sides have the same model with random weights (float32, sdpa), the chat template `qwen2_5` of TRL, as many prompts,
samples and gradient steps (one a batch), and every conversation is the same: three calls of a function and an answer.
The model samples as many tokens as each reply has, and the reply then takes their place. Whole steps count: generation,
calls, rewards, the update. Every measurement is a process of its own, sides take turns, and the first step is left out.
TRL is without gradient checkpointing, KL, logs and saving. The target is a ratio of 1.5.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from harness import Stopwatch, core_share, machine_line, measure, pin, ratios, report_measurement, spread
from text_sides import timed_updates

TURNS, PROMPTS, SAMPLES, WARM, STEPS = 4, 8, 4, 1, 3
SIDES = ("guerdon", "trl")
CALL = "<tool_call>\n" + json.dumps({"name": "look", "arguments": {"place": "north"}}) + "\n</tool_call>"
ANSWER = "There are seven boats in the harbour and two of them are red, so the number is 7"
FOUND = "two boats, a red one and a blue one, and nothing else in the north of the harbour"
SIZES = {"0.4M": (128, 2, 4), "3M": (256, 4, 8), "25M": (576, 8, 9)}


def look(place: str) -> str:
    """Look at a place.

    Args:
        place: where to look
    """
    return FOUND


def make_model(folder: Path, name: str) -> str:
    """A Qwen2 of random weights with TRL's template and a small vocabulary."""
    import torch
    from transformers import AutoModelForCausalLM, Qwen2Config
    from trl.chat_template_utils import qwen2_5_chat_template

    from guerdon.policies.language.tiny_text import byte_tokenizer

    hidden, layers, heads = SIZES[name]
    tokenizer = byte_tokenizer([qwen2_5_chat_template, CALL, ANSWER, FOUND], vocabulary_size=800)
    tokenizer.chat_template = qwen2_5_chat_template
    tokenizer.add_special_tokens({"eos_token": "<|im_end|>", "additional_special_tokens": ["<|im_start|>"]})
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads, intermediate_size=3 * hidden, max_position_embeddings=4096,
        tie_word_embeddings=True, bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def replies_of(tokenizer: Any) -> list[list[int]]:
    """Ids of the replies of a conversation, all of the same length, each with its end."""
    texts = [CALL] * (TURNS - 1) + [ANSWER]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    length = max(map(len, ids))
    filler = tokenizer.encode(" and", add_special_tokens=False)
    last = (ids[-1] + filler * length)[:length]
    assert all(len(one) == length for one in ids[:-1]), "the answer is the shorter one"
    return [[*one, tokenizer.eos_token_id] for one in [*ids[:-1], last]]


def of_guerdon(model: str) -> dict[str, Any]:
    """Steps of guerdon's loop."""
    import torch

    from guerdon.policies.language.generate import LocalEngine
    from guerdon.policies.pretrained.reading import read_tokenizer

    torch.set_num_threads(1)
    tokenizer = read_tokenizer(model)
    replies, rounds = replies_of(tokenizer), []
    write = LocalEngine.generate

    def forced(self: LocalEngine, prompts: Any, n: int, **given: Any) -> Any:
        self._is_stop_V.zero_()  # every reply has all its tokens
        found = write(self, prompts, n, **given)
        reply = replies[len(rounds) % TURNS]
        rounds.append(int(found.batch.mask_B_T.sum()))
        assert found.batch.responses_B_T.shape[1] == len(reply)
        found.batch.responses_B_T[:] = reply
        found.batch.finished_B[:] = True
        return found

    LocalEngine.generate = forced  # type: ignore[method-assign]

    never = 10**12
    study: dict[str, Any] = {
        "runner": {
            "total_steps": PROMPTS * SAMPLES * (WARM + STEPS), "eval_every": never, "eval_episodes": 1,
            "checkpoint_every": never, "logger": {"tensorboard": False},
        },
        "policy": {"type": "text", "path": model, "bf16": False, "attention": "sdpa"},
        "data": {
            "task": {"family": "chain", "steps": 10}, "train_size": 64, "val_size": 1,
            "max_response_length": len(replies[0]), "train_batch_size": PROMPTS, "n_samples": SAMPLES,
            "filter_accuracy": False, "filter_truncated": False,
        },
        "agent": {"type": "tools", "tools": ["agent_trl:look"], "max_turns": TURNS, "calls_at_once": 8},
        "algorithm": {"adv_estimator": "rloo", "normalize_advantages": True, "learning_rate": 1e-6},
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        marks = timed_updates(study, Path(folder))
    return result(marks, rounds)


def of_trl(model: str) -> dict[str, Any]:
    """Steps of TRL's trainer."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from guerdon.policies.pretrained.reading import read_tokenizer
    from guerdon.settings.data import GeneratedDataSettings
    from guerdon.tasks.prompt_files import load_prompts

    torch.set_num_threads(1)
    tokenizer = read_tokenizer(model)
    replies, rounds, marks = replies_of(tokenizer), [], []
    task = {"task": {"family": "chain", "steps": 10}, "train_size": 64, "val_size": 1, "max_response_length": 8}
    prompts, _ = load_prompts(GeneratedDataSettings.model_validate(task))
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa")
    write = network.generate

    def forced(generation_config: Any = None, **given: Any) -> Any:
        reply = torch.tensor(replies[len(rounds) % TURNS])
        size = {"max_new_tokens": len(reply), "min_new_tokens": len(reply)}
        found = write(generation_config=generation_config, **size, **given)
        new = found[:, given["input_ids"].shape[1] :]
        assert new.shape[1] == len(reply)
        rounds.append(new.numel())
        new[:] = reply
        return found

    network.generate = forced
    watch = Stopwatch()

    class Marks(TrainerCallback):
        """Reads the watch after every step."""

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            marks.append(watch.read())

    turns: list[int] = []

    def reward(completions: list[Any], **_: Any) -> list[float]:
        turns.extend(sum(message["role"] == "assistant" for message in one) for one in completions)
        return [float(k % 2) for k in range(len(completions))]

    rows = PROMPTS * SAMPLES
    with tempfile.TemporaryDirectory() as folder:
        arguments = GRPOConfig(
            output_dir=folder, per_device_train_batch_size=rows, gradient_accumulation_steps=1,
            generation_batch_size=rows, num_generations=SAMPLES, max_completion_length=1000, num_iterations=1,
            beta=0.0, temperature=1.0, learning_rate=1e-6, lr_scheduler_type="constant", max_steps=WARM + STEPS,
            bf16=False, use_cpu=not torch.cuda.is_available(), gradient_checkpointing=False, use_vllm=False,
            logging_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True, seed=0,
        )  # fmt: skip
        GRPOTrainer(
            model=network,
            reward_funcs=reward,
            args=arguments,
            processing_class=tokenizer,
            train_dataset=Dataset.from_list([{"prompt": [dict(m) for m in p.messages]} for p in prompts]),
            callbacks=[Marks()],
            tools=[look],
        ).train()
    assert set(turns) == {TURNS}, turns
    return result(marks, rounds)


def result(marks: list[dict[str, float]], rounds: list[int]) -> dict[str, Any]:
    """Times of the measured steps, and the tokens that were sampled in them."""
    assert len(rounds) == TURNS * (WARM + STEPS), rounds
    times = {name: marks[-1][name] - marks[WARM - 1][name] for name in marks[-1]}
    return {**times, "tokens": sum(rounds[TURNS * WARM :])}


def main() -> None:
    """Print a table as Markdown, or do one measurement (`--side`)."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="0.4M,3M", help=f"of {', '.join(SIZES)}, separated by commas")
    parser.add_argument("--core", type=int, default=0, help="the core that everything runs on")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--side", choices=SIDES, help="one measurement in this process, of --model")
    parser.add_argument("--model", help="the folder of the model of that measurement")
    given = parser.parse_args()
    pin([given.core])
    if given.side:
        report_measurement({"guerdon": of_guerdon, "trl": of_trl}[given.side](given.model))
        return
    print(machine_line(["transformers", "trl"]))
    for name in given.sizes.split(","):
        with tempfile.TemporaryDirectory() as folder:
            model = make_model(Path(folder), name)
            found: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
            for _ in range(given.repetitions):
                for side, runs in found.items():
                    runs.append(measure(__file__, {"side": side, "model": model, "core": given.core}))
        assert len({run["tokens"] for runs in found.values() for run in runs}) == 1
        speeds = {side: [run["tokens"] / run["core_seconds"] for run in runs] for side, runs in found.items()}
        ratio = ratios(speeds["guerdon"], speeds["trl"])
        print(f"| {name} | {' | '.join(spread(speeds[side], 0) for side in SIDES)} | {spread(ratio)} |", flush=True)
        print(core_share(found))


if __name__ == "__main__":
    main()
