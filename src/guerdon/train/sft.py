"""Supervised fine-tuning of a language model on prompts and responses (`guerdon train policy=sft`).

transformers' `Trainer` minimises the mean negative log-likelihood of the response tokens, the end-of-sequence token
included; prompts teach nothing. Prompts held out never share a question with the training pairs. Ids and
log-probabilities come from the same functions as in RL, so the policy starts RL exactly as it was trained. The
result is one model that stands by itself (adapters merged), to be named as `policy.path`. While a training runs, its
resumable state lies in `<save_dir>/trainer`. This module does not know where pairs come from, nor rewards.

    pairs = [((({"role": "user", "content": "3+5=?"}),), "3+5=8")]
    folder, metrics = train_sft(pairs, SFTSettings(save_dir="runs/sft"), TextPolicySettings(tiny=TinyModelSettings()))
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from guerdon.atomic import write_json
from guerdon.errors import ConfigError, DataError, boundary
from guerdon.policies.text_files import load_policy, save_policy
from guerdon.policies.tokens import prompt_ids, response_ids
from guerdon.settings.text_policy import SFTSettings, TextPolicySettings
from guerdon.train.sft_trainer import ResponseTrainer, TokenPairs
from guerdon.train.trainer import newest_checkpoint
from guerdon.types import IntArray

Pair = tuple[Sequence[Mapping[str, str]], str]
_FREE = {"save_dir", "resume", "log_every", "tensorboard", "eval_every"}  # what a resumed training may change


def train_sft(
    pairs: Sequence[Pair], settings: SFTSettings, policy_settings: TextPolicySettings
) -> tuple[Path, dict[str, Any]]:
    """Fine-tune the model of the `policy` section.

    Args:
        pairs: chat messages that end with the user's turn, and the response to learn.
        settings: the `sft` section.
        policy_settings: the `policy` section; adapters are trained and then merged.

    Returns:
        The model's folder (`save_dir/model`), and numbers: `val_loss` (nats per response token on held-out prompts,
        None without any), `train_loss` (of the last logged steps), `steps`, counts and `seconds`.

    Raises:
        DataError: no pairs, too few to hold some out, or a loss that is not finite.
        ConfigError: resuming with other settings or data than the training started with.
        CheckpointError: the model cannot be read.
    """
    started = time.perf_counter()
    policy = load_policy(policy_settings, seed=settings.seed)
    room = getattr(policy.base.model.config, "max_position_embeddings", None)
    tokens = tokenize_pairs(policy.tokenizer, pairs[: settings.examples], settings.max_length or room)
    train, val = split_by_prompt(tokens, settings.val_split, settings.seed)
    save_dir = Path(settings.save_dir)
    record = {
        "settings": settings.model_dump(mode="json", exclude=_FREE),
        "policy": policy_settings.model_dump(mode="json"),
        "data": _hash(tokens),
    }
    finished = _compare(save_dir, record) if settings.resume else None
    if finished is not None:
        return save_dir / "model", finished
    folder = save_dir / "trainer"
    resumed_from = newest_checkpoint(folder) if settings.resume else None
    if resumed_from is None:
        shutil.rmtree(folder, ignore_errors=True)
        write_json(save_dir / "training.json", record | {"finished": False})
    trainer = ResponseTrainer(policy, tokens, train, val, settings, folder)
    trainer.train(resume_from_checkpoint=None if resumed_from is None else str(resumed_from))
    metrics = _metrics(trainer, tokens, train, val) | {"seconds": round(time.perf_counter() - started, 3)}
    if trainer.is_world_process_zero():
        save_policy(policy, save_dir / "model", merged=True)
        write_json(save_dir / "metrics.json", metrics)
        write_json(save_dir / "training.json", record | {"finished": True})
        shutil.rmtree(folder, ignore_errors=True)
    return save_dir / "model", metrics


def tokenize_pairs(tokenizer: Any, pairs: Sequence[Pair], max_length: int | None) -> TokenPairs:
    """Ids of all pairs; those longer than `max_length` are left out and counted.

    Raises:
        DataError: nothing is left.
    """
    prompts, responses = [], []
    for messages, text in pairs:
        prompt, response = prompt_ids(tokenizer, messages), response_ids(tokenizer, text)
        if max_length is None or len(prompt) + len(response) <= max_length:
            prompts.append(prompt)
            responses.append(response)
    if not prompts:
        raise DataError(
            f"none of {len(pairs)} pairs of prompt and response is left to learn from"
            + (f": all are longer than {max_length} tokens" if pairs else "; does the data have solutions?")
        )
    return TokenPairs(prompts, responses, len(pairs) - len(prompts))


def split_by_prompt(tokens: TokenPairs, val_split: float, seed: int) -> tuple[IntArray, IntArray]:
    """Indices to train on and to hold out; all pairs of a prompt are on one side.

    Raises:
        DataError: a share is to be held out and there is only one prompt.
    """
    names = np.array([hashlib.sha256(p.tobytes()).hexdigest() for p in tokens.prompts])
    kinds = np.unique(names)
    if val_split == 0:
        return np.arange(len(names)), np.zeros(0, dtype=np.int64)
    if len(kinds) < 2:
        raise DataError("one prompt is too few to hold some out: give more, or set sft.val_split: 0")
    count = int(np.clip(round(len(kinds) * val_split), 1, len(kinds) - 1))
    held = np.isin(names, np.random.default_rng([seed, 5]).permutation(kinds)[:count])
    return np.flatnonzero(~held), np.flatnonzero(held)


def _hash(tokens: TokenPairs) -> str:
    digest = hashlib.sha256()
    for prompt, response in zip(tokens.prompts, tokens.responses, strict=True):
        digest.update(len(prompt).to_bytes(8, "little") + len(response).to_bytes(8, "little"))
        digest.update(prompt.tobytes() + response.tobytes())
    return digest.hexdigest()


def _compare(save_dir: Path, record: dict[str, Any]) -> dict[str, Any] | None:
    """Metrics of the training in `save_dir` if it is finished; refuse to continue another one than asked."""
    path = save_dir / "training.json"
    if not path.is_file():
        return None
    with boundary(DataError, f"{path} cannot be read"):
        before = json.loads(path.read_text(encoding="utf-8"))
        finished = before.pop("finished")
        metrics: dict[str, Any] | None = None
        if finished:
            metrics = json.loads((save_dir / "metrics.json").read_text(encoding="utf-8"))
    if metrics is None and newest_checkpoint(save_dir / "trainer") is None:
        return None  # it ended before there was anything to go on from
    changed = sorted(k for k in record if before.get(k) != record[k])
    if changed:
        raise ConfigError(
            f"cannot resume the training in {save_dir}: it was started with other {', '.join(changed)}; restore them, "
            "or train without resume"
        )
    return metrics


def _metrics(trainer: Any, tokens: TokenPairs, train: IntArray, val: IntArray) -> dict[str, Any]:
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {
        "val_loss": trainer.evaluate()["eval_loss"] if len(val) else None,
        "train_loss": losses[-1] if losses else None,
        "steps": trainer.state.global_step,
        "best_step": trainer.state.best_global_step if len(val) else None,
        "pairs": len(train),
        "val_pairs": len(val),
        "left_out": tokens.left_out,
        "response_tokens": sum(len(tokens.responses[i]) for i in train),
    }
